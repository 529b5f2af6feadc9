"""One page for a checked text: the picture, and the text with denied words struck."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup
from PIL import Image

from seewhen.showing.viewer.page import TEMPLATES, image_payload, joined, policy, write_text

STYLES = ("page.css", "checked.css")


def checked_html(checked: Mapping[str, Any], image: Image.Image, name: str, about: str) -> str:
    """The page of `Checked.to_json()`; it needs no script."""
    style = joined(STYLES)
    return TEMPLATES.get_template("checked.html").render(
        policy=Markup(policy(style, "")),
        style=style,
        image=image_payload(image, name),
        pieces=list(pieces(checked)),
        objects=_objects(checked),
        notes=checked["notes"],
        about=about,
    )


def pieces(checked: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
    """The text in parts: what lies between mentions, and the mentions."""
    place = 0
    for mention in checked["mentions"]:
        yield checked["text"][place : mention["start"]], None
        yield mention["text"], mention
        place = mention["end"]
    yield checked["text"][place:], None


def _objects(checked: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Each object once, the least probable first."""
    once = {mention["object"]: mention for mention in reversed(checked["mentions"])}
    return sorted(once.values(), key=lambda each: (each["probability"] is None, each["probability"]))


def write_checked(path: Path, checked: Mapping[str, Any], image: Image.Image, name: str, about: str) -> None:
    """Write the page; a reader never sees half of it."""
    write_text(path, checked_html(checked, image, name, about))
