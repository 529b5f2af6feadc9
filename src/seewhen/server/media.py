"""Images from a request: data URLs, and addresses on allowed hosts.

A client's string never reaches a library that would open paths or follow addresses: what comes out of here
is a decoded picture, and no pixel is decoded that the header does not allow.
"""

from __future__ import annotations

import base64
import binascii
import io
import re

from PIL import Image, UnidentifiedImageError

from seewhen.server.failures import ApiError
from seewhen.server.fetching import Fetcher
from seewhen.server.limits import Limits

FORMATS = ("JPEG", "PNG", "WEBP")
_HEADER = re.compile(r"data:image/[a-z0-9.+-]{1,40};base64,", re.IGNORECASE)


def picture(url: str, limits: Limits, fetcher: Fetcher) -> Image.Image:
    """The image at `url`, decoded, within the limits."""
    if url[:5].lower() == "data:":
        return decoded(from_data_url(url, limits), limits)
    return decoded(fetcher.fetch(url), limits)


def from_data_url(url: str, limits: Limits) -> bytes:
    """The bytes inside a data URL."""
    header = _HEADER.match(url)
    if header is None:
        raise _refused("invalid_image_url", "The data URL is not understood.", "data:image/png;base64,...")
    if (len(url) - header.end()) * 3 // 4 > limits.image_bytes + 2:
        raise _too_many_bytes(limits)
    try:
        return base64.b64decode(url[header.end() :], validate=True)
    except (binascii.Error, ValueError):
        raise _refused("invalid_image_url", "The data URL is not valid base64.", "Encode it again.") from None


def decoded(data: bytes, limits: Limits) -> Image.Image:
    """The picture in `data`. Format, size and frames are checked from the header, before any pixel is decoded."""
    if len(data) > limits.image_bytes:
        raise _too_many_bytes(limits)
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        _check_size(image.size, limits)
        if getattr(image, "n_frames", 1) > 1:
            raise _refused("animated_image", "The image has several frames.", "Send one of them.")
        return image.convert("RGB")
    except ApiError:
        raise
    except UnidentifiedImageError:
        raise _refused("invalid_image", "This is not a JPEG, PNG or WebP image.", "Convert it first.") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _refused("image_too_large", "The image has too many pixels.", "Make it smaller.") from None
    except Exception as error:
        # What a broken file does to a parser is of many kinds, and Pillow's own words can hold addresses.
        kind = type(error).__name__
        raise _refused("invalid_image", f"The image cannot be decoded ({kind}).", "Is it complete?") from None


def _check_size(size: tuple[int, int], limits: Limits) -> None:
    shorter, longer = sorted(size)
    if shorter < limits.image_min_side:
        raise _refused(
            "image_too_small",
            f"The image has {size[0]} x {size[1]} pixels.",
            f"Sides from {limits.image_min_side}.",
        )
    if longer > limits.image_side or size[0] * size[1] > limits.image_pixels:
        raise _refused(
            "image_too_large",
            f"The image has {size[0]} x {size[1]} pixels.",
            f"At most {limits.image_pixels:,} and {limits.image_side:,} on a side.",
        )
    if longer > limits.image_aspect * shorter:
        raise _refused(
            "image_too_long", "The image is too long for its width.", f"At most {limits.image_aspect}:1."
        )


def _too_many_bytes(limits: Limits) -> ApiError:
    return _refused("image_too_large", "The image has too many bytes.", f"At most {limits.image_bytes:,}.")


def _refused(code: str, message: str, hint: str) -> ApiError:
    return ApiError(400, code, message, hint, param="messages")
