"""What an operator decides, once, before the server starts."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from seewhen.errors import InvalidInput
from seewhen.server.darkroom import Darkroom
from seewhen.server.fetching import Fetcher
from seewhen.server.limits import Limits
from seewhen.server.metrics import Metrics

if TYPE_CHECKING:
    from seewhen.decoding.method import Method

_SHORTEST_KEY = 16
_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_key(host: str, key: str | None) -> None:
    """Refuse an address that others can reach without a key, and a key that can be guessed."""
    if key is None and not is_loopback(host):
        raise InvalidInput(
            f"{host} can be reached from other machines, and there is no API key.",
            "Set SEEWHEN_API_KEY or --api-key-file, or serve on 127.0.0.1.",
        )
    if key is not None and (len(key) < _SHORTEST_KEY or not key.isascii()):
        raise InvalidInput(
            f"The API key must have at least {_SHORTEST_KEY} ASCII characters.",
            "Make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'",
        )


@dataclass(frozen=True)
class Settings:
    """The server's configuration, and what all its requests share."""

    method: Method
    limits: Limits
    fetcher: Fetcher
    host: str = "127.0.0.1"
    key: str | None = field(default=None, repr=False)
    names: tuple[str, ...] = ()  # Host headers that are accepted beside the local ones
    temperature: float = 1.0  # where a request names none; OpenAI's default
    metrics: Metrics = field(default_factory=Metrics)
    darkroom: Darkroom = field(init=False)

    def __post_init__(self) -> None:
        check_key(self.host, self.key)
        object.__setattr__(self, "darkroom", Darkroom(self.limits))

    def knows(self, host: str) -> bool:
        """Whether a Host header names this server: otherwise somebody else's name points here."""
        name = host.lower()
        if not name.endswith("]"):
            bare, colon, port = name.rpartition(":")
            name = bare if colon and port.isdigit() else name
        if name in _LOCAL_NAMES or name in (self.host.lower(), f"[{self.host.lower()}]") or name in self.names:
            return True
        # Under a wildcard address without names given, the key alone decides.
        return self.key is not None and not self.names and self.host in ("0.0.0.0", "::")


def read_key(path: Path | None, environment: str | None) -> str | None:
    """The API key from a file or the environment; never from the command line, where others can see it."""
    if path is None:
        return environment or None
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise InvalidInput(f"The key file {path} cannot be read.", "It holds the key and nothing else.") from None


def host_names(names: Sequence[str]) -> tuple[str, ...]:
    """Names given with --allow-host, as Host headers carry them."""
    return tuple(name.lower().strip() for name in names)


def model_names(models: Sequence[str]) -> dict[str, str]:
    """What clients call each model: a hub id as it is, a directory by its own name and not by its path."""
    names = {Path(model).name if Path(model).is_dir() else model: model for model in models}
    if len(names) < len(models):
        raise InvalidInput("Two models have the same name.", "Name each model once.")
    return names
