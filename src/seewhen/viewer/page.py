"""One HTML file with everything inside: styles, script, image, data.

The content security policy names the hashes of our own style and script, so nothing else runs and nothing
is fetched, whatever a model writes. The script puts model text on the page as textContent only.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from PIL import Image

from seewhen.atomic import replacing
from seewhen.errors import InvalidInput

STYLES = ("page.css",)
VIEWER = ("data.js", "picture.js", "charts.js", "page.js")  # what every page needs
SCRIPTS = (*VIEWER, "browse.js")
_LARGEST_SIDE = 1024
_EXACT_PIXELS = 512 * 512  # up to this size a picture is kept as it is; larger ones become JPEG


@cache
def asset(name: str) -> str:
    """The text of an asset of this package."""
    return resources.files("seewhen.viewer").joinpath("assets", name).read_text(encoding="utf-8")


def page_html(payload: dict[str, Any]) -> str:
    """The page of a payload, or of several (`samples`) with a list to choose from."""
    style, script = joined(STYLES), joined(SCRIPTS)
    parts = {
        "{{POLICY}}": policy(style, script),
        "{{STYLE}}": style,
        "{{VIEWER}}": asset("viewer.html"),
        "{{PAYLOAD}}": embedded_json(payload),
        "{{SCRIPT}}": script,
    }
    return filled(asset("page.html"), parts)


def joined(names: tuple[str, ...]) -> str:
    """Assets one after the other."""
    return "\n".join(asset(name) for name in names)


def policy(style: str, script: str) -> str:
    """A content security policy under which this style and this script work, and nothing else."""
    return (
        f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def filled(html: str, parts: Mapping[str, str]) -> str:
    """A page with its marks, in their order, filled in."""
    # Each mark occurs once; splitting there keeps a mark inside the data from being filled in.
    out = ""
    for mark, text in parts.items():
        before, _, html = html.partition(mark)
        out += before + text
    return out + html


def embedded_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def image_payload(image: Image.Image, name: str) -> dict[str, Any]:
    """A picture as a data URL, made smaller where it is large."""
    shown = image.convert("RGB")
    if max(shown.size) > _LARGEST_SIDE:
        shown.thumbnail((_LARGEST_SIDE, _LARGEST_SIDE))
    exact = shown.width * shown.height <= _EXACT_PIXELS
    kind = "png" if exact else "jpeg"
    buffer = io.BytesIO()
    shown.save(buffer, kind, **({"optimize": True} if exact else {"quality": 88}))
    data = base64.b64encode(buffer.getvalue()).decode()
    return {
        "name": name,
        "src": f"data:image/{kind};base64,{data}",
        "width": shown.width,
        "height": shown.height,
    }


def write_page(path: Path, payload: dict[str, Any]) -> Path:
    """Write the page; a reader never sees half of it."""
    write_text(path, page_html(payload))
    return path


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    try:
        with replacing(path) as temporary:
            Path(temporary).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be written: {error.strerror}.", "Give a file in a folder you can write to."
        ) from None


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
