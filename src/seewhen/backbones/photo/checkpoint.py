"""The checkpoint directory of the model for photographs, built when it is first asked for and then kept."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

from filelock import FileLock
from platformdirs import user_cache_path

from seewhen.atomic import sync
from seewhen.backbones.photo.source import language_model, sha256
from seewhen.errors import InvalidInput

VARIABLE = "SEEWHEN_CACHE"
WEIGHTS = Path(__file__).parents[2] / "weights" / "photo" / "photo.int8.safetensors"
# Counts the changes of what `build` makes of the same files.
_BUILD = 1
_FILES = ("config.json", "model.safetensors", "processor_config.json", "tokenizer.json")


def cache_folder() -> Path:
    """Where this system keeps what can be made again; SEEWHEN_CACHE names another place."""
    named = os.environ.get(VARIABLE)
    return Path(named).expanduser() if named else user_cache_path("seewhen", appauthor=False)


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
    """Build aside and rename, so that nobody sees half a directory; who comes at the same time waits for it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / f".{folder.name}.lock"):
        if not _whole(folder):
            _build_alone(gguf, folder)


def _build_alone(gguf: Path, folder: Path) -> None:
    sys.stderr.write(f"Building the model for photographs, once, in {folder} (about 320 MB).\n")
    sys.stderr.flush()
    import torch

    from seewhen.backbones.loading_bar import progress_bar
    from seewhen.backbones.photo.building import build

    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as aside:
        made = Path(aside) / "model"
        made.mkdir()
        # With the random numbers set aside, a seed gives the same answers at the first use as later.
        with torch.random.fork_rng(devices=[]), progress_bar(False):
            build(WEIGHTS, gguf, made)
        for file in made.iterdir():
            file.chmod(0o644)  # temporary files are made for their owner alone
            sync(file)
        if folder.exists():  # someone took files out of it
            shutil.rmtree(folder)
        made.rename(folder)
