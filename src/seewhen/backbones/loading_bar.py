"""The progress bar that transformers shows while it loads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(wanted: bool) -> Iterator[None]:
    """Without transformers' bar where a model loads in a moment; the caller's own choice comes back."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    if shown and not wanted:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown and not wanted:
            logging.enable_progress_bar()
