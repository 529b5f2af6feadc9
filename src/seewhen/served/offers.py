"""What a server offers beyond plain chat, found out once by trying it.

Many a server ignores what it does not know. So a request that is not refused says nothing: what comes back counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from PIL import Image, ImageDraw

from seewhen.asking.options import DESCRIBE
from seewhen.errors import UnsupportedModel
from seewhen.served.pictures import image_part
from seewhen.served.replies import Completion
from seewhen.served.server import RequestRefused, ServerFailed

MOST_LIKELIEST = (20, 5)
CONTINUE = {"continue_final_message": True, "add_generation_prompt": False}
ENDS = (".", "!", "?")
STOPS = {"stop": list(ENDS), "include_stop_str_in_output": True}
TELL_NUMBERS = {"return_token_ids": True}
NEVER = -100  # added to a token's logit; the least that servers take
_TOKENS = 8

Ask = Callable[[Sequence[Mapping[str, Any]]], list[Completion]]


@dataclass(frozen=True)
class Offers:
    """What can be relied on."""

    likeliest: int  # how many of the likeliest tokens are told; 0: no log-probabilities
    continues: bool = False  # an answer that was begun
    spaces: bool = False  # those between the two halves of an answer
    stops: bool = False  # at strings that stay in the answer
    bans: Literal["logit_bias", "bad_words", ""] = ""  # how words are forbidden; empty: not at all

    @property
    def notes(self) -> tuple[str, ...]:
        """What is missing, and what is done instead."""
        missing = (
            (self.continues, "an answer begun (continue_final_message): it is asked to go on in words"),
            (self.stops or not self.continues, "stop strings in answers: whole answers are read"),
            (
                self.bans,
                "forbidden words (logit_bias with return_token_ids, bad_words): they are replaced by the next "
                "likeliest token",
            ),
            (self.likeliest >= 20, f"more than {self.likeliest} likeliest tokens: odds have wider bounds"),
        )
        return tuple(f"The server does not offer {what}." for there, what in missing if not there)


def request(messages: Sequence[Mapping[str, Any]], **options: Any) -> dict[str, Any]:
    """Greedy unless told otherwise."""
    return {"messages": list(messages), "temperature": 0, **options}


def user(*content: Mapping[str, Any]) -> dict[str, Any]:
    """A user's message."""
    return {"role": "user", "content": list(content)}


def begun(messages: Sequence[Mapping[str, Any]], text: str) -> list[Mapping[str, Any]]:
    """A conversation with the answer as far as it goes."""
    return [*messages, {"role": "assistant", "content": text}]


def with_log_probs(count: int) -> dict[str, Any]:
    """The options that ask for the likeliest tokens."""
    return {"logprobs": True, "top_logprobs": count} if count else {}


def probe(ask: Ask) -> Offers:
    """Ask about a small picture in a few ways."""
    text = {"type": "text", "text": DESCRIBE}
    described = [user(image_part(_picture()), text)]
    unseen = request([user(text)], max_tokens=_TOKENS)
    try:
        whole, count = _first(ask, partial(request, described, max_tokens=_TOKENS))
    except RequestRefused as error:
        if _tried(ask, unseen) is None:
            raise
        raise _blind(error.message) from None
    (blind,) = ask([unseen])
    if 0 < whole.usage.prompt_tokens <= blind.usage.prompt_tokens and whole.text == blind.text:
        raise _blind("It says the same with a picture and without.")
    half = "".join(piece.text for piece in whole.pieces[: _TOKENS // 2]).rstrip()
    word = next((piece.text.strip() for piece in whole.pieces if piece.text.strip()), "")
    if not half or not word or len(whole.pieces) < 3:
        return Offers(count)
    rest = _offered(ask, request(begun(described, half), max_tokens=_TOKENS // 2, **CONTINUE))
    stopped = _offered(ask, request(described, max_tokens=_TOKENS, stop=[word], include_stop_str_in_output=True))
    return Offers(
        count,
        continues=rest is not None and _goes_on(half, rest.text, whole.text),
        spaces=rest is not None and whole.text.lstrip().startswith((half + rest.text).strip()),
        stops=stopped is not None and stopped.text.strip() == word,
        bans=_how_to_ban(ask, partial(request, described, max_tokens=1), word, with_log_probs(count)),
    )


def _how_to_ban(
    ask: Ask, first: Callable[..., dict[str, Any]], word: str, told: Mapping[str, Any]
) -> Literal["logit_bias", "bad_words", ""]:
    """The way in which the answer's first word can be forbidden.

    By its number, where servers tell it: a word's spelling may be another number of tokens in another place.
    """
    found = _offered(ask, first(**told, **TELL_NUMBERS))
    number = found.pieces[0].number if found is not None and found.pieces else None

    def heeded(**ban: Any) -> bool:
        without = _offered(ask, first(**ban))
        return without is not None and without.text.strip() not in ("", word)

    if number is not None and heeded(logit_bias={str(number): NEVER}):
        return "logit_bias"
    return "bad_words" if heeded(bad_words=[word]) else ""


def _blind(why: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"The served model takes no images. {why}",
        "Serve a vision-language model, or name another with --served-model.",
    )


def _first(ask: Ask, described: Callable[..., dict[str, Any]]) -> tuple[Completion, int]:
    """An answer with as many log-probabilities as the server gives."""
    for count in MOST_LIKELIEST:
        found = _tried(ask, described(**with_log_probs(count)))
        if found is not None and found.pieces and found.pieces[0].others:
            return found, min(count, len(found.pieces[0].others))
    (found,) = ask([described()])
    return found, 0


def _tried(ask: Ask, asked: Mapping[str, Any]) -> Completion | None:
    try:
        return ask([asked])[0]
    except RequestRefused:
        return None


def _offered(ask: Ask, asked: Mapping[str, Any]) -> Completion | None:
    """The same for what a server need not have: some fail at it where they could refuse."""
    try:
        return _tried(ask, asked)
    except ServerFailed as error:
        if error.status != 500:
            raise
        return None


def _goes_on(half: str, rest: str, whole: str) -> bool:
    """Whether the second half is what the whole has there, but for spaces."""
    first, second, both = ("".join(text.split()) for text in (half, rest, whole))
    return bool(second) and (first + second).startswith(both[: len(first + second)])


def _picture() -> Image.Image:
    image = Image.new("RGB", (64, 64), "white")
    ImageDraw.Draw(image).ellipse((12, 12, 52, 52), fill="red")
    return image
