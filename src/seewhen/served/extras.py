"""What is added to every request because a server needs it: `--request name=value`, `options=` in Python."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from seewhen.errors import InvalidInput
from seewhen.reading import parse_json

# Each request has its own, so that one value for all of them would do nothing, or harm.
_OURS = {
    "model",
    "messages",
    "stream",
    "stream_options",
    "n",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "logprobs",
    "top_logprobs",
    "stop",
    "include_stop_str_in_output",
    "bad_words",
    "logit_bias",
    "return_token_ids",
    "continue_final_message",
    "add_generation_prompt",
}


# What goes along is stored with runs and shown with answers.
_SECRET = re.compile(r"((api|access|secret)[_-]?)?(key|token|secret|password)|(proxy-)?authorization", re.I)


def checked_extras(extras: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse what requests have anyway, what no request can carry, and what nobody else should read."""
    secret = next((name for name in extras if _SECRET.fullmatch(name)), None)
    if secret is not None:
        raise InvalidInput(
            f"{secret} is a secret by its name, and what is added to requests is stored with runs.",
            "Put a key into the environment (OPENAI_API_KEY), or name the variable with --key-from.",
        )
    taken = sorted(set(extras) & _OURS)
    if taken:
        raise InvalidInput(
            f"{', '.join(taken)} cannot be the same in every request.",
            "Use the options of the command or of `generate`; this is for what the server itself needs.",
        )
    try:
        json.dumps(extras, allow_nan=False)
    except (TypeError, ValueError):
        raise InvalidInput("What is added to requests must be JSON.", "Use text, numbers, true, false.") from None
    return dict(extras)


def extras_of(pairs: Sequence[str]) -> dict[str, Any]:
    """Each of `pairs` is name=value; a value that is JSON is read as such, anything else is text."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not name:
            raise InvalidInput(f"{pair!r} is not name=value.", "For example: --request add_special_tokens=true")
        found[name] = _read(value)
    return checked_extras(found)


def _read(text: str) -> Any:
    try:
        return parse_json(text, "The value")
    except InvalidInput:
        return text
