"""Where the image of a task comes from: a file, or a packaged scene drawn on the spot."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from seewhen.backbones.pictures import open_image
from seewhen.errors import InvalidInput

SCENE = "scene:"


def scene_source(image: str) -> str:
    """The source of a scene's image, from the name that question records use."""
    return SCENE + image


def open_picture(source: str) -> Image.Image:
    """The image as RGB; an InvalidInput says why it cannot be opened."""
    if not source.startswith(SCENE):
        return open_image(source)
    from seewhen.scenes import render, sample

    name = source.removeprefix(SCENE)
    try:
        split, seed, index = Path(name).stem.split("_")
        scene = sample(split, int(index), seed=int(seed))  # type: ignore[arg-type]
    except ValueError:
        raise InvalidInput(f"{name} is not the name of a scene.", "It looks like test_0_000012.png.") from None
    return render(scene)
