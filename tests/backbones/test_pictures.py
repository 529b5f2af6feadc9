"""The one reader of pictures: upright, RGB, within limits; and what is wrong with a picture that is refused."""

from __future__ import annotations

import io
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image, JpegImagePlugin, features

from seewhen.backbones.pictures import PictureLimits, UnreadablePicture, open_image
from seewhen.errors import InvalidInput
from seewhen.showing.viewer.page import image_payload

UPRIGHT = np.zeros((24, 16, 3), np.uint8)  # taller than wide; red, green, blue and white quarters
UPRIGHT[:12, :8, 0] = UPRIGHT[:12, 8:, 1] = UPRIGHT[12:, :8, 2] = 255
UPRIGHT[12:, 8:] = 255
# How a camera that was held like this stores the picture above.
STORED = {
    1: UPRIGHT, 2: UPRIGHT[:, ::-1], 3: UPRIGHT[::-1, ::-1], 4: UPRIGHT[::-1],
    5: UPRIGHT.swapaxes(0, 1), 6: np.rot90(UPRIGHT),
    7: np.rot90(UPRIGHT, 2).swapaxes(0, 1), 8: np.rot90(UPRIGHT, -1),
}  # fmt: skip


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    return exif


def pixels(source: Any, **limits: Any) -> np.ndarray:
    image = open_image(source, PictureLimits(**limits))
    assert image.mode == "RGB"
    return np.asarray(image)


# -- upright ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF", "AVIF"])
def test_a_picture_stands_upright(kind: str, orientation: int) -> None:
    if kind == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    options = {"PNG": {}, "JPEG": {"quality": 100, "subsampling": 0}, "WEBP": {"lossless": True}, "TIFF": {}}
    stored = Image.fromarray(np.ascontiguousarray(STORED[orientation]))
    data = encoded(stored, kind, exif=turned(orientation), **options.get(kind, {"quality": 100}))
    assert np.abs(pixels(data).astype(int) - UPRIGHT).mean() < 12  # AVIF smooths the edges; turned it is over 80


def test_an_opened_picture_of_the_users_stands_upright_too_and_is_turned_once(tmp_path: Path) -> None:
    stored = Image.fromarray(np.ascontiguousarray(STORED[6]))
    stored.save(tmp_path / "turned.png", exif=turned(6))
    with Image.open(tmp_path / "turned.png") as own:
        once = open_image(own)
        assert own.size == (24, 16)  # the user's picture stays as it was
    assert np.array_equal(once, UPRIGHT) and np.array_equal(open_image(once), UPRIGHT)


def test_the_page_shows_a_turned_photograph_as_it_was_analysed(tmp_path: Path) -> None:
    """The same picture, stored upright or turned, gives the same page: the grid of patches lies on it."""
    path = tmp_path / "turned.png"
    Image.fromarray(np.ascontiguousarray(STORED[8])).save(path, exif=turned(8))
    plain = image_payload(Image.fromarray(UPRIGHT), "a")
    assert image_payload(open_image(path), "a") == plain
    with Image.open(path) as own:
        assert image_payload(own, "a") == plain


def test_broken_exif_is_no_broken_picture() -> None:
    data = encoded(Image.fromarray(UPRIGHT), exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xff")
    assert np.array_equal(pixels(data), UPRIGHT)


# -- kinds of pixels ----------------------------------------------------------------------------------------

RAMP = np.linspace(0, 65535, 256).round()


@pytest.mark.parametrize(
    "data",
    [
        encoded(Image.fromarray(RAMP.astype(np.uint16)[None].repeat(4, 0))),
        encoded(Image.fromarray(RAMP.astype(np.int32)[None].repeat(4, 0)), "TIFF"),
        encoded(Image.fromarray((RAMP / 65535).astype(np.float32)[None].repeat(4, 0)), "TIFF"),
        b"P5 256 4 65535\n" + RAMP.astype(">u2").tobytes() * 4,
    ],
    ids=["PNG 16", "TIFF 32", "TIFF float", "PPM 16"],
)
def test_deep_grey_keeps_its_shades(data: bytes) -> None:
    shades = pixels(data)[0, :, 0].astype(int)
    assert np.abs(shades - np.arange(256)).max() <= 1


def clear(mode: str) -> Image.Image:
    """Left half black, right half black and transparent."""
    image = Image.new("LA" if mode == "LA" else "RGBA", (8, 8))
    image.paste((0, 255) if mode == "LA" else (0, 0, 0, 255), (0, 0, 4, 8))
    return image


def palette_with_a_hole() -> bytes:
    image = Image.new("P", (8, 8), 1)
    image.putpalette([0, 0, 0] * 2)
    image.paste(0, (0, 0, 4, 8))
    return encoded(image, "GIF", transparency=1)


@pytest.mark.parametrize(
    "data",
    [
        encoded(clear("RGBA")),
        encoded(clear("LA")),
        encoded(clear("RGBA"), "WEBP", lossless=True),
        palette_with_a_hole(),
    ],
    ids=["RGBA", "LA", "WebP", "GIF"],
)
def test_what_is_transparent_lies_on_white(data: bytes) -> None:
    seen = pixels(data)
    assert (seen[:, :4] == 0).all() and (seen[:, 4:] == 255).all()


def test_one_colour_may_be_the_transparent_one() -> None:
    seen = pixels(encoded(Image.new("RGB", (8, 8), (10, 20, 30)), transparency=(10, 20, 30)))
    assert (seen == 255).all()


@pytest.mark.parametrize(
    ("mode", "kind"), [("CMYK", "JPEG"), ("P", "PNG"), ("1", "PNG"), ("L", "JPEG"), ("1", "TIFF")]
)
def test_other_modes(mode: str, kind: str) -> None:
    image = Image.new("RGB", (16, 16), "white")
    image.paste("black", (0, 0, 8, 16))
    seen = pixels(encoded(image.convert(mode), kind)).astype(int)
    assert seen[:, :7].max() < 40 and seen[:, 9:].min() > 215


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_an_animation_is_its_first_frame(kind: str) -> None:
    frames = [Image.new("RGB", (16, 16), color) for color in ("red", "lime", "blue")]
    lossless = {"lossless": True} if kind == "WEBP" else {}
    seen = pixels(encoded(frames[0], kind, save_all=True, append_images=frames[1:], **lossless))
    assert (seen == (255, 0, 0)).all()


# -- large --------------------------------------------------------------------------------------------------


def test_forty_eight_megapixels_are_shrunk_while_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[tuple[int, int]] = []
    load = JpegImagePlugin.JpegImageFile.load
    monkeypatch.setattr(
        JpegImagePlugin.JpegImageFile, "load", lambda image: decoded.append(image.size) or load(image)
    )
    assert open_image(encoded(Image.new("L", (8000, 6000), 77), "JPEG")).size == (4000, 3000)
    assert set(decoded) == {(4000, 3000)}


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF"])
def test_what_does_not_fit_is_shrunk_by_a_power_of_two(kind: str) -> None:
    image = Image.fromarray(UPRIGHT).resize((160, 240), Image.Resampling.NEAREST)
    seen = pixels(encoded(image, kind), pixels=160 * 240 // 5)
    assert seen.shape == (60, 40, 3)
    assert np.abs(seen[::30, ::20].astype(int) - UPRIGHT[::12, ::8]).max() < 40
    assert pixels(encoded(image, kind), side=200).shape == (120, 80, 3)
    assert pixels(image, side=100).shape == (60, 40, 3)  # an opened one


def test_only_a_jpeg_in_one_pass_is_decoded_small() -> None:
    """Its memory is that of the small picture; all others are held whole first."""
    image, tight = Image.new("RGB", (400, 400)), {"pixels": 100 * 100, "memory": 400 * 400}
    assert pixels(encoded(image, "JPEG"), **tight).shape == (100, 100, 3)
    for data in (encoded(image, "JPEG", progressive=True), encoded(image)):
        with pytest.raises(UnreadablePicture, match=r"400 x 400 pixels: decoding a (JPEG|PNG) takes") as error:
            pixels(data, **tight)
        assert error.value.code == "image_too_large"


def with_scans(more: int) -> bytes:
    """A progressive JPEG with its last scan written again and again."""
    data = encoded(Image.fromarray(UPRIGHT).resize((64, 64)), "JPEG", progressive=True)
    start = data.rindex(b"\xff\xda")
    return data[:-2] + data[start:-2] * more + data[-2:]


def test_a_jpeg_of_many_scans_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pixels(with_scans(0)).shape == (64, 64, 3)
    appended = with_scans(0) + b"\xff\xda\x00\x02" * 100  # a film behind the photograph is none of its scans
    assert pixels(appended).shape == (64, 64, 3)
    markers = with_scans(0)
    for data in (with_scans(40), markers[:2] + b"\xff\xe1\x00\x02" * 20_000 + markers[2:]):
        with monkeypatch.context() as patch, pytest.raises(UnreadablePicture, match="more than 32 scans"):
            patch.setattr(Image.Image, "load", lambda self: pytest.fail("decoded"))
            open_image(data)


# -- refused ------------------------------------------------------------------------------------------------


def png(width: int, height: int, rows: bytes = b"") -> bytes:
    """A PNG file whose header says so; its pixels may be missing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    )


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(
    ("data", "told"),
    [
        (png(15_000, 15_000), "has far too many pixels. Make it smaller first."),
        (png(9_000, 9_000), "has 9000 x 9000 pixels: decoding a PNG takes about 926 MiB, more than 768."),
        (png(20_000, 4), "has 20000 x 4 pixels: too long for its width. At most 200:1."),
        (png(8, 8, bytes(30)), "Is the file complete?"),
        (b"", "is empty. Is the file complete?"),
        (b"GIF8", "is not an image of a known kind. Formats: JPEG, PNG"),
        (b"\xff\xd8\xff", "Is the file complete?"),
    ],
)
def test_what_is_wrong_with_a_picture(data: bytes, told: str, tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(data)
    for source in (data, tmp_path / "picture.png"):
        with pytest.raises(UnreadablePicture) as error:
            open_image(source)
        assert told in str(error.value)


@pytest.mark.parametrize("source", [np.zeros((8, 8, 3), np.uint8), 3, None, [b"x"]])
def test_what_is_no_picture_is_said(source: object) -> None:
    with pytest.raises(InvalidInput, match=rf"not of type {type(source).__name__}\. .*PIL"):
        open_image(source)  # type: ignore[arg-type]


def test_what_is_wrong_with_a_path(tmp_path: Path) -> None:
    (tmp_path / "large.png").write_bytes(bytes(100))
    for path, told in (
        (tmp_path / "none.png", "no file"),
        (tmp_path, "is a directory"),
        (Path("/dev/null"), "regular"),
    ):
        with pytest.raises(UnreadablePicture, match=told):
            open_image(path)
    with pytest.raises(UnreadablePicture, match="more than 50"):
        open_image(tmp_path / "large.png", PictureLimits(file_bytes=50))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
def test_half_a_file_says_so(kind: str) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    data = encoded(noise, kind)
    with pytest.raises(UnreadablePicture, match=r"The image (ends too early|cannot be decoded).*complete"):
        open_image(data[: len(data) // 2])


# -- HEIC ---------------------------------------------------------------------------------------------------


def test_heic_is_read_where_its_plug_in_is() -> None:
    heif = pytest.importorskip("pillow_heif", reason="HEIC needs pillow-heif")
    buffer = io.BytesIO()
    stored = Image.fromarray(np.ascontiguousarray(STORED[6])).resize((192, 128), Image.Resampling.NEAREST)
    heif.from_pillow(stored).save(buffer, quality=90, exif=turned(6).tobytes())
    seen = pixels(buffer.getvalue())
    assert seen.shape == (192, 128, 3)
    assert np.abs(seen[48::96, 32::64].astype(int) - UPRIGHT[6::12, 4::8]).max() < 60


def test_without_its_plug_in_heic_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(UnreadablePicture, match=r"is a HEIC picture, and pillow-heif.*seewhen\[heic\]"):
        open_image(b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic" + bytes(100))


def test_without_its_decoder_avif_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "check", lambda name: False)
    with pytest.raises(UnreadablePicture, match="is an AVIF picture, which this Pillow cannot read"):
        open_image(b"\x00\x00\x00\x18ftypavif\x00\x00\x00\x00mif1avif" + bytes(100))
