"""Writing a file so that a reader sees all of it or none."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(target: Path, *, durable: bool = False) -> Iterator[str]:
    """The name of a temporary file that takes the target's place when it is whole.

    With `durable` it is on disk, name and content, when the context ends: it outlives a power cut.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    os.close(handle)
    try:
        yield name
        os.chmod(name, 0o644)  # temporary files are made for their owner alone
        if durable:
            sync(Path(name))
        os.replace(name, target)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(target)) from error  # what fails in write() has no name
        raise
    if durable:
        sync(target.parent)


def write(target: Path, content: str | bytes, *, durable: bool = False) -> None:
    """A whole file: its bytes, or text as UTF-8 with the line ends that it has."""
    with replacing(target, durable=durable) as partial:
        Path(partial).write_bytes(content.encode() if isinstance(content, str) else content)


def naming_files(text: str) -> bytes:
    """UTF-8 of a text with names of files in it, which need not be UTF-8 themselves: what is not becomes a ?."""
    return text.encode(errors="replace")


def sync(path: Path) -> None:
    """Force a file's content, or a directory's names, to disk."""
    directory = path.is_dir()
    if directory and os.name == "nt":
        return  # Windows opens no directories, and keeps names in its journal
    handle = os.open(path, os.O_RDONLY if directory else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
