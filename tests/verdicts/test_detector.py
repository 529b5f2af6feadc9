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


@pytest.mark.parametrize(
    ("name", "drafts", "weighs", "threshold"),
    [
        ("photo", False, "(-0.16 each on photographs", "-1.5 on photographs, -1 on scenes"),
        ("packaged", False, "-0.36 on scenes)", "-1.5 on photographs, -1 on scenes"),
        ("photo", True, None, "-0.6 on photographs and 0 on scenes"),
        ("packaged", True, None, "-0.6 on photographs and 0 on scenes"),
    ],
)
def test_the_page_tells_what_the_fits_are(name: str, drafts: bool, weighs: str | None, threshold: str) -> None:
    """Their samples, and the highest threshold that keeps the recall of regular captions within half a point."""
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    path = ROOT / "src/seewhen/verdicts/data" / f"verdict_{name}{'_drafts' * drafts}.json"
    fit = json.loads(path.read_text(encoding="utf-8"))
    about, recall = fit["about"], fit["about"]["validation_recall"]
    assert f"{about['again_invented']} of {about['again']}" in page
    assert threshold in page and f"{about['log_odds_threshold']:g} on " in threshold
    if weighs:
        assert weighs in page and f"{fit['written']['weights']['attempt']:.2f} " in weighs
    kept = [
        float(each) for each, found in recall.items() if each != "regular" and found >= recall["regular"] - 0.5
    ]
    assert max(kept) == about["log_odds_threshold"]
