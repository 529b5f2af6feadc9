"""Pictures that cannot be opened, and why."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from seewhen.errors import InvalidInput
from seewhen.images import open_image


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
        (png(15_000, 15_000), "has far more than 40,000,000 pixels. Make it smaller first."),
        (png(9_000, 9_000), "has 9000 x 9000 pixels, more than 40,000,000"),
        (png(20_000, 4), "or a side over 16,384"),
        (png(8, 8, bytes(30)), "Is the file complete?"),
        (b"GIF8", "is not an image."),
    ],
)
def test_what_is_wrong_with_a_picture(data: bytes, told: str, tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(data)
    for source in (data, tmp_path / "picture.png"):
        with pytest.raises(InvalidInput) as error:
            open_image(source)
        assert told in str(error.value)
