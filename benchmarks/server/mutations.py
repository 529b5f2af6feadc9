"""Broken requests: valid ones with bytes, values or structure changed at random, always the same for a seed."""

from __future__ import annotations

import base64
import copy
import io
import json
import random
from collections.abc import Iterator
from typing import Any

from PIL import Image

KINDS = ("PNG", "JPEG", "WEBP")
_ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 1e308, -1e308, 0.5, "", "x", "\u0000", "\U0001f642" * 40,
    [], {}, [[]], [None], {"": None}, "data:image/png;base64,", "file:///etc/passwd", "http://127.0.0.1/x.png",
    "http://169.254.169.254/", "<image>", "</s>", "../" * 20, "%s%n%x", "a" * 5000,
)  # fmt: skip


def images(count: int, generator: random.Random) -> list[bytes]:
    """Small valid images of all accepted formats and several modes."""
    made = []
    for number in range(count):
        size = (generator.randint(8, 48), generator.randint(8, 48))
        image = Image.frombytes("RGB", size, generator.randbytes(3 * size[0] * size[1]))
        kind = KINDS[number % len(KINDS)]
        mode = generator.choice(("RGB", "L") if kind == "JPEG" else ("RGB", "RGBA", "L"))
        buffer = io.BytesIO()
        image.convert(mode).save(buffer, kind)
        made.append(buffer.getvalue())
    return made


def mutated_bytes(data: bytes, generator: random.Random) -> bytes:
    """`data` with some bytes flipped, cut, doubled, removed or replaced."""
    mutable = bytearray(data)
    for _ in range(generator.choice((1, 1, 2, 4, 16))):
        if not mutable:
            break
        place = generator.randrange(len(mutable))
        match generator.randrange(6):
            case 0:
                mutable[place] ^= 1 << generator.randrange(8)
            case 1:
                mutable[place] = generator.choice((0, 255, 127, 128))
            case 2:
                del mutable[place:]
            case 3:
                mutable[place:place] = mutable[place : place + generator.randrange(64)]
            case 4:
                del mutable[place : place + generator.randrange(16)]
            case _:
                mutable[place : place + 4] = generator.randbytes(4)
    return bytes(mutable)


def mutated_value(value: Any, generator: random.Random) -> Any:
    """A JSON value with one place in it changed, removed, doubled or replaced by something odd."""
    value = copy.deepcopy(value)
    places = list(_places(value))
    if not places:
        return generator.choice(_ODD)
    parent, key = generator.choice(places)
    match generator.randrange(4):
        case 0:
            del parent[key]
        case 1 if isinstance(parent, dict):
            parent[str(key) + generator.choice(("s", "_", "\u200b", ""))] = parent.pop(key)
        case 2 if isinstance(parent, list):
            parent.extend(parent[key : key + 1] * generator.choice((1, 8, 80)))
        case _:
            parent[key] = copy.deepcopy(generator.choice(_ODD))
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield value, key
        yield from _places(inner)


def body(model: str, image: bytes, text: str = "What is in the image?") -> dict[str, Any]:
    """A valid request with one image that asks for as little as possible."""
    url = f"data:image/png;base64,{base64.b64encode(image).decode()}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
    return {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 1,
        "temperature": 0,
        "stop": ["x"],
        "seewhen": {"method": "cai", "parameters": {"strength": 1.0}, "trace": False},
    }


def requests(model: str, count: int, seed: int = 0, text: str = "What is in the image?") -> Iterator[bytes]:
    """`count` bodies: half with a broken image, a quarter with broken JSON values, a quarter with broken bytes."""
    generator = random.Random(seed)
    originals = images(30, generator)
    for number in range(count):
        image = generator.choice(originals)
        if number % 4 < 2:
            yield json.dumps(body(model, mutated_bytes(image, generator), text)).encode()
        elif number % 4 == 2:
            yield json.dumps(mutated_value(body(model, image, text), generator)).encode()
        else:
            yield mutated_bytes(json.dumps(body(model, image, text)).encode(), generator)
