"""The process that decodes pictures for the server: a file in, pixels out, and nothing to lose if it is ended.

Both ways a length of eight bytes comes before the data; before pixels stands a line of JSON with their size, or
with what was wrong.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys

from seewhen.server.failures import ApiError
from seewhen.server.limits import Limits
from seewhen.server.media import decoded

_MEMORY = 4 << 30  # of addresses, most of which are libraries


def main() -> None:
    """Answer until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which then hangs up
    _limit_memory()
    limits = Limits(**json.loads(sys.argv[1]))
    asked, answer = sys.stdin.buffer, sys.stdout.buffer
    answer.write(b"ready\n")
    answer.flush()
    while head := asked.read(8):
        told, pixels = _decoded(asked.read(int.from_bytes(head, "big")), limits)
        answer.write(json.dumps(told).encode() + b"\n")
        answer.write(pixels)
        answer.flush()


def _decoded(data: bytes, limits: Limits) -> tuple[dict[str, object], bytes]:
    try:
        image = decoded(data, limits)
        return {"size": image.size}, image.tobytes()
    except ApiError as error:
        return {"code": error.code, "message": error.message, "hint": error.hint}, b""


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    memory = _MEMORY if most == resource.RLIM_INFINITY else min(_MEMORY, most)
    with contextlib.suppress(ValueError):  # macOS takes none
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


if __name__ == "__main__":
    main()
