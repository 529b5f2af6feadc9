"""The page of a running server: the viewer's own assets in one document, under a policy of its own."""

from __future__ import annotations

from functools import cache
from typing import Any

from seewhen.showing.viewer.page import STYLES, TEMPLATES, VIEWER, joined, page_html, policy

_SCRIPTS = (*VIEWER, "methods.js", "stream.js", "live.js")


@cache
def live_page() -> tuple[str, str]:
    """The page and its content security policy: our own style and script, and calls of this server only."""
    style, script = joined((*STYLES, "live.css")), joined(_SCRIPTS)
    html = TEMPLATES.get_template("live.html").render(style=style, script=script)
    return html, f"{policy(style, script)}; connect-src 'self'; frame-ancestors 'none'"


@cache
def empty_page() -> str:
    """The viewer without an answer: what the live page saves is put into it there."""
    return page_html(None)


def scene(split: str, index: int) -> dict[str, Any]:
    """A packaged scene: its picture as a data URL, and what is really in it."""
    from seewhen.scenes import render, sample
    from seewhen.served.pictures import data_url

    drawn = sample(split, index)  # type: ignore[arg-type]
    picture = render(drawn)
    return {
        "id": drawn.image,
        "split": split,
        "index": index,
        "image": data_url(picture),
        "width": picture.width,
        "height": picture.height,
        "objects": list(drawn.names),
    }
