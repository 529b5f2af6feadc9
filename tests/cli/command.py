"""The command line called in a test's own process, and what it left behind."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from seewhen import cli


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def in_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """`call("describe", path)`: what the installed command does, without starting a process."""

    def call(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["seewhen", *map(str, arguments)])
        monkeypatch.setattr(cli, "_debug", False)
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        out, err = capsys.readouterr()
        return Ran(int(exit_.value.code or 0), out, err)

    return call
