"""What every method promises, cell by cell of the table in `matrix.py`.

Off is the plain model bit for bit, on changes the scores, a batch is its rows alone, beams carry their own state,
a static cache equals a growing one, a compiled step equals an eager one. What is particular to a method (its
formula, its published numbers) is in its own file.
"""

from __future__ import annotations

from typing import Any

import pytest
from matrix import MATRIX, Setting

import promises
from seewhen.decoding.method import Method
from seewhen.methods import method_class, method_names


def test_every_method_has_a_row() -> None:
    assert set(MATRIX) >= {name for name in method_names() if method_class(name).__module__.startswith("seewhen.")}


def _cells() -> list[Any]:
    slow = pytest.mark.slow  # tracing takes seconds; a contrast stands for all where time matters
    return [
        pytest.param(
            promise,
            *cell,
            id=f"{name}-{promise}-{cell[1]}",
            marks=slow if promise == "compiled" and name != "vcd" else (),
        )
        for name, row in MATRIX.items()
        for promise, cells in row.items()
        for cell in cells
    ]


@pytest.mark.parametrize(("promise", "setting", "family", "options"), _cells())
def test_promise(promise: str, setting: Setting, family: str, options: dict[str, Any]) -> None:
    check = getattr(promises, f"check_{promise}")
    made = setting if isinstance(setting, Method) else setting(family)
    said = options.get("warns")
    given = {name: value for name, value in options.items() if name != "warns"}
    if said:
        with pytest.warns(UserWarning, match=said):
            check(family, made, **given)
    else:
        check(family, made, **given)
