"""The documentation does what it says: its Python runs, its links lead somewhere, its commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/**/*.md")])
# Pages whose Python needs nothing but the package.
RUNNABLE = ("docs/quickstart.md", "docs/scenes.md", "docs/speed.md")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)


@pytest.mark.parametrize("name", RUNNABLE)
def test_python_runs(name, tmp_path, monkeypatch):
    from seewhen.scenes import dataset, render

    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    render(dataset("shifted", 4)[3]).save(tmp_path / "demo" / "scene.png")  # what `seewhen demo` leaves there
    found = blocks(ROOT / name, "python")
    assert found
    for code in found:
        exec(compile(code, name, "exec"), {})


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
