"""Loading, and ending: what a process that is a command's own need not do."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_alone = False


@contextmanager
def alone() -> Iterator[None]:
    """Inside, the process does nothing but one command. If that succeeds, the process ends with it: Python would
    take another second to look at every object of torch and transformers before the system frees all anyway."""
    global _alone
    _alone = True
    try:
        yield
        succeeded = True
    except SystemExit as end:
        succeeded = end.code in (None, 0)
        if not succeeded:
            raise
    finally:
        _alone = False
        gc.unfreeze()  # modules written in C++ complain about objects that are there to the end
    others = [each for each in threading.enumerate() if each is not threading.main_thread() and not each.daemon]
    if succeeded and not others:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


@contextmanager
def starting() -> Iterator[None]:
    """Inside, Python does not look for unused objects: hundreds of thousands are made that all stay, and looking
    through them again and again took a fifth of this time. If the process is the command's own, they are not
    looked through afterwards either."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if _alone:
            gc.freeze()
        if enabled:
            gc.enable()
