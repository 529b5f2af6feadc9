"""docs/add-a-benchmark.md does what it says: its package is found by its entry point, run, reported and scored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pages import install, run

# Each command in turn, in one process: a process of its own would spend its time on importing torch.
_COMMANDS = """
import shlex, sys
from seewhen.cli import main
for line in open("use.sh"):
    sys.argv = shlex.split(line)
    try:
        main()
    except SystemExit as stopped:
        assert not stopped.code, line
"""

_SCORES = """
import json
from pathlib import Path
from seewhen.plugin import Options
from seewhen_whole import Whole
whole = Whole.open(Path("pictures"), Options())
perfect = {sample.id: str(sample.truth) for sample in whole.samples()}
one_wrong = perfect | {whole.samples()[0].id: "maybe"}
print(json.dumps([whole.score(answers).metrics for answers in (perfect, one_wrong)]))
"""


@pytest.mark.slow
def test_the_page(tmp_path: Path) -> None:
    files = install("add-a-benchmark.md", tmp_path)
    assert set(files) == {"pyproject.toml", "seewhen_whole/__init__.py", "use.sh"}
    printed = run(tmp_path, _COMMANDS)
    assert "whole: 24 answers; parser strict" in printed and "WHOLE all (files, 4 images)" in printed
    result = json.loads((tmp_path / "runs/cai/result.json").read_text())["metrics"]["whole"]
    assert result["low"] < result["value"] < result["high"]
    report = (tmp_path / "report/report.md").read_text()
    assert "Whole images ↑" in report and "CAI − Regular" in report

    best, worse = json.loads(run(tmp_path, _SCORES))
    assert best == {"whole": 100, "accuracy": 100}
    assert abs(worse["whole"] - 75) < 1e-9 and abs(worse["accuracy"] - 2300 / 24) < 1e-9
