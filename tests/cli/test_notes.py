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
