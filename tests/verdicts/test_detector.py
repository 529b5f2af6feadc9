"""The table of docs/confirm.md is the committed result, and the shipped fits are what it says they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "confirm.md"
pytestmark = pytest.mark.skipif(not (ROOT / "benchmarks").is_dir(), reason="not part of this installation")


def test_the_table_is_the_result() -> None:
    from confirm.detector import RESULT, table

    result = json.loads(RESULT.read_text(encoding="utf-8"))
    shown = PAGE.read_text(encoding="utf-8").partition("<!-- detector -->\n")[2].partition("<!-- /detector -->")[0]
    assert shown == table(result)
    for part in result.values():
        auroc = {name: found["auroc"]["value"] for name, found in part["auroc"].items()}
        assert max(auroc, key=lambda name: auroc[name]) == "verdict"
        single = [name for name in auroc if name not in ("verdict", "asked")]
        assert min(single, key=lambda name: auroc[name]) in ("odds", "position")
