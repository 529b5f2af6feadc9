"""The documentation does what it says: its Python runs, its links lead somewhere, its commands exist."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/**/*.md")])
# Pages whose Python needs nothing but the package.
_PAGES = ("confirm", "index", "quickstart", "scenes", "script", "speed", "try")
FIRST = tuple(f"docs/{name}.md" for name in ("index", "quickstart", "script", "try"))  # run in an empty folder
RUNNABLE = tuple(f"docs/{name}.md" for name in _PAGES)


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)


@pytest.mark.parametrize("name", RUNNABLE)
def test_python_runs(name, tmp_path, monkeypatch):
    from seewhen.scenes import dataset, render
    from seewhen.verdicts.ceiling import ceiling

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("seewhen.runs.diagnosis.ceiling", partial(ceiling, replicates=60))
    if name not in FIRST:
        render(dataset("shifted", 4)[3]).save(tmp_path / "scene.png")  # `seewhen scenes render`
    found = blocks(ROOT / name, "python")
    assert found
    names: dict[str, object] = {}  # the blocks of a page are one script
    for code in found:
        exec(compile(code, name, "exec"), names)


def test_python_of_the_readme_gives_a_page_with_maps(tmp_path, monkeypatch):
    """`model` and `inputs` are the reader's own, as any script of transformers makes them."""
    from PIL import Image

    import seewhen
    from seewhen.scenes import dataset, render
    from showing.viewer.page_data import payload_of

    monkeypatch.chdir(tmp_path)
    render(dataset("shifted", 4)[3]).save("photo.jpg")
    model, processor = seewhen.load()
    text = [{"type": "image"}, {"type": "text", "text": "Please describe this image in detail."}]
    prompt = processor.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)
    inputs = processor(images=Image.open("photo.jpg"), text=prompt, return_tensors="pt")
    (code,) = blocks(ROOT / "README.md", "python")
    exec(compile(code, "README.md", "exec"), {"model": model, "inputs": {**inputs, "max_new_tokens": 8}})
    (answer,) = payload_of(tmp_path / "page.html")["answers"]
    assert answer["words"] and all(each["bytes"] for each in answer["maps"]["relevance"])
    assert answer["maps"]["before"] and answer["maps"]["entropy"]


@pytest.mark.slow
def test_a_script_of_the_reader_is_typed(tmp_path):
    """As `mypy --strict` sees the page of scripts; the settings are those of the package, which is read along."""
    script = tmp_path / "script.py"
    script.write_text("\n".join(blocks(ROOT / "docs/script.md", "python")), encoding="utf-8")
    settings = ("--config-file", ROOT / "pyproject.toml", "--cache-dir", tmp_path / "cache")
    command = [sys.executable, "-m", "mypy", *settings, script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_tests_that_pages_name_are_there():
    """By path, by file, or by function alone."""
    told = {page: page.read_text(encoding="utf-8") for page in PAGES if page.name != "CHANGELOG.md"}
    files = {file: file.read_text(encoding="utf-8") for file in ROOT.glob("tests/**/test_*.py")}
    names = {file.name for file in files} | {str(file.relative_to(ROOT)) for file in files}
    names |= set(re.findall(r"^def (test_\w+)", "\n".join(files.values()), re.M))
    named = {
        (page.name, name)
        for page, text in told.items()
        for name in re.findall(r"`((?:tests/[\w/]+\.py|test_\w+(?:\.py)?))", text)
    }
    assert named and not [each for each in named if each[1] not in names]


def test_names_are_given_once_in_a_room():
    package, found = ROOT / "src" / "seewhen", []
    for file in package.rglob("*.py"):
        room, *inside = file.relative_to(package).parts
        classes = [node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef)]
        of_benchmark = room == "benchmarks" and len(inside) > 1
        modules = [] if file.stem == "__init__" or of_benchmark else [file.stem]
        found += [(room, name) for name in classes + modules]
    assert [name for name, times in Counter(found).items() if times > 1] == []


def test_who_knows_a_benchmark_by_name_is_listed():
    """CONTRIBUTING says which files import from the folder of one."""
    package = ROOT / "src" / "seewhen"
    known = re.compile(r"seewhen\.benchmarks\.(pope|chair|mme|amber)\b")
    files = [file.relative_to(package) for file in package.rglob("*.py") if known.search(file.read_text())]
    outside = {str(file) for file in files if file.parts[0] != "benchmarks"}
    line = re.search(r"CHAIR alone is known outside.*?\n- ", (ROOT / "CONTRIBUTING.md").read_text(), re.S)
    assert outside == set(re.findall(r"`([\w/]+\.py)`", line[0]))
    assert {found for file in outside for found in known.findall((package / file).read_text())} == {"chair"}
    assert {file.parts[1] for file in files if file.parts[0] == "benchmarks"} <= {"pope", "chair", "mme", "amber"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    targets = [target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    missing = [
        target
        for target in targets
        if target and not re.match(r"[a-z]+:", target) and not (page.parent / target).exists()
    ]
    assert not missing, missing


def test_commands_in_shell_blocks_exist():
    from typer.main import get_command

    from seewhen.cli import app

    known = set(get_command(app).commands)  # type: ignore[attr-defined]
    used = {
        match
        for page in PAGES
        for block in blocks(page, "sh")
        for match in re.findall(r"^\s*seewhen ([a-z]+)", block, re.M)
    }
    assert used and used <= known, used - known


def test_promises_of_security_name_tests_that_exist():
    """Each promise is an entry of a list, with the tests that keep it."""
    page = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    promises = re.findall(r"^- (.*?)(?=^- |^#|^$|\Z)", page, re.S | re.M)
    assert len(promises) > 25
    for promise in promises:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", promise)
        assert named, f"no test keeps: {promise}"
        for file, test in named:
            assert re.search(rf"^def {test}\(", (ROOT / file).read_text(encoding="utf-8"), re.M), f"{file}::{test}"


def test_committed_results_hold():
    """Of the runs that are too long for a test."""

    def result(name):
        return json.loads((ROOT / "benchmarks" / name).read_text(encoding="utf-8"))

    crowd = result("server/results/strangers.json")
    assert crowd["broken"] == [] and crowd["honest_clients"] >= 64 and crowd["strangers"]["most_open"] >= 9_000
    assert crowd["strangers"]["at_a_time"] >= 10_000
    requests = result("server/results/fuzz.json")
    assert requests["requests"] >= 10_000 and requests["answers_of_a_wrong_kind"] == 0
    files = result("strangers/results/fuzz.json")
    assert files["files"] >= 20_000 and files["raw_exceptions"] == 0
    soak = result("soak.json")
    assert all(part["held"] for part in soak["parts"].values()) and len(soak["parts"]) == 4
    assert "**no**" not in (ROOT / "benchmarks/strangers/results/repairs.md").read_text(encoding="utf-8")


def test_repairs_can_still_be_undone():
    """`benchmarks/strangers/repairs.py` undoes each to see its tests fail; here only that its places are there."""
    from strangers.repairs import REPAIRS

    for repair in REPAIRS:
        source = (ROOT / "src/seewhen" / repair.file).read_text(encoding="utf-8")
        assert repair.old in source, f"{repair.what}: {repair.old!r} is not in {repair.file}"
        assert (ROOT / repair.tests.split()[0]).is_file(), repair.what
