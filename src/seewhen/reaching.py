"""Whether the model hub can be reached, found out quickly.

Without a connection the hub's own client tries again and again, for some twenty seconds, before it says so. One
request tells the same in a moment; then only files that are already on this machine are asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

_PATIENCE = 3.0  # seconds for a connection
# Of httpx or httpx2, whichever the hub's client is made of. After a connection anything else may happen: slow
# answers and refusals are the client's business.
_NO_CONNECTION = ("ConnectError", "ConnectTimeout", "ProxyError")
_reached: set[str] = set()


def reachable() -> bool:
    """Whether the hub (HF_ENDPOINT, through proxies as the client itself goes) takes a connection."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    if constants.ENDPOINT in _reached:
        return True
    try:
        get_session().head(constants.ENDPOINT, timeout=_PATIENCE)
    except Exception as error:
        if type(error).__name__ in _NO_CONNECTION:
            return False
    _reached.add(constants.ENDPOINT)
    return True


def where_found(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """`given` for `from_pretrained`, with local_files_only where a hub id cannot be looked up on the hub."""
    from huggingface_hub import constants

    if "local_files_only" in given or constants.HF_HUB_OFFLINE or Path(name).is_dir() or reachable():
        return given
    return {**given, "local_files_only": True}
