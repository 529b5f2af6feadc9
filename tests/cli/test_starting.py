"""Python's collector rests while a command loads, and a process of its own ends with its command."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from seewhen.cli.starting import starting


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_rests_and_comes_back(enabled):
    frozen, before = gc.get_freeze_count(), gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(ValueError), starting():
            assert not gc.isenabled()
            raise ValueError
        assert gc.isenabled() == enabled
        assert gc.get_freeze_count() == frozen, "but for a process of its own nothing is left out for good"
    finally:
        (gc.enable if before else gc.disable)()


def _process(body: str) -> tuple[int, str, str]:
    code = f"""
import atexit, sys, threading
from seewhen.cli.starting import alone
atexit.register(lambda: print("before"))
class Late:
    def __del__(self): sys.__stdout__.write("taken apart")
late = Late()
with alone():
    atexit.register(lambda: print("inside"))
    print("said", end=" ")
    sys.stderr.write("noted")
    {body}
print("after")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("body", ["pass", "raise SystemExit", "raise SystemExit(0)"])
def test_a_process_ends_with_its_command(body):
    """All is written, and what wants to be called at the end is; nothing is taken apart."""
    assert _process(body) == (0, "said inside\nbefore\n", "noted")


def test_what_fails_ends_as_ever():
    code, out, err = _process("raise SystemExit(3)")
    assert (code, err) == (3, "noted") and out == "said inside\nbefore\ntaken apart"
    code, out, err = _process("raise ValueError('broken')")
    assert code == 1 and "ValueError: broken" in err and "taken apart" in out


def test_a_thread_that_works_on_is_waited_for():
    code, out, _ = _process("threading.Timer(0.2, print, ['finished']).start()")
    assert code == 0 and "finished" in out and "after" in out
