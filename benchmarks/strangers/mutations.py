"""Ways to spoil a file: bytes of any file, and values of JSON in any place."""

from __future__ import annotations

import copy
import gzip
import json
import random
import struct
from typing import Any

_DIGITS = "@digits@"  # written as a number of five thousand digits
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf"),
    "", "yes", "no", "x" * 2000, "0" * 3000, "/", "../../etc/passwd", "a/b/c", "\n\\input{x}", "<script>",
    "\ud800", "\x00", "²", "é", "١٢", [], {}, [[]], [None], {"": None}, {"id": {}}, [1, 2, 3, 4], ["a", 1],
    _DIGITS,
)  # fmt: skip
NUMBERS = (0, 1, 2, 127, 255, 256, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1)


def spoil(raw: bytes, chance: random.Random) -> bytes:
    """One to three changes; of JSON more often its values than its bytes."""
    if raw[:2] == b"\x1f\x8b" and chance.random() < 0.6:
        return gzip.compress(spoil(gzip.decompress(raw), chance), mtime=0)
    for _ in range(chance.randint(1, 3)):
        changed = _json(raw, chance) if chance.random() < 0.7 else None
        raw = _bytes(raw, chance) if changed is None else changed
    return raw


def _bytes(raw: bytes, chance: random.Random) -> bytes:
    at, size = chance.randrange(len(raw) + 1), chance.choice((1, 1, 2, 4, 8, 30, 300))
    kind = chance.randrange(9)
    if kind == 0:
        return raw[:at]
    if kind == 1:
        return raw[:at] + raw[at + size :]
    if kind == 2:
        return raw[:at] + chance.randbytes(size) + raw[at:]
    if kind == 3:
        return raw[:at] + chance.randbytes(size) + raw[at + size :]
    if kind == 4:
        return raw[:at] + raw[at : at + size] * 3 + raw[at + size :]
    if kind == 5:
        deep = chance.choice((50, 150, 2_000, 100_000))
        return raw[:at] + chance.choice((b"[" * deep, b'{"a":' * deep, b"[" * deep + b"]" * deep)) + raw[at:]
    if kind == 6:
        return raw[:at] + b"9" * chance.choice((19, 400, 5000)) + raw[at:]
    if kind == 7:  # a length or a count somewhere claims something else, early in the file where those are
        at = chance.randrange(min(len(raw) + 1, 4096))
        return raw[:at] + struct.pack("<Q", chance.choice(NUMBERS))[: chance.choice((4, 8))] + raw[at + 8 :]
    return chance.choice((b"", b"\x00" * 64, b"null", b"[]", b"{}", b"\xff\xfe", b"\xef\xbb\xbf" + raw, raw + raw))


def _json(raw: bytes, chance: random.Random) -> bytes | None:
    """JSON, or one line of JSON lines, with one place changed; None if it is neither."""
    try:
        lines = [raw.decode()]
        if raw.count(b"\n") > 1 and raw.lstrip()[:1] == b"{" and b"}\n{" in raw:
            lines = raw.decode().split("\n")
        at = chance.randrange(len(lines))
        value = json.loads(lines[at])
    except (ValueError, RecursionError):
        return None
    lines[at] = _dump(_change(value, chance))
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _dump(value: Any) -> str:
    return json.dumps(value).replace(f'"{_DIGITS}"', "7" * 5000)


def _change(value: Any, chance: random.Random) -> Any:
    """Walks to a random place and changes, deletes, renames or doubles what is there."""
    value = copy.copy(value)
    if not isinstance(value, list | dict) or not value or chance.random() < 0.12:
        return chance.choice(VALUES)
    key = chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
    kind = chance.randrange(8)
    if kind == 0:
        del value[key]
    elif kind == 1 and isinstance(value, dict):
        value[chance.choice(("", "id", "format", "other", key + key))] = value.pop(key)
    elif kind == 1:
        value.insert(key, value[key])
    elif kind == 2:
        value[key] = chance.choice(VALUES)
    elif kind == 3 and isinstance(value, dict):
        value[key] = value[chance.choice(list(value))]
    else:
        value[key] = _change(value[key], chance)
    return value
