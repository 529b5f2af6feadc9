"""Images from a request: data URLs, and addresses on allowed hosts.

A client's string never reaches a library that would open paths or follow addresses: what comes out of here
is a picture from the one reader (`backbones/pictures.py`), under the server's limits.
"""

from __future__ import annotations

import base64
import binascii
import re

from PIL import Image

from seewhen.backbones.pictures import PictureLimits, UnreadablePicture, open_image
from seewhen.server.failures import bad_picture
from seewhen.server.fetching import Fetcher
from seewhen.server.limits import Limits

FORMATS = ("JPEG", "PNG", "WEBP")
_HEADER = re.compile(r"data:image/[a-z0-9.+-]{1,40};base64,", re.IGNORECASE)


def content(url: str, limits: Limits, fetcher: Fetcher) -> bytes:
    """The file at `url`."""
    return from_data_url(url, limits) if url[:5].lower() == "data:" else fetcher.fetch(url)


def from_data_url(url: str, limits: Limits) -> bytes:
    """The bytes inside a data URL."""
    header = _HEADER.match(url)
    if header is None:
        raise bad_picture("invalid_image_url", "The data URL is not understood.", "data:image/png;base64,...")
    if (len(url) - header.end()) * 3 // 4 > limits.image_bytes + 2:
        raise bad_picture("image_too_large", "The image has too many bytes.", f"At most {limits.image_bytes:,}.")
    try:
        return base64.b64decode(url[header.end() :], validate=True)
    except (binascii.Error, ValueError):
        raise bad_picture("invalid_image_url", "The data URL is not valid base64.", "Encode it again.") from None


def decoded(data: bytes, limits: Limits) -> Image.Image:
    """The picture in `data`, by the library's reader under the server's limits."""
    try:
        return open_image(data, picture_limits(limits))
    except UnreadablePicture as error:
        raise bad_picture(error.code, error.message, error.hint) from None


def picture_limits(limits: Limits) -> PictureLimits:
    """The server's limits in the reader's words."""
    return PictureLimits(
        formats=FORMATS,
        file_bytes=limits.image_bytes,
        pixels=limits.image_pixels,
        side=limits.image_side,
        min_side=limits.image_min_side,
        aspect=limits.image_aspect,
    )
