"""One HTML file with everything inside: styles, script, image, data.

The content security policy names the hashes of our own style and script, so nothing else runs and nothing
is fetched, whatever a model writes. The script puts model text on the page as textContent only.
"""

from __future__ import annotations

import base64
import hashlib
import io
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from seewhen.atomic import naming_files, write
from seewhen.backbones.pictures import Source, picture_file
from seewhen.errors import InvalidInput

STYLES = ("page.css",)
VIEWER = ("data.js", "picture.js", "charts.js", "verdicts.js", "page.js", "saving.js")  # what every page needs
SCRIPTS = (*VIEWER, "browse.js", "address.js")


# What a template is given is escaped, unless it is Markup; data goes through the filter `tojson`.
TEMPLATES = Environment(
    loader=PackageLoader("seewhen.showing.viewer", "assets"), autoescape=True, undefined=StrictUndefined
)
TEMPLATES.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}


@cache
def joined(names: tuple[str, ...]) -> Markup:
    """Assets of this package, one after the other."""
    folder = resources.files("seewhen.showing.viewer").joinpath("assets")
    return Markup("\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names))


def page_html(payload: dict[str, Any] | None) -> str:
    """The page of a payload, or of several (`samples`) with a list to choose from."""
    style, script = joined(STYLES), joined(SCRIPTS)
    return TEMPLATES.get_template("page.html").render(
        policy=Markup(policy(style, script)), style=style, script=script, payload=payload
    )


def policy(style: str, script: str) -> str:
    """A content security policy under which this style and this script work, and nothing else."""
    return (
        f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def image_payload(image: Source, name: str, thumbnail: int | None = None) -> dict[str, Any]:
    """A picture as a data URL, made smaller where it is large, or a thumbnail of so many pixels a side."""
    file = picture_file(image) if thumbnail is None else picture_file(image, thumbnail, exact_pixels=0)
    with Image.open(io.BytesIO(file)) as shown:
        kind, (width, height) = str(shown.format).lower(), shown.size
    data = base64.b64encode(file).decode()
    return {"name": name, "src": f"data:image/{kind};base64,{data}", "width": width, "height": height}


def write_page(path: Path, payload: dict[str, Any]) -> Path:
    """Write the page; a reader never sees half of it."""
    write_text(path, page_html(payload))
    return path


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    try:
        write(path, naming_files(text))
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be written: {error.strerror}.", "Give a file in a folder you can write to."
        ) from None


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
