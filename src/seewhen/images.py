"""Opening images with errors that say what is wrong, and without unbounded work."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from seewhen.errors import InvalidInput

MAX_PIXELS = 40_000_000
MAX_SIDE = 16_384
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")


def open_image(source: str | Path | bytes | Image.Image, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """An RGB image from a path, bytes or a PIL image. Size is checked from the header, before decoding."""
    if isinstance(source, Image.Image):
        return source.convert("RGB")
    name = "the image" if isinstance(source, bytes) else str(source)
    if not isinstance(source, bytes):
        path = Path(source)
        if not path.exists():
            raise InvalidInput(f"There is no file {name}.", "Check the path.")
        if path.is_dir():
            raise InvalidInput(f"{name} is a directory.", "Give one image file.")
    try:
        image = Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS)
        width, height = image.size
        if width * height > max_pixels or max(width, height) > MAX_SIDE:
            raise InvalidInput(
                f"{name} has {width} x {height} pixels, more than {max_pixels:,} (or a side over {MAX_SIDE:,}).",
                "Make it smaller first.",
            )
        return image.convert("RGB")
    except UnidentifiedImageError:
        raise InvalidInput(f"{name} is not an image.", f"Known formats: {', '.join(FORMATS)}.") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        # Pillow refuses by itself what is more than twice its own limit, before our check sees the size.
        raise InvalidInput(f"{name} has far more than {max_pixels:,} pixels.", "Make it smaller first.") from None
    except (OSError, SyntaxError, ValueError) as error:
        # Pillow's own messages can hold object addresses; the kind of error is enough.
        raise InvalidInput(f"{name} cannot be read ({type(error).__name__}).", "Is the file complete?") from None
