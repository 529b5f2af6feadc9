"""Notes under an answer name the method once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from command import Ran

Run = Callable[..., Ran]


def test_a_note_names_the_method_once(run: Run, scene: Path, checkpoint: Path) -> None:
    ran = run("describe", scene, "--model", checkpoint, "-n", 3, "--set", "threshold=50", "--set", "start_layer=1")
    assert ran.code == 0
    (note,) = [line for line in ran.err.splitlines() if line.startswith("note: cai")]
    assert note.startswith("note: cai:start_layer=1,threshold=50 was attached but never fired")


def test_a_beam_search_says_so_once(run: Run, scene: Path, checkpoint: Path) -> None:
    ran = run("describe", scene, "--model", checkpoint, "-n", 3, "-M", "opera")
    assert ran.code == 0 and "note: opera is a beam search: 5 beams\n" in ran.err


def test_files_beside_an_answer_are_told_apart_from_it(
    run: Run, scene: Path, checkpoint: Path, tmp_path: Path
) -> None:
    page, trace = tmp_path / "page.html", tmp_path / "trace.json"
    command = ("describe", scene, "--model", checkpoint, "-n", 2, "--html", page, "--trace", trace)
    for more in ([], ["--json"]):
        ran = run(*command, *more)
        assert ran.code == 0 and page.is_file() and trace.is_file()
        told, said = (" ".join(text.split()) for text in (ran.err, ran.out))
        assert page.name in told and trace.name in told
        assert page.name not in said and trace.name not in said
