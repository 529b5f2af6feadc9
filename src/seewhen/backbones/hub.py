"""What every `from_pretrained` is given: no code of the checkpoint, and no hub that cannot be reached.

Without a connection the hub's own client tries again and again, for some twenty seconds, before it says so. One
request tells the same in a moment; then only files that are already on this machine are asked for.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from seewhen.errors import UnsupportedModel

_PATIENCE = 2.0  # seconds for a name to be looked up and a connection to be made
_REMEMBERED = 30.0  # seconds for which a hub that was not reached is not tried again: one load asks five times
# Of httpx or httpx2, whichever the hub's client is made of. After a connection anything else may happen: slow
# answers and refusals are the client's business.
_NO_CONNECTION = ("ConnectError", "ConnectTimeout", "ProxyError")
_reached: set[str] = set()
_missed: dict[str, float] = {}


def reachable() -> bool:
    """Whether the hub (HF_ENDPOINT, through proxies as the client itself goes) takes a connection."""
    from huggingface_hub import constants

    endpoint = constants.ENDPOINT
    if endpoint in _reached:
        return True
    if time.monotonic() - _missed.get(endpoint, -_REMEMBERED) < _REMEMBERED:
        return False
    # In a thread, because no timeout ends the look-up of a name, which takes many seconds without a network.
    threading.Thread(target=_connect, args=(endpoint, done := threading.Event()), daemon=True).start()
    done.wait(_PATIENCE + 0.5)
    if endpoint not in _reached:
        _missed[endpoint] = time.monotonic()
    return endpoint in _reached


def _connect(endpoint: str, done: threading.Event) -> None:
    from huggingface_hub.utils import get_session

    try:
        # Connect, read, write, pool: that it is there is enough, whatever it answers.
        get_session().head(endpoint, timeout=(_PATIENCE, 0.1, 0.1, _PATIENCE))
        _reached.add(endpoint)
    except Exception as error:
        if type(error).__name__ not in _NO_CONNECTION:
            _reached.add(endpoint)
    finally:
        done.set()


def where_found(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """`given` for `from_pretrained`, with local_files_only where a hub id cannot be looked up on the hub."""
    from huggingface_hub import constants

    if "local_files_only" in given or constants.HF_HUB_OFFLINE or Path(name).is_dir() or reachable():
        return given
    return {**given, "local_files_only": True}


def safely(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """`where_found`, and code that comes with a checkpoint is not run: left out, transformers asks on stdin."""
    if given.get("trust_remote_code"):
        raise UnsupportedModel("Remote code is never run.", "Use a model whose code is in transformers.")
    return {**where_found(name, given), "trust_remote_code": False}
