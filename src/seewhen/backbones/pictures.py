"""The one reader of pictures: for the library, the command line, the server and runs.

What comes out is RGB, upright and within limits; what a file costs is known from its header, before a pixel is
decoded. A picture too large to keep is shrunk while it is decoded.
"""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, JpegImagePlugin, UnidentifiedImageError, features

from seewhen.errors import InvalidInput

MIB = 1 << 20
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "HEIF")
_HEIF = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
# Peak bytes per pixel while a picture is read: with Pillow 13, 16 were measured for WebP and 9 for the others.
_COST = {"WEBP": 16}
_OTHER_COST = 12
_MARKER = re.compile(rb"\xff([^\x00\xd0-\xd7\xff])", re.DOTALL)  # of JPEG; restarts are part of a scan
_ADDRESS = re.compile(r"[a-z][a-z\d+.-]+:/", re.IGNORECASE)  # as a path is written: of two slashes one is left
_MAX_SEGMENTS = 10_000
_SHOWN_SIDE = 1024
_EXACT_PIXELS = 512 * 512  # up to this size a picture is kept as it is; larger ones become JPEG
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
Source = str | Path | bytes | Image.Image


@dataclass(frozen=True)
class PictureLimits:
    """What a picture may be and cost."""

    formats: tuple[str, ...] = FORMATS
    file_bytes: int = 256 * MIB
    pixels: int = 40_000_000  # that are kept; a larger picture is shrunk by 2, 4 or 8
    side: int = 16_384  # likewise
    min_side: int = 1
    aspect: int = 200  # longer side over shorter side: processors refuse more
    memory: int = 768 * MIB  # while decoding
    file_pixels: int = 250_000_000  # of any file: shrinking saves memory, not time
    scans: int = 32  # of a progressive JPEG, each a pass over the whole picture; encoders write about ten


LIMITS = PictureLimits()


class UnreadablePicture(InvalidInput):
    """A picture that is not read; `code` says why in a word."""

    def __init__(self, message: str, hint: str, code: str = "invalid_image") -> None:
        super().__init__(message, hint)
        self.code = code


def open_image(source: Source, limits: PictureLimits = LIMITS) -> Image.Image:
    """The picture (the first, of an animation) as RGB and upright, from a path, bytes or a PIL image."""
    if isinstance(source, Image.Image):
        with _plain_errors("The image"):
            return _upright(source, _divisor(source.size, limits))
    if not isinstance(source, bytes | str | os.PathLike):
        raise UnreadablePicture(
            f"An image is a path, bytes or a PIL image, not of type {type(source).__name__}.",
            "An array becomes one with PIL.Image.fromarray.",
        )
    name = "The image" if isinstance(source, bytes) else str(source)
    data = source if isinstance(source, bytes) else _content(Path(source), limits)
    if len(data) > limits.file_bytes:
        raise _too_large(f"{name} has {len(data):,} bytes, more than {limits.file_bytes:,}.")
    with _plain_errors(name), _header(name, data, limits) as image:
        _check_shape(name, image.size, limits)
        by = _divisor(image.size, limits)
        _check_cost(name, image, by, limits)
        if image.format == "JPEG":
            image.draft(None, (image.width // by, image.height // by))  # shrinks what is decoded
            by = _divisor(image.size, limits)
        return _upright(image, by)


def picture_file(image: Source, side: int = _SHOWN_SIDE, exact_pixels: int = _EXACT_PIXELS) -> bytes:
    """A picture as a small file to keep or show: PNG where it is small, else JPEG; no side longer than `side`."""
    shown = open_image(image)
    if max(shown.size) > side:
        shown.thumbnail((side, side))
    exact = shown.width * shown.height <= exact_pixels
    buffer = io.BytesIO()
    shown.save(buffer, "png" if exact else "jpeg", **({"optimize": True} if exact else {"quality": 88}))
    return buffer.getvalue()


def _content(path: Path, limits: PictureLimits) -> bytes:
    if not path.exists():
        address = _ADDRESS.match(str(path))
        hint = "Nothing is fetched: save the picture, and give its file." if address else "Check the path."
        raise UnreadablePicture(f"There is no file {path}.", hint)
    if not path.is_file():
        kind = "a directory" if path.is_dir() else "no regular file"
        raise UnreadablePicture(f"{path} is {kind}.", "Give one image file.")
    try:
        with path.open("rb") as file:
            return file.read(limits.file_bytes + 1)
    except OSError as error:
        raise UnreadablePicture(f"{path} cannot be read ({error.strerror}).", "Check its permissions.") from None


@contextmanager
def _plain_errors(name: str) -> Iterator[None]:
    """What Pillow raises, as our own error. Its words can hold object addresses; few of them are repeated."""
    try:
        yield
    except UnreadablePicture:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_large(f"{name} has far too many pixels.") from None
    except MemoryError:
        raise _too_large(f"There is not enough memory for {name}.") from None
    except Exception as error:  # a broken file makes a parser raise anything
        cut = "truncated" in str(error) or isinstance(error, EOFError)
        what = "ends too early" if cut else f"cannot be decoded ({type(error).__name__})"
        raise UnreadablePicture(f"{name} {what}.", "Is the file complete?") from None


def _header(name: str, data: bytes, limits: PictureLimits) -> Image.Image:
    """The picture with only its header read."""
    if not data:
        raise UnreadablePicture(f"{name} is empty.", "Is the file complete?")
    if data.startswith(b"\xff\xd8\xff") and "JPEG" in limits.formats:
        scans = _scans(data, limits.scans)
        if scans > limits.scans:
            raise _too_large(f"{name} is a JPEG of more than {limits.scans} scans.", "Save it again.")
        # Not by Image.open: its check of pixels does not know of `draft`.
        image = JpegImagePlugin.JpegImageFile(io.BytesIO(data))
        image.info["scans"] = scans
        return image
    _prepare_decoder(name, data, limits)
    formats = [kind for kind in limits.formats if kind != "HEIF" or kind in Image.OPEN]
    try:
        return Image.open(io.BytesIO(data), formats=formats)
    except UnidentifiedImageError:
        known = ", ".join(limits.formats)
        raise UnreadablePicture(f"{name} is not an image of a known kind.", f"Formats: {known}.") from None


def _scans(data: bytes, enough: int) -> int:
    """The scans of a JPEG file, counted by its markers; counting ends above `enough`."""
    scans = position = 0
    for _ in range(_MAX_SEGMENTS):
        marker = _MARKER.search(data, position)
        if marker is None or marker[1] == b"\xd9":  # end of the image: cameras append other things
            return scans
        scans += marker[1] == b"\xda"
        if scans > enough:
            return scans
        bare = marker[1] in (b"\xd8", b"\x01")
        position = marker.end() + (0 if bare else int.from_bytes(data[marker.end() : marker.end() + 2]))
    return enough + 1


def _prepare_decoder(name: str, data: bytes, limits: PictureLimits) -> None:
    """AVIF and HEIC need more than a plain Pillow: say what is missing."""
    if data[4:8] != b"ftyp":
        return
    brands = {data[8:12], *(data[at : at + 4] for at in range(16, 48, 4))}
    kind = "AVIF" if brands & {b"avif", b"avis"} else "HEIF" if brands & set(_HEIF) else None
    if kind is None or kind not in limits.formats:
        return
    if kind == "AVIF" and not features.check("avif"):
        raise UnreadablePicture(
            f"{name} is an AVIF picture, which this Pillow cannot read.", "Convert it, or install pillow>=11.3."
        )
    if kind == "HEIF":
        try:
            from pillow_heif import register_heif_opener
        except ImportError:
            raise UnreadablePicture(
                f"{name} is a HEIC picture, and pillow-heif is not installed.",
                "Convert it, or install it with: pip install 'seewhen[heic]'",
            ) from None
        register_heif_opener()


def _check_shape(name: str, size: tuple[int, int], limits: PictureLimits) -> None:
    shorter, longer = sorted(size)
    told = f"{name} has {size[0]} x {size[1]} pixels"
    if shorter < limits.min_side:
        raise UnreadablePicture(f"{told}.", f"Sides from {limits.min_side}.", "image_too_small")
    if longer > limits.aspect * shorter:
        raise UnreadablePicture(
            f"{told}: too long for its width.", f"At most {limits.aspect}:1.", "image_too_long"
        )
    if size[0] * size[1] > limits.file_pixels:
        raise _too_large(f"{told}, more than {limits.file_pixels:,} together.")


def _check_cost(name: str, image: Image.Image, by: int, limits: PictureLimits) -> None:
    """Only a JPEG of one scan is decoded small; one of several is held whole before it is shrunk."""
    cost = image.width * image.height * _COST.get(image.format or "", _OTHER_COST)
    if image.format == "JPEG" and image.info["scans"] == 1:
        cost //= by * by
    if cost > limits.memory:
        raise _too_large(
            f"{name} has {image.width} x {image.height} pixels: decoding a {image.format} takes about "
            f"{cost // MIB:,} MiB, more than {limits.memory // MIB:,}."
        )


def _divisor(size: tuple[int, int], limits: PictureLimits) -> int:
    """1, 2, 4, ...: what the sides are divided by so that the picture fits."""
    times = max(math.sqrt(size[0] * size[1] / limits.pixels), max(size) / limits.side)
    return 1 if times <= 1 else 2 ** math.ceil(math.log2(times))


def _upright(image: Image.Image, by: int) -> Image.Image:
    image.load()
    orientation = 1
    with suppress(Exception):  # broken EXIF is no broken picture
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    plain = _rgb(image)
    if by > 1:
        plain = plain.reduce(by)
    if orientation in _UPRIGHT:
        plain = plain.transpose(_UPRIGHT[orientation])
    plain.info = {}  # or a second reading would turn it again
    return plain


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F" or image.mode.startswith("I"):
        return _eight_bits(image).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    # White, as the pages that such pictures are made for: black lines on nothing would vanish on black.
    seen = image.convert("RGBA")
    paper = Image.new("RGB", image.size, "white")
    paper.paste(seen, mask=seen.getchannel("A"))
    return paper


def _eight_bits(image: Image.Image) -> Image.Image:
    """16-bit grey by its upper byte; real numbers, which have no scale, between their least and greatest."""
    values = np.asarray(image)
    if image.mode != "F":
        return Image.fromarray((values.clip(0, 0xFFFF) >> 8).astype(np.uint8))
    values = np.nan_to_num(values)
    low, high = float(values.min()), float(values.max())
    return Image.fromarray(((values - low) * (255 / ((high - low) or 1))).astype(np.uint8))


def _too_large(message: str, hint: str = "Make it smaller first.") -> UnreadablePicture:
    return UnreadablePicture(message, hint, "image_too_large")
