"""Where the image of a task comes from: a file, or a packaged scene drawn on the spot."""

from __future__ import annotations

from PIL import Image

from seewhen.backbones.pictures import open_image

SCENE = "scene:"


def scene_source(image: str) -> str:
    """The source of a scene's image, from the name that question records use."""
    return SCENE + image


def open_picture(source: str) -> Image.Image:
    """The image as RGB; an InvalidInput says why it cannot be opened."""
    if not source.startswith(SCENE):
        return open_image(source)
    from seewhen.scenes import render, scene_named

    return render(scene_named(source.removeprefix(SCENE)))
