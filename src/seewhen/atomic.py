"""Writing a file so that a reader sees all of it or none."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(target: Path) -> Iterator[str]:
    """The name of a temporary file that takes the target's place when it is whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    os.close(handle)
    try:
        yield name
        os.chmod(name, 0o644)  # temporary files are made for their owner alone
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
