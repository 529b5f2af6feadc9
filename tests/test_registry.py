"""Names for classes of other packages: packages as pip leaves them, good and broken ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.command import in_process
from runs.tiny_checkpoint import write
from seewhen.errors import InvalidMethod
from seewhen.methods import known
from seewhen.methods.grammar import parse
from seewhen.registry import Registry
from seewhen.runs.evaluate import Ask, evaluate

METHOD = """
from dataclasses import dataclass
from typing import ClassVar
from seewhen.plugin import Method

@dataclass(frozen=True)
class {0}(Method):
    name: ClassVar[str] = "{1}"
"""
Install = Callable[..., Registry]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """`install("package", text, name="Class")`: the package is there, and the registry knows its entry points."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(package: str, text: str, /, **entries: str) -> Registry:
        (tmp_path / f"{package}.py").write_text(text)
        info = tmp_path / f"{package}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
        lines = [f"{name} = {package}:{found}\n" for name, found in entries.items()]
        (info / "entry_points.txt").write_text("[seewhen.methods]\n" + "".join(lines))
        registry = Registry("method", "seewhen.methods", known.METHODS.base, known.METHODS.built_in)
        for module in ("known", "grammar", "catalogue"):
            monkeypatch.setattr(f"seewhen.methods.{module}.METHODS", registry)
        for module in ("methods", "runs.versions"):
            monkeypatch.setattr(f"seewhen.{module}.METHODS", registry)
        return registry

    return make


def test_a_package_of_another_is_found(install: Install) -> None:
    registry = install("pkg_fine", METHOD.format("Mine", "Mine"), Mine="Mine")
    assert registry.load("Mine").__name__ == "Mine" and registry.working[-1] == "Mine"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def (:", r"'doubt' of pkg_\w+ cannot be loaded: SyntaxError: .*import pkg_"),
        ("import nowhere_at_all", "cannot be loaded: ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("1 / 0", "cannot be loaded: ZeroDivisionError"),
        ("", "has no attribute 'Doubt'"),
        ("Doubt = 5", "gives 5, which is not a subclass of Method"),
        (METHOD.format("Doubt", "dobut"), "'doubt' of pkg_.* gives Doubt, whose name is 'dobut'"),
        (METHOD.format("Doubt", ""), "gives Doubt, whose name is ''"),
    ],
)
def test_a_broken_package_is_told_and_hides_no_other(
    text: str,
    told: str,
    install: Install,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    registry = install(f"pkg_{abs(hash(text))}", text, doubt="Doubt")
    with pytest.raises(InvalidMethod, match=told):
        registry.load("doubt")
    call = in_process(monkeypatch, capsys)
    assert call("methods", "doubt").code == 2
    with pytest.warns(UserWarning, match=told):
        ran = call("methods", "--json")
    assert ran.code == 0 and [each["name"] for each in json.loads(ran.out)] == list(registry.built_in)


def test_a_name_that_two_packages_have_is_refused(install: Install) -> None:
    install("pkg_one", METHOD.format("Doubt", "doubt"), doubt="Doubt")
    registry = install("pkg_two", METHOD.format("Doubt", "doubt"), doubt="Doubt")
    with pytest.raises(InvalidMethod, match=r"'doubt' is in pkg_(one|two) and in pkg_(one|two)"):
        registry.load("doubt")


def test_nobody_takes_the_name_of_a_method_of_ours(
    install: Install, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else a run of "cai" would be ours for one reader and theirs for another."""
    registry = install("pkg_thief", METHOD.format("Cai", "cai"), cai="Cai")
    with pytest.raises(InvalidMethod, match="'cai' is in seewhen and in pkg_thief"):
        registry.load("cai")
    ran = in_process(monkeypatch, capsys)("eval", "pope", "--method", "cai")
    assert ran.code == 2 and "is in seewhen and in pkg_thief" in ran.err
    assert registry.load("pai").name == "pai"


def test_names_with_capitals_are_reached(
    install: Install, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install("pkg_capitals", METHOD.format("Mine", "Mine"), Mine="Mine")
    call = in_process(monkeypatch, capsys)
    assert call("methods", "Mine").code == 0 and call("methods", "CAI").code == 0


def test_a_run_says_of_which_version_a_method_is(install: Install, tmp_path: Path) -> None:
    """Another version of the package is another configuration, and the run is not gone on with."""
    install("pkg_versioned", METHOD.format("Doubt", "doubt"), doubt="Doubt")
    (tmp_path / "tiny").mkdir()
    ask = Ask("pope", scenes=1, limit=1, max_new_tokens=1, model=str(write(tmp_path / "tiny")))
    directory, _ = evaluate(ask, parse("doubt+regular"), tmp_path / "runs")
    versions = json.loads((directory / "manifest.json").read_text())["config"]["versions"]
    assert versions["pkg_versioned"] == "1" and "seewhen" in versions
    directory, _ = evaluate(ask, parse("regular"), tmp_path / "runs")
    assert "pkg_versioned" not in json.loads((directory / "manifest.json").read_text())["config"]["versions"]
