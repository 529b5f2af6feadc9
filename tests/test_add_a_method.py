"""docs/add-a-method.md does what it says: its package is made, found by its entry points, and used."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "add-a-method.md"
TESTS = Path(__file__).parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page's package as pip would leave it there."""
    folder = tmp_path_factory.mktemp("site")
    files = dict(re.findall(r"^```\w+ file=(\S+)\n(.*?)^```$", PAGE.read_text(), flags=re.S | re.M))
    assert set(files) == {"pyproject.toml", "seewhen_doubt/__init__.py", "seewhen_doubt/feedback.py", "use.py"}
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
    return folder


def run(site: Path, code: str) -> str:
    paths = os.pathsep.join([str(site), str(TESTS), str(TESTS / "methods"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_page(site: Path) -> None:
    """The example runs as printed, and its methods keep the promises the page names."""
    prelude = "import tiny\nmodel, inputs = tiny.model('{0}'), tiny.inputs('{0}', rows=2)\n"
    promises = """
import promises as p
from seewhen_doubt import Doubt
p.check_off("llava", Doubt(strength=0.0))
for family in ("llava", "qwen2_5_vl"):
    for promised in (Doubt(), method):
        p.check_batch(family, promised)
        p.check_acts(family, promised)
        p.check_beams(family, promised)
p.check_static_cache("llava", method)
p.check_compiled("llava", method)

assert {"doubt", "feedback"} <= set(seewhen.method_names())
for wrong in (lambda: seewhen.method("doubt", strength=-1),
              lambda: seewhen.attach(model, "feedback").__enter__()):
    try:
        wrong()
    except seewhen.SeewhenError as error:
        print(error)
"""
    out = run(site, prelude.format("llava") + (site / "use.py").read_text() + promises)
    assert out.splitlines()[0] == "feedback: 16 tokens in 2 rows"
    assert "strength=-1 is negative" in out.splitlines()[-2] and "register_painter" in out.splitlines()[-1]
