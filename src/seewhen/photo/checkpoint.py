"""The checkpoint directory of the model for photographs, built when it is first asked for and then kept."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

from seewhen.atomic import sync
from seewhen.errors import InvalidInput
from seewhen.photo.source import language_model, sha256

VARIABLE = "SEEWHEN_CACHE"
WEIGHTS = Path(__file__).parents[1] / "models" / "photo" / "photo.int8.safetensors"
# Counts the changes of what `build` makes of the same files.
_BUILD = 1
_FILES = ("config.json", "model.safetensors", "processor_config.json", "tokenizer.json")


def cache_folder() -> Path:
    """Where this system keeps what can be made again; SEEWHEN_CACHE names another place."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "seewhen"


def checkpoint() -> Path:
    """The directory; its name tells from which files it was built, so that others are built anew."""
    gguf = language_model()
    if not WEIGHTS.is_file():
        raise InvalidInput("The weights for photographs are missing from this installation.", "Install it again.")
    key = hashlib.sha256(f"{_BUILD} {sha256(WEIGHTS)} {sha256(gguf)}".encode()).hexdigest()[:16]
    folder = cache_folder() / f"photo-{key}"
    if not _whole(folder):
        try:
            _build(gguf, folder)
        except OSError as error:
            reason = error.strerror or error
            raise InvalidInput(
                f"The model for photographs cannot be built in {folder.parent}: {reason}.",
                f"Name a folder with 700 MB free in {VARIABLE}.",
            ) from error
    return folder


def _whole(folder: Path) -> bool:
    return all((folder / name).is_file() for name in _FILES)


def _build(gguf: Path, folder: Path) -> None:
    """Build aside and rename: nobody sees half a directory, and of two that build at once the first stays."""
    sys.stderr.write(f"Building the model for photographs, once, in {folder} (about 320 MB).\n")
    sys.stderr.flush()
    import torch

    from seewhen.loading import progress_bar
    from seewhen.photo.building import build

    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as aside:
        made = Path(aside) / "model"
        made.mkdir()
        # With the random numbers set aside, a seed gives the same answers at the first use as later.
        with torch.random.fork_rng(devices=[]), progress_bar(False):
            build(WEIGHTS, gguf, made)
        for file in made.iterdir():
            file.chmod(0o644)  # temporary files are made for their owner alone
            sync(file)
        if folder.exists() and not _whole(folder):  # someone took files out of it
            shutil.rmtree(folder)
        try:
            made.rename(folder)
        except OSError:
            if not _whole(folder):
                raise
