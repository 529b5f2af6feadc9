"""Verdicts that come with the package, fitted for the models that come with it."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

from seewhen.backbones.photo.checkpoint import cache_folder
from seewhen.verdicts.verdict import Verdict, verdict_from

WEAK = 0.8  # AUROC of asking below which a note says so


def verdict_named(name: str, model: Any = None, *, drafts: bool = False) -> Verdict:
    """`asking`: that alone; `auto`: the fit that comes with a packaged model, else asking; or a file.

    Of a served model nobody knows which it is (`model` is None).
    """
    if name == "asking" or (name == "auto" and model is None):
        return Verdict()
    if name == "auto":
        return shipped_verdict(model, drafts=drafts) or Verdict()
    return Verdict.load(Path(name))


def shipped_verdict(model: Any, *, drafts: bool = False) -> Verdict | None:
    """The fit for this model, if it is one of the packaged ones: without drafts, or with."""
    name = shipped_name(str(getattr(model.config, "_name_or_path", "")))
    path = resources.files("seewhen.verdicts").joinpath("data", f"verdict_{name}{'_drafts' * drafts}.json")
    return verdict_from(json.loads(path.read_text(encoding="utf-8"))) if name and path.is_file() else None


def note_if_weak(verdict: Verdict) -> str | None:
    """What to say where the model's answers were found to be worth little when `verdict` was fitted."""
    found = verdict.about.get("asking_auroc")
    if not isinstance(found, float) or found >= WEAK:
        return None
    return f"This model's answers tell true from invented objects badly (AUROC {found:.2f} when fitted)."


def shipped_name(place: str) -> str:
    """`packaged` or `photo` by where a checkpoint was loaded from; empty for others."""
    folder = Path(place)
    if folder.name == "emoji" and folder.parent.name == "weights":
        return "packaged"
    built = folder.parent.name == "seewhen" or folder.parent == cache_folder()
    return "photo" if built and folder.name.startswith("photo-") else ""
