"""From names to a loaded model and an opened picture, with errors in one line."""

from __future__ import annotations

import os
import statistics
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seewhen.asking.memory import is_out_of_memory
from seewhen.errors import InvalidInput, SeewhenError

if TYPE_CHECKING:
    from seewhen.backbones.loading import Loaded

_LOADS = Path("/proc/loadavg")
_LOOKS, _BETWEEN = 9, 0.004


def open_model(model: str, options: Mapping[str, Any]) -> Loaded:
    """Load the model called `model`; `options` are those of `seewhen.load`."""
    from seewhen.backbones import loading
    from seewhen.backbones.wide import lay_wide

    check_device(options.get("device"))
    prepare_for(model)
    with plain_errors():
        loaded = loading.load(model, **options)
        lay_wide(loaded.model)
        return loaded


def prepare_for(model: str) -> None:
    """What is set before a model is loaded for a command: as many threads as it can use, no bars of others."""
    from seewhen.asking.default_model import is_packaged
    from seewhen.backbones import loading

    if is_packaged(model) and not (loading.PACKAGED_PATH / "config.json").exists():
        raise InvalidInput(
            "The small model is missing from this installation.",
            "Install seewhen again, or name another with --model.",
        )
    # Its steps are too short to share even an idle machine.
    _limit_threads(1 if is_packaged(model) else free_cores())
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def _limit_threads(most: int) -> None:
    # A step's threads wait for each other many times: one that has to share its core slows all of them.
    import torch

    torch.set_num_threads(min(torch.get_num_threads(), most))


def free_cores() -> int:
    """Cores that nobody else is using now, as far as the system says: one at least, OMP_NUM_THREADS at most."""
    every = os.cpu_count() or 1
    ours = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else every
    told = os.environ.get("OMP_NUM_THREADS", "")
    most = max(1, int(told)) if told.isdecimal() else every
    return max(1, min(most, ours - round(_others_at_work() * ours / every)))  # others may run on any core


def _others_at_work() -> int:
    """How many threads of others want a core: of a few looks, the middle one. Elsewhere than on Linux the load of
    the last minute, which knows nothing yet of what has just begun, and still of what has ended."""
    looks = []
    for _ in range(_LOOKS):
        running = _running()
        if running is None:
            return round(os.getloadavg()[0]) if hasattr(os, "getloadavg") else 0
        looks.append(running - 1)  # without this one
        time.sleep(_BETWEEN)
    return int(statistics.median(looks))


def _running() -> int | None:
    """Threads that run or could run at this moment, this one among them."""
    try:
        return int(_LOADS.read_text(encoding="ascii").split()[3].split("/")[0])
    except (OSError, ValueError, IndexError):
        return None


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
