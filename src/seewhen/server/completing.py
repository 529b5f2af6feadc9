"""One chat completion: from the parsed request to a job, and from the job's events to the response."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from PIL import Image

from seewhen.methods.base import Method
from seewhen.server import replies
from seewhen.server.choosing import choose, public
from seewhen.server.engine import Engine
from seewhen.server.failures import ApiError
from seewhen.server.jobs import Delta, Done, Event, Failed, Finished, Job, LogProb, Started
from seewhen.server.limits import Limits
from seewhen.server.media import picture
from seewhen.server.prompting import check_texts, image_urls, render, reserved_words, texts
from seewhen.server.sampling import Sampling
from seewhen.server.schema import ChatRequest, Seewhen
from seewhen.server.settings import Settings

_BEAMS = 5  # of a method that is a beam search, where the request does not say


class Mailbox:
    """Carries events from an inference thread to the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    def post(self, event: Event) -> None:
        """From any thread. After the loop has ended nobody listens any more."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    async def take(self) -> Event:
        """The next event; a failure is raised."""
        event = await self._events.get()
        if isinstance(event, Failed):
            raise event.error
        return event


@dataclass(frozen=True)
class Decoding:
    """How a request decodes, with everything it left open filled in."""

    method: Method
    sampling: Sampling
    num_beams: int
    n: int
    max_tokens: int
    runners: int | None


def check_size(request: ChatRequest, limits: Limits) -> None:
    """Refuse what exceeds the server's ceilings, before anything is decoded."""

    def at_most(number: int, limit: int, what: str, param: str) -> None:
        if number > limit:
            raise ApiError(
                400, "limit_exceeded", f"{number:,} {what} are too many.", f"At most {limit:,}.", param=param
            )

    at_most(len(request.messages), limits.messages, "messages", "messages")
    at_most(sum(map(len, texts(request.messages))), limits.text_characters, "characters of text", "messages")
    at_most(len(image_urls(request.messages)), limits.images, "images", "messages")
    if request.messages[-1].role != "user":
        raise ApiError(
            400,
            "invalid_conversation",
            "The last message must be the user's.",
            "Add a question.",
            param="messages",
        )


def decoding_of(request: ChatRequest, default: Method, temperature: float, limits: Limits) -> Decoding:
    """Method, sampling and lengths of a request, checked against each other and the ceilings."""
    asked = request.seewhen or Seewhen()
    method = choose(request.seewhen, default)
    most = min(limits.max_tokens, limits.trace_tokens) if asked.trace else limits.max_tokens
    tokens = request.max_completion_tokens or request.max_tokens or min(limits.default_tokens, most)
    n, beams = request.n or 1, asked.num_beams or (_BEAMS if method.beams_only else 1)
    for name, value, limit in (
        ("max_tokens", tokens, most),
        ("n", n, limits.n),
        ("seewhen.num_beams", beams, limits.num_beams),
    ):
        if value > limit:
            raise ApiError(400, "limit_exceeded", f"{name} is {value}.", f"At most {limit}.", param=name)
    if request.top_logprobs is not None and not request.logprobs:
        raise ApiError(400, "invalid_request", "top_logprobs needs logprobs.", "Set it to true.", param="logprobs")
    runners = (request.top_logprobs or 0) if request.logprobs else None
    warm = temperature if request.temperature is None else request.temperature
    if beams > 1 or method.beams_only:
        warm = request.temperature or 0.0
        _refuse(warm > 0, method, "a beam search does not sample", "temperature", "Leave it out or set it to 0.")
        _refuse(n > 1, method, "a beam search gives one answer", "n", "Leave it out.")
        _refuse(beams == 1, method, "it is a beam search", "seewhen.num_beams", "Use 2 or more.")
        _refuse(not method.beams, method, "it has no beam search", "seewhen.num_beams", "Leave it out.")
    if method.samples_only:
        _refuse(warm < 1e-4, method, "it only samples", "temperature", "Use 1, say.")
    if method.samples_only or beams > 1:
        _refuse(runners is not None, method, "this decoding keeps none", "logprobs", "Leave it out.")
        _refuse(asked.trace, method, "this decoding keeps none", "seewhen.trace", "Leave it out.")
    _refuse(
        asked.objects is not None and not asked.trace,
        method,
        "only a trace marks them",
        "seewhen.objects",
        "Set seewhen.trace to true.",
    )
    _refuse(asked.trace and n > 1, method, "a trace is of one answer", "n", "Leave it out.")
    seed = secrets.randbits(48) if request.seed is None else request.seed
    sampling = Sampling(warm, 1.0 if request.top_p is None else request.top_p, seed)
    return Decoding(method, sampling, beams, n, tokens, runners)


def _refuse(condition: bool, method: Method, why: str, param: str, hint: str) -> None:
    if condition:
        raise ApiError(
            400, "unsupported_combination", f"{param} does not go with {method.name}: {why}.", hint, param=param
        )


class Completion:
    """A request on its way. `started` waits until nothing can be wrong with it any more."""

    def __init__(self, request: ChatRequest, engine: Engine, settings: Settings, request_id: str) -> None:
        self.request, self.engine, self.settings = request, engine, settings
        self.id = f"chatcmpl-{request_id}"
        self.created = int(time.time())
        self._mail = Mailbox()
        self._began = time.monotonic()
        self.prompt_tokens = 0

    async def prepare(self) -> None:
        """Check, decode the images, and join the queue."""
        limits, engine = self.settings.limits, self.engine
        check_size(self.request, limits)
        decoding = decoding_of(self.request, self.settings.method, self.settings.temperature, limits)
        engine.check()
        check_texts(texts(self.request.messages), reserved_words(engine.decoder.tokenizer))
        async with self.settings.opening:  # few at a time: a decoded picture is large
            images = await asyncio.to_thread(self._open, image_urls(self.request.messages))
        method = decoding.method.prepare(engine.decoder.tokenizer)
        stop, asked = self.request.stop, self.request.seewhen or Seewhen()
        self.job = Job(
            id=self.id,
            prompt=render(engine.decoder.processor, self.request.messages),
            images=tuple(images),
            method=method,
            fingerprint=method.fingerprint,
            sampling=decoding.sampling,
            n=decoding.n,
            max_tokens=decoding.max_tokens,
            deadline=self._began + limits.wall_seconds,
            post=self._mail.post,
            stops=() if stop is None else (stop,) if isinstance(stop, str) else tuple(stop),
            runners=decoding.runners,
            trace=asked.trace,
            objects=None if asked.objects is None else tuple(asked.objects),
            num_beams=decoding.num_beams,
            stream=bool(self.request.stream),
        )
        engine.submit(self.job)

    def _open(self, urls: Sequence[str]) -> list[Image.Image]:
        limits, pixels = self.settings.limits, 0
        images = []
        for url in urls:
            image = picture(url, limits, self.settings.fetcher)
            pixels += image.width * image.height
            if pixels > limits.request_pixels:
                message = f"The images have more than {limits.request_pixels:,} pixels together."
                raise ApiError(400, "image_too_large", message, "Make them smaller.", param="messages")
            images.append(image)
        return images

    async def started(self) -> None:
        """Wait for the first token; what was wrong with the request is raised here."""
        event = await self._mail.take()
        assert isinstance(event, Started)
        self.prompt_tokens = event.prompt_tokens
        metrics = self.settings.metrics
        metrics.prompt(event.prompt_tokens)
        metrics.first_token(time.monotonic() - self._began)

    def cancel(self) -> None:
        """The client is gone."""
        if hasattr(self, "job"):
            self.engine.cancel(self.job)

    def over(self) -> None:
        """The last byte is sent."""
        self.settings.metrics.completion(time.monotonic() - self._began)

    # -- responses ---------------------------------------------------------------------------------------

    async def whole(self) -> replies.ChatCompletion:
        """The complete response."""
        answers: list[Finished] = []
        while not isinstance(event := await self._mail.take(), Done):
            if isinstance(event, Finished):
                answers.append(event)
        choices = [
            replies.Choice(
                index=answer.index,
                message=replies.AnswerMessage(content=answer.text),
                logprobs=self._log_probs(answer.log_probs),
                finish_reason="stop" if answer.reason == "stop" else "length",
                seewhen=_choice_facts(answer),
            )
            for answer in answers
        ]
        return replies.ChatCompletion(
            id=self.id,
            created=self.created,
            model=self.engine.name,
            system_fingerprint=self._fingerprint,
            choices=choices,
            usage=self._usage(sum(answer.tokens for answer in answers)),
            seewhen=self._facts(event),
        )

    async def chunks(self) -> AsyncIterator[replies.ChatChunk]:
        """The pieces of a streamed response, in order."""
        for index in range(self.job.n):
            yield self._chunk(index, replies.DeltaMessage(role="assistant", content=""))
        answers: list[Finished] = []
        while not isinstance(event := await self._mail.take(), Done):
            if isinstance(event, Delta):
                yield self._chunk(
                    event.index,
                    replies.DeltaMessage(content=event.text),
                    logprobs=self._log_probs(event.log_probs),
                    seewhen=dict(event.live) or None,
                )
            elif isinstance(event, Finished):
                answers.append(event)
        facts = self._facts(event)
        for answer in answers:
            choice = replies.ChunkChoice(
                index=answer.index,
                delta=replies.DeltaMessage(),
                finish_reason="stop" if answer.reason == "stop" else "length",
                seewhen=_choice_facts(answer).model_dump(),
            )
            yield self._envelope(choices=[choice], seewhen=facts if answer is answers[-1] else None)
        if self.request.stream_options is not None and self.request.stream_options.include_usage:
            yield self._envelope(choices=[], usage=self._usage(sum(answer.tokens for answer in answers)))

    @property
    def _fingerprint(self) -> str:
        return f"fp_{self.job.fingerprint}"

    def _facts(self, done: Done) -> replies.Facts:
        return replies.Facts(
            method=public(self.job.method),
            fingerprint=self.job.fingerprint,
            seed=self.job.sampling.seed,
            notes=list(done.notes),
        )

    def _usage(self, tokens: int) -> replies.Usage:
        return replies.Usage(
            prompt_tokens=self.prompt_tokens, completion_tokens=tokens, total_tokens=self.prompt_tokens + tokens
        )

    def _envelope(self, **fields: Any) -> replies.ChatChunk:
        return replies.ChatChunk(
            id=self.id,
            created=self.created,
            model=self.engine.name,
            system_fingerprint=self._fingerprint,
            **fields,
        )

    def _chunk(self, index: int, delta: replies.DeltaMessage, **fields: Any) -> replies.ChatChunk:
        return self._envelope(choices=[replies.ChunkChoice(index=index, delta=delta, **fields)])

    def _log_probs(self, entries: Sequence[LogProb]) -> replies.LogProbs | None:
        if self.job.runners is None:
            return None
        return replies.LogProbs(
            content=[
                replies.TokenLogProb(
                    **self._token(entry.token, entry.log_prob),
                    top_logprobs=[replies.TopLogProb(**self._token(*best)) for best in entry.best],
                )
                for entry in entries
            ]
        )

    def _token(self, token: int, log_prob: float) -> dict[str, Any]:
        text = str(self.engine.decoder.tokenizer.decode([token], clean_up_tokenization_spaces=False))
        # Half a character has no text of its own; its bytes are not known here.
        known = None if "\ufffd" in text else list(text.encode("utf-8", "replace"))
        return {"token": text, "logprob": round(log_prob, 6), "bytes": known}


def _choice_facts(answer: Finished) -> replies.ChoiceFacts:
    fired = None if answer.fired is None else replies.Fired(tokens=answer.fired, of=answer.tokens)
    return replies.ChoiceFacts(fired=fired, stopped=answer.stopped, trace=answer.trace)
