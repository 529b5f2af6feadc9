"""Is a picture one of the package's own scenes? It decides which model answers: one knows nothing else."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seewhen.backbones import loading
from seewhen.backbones.photo.source import INSTALL, find
from seewhen.verdicts.shipped import shipped_name

if TYPE_CHECKING:
    from PIL import Image

SUGGESTED = ("llava-hf/llava-1.5-7b-hf", "Qwen/Qwen3-VL-2B-Instruct", "HuggingFaceTB/SmolVLM-Instruct")


def is_packaged(model: str) -> bool:
    """Whether `model` is the small one of drawn scenes."""
    if model == loading.PHOTO:  # resolving it would build it
        return False
    return Path(loading.resolve(model)).resolve() == loading.PACKAGED_PATH.resolve()


def name_of(model: Any) -> str:
    """What a loaded model is called; the two that come along lie in folders that tell nobody anything."""
    place = str(getattr(model.config, "_name_or_path", ""))
    return in_words(shipped_name(place) or place)


def in_words(name: str) -> str:
    """The name of a model for a sentence."""
    return {"packaged": "the packaged model", "photo": "the model for photographs"}.get(name, name)


def looks_like_scene(image: Image.Image) -> bool:
    """Whether the scene renderer drew it.

    The renderer lays grain over everything in blocks of 2 x 2 pixels: inside a block neighbours of the
    background are equal, across blocks they practically never are. Of 360 scenes the shares lie above
    0.72 and below 0.003; a photograph, a drawing or a saved JPEG has no such comb.
    """
    import numpy as np

    from seewhen.scenes.world import SIZE

    if image.size != (SIZE, SIZE):
        return False
    pixels = np.asarray(image.convert("RGB"))
    inside = (pixels[:, 0::2] == pixels[:, 1::2]).all(axis=-1).mean()
    across = (pixels[:, 1:-1:2] == pixels[:, 2::2]).all(axis=-1).mean()
    return bool(inside > 0.5 and across < 0.1)


def knows_photographs() -> bool:
    """Whether the small model for photographs can answer here."""
    return find() is not None


def model_for(image: Image.Image) -> str:
    """The model that knows such pictures: that for photographs where its language model is, else the packaged."""
    if not looks_like_scene(image) and knows_photographs():
        return loading.PHOTO
    return loading.PACKAGED


def warn_about_photograph(model: str, image: Image.Image) -> None:
    """One line on stderr where the packaged model is asked about something it cannot know."""
    if is_packaged(model) and not looks_like_scene(image):
        get = "" if find() else f" (first: {INSTALL})"
        sys.stderr.write(
            "warning: the packaged model only knows its own drawn scenes (`seewhen scenes render`), so its answer "
            f"about this picture means nothing. For photographs use the small --model photo{get}, or a large one: "
            f"{SUGGESTED[0]}, {SUGGESTED[1]} or {SUGGESTED[2]}.\n"
        )
