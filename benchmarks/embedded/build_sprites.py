"""Build the sprite atlas of `seewhen.scenes` from three npm tarballs.

    npm pack emoji-datasource-google@16.0.0 emoji-datasource-twitter@16.0.0 @lobehub/fluent-emoji-3d@1.1.0
    python benchmarks/embedded/build_sprites.py DIRECTORY_WITH_TARBALLS src/seewhen/scenes/sprites

Writes `atlas.png` (one row of cells per category and variant, one column per artwork set) and `index.json`.
Every sprite is cut to the bounding box of what is drawn, scaled so that its longer side is `CELL` pixels and
posterised a little, which halves the file and cannot be seen.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

CELL = 56
# Where each set keeps the picture of a code point, and how its file is called.
SETS = {
    "noto": ("emoji-datasource-google-16.0.0.tgz", "package/img/google/64/{}.png"),
    "fluent": ("lobehub-fluent-emoji-3d-1.1.0.tgz", "package/assets/{}.webp"),
    "twemoji": ("emoji-datasource-twitter-16.0.0.tgz", "package/img/twitter/64/{}.png"),
}
# COCO category -> emoji code points. Pictures that show a second category as well (a snowboarder is also a
# person, a fork comes with a knife, a cricket bat with a ball) are left out: they would make the truth wrong.
CODEPOINTS = {
    "person": "1f9cd 1f468 1f469 1f467",
    "bicycle": "1f6b2",
    "car": "1f697 1f698 1f699",
    "motorcycle": "1f3cd-fe0f 1f6f5",
    "airplane": "2708-fe0f 1f6e9-fe0f",
    "bus": "1f68c 1f68d",
    "train": "1f686 1f682",
    "truck": "1f69a 1f69b 1f6fb",
    "boat": "26f5 1f6a4 1f6a2",
    "traffic light": "1f6a6 1f6a5",
    "stop sign": "1f6d1",
    "bird": "1f426 1f99c 1f986",
    "cat": "1f408 1f431",
    "dog": "1f415 1f436",
    "horse": "1f40e 1f434",
    "sheep": "1f411 1f40f",
    "cow": "1f404 1f42e",
    "elephant": "1f418",
    "bear": "1f43b 1f43c",
    "zebra": "1f993",
    "giraffe": "1f992",
    "backpack": "1f392",
    "umbrella": "2614 26f1-fe0f 1f302",
    "handbag": "1f45c 1f45b",
    "tie": "1f454",
    "suitcase": "1f9f3",
    "frisbee": "1f94f",
    "skis": "1f3bf",
    "sports ball": "26bd 1f3c0 1f3d0",
    "kite": "1fa81",
    "skateboard": "1f6f9",
    "tennis racket": "1f3f8",
    "bottle": "1f37e 1f9f4 1f37c",
    "wine glass": "1f377",
    "cup": "2615 1f375 1f964",
    "knife": "1f52a",
    "spoon": "1f944",
    "bowl": "1f35c",
    "banana": "1f34c",
    "apple": "1f34e 1f34f",
    "sandwich": "1f96a",
    "orange": "1f34a",
    "broccoli": "1f966",
    "carrot": "1f955",
    "hot dog": "1f32d",
    "pizza": "1f355",
    "donut": "1f369",
    "cake": "1f370 1f382",
    "chair": "1fa91",
    "couch": "1f6cb-fe0f",
    "potted plant": "1fab4",
    "bed": "1f6cf-fe0f",
    "toilet": "1f6bd",
    "tv": "1f4fa",
    "laptop": "1f4bb",
    "mouse": "1f5b1-fe0f",
    "keyboard": "2328-fe0f",
    "cell phone": "1f4f1",
    "book": "1f4d5 1f4d6 1f4d7",
    "clock": "23f0 1f570-fe0f",
    "vase": "1f3fa",
    "scissors": "2702-fe0f",
    "teddy bear": "1f9f8",
    "toothbrush": "1faa5",
}


def cut(data: bytes) -> Image.Image:
    """The picture cut to what is drawn, its longer side `CELL` pixels."""
    image = Image.open(io.BytesIO(data)).convert("RGBA")
    box = image.getchannel("A").point(lambda a: 255 if a > 24 else 0).getbbox()
    assert box is not None, "an empty sprite"
    image = image.crop(box)
    scale = CELL / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image.resize(size, Image.Resampling.LANCZOS)


def posterise(image: Image.Image) -> Image.Image:
    pixels = np.asarray(image).astype(np.uint16)
    pixels = np.minimum((pixels + 4) // 8 * 8, 255).astype(np.uint8)
    pixels[pixels[..., 3] < 16] = 0
    return Image.fromarray(pixels, "RGBA")


def main(tarballs: Path, out: Path) -> None:
    rows = [(name, point) for name, points in CODEPOINTS.items() for point in points.split()]
    atlas = Image.new("RGBA", (CELL * len(SETS), CELL * len(rows)))
    sizes: dict[str, list[list[int]]] = {}
    for column, (artwork, (tarball, pattern)) in enumerate(SETS.items()):
        with tarfile.open(tarballs / tarball) as archive:
            names = set(archive.getnames())
            sizes[artwork] = []
            for row, (_, point) in enumerate(rows):
                candidates = [pattern.format(p) for p in (point, point.removesuffix("-fe0f"))]
                member = next(c for c in candidates if c in names)
                handle = archive.extractfile(member)
                assert handle is not None
                sprite = posterise(cut(handle.read()))
                atlas.paste(sprite, (column * CELL, row * CELL))
                sizes[artwork].append([sprite.width, sprite.height])
    out.mkdir(parents=True, exist_ok=True)
    atlas.save(out / "atlas.png", optimize=True)
    index = {"cell": CELL, "artworks": list(SETS), "rows": [list(row) for row in rows], "sizes": sizes}
    (out / "index.json").write_text(json.dumps(index) + "\n")
    print(f"{len(rows)} pictures x {len(SETS)} sets, {(out / 'atlas.png').stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
