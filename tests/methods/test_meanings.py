"""Every parameter says what it means, where it is declared; the command line and the page show it."""

from __future__ import annotations

import dataclasses
from typing import Annotated, ClassVar

import pytest
from typer.testing import CliRunner

from seewhen.cli import app
from seewhen.decoding.method import Method, meanings
from seewhen.methods import method_class, method_names


@pytest.mark.parametrize("name", method_names())
def test_every_parameter_has_a_meaning(name: str):
    cls = method_class(name)
    told = meanings(cls)
    assert list(told) == [field.name for field in dataclasses.fields(cls)]
    for parameter, meaning in told.items():
        assert len(meaning) >= 12 and not meaning.endswith("."), (parameter, meaning)


def test_meanings_are_shown():
    ran = CliRunner().invoke(app, ["methods", "memvr"])
    assert ran.exit_code == 0
    shown = " ".join(ran.output.split())
    for meaning in meanings(method_class("memvr")).values():
        assert meaning in shown
    assert "('none' | 'silu')" in shown


def test_a_parameter_without_a_meaning_is_shown_without():
    @dataclasses.dataclass(frozen=True)
    class Terse(Method):
        name: ClassVar[str] = "terse"
        told: Annotated[int, "how many"] = 1
        untold: int | None = None

    assert meanings(Terse) == {"told": "how many", "untold": ""}
