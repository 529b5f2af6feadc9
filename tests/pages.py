"""Pages of documentation whose files are written out and used as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
TESTS = Path(__file__).parent


def files_of(page: str) -> dict[str, str]:
    """The blocks of a page that name a file."""
    return dict(re.findall(r"^```\w+ file=(\S+)\n(.*?)^```$", (DOCS / page).read_text(), flags=re.S | re.M))


def install(page: str, folder: Path) -> dict[str, str]:
    """Leaves the page's package in a folder as pip would, entry points included; returns its files."""
    files = files_of(page)
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    project = tomllib.loads(files["pyproject.toml"])["project"]
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return files


def run(site: Path, code: str) -> str:
    """What a program prints that finds the package of a page."""
    paths = os.pathsep.join([str(site), str(TESTS), str(TESTS / "methods"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        cwd=site,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
