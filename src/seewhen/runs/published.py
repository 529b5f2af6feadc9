"""The paper's own figures, cell by cell, with where they stand and what is wrong with them.

The data file `data/published.json` holds every table of the CAI paper as printed. Slips found in them
(a mean that is not the mean, a unit that cannot be right) are notes attached to cells; the printed value
stays what it is and `recomputed` says what it should have been.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Note:
    """A remark on one or more published cells."""

    kind: str  # arithmetic, rounding, order, marking, unit, definition, protocol, text
    text: str
    recomputed: float | None = None


@dataclass(frozen=True)
class Cell:
    """One published figure: what it measures, its value, where it is printed."""

    table: str
    number: int
    row: int
    column: int
    facets: tuple[tuple[str, Any], ...]  # benchmark, model, dataset, split, method, metric, max_new_tokens
    value: float
    notes: tuple[Note, ...]

    def get(self, name: str) -> Any:
        return dict(self.facets).get(name)

    @property
    def provenance(self) -> str:
        """For example: CAI paper, Table 2, row 5, column 1 (coco random cai, LLaVA-1.5 accuracy)."""
        what = " ".join(str(value) for name, value in self.facets if name != "benchmark")
        return f"CAI paper, Table {self.number}, row {self.row + 1}, column {self.column + 1} ({what})"


@cache
def document() -> Mapping[str, Any]:
    """The data file as it is."""
    text = (files("seewhen.runs") / "data" / "published.json").read_text(encoding="utf-8")
    loaded: Mapping[str, Any] = json.loads(text)
    return loaded


@cache
def cells() -> tuple[Cell, ...]:
    """Every published figure."""
    data = document()
    found = []
    for table in data["tables"]:
        for r, row in enumerate(table["rows"]):
            row_facets = {k: v for k, v in row.items() if k not in ("values", "printed_change")}
            for c, (column, value) in enumerate(zip(table["columns"], row["values"], strict=True)):
                if value is None:
                    continue
                facets = {**table["facets"], **row_facets, **column}
                notes = tuple(
                    Note(note["kind"], note["text"], note.get("recomputed"))
                    for note in data["notes"]
                    if note["table"] == table["id"]
                    and all(facets.get(name) == want for name, want in note["match"].items())
                )
                found.append(Cell(table["id"], table["number"], r, c, tuple(facets.items()), float(value), notes))
    return tuple(found)


def find(**wanted: Any) -> tuple[Cell, ...]:
    """Cells whose facets have the given values; `table="pope"` restricts to one table.

    >>> [cell.value for cell in find(table="pope", model="LLaVA-1.5", dataset="coco", split="random",
    ...                              method="cai", metric="accuracy")]
    [89.24]
    """
    table = wanted.pop("table", None)
    return tuple(
        cell
        for cell in cells()
        if (table is None or cell.table == table)
        and all(cell.get(name) == value for name, value in wanted.items())
    )


def method_title(name: str) -> str:
    """How the paper prints a method's name; other names stay as they are."""
    return str(document()["methods"].get(name, name))
