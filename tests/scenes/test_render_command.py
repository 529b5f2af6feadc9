"""`seewhen scenes render`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from PIL import Image

from seewhen.scenes import render, sample


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from seewhen.cli import main; main()", "scenes", "render", *arguments],
        capture_output=True,
        text=True,
    )


def test_writes_pictures_truth_and_questions(tmp_path: Path) -> None:
    done = run("--n", "4", "--seed", "3", "--questions", "--out", str(tmp_path / "new" / "folder"))
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "new" / "folder"
    records = json.loads((folder / "scenes.json").read_text())
    assert [record["index"] for record in records] == [0, 1, 2, 3]
    for record in records:
        drawn = render(sample("test", record["index"], seed=3))
        with Image.open(folder / record["image"]) as image:
            assert image.convert("RGB").tobytes() == drawn.tobytes()
    pope = [json.loads(line) for line in (folder / "pope_random.jsonl").read_text().splitlines()]
    assert {record["image"] for record in pope} <= {record["image"] for record in records}
    assert set(json.loads((folder / "chair.json").read_text())) == {record["image"] for record in records}
    image, question, answer = (folder / "mme_count.txt").read_text().splitlines()[0].split("\t")
    assert (folder / image).is_file() and question.endswith("yes or no.") and answer == "Yes"
    assert not list(folder.glob(".*"))


def test_mistakes_are_one_line_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for arguments in (["--split", "nope", "--out", str(tmp_path)], ["--n", "1", "--out", str(tmp_path / "file")]):
        done = run(*arguments)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1 and done.stderr.startswith("error: ")
