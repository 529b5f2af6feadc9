"""What a run keeps of what a method that asks (`confirm`) tells: verdicts, and the sentences it took back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KEPT = ("object", "start", "end", "verdict", "odds", "probability", "elsewhere", "range")
_MOST_ODDS = 1000.0  # odds may be infinite, and JSON has no word for that


def kept(told: Mapping[str, Any]) -> dict[str, Any]:
    """As pages show it; empty for methods that do not ask."""
    if not {"verdicts", "taken_back"} <= told.keys():
        return {}
    back = [{**said, "denied": [_kept(each) for each in said["denied"]]} for said in told["taken_back"]]
    cost = {name: told[name] for name in ("asked", "steps", "tokens")}
    return {"verdicts": [_kept(each) for each in told["verdicts"]], "taken_back": back, **cost}


def asked(told: Mapping[str, Any]) -> dict[str, float]:
    """What was asked and taken back, and what that cost; nothing for methods that do not ask."""
    if "taken_back" not in told:
        return {}
    return {
        "asked": told["asked"],
        "taken_back": len(told["taken_back"]),
        "denied": sum(verdict["verdict"] == "denied" for verdict in told["verdicts"]),
        "steps_per_token": round(told["steps"] / max(told["tokens"], 1), 4),
    }


def _kept(judged: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: judged[name] for name in _KEPT if judged.get(name) is not None}
    if "odds" in found:
        found["odds"] = max(-_MOST_ODDS, min(_MOST_ODDS, found["odds"]))
    return found
