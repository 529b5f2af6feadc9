"""What a server answers, read with suspicion: its form is checked, and it says no more than it was asked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NotRequired

from annotated_types import MinLen
from typing_extensions import TypedDict

from seewhen.errors import InvalidInput
from seewhen.reading import Count, Finite, check_form, parse_json

_WHAT = "The server's answer"
_SPACES = re.compile(r"\s*")
_QUOTED = 1000  # characters of a server's own words
_HINT = "Is this the address of an OpenAI-compatible server?"


class _Likely(TypedDict):
    token: str
    logprob: Finite | None  # null: minus infinity, which JSON does not have


class _Token(_Likely):
    top_logprobs: NotRequired[list[_Likely] | None]


class _LogProbs(TypedDict):
    content: NotRequired[list[_Token] | None]


class _Part(TypedDict):
    type: NotRequired[str]
    text: NotRequired[str | None]


class _Message(TypedDict):
    content: NotRequired[str | list[_Part] | None]


class _Choice(TypedDict):
    message: _Message
    finish_reason: NotRequired[str | None]
    logprobs: NotRequired[_LogProbs | None]
    stop_reason: NotRequired[str | int | None]
    token_ids: NotRequired[list[Count] | None]


class _Details(TypedDict):
    cached_tokens: NotRequired[Count | None]


class _Usage(TypedDict):
    prompt_tokens: NotRequired[Count | None]
    completion_tokens: NotRequired[Count | None]
    prompt_tokens_details: NotRequired[_Details | None]


class _Reply(TypedDict):
    choices: Annotated[list[_Choice], MinLen(1)]
    usage: NotRequired[_Usage | None]


@dataclass(frozen=True)
class Likely:
    """A token that could stand at a place, with its log-probability."""

    text: str
    log_prob: float


@dataclass(frozen=True)
class Piece:
    """A token of an answer as it stands in the text; `others` are the likeliest at its place, itself included.

    `number` is what the vocabulary has it under, where the server tells that.
    """

    text: str
    log_prob: float | None = None
    others: tuple[Likely, ...] = ()
    number: int | None = None


@dataclass(frozen=True)
class Usage:
    """What answers cost, as the server counts."""

    requests: int = 0  # those tried again included
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompts
    completion_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(**{name: value + getattr(other, name) for name, value in vars(self).items()})


@dataclass(frozen=True)
class Completion:
    """An answer."""

    text: str
    pieces: tuple[Piece, ...]  # their texts joined are the text
    finish: str
    stopped: Any = field(default=...)  # the stop string, None at the model's own end, ... where it is not told
    likeliest: tuple[Likely, ...] = ()  # tokens at the first place, said or not
    usage: Usage = Usage()

    @property
    def over(self) -> bool:
        """Whether the model itself ended the answer, as far as the server tells."""
        return self.finish == "stop" and self.stopped is None


def read_reply(body: bytes) -> Completion:
    """The first choice of a chat completion; InvalidInput where it is none."""
    value = parse_json(body.decode("utf-8", "replace"), _WHAT, _HINT)
    said = _said(value)
    if said:  # some say so with the status of a success
        hint = "Check the address (…/v1) and the name of the served model, or ask again later."
        raise InvalidInput(f"The server's answer is an error: {str(said)[:_QUOTED].rstrip('.')}.", hint)
    check_form(_Reply, value, _WHAT, _HINT)
    choice = value["choices"][0]
    text = _text(choice["message"].get("content"))
    tokens = (choice.get("logprobs") or {}).get("content") or []
    used = value.get("usage") or {}
    cached = (used.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    usage = Usage(0, used.get("prompt_tokens") or 0, cached, used.get("completion_tokens") or 0)
    finish = choice.get("finish_reason") or "stop"
    likeliest = _likeliest(tokens[0]) if tokens else ()
    pieces = _pieces(text, tokens, choice.get("token_ids") or [])
    return Completion(text, pieces, finish, choice.get("stop_reason", ...), likeliest, usage)


def words_of(body: bytes) -> str:
    """What a server says in an error: the message in it, or all of it where there is none."""
    text = body.decode("utf-8", "replace")
    try:
        said = _said(parse_json(text, _WHAT))
    except InvalidInput:
        return text
    return said if isinstance(said, str) else text


def _said(value: Any) -> Any:
    """What a server says in place of an answer."""
    if not isinstance(value, dict):
        return None
    said = value.get("error")
    if not said and "choices" not in value:
        said = value.get("message") or value.get("detail")
    return (said.get("message") or said) if isinstance(said, dict) else said


def _text(content: str | Sequence[_Part] | None) -> str:
    """What a message says. Some servers tell it in parts, one of which may be what the model thought before."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.get("text") or "" for part in content if part.get("type", "text") == "text")


def _pieces(text: str, tokens: Sequence[_Token], numbers: Sequence[int]) -> tuple[Piece, ...]:
    """The tokens with the space that stands before them in the text, which some servers leave out.

    Tokens that are not the text's (half characters, a stop string that was cut off) are left out.
    """
    pieces: list[Piece] = []
    told = numbers if len(numbers) == len(tokens) else [None] * len(tokens)  # else nobody knows whose they are
    at = word = 0  # where the rest of the text begins, and the first word of it
    for token, number in zip(tokens, told, strict=True):
        plain = _plain(token["token"])
        spelled = plain.strip() or plain
        if word <= at:
            word = _SPACES.match(text, at).end()  # type: ignore[union-attr]
        start = word if plain.strip() else at
        if not spelled or not text.startswith(spelled, start):
            continue
        whole = text[at : start + len(spelled)]
        pieces.append(Piece(whole, _log_prob(token), _likeliest(token), number))
        at = start + len(spelled)
    if text[at:]:
        pieces.append(Piece(text[at:]))
    return tuple(pieces)


def _likeliest(token: _Token) -> tuple[Likely, ...]:
    told = [(_plain(each["token"]), _log_prob(each)) for each in token.get("top_logprobs") or ()]
    found = [Likely(text, log_prob) for text, log_prob in told if log_prob is not None]
    return tuple(sorted(found, key=lambda each: -each.log_prob))


def _log_prob(token: _Likely) -> float | None:
    return None if token["logprob"] is None else min(token["logprob"], 0.0)


def _plain(token: str) -> str:
    """Without the marks that vocabularies write for spaces."""
    return token.replace("▁", " ").replace("Ġ", " ")
