"""Tables that leave the terminal: whole names, and every preset."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from command import Ran

from seewhen.decoding.method import make
from seewhen.errors import InvalidMethod
from seewhen.methods import method_class

Run = Callable[..., Ran]


@pytest.mark.parametrize("name", ["cai", "vcd", "memvr", "pai"])
def test_every_preset_and_its_values_are_listed(run: Run, name: str) -> None:
    ran = run("methods", name)
    lines = [line.split() for line in ran.out.splitlines()]
    for preset, found in method_class(name).presets.items():
        row = next(line for line in lines if preset in line[:2])
        if "/" in preset:
            shared = {" ".join(line) for line in lines}
            for key, value in found.values.items():
                assert repr(value) in row or f"{key} = {value!r}" in shared


def test_names_of_models_are_whole_in_a_pipe(run: Run) -> None:
    out = run("models").out
    assert "mistralai/Mistral-Small-3.1-24B-Instruct-2503" in out


def test_an_unknown_preset_is_answered_briefly() -> None:
    with pytest.raises(InvalidMethod, match=r"adaptive, paper, reference, and 27 for a model") as told:
        make(method_class("cai"), "nonsense")
    assert len(str(told.value)) < 200
