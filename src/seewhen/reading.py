"""Reading files of strangers: what they may cost is bounded, and what is wrong with them is an InvalidInput.

Bounded are a file's size, what a gzipped one unpacks to, how deep JSON nests and how many digits its numbers have.
"""

from __future__ import annotations

import gzip
import json
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Interval

from seewhen.errors import InvalidInput

MIB = 1 << 20
LARGEST = 1024 * MIB  # COCO's annotations have 450
_UNPACKED, _RATIO = 64 * MIB, 50  # of a gzipped file, whichever is more: text rarely packs better
Finite = Annotated[float, Interval(ge=-1e100, le=1e100)]  # squares and sums of these are numbers too
Count = Annotated[int, Interval(ge=0, le=1 << 53)]
_DEPTH = 100  # what is read is walked through by functions that call themselves


def read_bytes(path: Path, hint: str = "Check the path.", largest: int = LARGEST) -> bytes:
    """The content of a file as it is."""
    try:
        with path.open("rb") as stream:
            state = path.stat()
            regular = stat.S_ISREG(state.st_mode)
            if regular and state.st_size > largest:
                raise _too_large(path, largest)
            raw = stream.read() if regular else stream.read(largest + 1)
            if len(raw) > largest:  # of a device or a pipe nobody knows the size before
                raise _too_large(path, largest)
            return raw
    except FileNotFoundError:
        raise InvalidInput(f"There is no file {path}.", hint) from None
    except (OSError, ValueError) as error:  # a name with a NUL is a ValueError
        raise InvalidInput(f"{path} cannot be read: {error}.", "Check the path and the permissions.") from None


def _unpacked(path: Path, raw: bytes, largest: int) -> bytes:
    most = min(largest, max(_UNPACKED, _RATIO * len(raw)))
    try:
        with gzip.GzipFile(fileobj=BytesIO(raw)) as packed:
            content = packed.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInput(f"{path} cannot be unpacked: {error}.", "Check that the file is complete.") from None
    if len(content) > most:
        raise InvalidInput(
            f"{path} unpacks to more than {most // MIB} MiB from {len(raw)} bytes.", "Unpack it if you trust it."
        )
    return content


def _too_large(path: Path, largest: int) -> InvalidInput:
    return InvalidInput(f"{path} has more than {largest // MIB} MiB.", "Is it the right file?")


def read_text(path: Path, hint: str = "Check the path.", largest: int = LARGEST) -> str:
    """The text of a file, unpacked if it is gzipped."""
    raw = read_bytes(path, hint, largest)
    try:
        return (_unpacked(path, raw, largest) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8 text ({error.reason}).", "Save it as UTF-8.") from None


def read_json(path: Path, hint: str = "Check the path.", largest: int = LARGEST) -> Any:
    """One JSON document."""
    return parse_json(read_text(path, hint, largest), str(path))


def parse_json(text: str, where: str, hint: str = "Check that the file is complete.") -> Any:
    """JSON that nests at most a hundred deep, with numbers that Python reads; `where` is named in errors."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        line = f", line {error.lineno}" if error.lineno > 1 else ""
        raise InvalidInput(f"{where}{line}: not JSON ({error.msg}).", hint) from None
    except ValueError:
        raise InvalidInput(f"{where} has a number of thousands of digits.", hint) from None
    except RecursionError:
        raise _too_deep(where) from None
    if "\\ud" in text.lower():
        _refuse_half_characters(found, where, hint)
    layer = [found]
    for _ in range(_DEPTH):
        layer = [inner for outer in layer for inner in _inside(outer) if isinstance(inner, list | dict)]
        if not layer:
            return found
    raise _too_deep(where)


def _refuse_half_characters(found: Any, where: str, hint: str) -> None:
    """JSON can name half of a surrogate pair, which no file can be written with."""
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"{where} has half a character (\\ud...).", hint) from None
    except RecursionError:
        raise _too_deep(where) from None


def _inside(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _too_deep(where: str) -> InvalidInput:
    return InvalidInput(f"{where} nests more than {_DEPTH} deep.", "Is it the right file?")


@contextmanager
def expecting(where: object, form: str) -> Iterator[None]:
    """What a reader stumbles over in JSON of another form is said in a line; `form` says what it should be."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise InvalidInput(f"{where} has another form ({type(error).__name__}: {error!s:.200}).", form) from None


@contextmanager
def stored_tensors(path: Path, hint: str) -> Iterator[None]:
    """What safetensors says of a missing or broken file, in a line."""
    from safetensors import SafetensorError

    try:
        yield
    except FileNotFoundError:
        raise InvalidInput(f"There is no file {path}.", hint) from None
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, RuntimeError) as error:
        raise InvalidInput(f"{path} is no safetensors file that can be read ({error!s:.200}).", hint) from None


def check_form(kind: Any, value: Any, where: object, hint: str) -> None:
    """Refuse a value that is not of the type `kind`: a TypedDict, or anything that pydantic knows."""
    from pydantic import ValidationError

    try:
        _adapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        raise InvalidInput(f"{where}: {place[:100]}: {first['msg']}.", hint) from None


@lru_cache(maxsize=32)
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
