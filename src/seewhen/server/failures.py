"""What goes wrong, as OpenAI's clients expect to be told: a status, a code, a message and a hint.

No message ever holds a stack trace, an address of memory or of a host, or a path of this machine: those go to the
log, under the request's id.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """An answer that is an error. `retry_after` is in seconds."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        hint: str = "",
        *,
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.hint = status, code, message, hint
        self.param, self.retry_after = param, retry_after

    def body(self) -> dict[str, Any]:
        """The JSON of the answer."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {
            "error": {
                "message": f"{self.message} {self.hint}".strip(),
                "type": kind,
                "param": self.param,
                "code": self.code,
                "hint": self.hint,
            }
        }

    def headers(self) -> Mapping[str, str]:
        """Headers that go with it."""
        headers = {"Retry-After": str(self.retry_after)} if self.retry_after is not None else {}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return headers


def bad_picture(code: str, message: str, hint: str) -> ApiError:
    """Of a picture in a message."""
    return ApiError(400, code, message, hint, param="messages")


def internal() -> ApiError:
    """What a client learns of a defect of ours."""
    return ApiError(500, "internal_error", "Something went wrong in the server.", "Its log has the details.")


def client_gone() -> ApiError:
    """Nobody reads this; 499 is what the counters show."""
    return ApiError(499, "client_gone", "The client went away.", "")


def not_ready(model: str) -> ApiError:
    """The inference thread is gone."""
    return ApiError(
        503, "model_not_running", f"The model {model!r} is not running.", "The server must be restarted."
    )


def shutting_down() -> ApiError:
    """The server finishes what it has and takes nothing new."""
    return ApiError(503, "shutting_down", "The server is shutting down.", "Try again later.", retry_after=5)
