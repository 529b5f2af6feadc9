"""A chat completion of another server, confirmed on the way: its objects are asked about, sentence by sentence."""

from __future__ import annotations

import json
import logging
import re
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Executor, Future
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from seewhen.asking.options import Decoding
from seewhen.decoding.method import Method
from seewhen.errors import SeewhenError
from seewhen.methods.confirm import Confirm
from seewhen.served.offers import Offers
from seewhen.served.remote import Remote, Written, images_of
from seewhen.served.replies import Completion
from seewhen.served.server import Meter, RequestRefused, ServerFailed, ServerLate, Unreadable
from seewhen.server.choosing import choose
from seewhen.server.completing import ChatReply
from seewhen.server.failures import ApiError, internal
from seewhen.server.jobs import Delta, Done, Failed, Finished, Job, Started
from seewhen.server.sampling import Sampling
from seewhen.server.schema import Seewhen, Unsupported, has_too_many, validated
from seewhen.server.settings import Settings

log = logging.getLogger("seewhen.server")

# What confirming gives a meaning of its own, and what goes along with every request to the other server.
_READ = {
    "model",
    "messages",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stream",
    "stream_options",
    "seewhen",
    "n",
}
_ALONG = {
    "user",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "metadata",
    "store",
    "service_tier",
    "chat_template_kwargs",
    "mm_processor_kwargs",
    "add_special_tokens",
    "priority",
    "cache_salt",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
}
# What asks for nothing, so that some clients always send it. With these values it does not go along.
_IDLE: Mapping[str, Any] = {"logprobs": False, "stop": [], "logit_bias": {}}
# Of what goes along: what makes another answer to the same question, so that what was found out with one is no
# other's.
SHAPING = {"chat_template_kwargs", "mm_processor_kwargs", "add_special_tokens"}
# And what would hide that an answer goes on as it did before.
_PENALTIES = {"frequency_penalty", "presence_penalty", "repetition_penalty"}

_NAME = re.compile(r"\w{1,40}", re.ASCII)


@dataclass(frozen=True)
class ConfirmRequest:
    """A request that can be confirmed."""

    model: str
    messages: Sequence[Mapping[str, Any]]
    method: Confirm
    decoding: Decoding
    along: Mapping[str, Any]
    stream: bool
    include_usage: bool


@dataclass(frozen=True)
class Passing:
    """A request that passes as it is, and why."""

    body: bytes
    why: str


def understood(body: bytes, settings: Settings) -> ConfirmRequest | Passing:
    """What is to be confirmed, or what is passed on. Only what is ours is refused here."""
    value = _parsed(body, settings.limits.text_characters)
    if not isinstance(value, dict):
        return Passing(body, "no object")
    found = _read(value, settings)
    if isinstance(found, ConfirmRequest):
        return found
    if "seewhen" in value:  # which the other server does not know
        body = json.dumps({name: each for name, each in value.items() if name != "seewhen"}).encode()
    return Passing(body, found)


def _read(value: Mapping[str, Any], settings: Settings) -> ConfirmRequest | str:
    given = {name: each for name, each in value.items() if each is not None}
    method = _method(given.get("seewhen"), settings)
    if not isinstance(method, Confirm):
        return f"method {method.name}"
    messages, n = given.get("messages", ()), given.get("n", 1)
    if not _is_conversation(messages) or not isinstance(given.get("model"), str):
        return "messages"
    if not images_of(messages):
        return "no image"
    strange = sorted(name for name, each in given.items() if name not in _READ | _ALONG and not _idle(name, each))
    if strange or n != 1:
        name = (strange or ["n"])[0]
        return name if _NAME.fullmatch(name) else "a field"  # it goes into a header
    decoding = _decoding(given, settings)
    if decoding is None:
        return "values"
    options = given.get("stream_options")
    usage = isinstance(options, dict) and options.get("include_usage") is True
    along = {name: each for name, each in given.items() if name in _ALONG}
    stream = given.get("stream") is True
    return ConfirmRequest(given["model"], messages, method, decoding, along, stream, usage)


def _idle(name: str, value: Any) -> bool:
    """Whether a field changes nothing with this value."""
    if name in _IDLE:
        return bool(value == _IDLE[name])
    try:
        validated({name: value}, Unsupported)
    except ApiError:
        return False
    return True


def _parsed(body: bytes, text_characters: int) -> Any:
    """The request; None where it is no JSON, or too much of it, which the other server is left to say."""
    if has_too_many(body, text_characters):
        return None
    try:
        value = from_json(body)
        json.dumps(value, allow_nan=False)  # no request of ours could carry these numbers
    except ValueError:
        return None
    return value


def _method(asked: Any, settings: Settings) -> Method:
    ours = None if asked is None else validated(asked, Seewhen)
    if ours is not None and (ours.trace or ours.objects or ours.num_beams):
        message = "Traces and beams are inside the model, which is behind another server."
        raise ApiError(400, "unsupported_combination", message, "Leave them out.", param="seewhen")
    method = choose(ours, settings.method)
    if isinstance(method, Confirm) or method.name == "regular":
        return method
    raise ApiError(
        400,
        "invalid_method",
        f"{method.name} works inside the model, which is behind another server.",
        "Use confirm or regular.",
        param="seewhen",
    )


def _is_conversation(messages: Any) -> bool:
    """Whether every message has text, or parts of text and images."""

    def plain(message: Any) -> bool:
        content = message.get("content") if isinstance(message, dict) else None
        parts = content if isinstance(content, list) else []
        known = all(isinstance(part, dict) and part.get("type") in ("text", "image_url") for part in parts)
        return known and isinstance(content, str | list) and not message.get("tool_calls")

    return isinstance(messages, list) and all(map(plain, messages))


def _decoding(given: Mapping[str, Any], settings: Settings) -> Decoding | None:
    """How tokens are chosen; None where a value is none, which the other server is left to say."""
    limits = settings.limits
    most = given.get("max_completion_tokens", given.get("max_tokens", limits.default_tokens))
    seed = given.get("seed", secrets.randbits(31))
    temperature = given.get("temperature", settings.temperature)
    numbers = {name: given[name] for name in ("top_p", "top_k", "min_p") if name in given}
    whole = all(isinstance(each, int) and not isinstance(each, bool) for each in (most, seed))
    if (
        not whole
        or most < 1
        or not all(isinstance(each, int | float) for each in (temperature, *numbers.values()))
    ):
        return None
    if most > limits.max_tokens:
        raise ApiError(
            400, "limit_exceeded", f"max_tokens is {most}.", f"At most {limits.max_tokens}.", param="max_tokens"
        )
    if not temperature:
        return Decoding(most, seed=seed)
    return Decoding(most, do_sample=True, temperature=temperature, seed=seed, **numbers)


class GivenUp(Exception):
    """Nobody waits for the answer any more."""


class WatchedRemote(Remote):
    """A served model for one answer, which ends when nobody waits for it or its time is over."""

    def __init__(self, known: Remote, along: Mapping[str, Any], deadline: float) -> None:
        super().__init__(known.server, known.model, {**known.options, **along})
        self._known, self._deadline = known, deadline
        self._lock, self._given_up = threading.Lock(), False
        self._asked: Future[list[Completion]] | None = None

    def give_up(self) -> None:
        """Also what is being asked."""
        with self._lock:
            self._given_up, asked = True, self._asked
        if asked is not None:
            asked.cancel()

    @property
    def offers(self) -> Offers:
        """Found out once for all answers, within the time of whoever is first."""
        try:
            return self._known.found_out(self._probe, max(self._deadline - time.monotonic(), 0))
        except TimeoutError:
            raise GivenUp from None

    def ask(self, requests: Sequence[Mapping[str, Any]], meter: Meter) -> list[Completion]:
        """Unless it is, or gets, too late."""
        return self._within(self.whole(requests), meter)

    def _probe(self, requests: Sequence[Mapping[str, Any]]) -> list[Completion]:
        plain = [{k: v for k, v in each.items() if k not in _PENALTIES} for each in self.whole(requests)]
        return self._within(plain, Meter())

    def _within(self, requests: Sequence[Mapping[str, Any]], meter: Meter) -> list[Completion]:
        left = self._deadline - time.monotonic()
        with self._lock:
            if self._given_up or left <= 0:
                raise GivenUp
            asked = self._asked = self.server.start(requests, meter)
        try:
            return asked.result(left)
        except (CancelledError, TimeoutError):
            raise GivenUp from None
        finally:
            asked.cancel()


class Confirmation(ChatReply):
    """A confirmed completion on its way. It is written in a thread, which posts what stays."""

    def __init__(
        self, asked: ConfirmRequest, remote: Remote, workers: Executor, settings: Settings, request_id: str
    ) -> None:
        super().__init__(asked.model, self._stop, settings, f"chatcmpl-{request_id}")
        self.asked, self.stream, self.include_usage = asked, asked.stream, asked.include_usage
        self._remote = WatchedRemote(remote, asked.along, self.deadline)
        self._workers = workers

    async def prepare(self) -> None:
        """Begin."""
        decoding, method = self.asked.decoding, self.asked.method
        self.job = Job(
            id=self.id,
            prompt="",
            images=(),
            method=method,
            fingerprint=method.fingerprint,
            sampling=Sampling(decoding.temperature or 0.0, decoding.top_p or 1.0, decoding.seed),
            n=1,
            max_tokens=decoding.max_new_tokens,
            deadline=self.deadline,
            post=self.mail.post,
            stream=self.stream,
        )
        self._workers.submit(self._write)

    async def started(self) -> None:
        """Wait for the first sentence. How long the prompts were is known at the end."""
        await self.mail.take()
        self.settings.metrics.first_token(time.monotonic() - self._began)

    def _stop(self, job: Job) -> None:
        self._remote.give_up()

    def _write(self) -> None:
        """In a thread of its own."""
        post, asked = self.mail.post, self.asked
        try:
            found = self._remote.answer(asked.messages, asked.method, asked.decoding, self._settled)
            self._begin()
            post(self._finished(found))
            post(Done(found.notes))
        except GivenUp:
            post(Failed(_late()))
        except SeewhenError as error:
            post(Failed(self._failure(error)))
        except Exception:
            log.exception("%s failed", self.id)
            post(Failed(internal()))

    def _settled(self, text: str) -> None:
        self._begin()
        self.mail.post(Delta(0, text))

    def _begin(self) -> None:
        if not self.job.started:
            self.job.started = True
            self.mail.post(Started(0, 1))

    def _finished(self, found: Written) -> Finished:
        usage = found.usage
        self.prompt_tokens = usage.prompt_tokens
        self.settings.metrics.prompt(usage.prompt_tokens)
        told = {**(found.told or {}), "upstream": vars(usage)}
        reason = "length" if found.tokens >= self.job.max_tokens else "stop"
        self.settings.metrics.answered(type(self.job.method).name, found.tokens, None)
        return Finished(0, found.text, found.tokens, reason, (), None, told=told)

    def _failure(self, error: SeewhenError) -> ApiError:
        """In words for the client: without the other server's address."""
        message = error.message.replace(self._remote.server.url, "The upstream server")
        log.info("%s: %s", self.id, message)
        if isinstance(error, ServerLate):
            return _late()
        if isinstance(error, Unreadable):
            return ApiError(502, "upstream_failed", message)
        if not isinstance(error, ServerFailed | RequestRefused):  # no log-probabilities, another language
            return ApiError(400, "cannot_confirm", message, 'Send "seewhen": {"method": "regular"} to do without.')
        if error.status is not None and 300 <= error.status < 400:
            message = "The upstream server redirects, which is not followed."
        status = error.status if error.status is not None and 400 <= error.status < 500 else 502
        return ApiError(status, "upstream_failed" if status == 502 else "upstream_refused", message)


def _late() -> ApiError:
    return ApiError(504, "upstream_too_slow", "The answer took too long.", "Ask for less.")
