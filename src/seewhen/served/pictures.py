"""Pictures as data URLs: a file that any server reads alike goes as it is, anything else as PNG."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

from PIL import Image

from seewhen.backbones.pictures import open_image
from seewhen.backbones.prompts import Picture

_AS_IT_IS = {"JPEG": "jpeg", "PNG": "png", "WEBP": "webp"}
_ORIENTATION = 0x0112


def image_part(picture: Picture) -> dict[str, Any]:
    """A part of a message."""
    return {"type": "image_url", "image_url": {"url": data_url(picture)}}


def data_url(picture: Picture) -> str:
    """The picture upright, in RGB, with its own pixels."""
    image = open_image(picture)
    known = _file(picture, image.size)
    if known is None:
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        known = "png", buffer.getvalue()
    return f"data:image/{known[0]};base64,{base64.b64encode(known[1]).decode()}"


def _file(picture: Picture, size: tuple[int, int]) -> tuple[str, bytes] | None:
    """The file itself, where it holds these very pixels: not turned, not shrunk, not one of several."""
    if isinstance(picture, Image.Image):
        return None
    data = picture if isinstance(picture, bytes) else Path(picture).read_bytes()
    with Image.open(io.BytesIO(data)) as file:
        plain = file.mode == "RGB" and file.size == size and file.getexif().get(_ORIENTATION, 1) == 1
        kind = _AS_IT_IS.get(file.format or "")
        return (kind, data) if kind and plain and not getattr(file, "is_animated", False) else None
