"""From names to a loaded model and an opened picture, with errors in one line."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seewhen.asking.memory import is_out_of_memory
from seewhen.errors import InvalidInput, SeewhenError

if TYPE_CHECKING:
    from seewhen.backbones.loading import Loaded


def open_model(model: str, options: Mapping[str, Any]) -> Loaded:
    """Load the model called `model`; `options` are those of `seewhen.load`."""
    from seewhen.backbones import loading

    check_device(options.get("device"))
    prepare_for(model)
    with plain_errors():
        return loading.load(model, **options)


def prepare_for(model: str) -> None:
    """What is set before a model is loaded for a command: as many threads as it can use, no bars of others."""
    from seewhen.asking.default_model import is_packaged
    from seewhen.backbones import loading

    if is_packaged(model) and not (loading.PACKAGED_PATH / "config.json").exists():
        raise InvalidInput(
            "The small model is missing from this installation.",
            "Install seewhen again, or name another with --model.",
        )
    if is_packaged(model):  # its steps are too short to share even an idle machine
        _limit_threads(1)
    elif model == loading.PHOTO:
        _limit_threads(_idle_cores())
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def _limit_threads(most: int) -> None:
    # A step's threads wait for each other many times: one that has to share its core slows all of them.
    import torch

    torch.set_num_threads(min(torch.get_num_threads(), most))


def _idle_cores() -> int:
    """Cores that nobody else is using, as far as the system says; one at least."""
    try:
        busy = round(os.getloadavg()[0])
    except (AttributeError, OSError):  # Windows has none
        busy = 0
    return max(1, (os.cpu_count() or 1) - busy)


def check_device(device: str | None) -> None:
    """Refuse a device that is not there before anything is loaded for it."""
    import torch

    if device is None:
        return
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise InvalidInput(f"There is no device {device!r}.", "Use cpu, cuda, cuda:1 or mps.") from None
    usable = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not usable.get(kind, False):
        raise InvalidInput(f"This machine (or this torch) has no {kind} device.", "Use --device cpu.")


@contextmanager
def plain_errors() -> Iterator[None]:
    """What torch and transformers raise for causes a user can do something about, as our own errors."""
    try:
        yield
    except SeewhenError:
        raise
    except (MemoryError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise _out_of_memory() from error
        raise
    except ValueError as error:
        # transformers checks decoding arguments and says well what is wrong.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InvalidInput(f"The model refused: {reason}", "Check the flags; --debug shows where.") from error


def _out_of_memory() -> InvalidInput:
    return InvalidInput(
        "Out of memory.",
        "Use a smaller model or picture, --dtype bfloat16, fewer --max-new-tokens or --num-beams, a method "
        "without contrast, or --device cpu.",
    )


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Our own warnings as a list of lines; those of others are dropped."""
    lines: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield lines
        finally:
            ours = [str(w.message) for w in caught if issubclass(w.category, UserWarning) and _is_ours(w)]
            lines.extend(dict.fromkeys(ours))


def _is_ours(warning: warnings.WarningMessage) -> bool:
    return Path(__file__).parents[1] in Path(warning.filename).parents
