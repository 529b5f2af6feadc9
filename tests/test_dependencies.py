"""What is declared: everything that is imported, and in the lock file everything that gets installed."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
_INSTALLERS = {"seewhen", "pip", "setuptools", "wheel"}


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = [re.fullmatch(r"([\w.-]+)==([\w.+!]+)", line) for line in lines if line and not line.startswith("#")]
    assert all(found), "every line of the lock file is NAME==VERSION"
    return {canonicalize_name(each[1]): each[2] for each in found if each}


def declared() -> Iterator[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for texts in (project["dependencies"], *project["optional-dependencies"].values()):
        yield from map(Requirement, texts)


def test_everything_that_gets_installed_is_pinned() -> None:
    known, seen = pins(), set()
    todo = [each for each in declared() if each.name != "seewhen" and "==" not in str(each.specifier)]
    while todo:
        each = todo.pop()
        key = (canonicalize_name(each.name), frozenset(each.extras))
        try:
            inner = [Requirement(text) for text in requires(each.name) or []]
        except PackageNotFoundError:  # not for this system or not installed here
            continue
        if key in seen:
            continue
        seen.add(key)
        assert key[0] in known or key[0] in _INSTALLERS, f"{each.name} is not in constraints.txt"
        extras = each.extras or {""}
        todo += [r for r in inner if r.marker is None or any(r.marker.evaluate({"extra": e}) for e in extras)]
    assert len(seen) > 50


def test_the_lock_file_satisfies_what_is_declared() -> None:
    known = pins()
    for each in declared():
        version = known.get(canonicalize_name(each.name))
        assert version is None or each.specifier.contains(version, prereleases=True), f"{each} but {version}"


def test_what_transformers_refuses_is_not_allowed() -> None:
    """It takes an older package for none, whatever is installed."""
    from transformers.integrations.peft import MIN_PEFT_VERSION
    from transformers.utils.import_utils import ACCELERATE_MIN_VERSION, BITSANDBYTES_MIN_VERSION

    oldest = {
        "accelerate": ACCELERATE_MIN_VERSION,
        "bitsandbytes": BITSANDBYTES_MIN_VERSION,
        "peft": MIN_PEFT_VERSION,
    }
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    ours = [Requirement(text) for extra in ("quant", "adapters") for text in extras[extra]]
    assert {each.name for each in ours} == set(oldest)
    for each in ours:
        (bound,) = each.specifier
        assert bound.operator == ">=" and Version(bound.version) >= Version(oldest[each.name]), each.name


def test_what_the_notice_names_is_there() -> None:
    named = re.findall(r"\bsrc/[\w./-]*\w", (ROOT / "NOTICE").read_text(encoding="utf-8"))
    assert len(named) > 4 and [path for path in named if not (ROOT / path).exists()] == []
