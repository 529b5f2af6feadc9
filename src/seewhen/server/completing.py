"""One chat completion: from the parsed request to a job, and from the job's events to the response."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from seewhen.asking.options import BEAMS
from seewhen.decoding.method import Method
from seewhen.server import replies
from seewhen.server.choosing import choose, public
from seewhen.server.engine import Engine
from seewhen.server.failures import ApiError
from seewhen.server.jobs import Delta, Done, Finished, Job, LogProb
from seewhen.server.limits import Limits
from seewhen.server.pending import Pending
from seewhen.server.prompting import image_urls, texts
from seewhen.server.sampling import Sampling
from seewhen.server.schema import ChatRequest, Seewhen
from seewhen.server.settings import Settings


@dataclass(frozen=True)
class RequestDecoding:
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
    goes_on = bool(request.continue_final_message)
    if request.messages[-1].role != ("assistant" if goes_on else "user"):
        message = f"The last message must be the {'assistant' if goes_on else 'user'}'s."
        hint = (
            "Leave out continue_final_message." if goes_on else "Or set continue_final_message to go on with it."
        )
        raise ApiError(400, "invalid_conversation", message, f"Add one. {hint}", param="messages")
    if request.add_generation_prompt is goes_on:
        message = "add_generation_prompt is the opposite of continue_final_message."
        raise ApiError(400, "invalid_request", message, "Leave it out.", param="add_generation_prompt")


def decoding_of(request: ChatRequest, default: Method, usual: float, limits: Limits) -> RequestDecoding:
    """Method, sampling and lengths of a request, checked against each other and the ceilings. `usual` is the
    temperature of requests that name none."""
    asked = request.seewhen or Seewhen()
    method = choose(request.seewhen, default)
    most = min(limits.max_tokens, limits.trace_tokens) if asked.trace else limits.max_tokens
    tokens = request.max_completion_tokens or request.max_tokens or min(limits.default_tokens, most)
    n, beams = request.n or 1, asked.num_beams or (BEAMS if method.beams_only else 1)
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
    temperature = usual if request.temperature is None else request.temperature
    if beams > 1 or method.beams_only:
        temperature = request.temperature or 0.0
        _refuse(
            temperature > 0, method, "a beam search does not sample", "temperature", "Leave it out or set it to 0."
        )
        _refuse(n > 1, method, "a beam search gives one answer", "n", "Leave it out.")
        _refuse(beams == 1, method, "it is a beam search", "seewhen.num_beams", "Use 2 or more.")
        _refuse(not method.beams, method, "it has no beam search", "seewhen.num_beams", "Leave it out.")
    if method.samples_only:
        _refuse(temperature < 1e-4, method, "it only samples", "temperature", "Use 1, say.")
    if method.samples_only or beams > 1:
        _refuse(runners is not None, method, "this decoding keeps none", "logprobs", "Leave it out.")
        _refuse(asked.trace, method, "this decoding keeps none", "seewhen.trace", "Leave it out.")
        for name in ("logit_bias", "bad_words", "min_p"):
            _refuse(bool(getattr(request, name)), method, "this decoding takes none", name, "Leave it out.")
    _refuse(
        asked.objects is not None and not asked.trace,
        method,
        "only a trace marks them",
        "seewhen.objects",
        "Set seewhen.trace to true.",
    )
    _refuse(asked.trace and n > 1, method, "a trace is of one answer", "n", "Leave it out.")
    seed = secrets.randbits(48) if request.seed is None else request.seed
    bias = {int(token): value for token, value in (request.logit_bias or {}).items()}
    top_p = 1.0 if request.top_p is None else request.top_p
    sampling = Sampling(temperature, top_p, seed, request.min_p or 0.0, bias)
    return RequestDecoding(method, sampling, beams, n, tokens, runners)


def _refuse(condition: bool, method: Method, why: str, param: str, hint: str) -> None:
    if condition:
        raise ApiError(
            400, "unsupported_combination", f"{param} does not go with {method.name}: {why}.", hint, param=param
        )


class ChatReply(Pending):
    """A chat completion as it is told: whole or in pieces."""

    include_usage = False  # of a streamed answer

    async def whole(self) -> replies.ChatCompletion:
        """The complete response."""
        answers: list[Finished] = []
        while not isinstance(event := await self.mail.take(), Done):
            if isinstance(event, Finished):
                answers.append(event)
        choices = [
            replies.Choice(
                index=answer.index,
                message=replies.AnswerMessage(content=answer.text),
                logprobs=self._log_probs(answer.log_probs),
                finish_reason="stop" if answer.reason == "stop" else "length",
                stop_reason=answer.by,
                token_ids=list(answer.numbers) if self.job.numbers else None,
                seewhen=_choice_facts(answer),
            )
            for answer in answers
        ]
        return replies.ChatCompletion(
            id=self.id,
            created=self.created,
            model=self.model,
            system_fingerprint=self._fingerprint,
            choices=choices,
            usage=self._usage(sum(answer.tokens for answer in answers)),
            seewhen=self._facts(event),
        )

    async def chunks(self) -> AsyncIterator[replies.ChatChunk | bytes]:
        """The pieces of a streamed response, in order."""
        spelled: dict[int, tuple[str, str]] = {}  # of each answer: what stands around its text
        for index in range(self.job.n):
            yield self._chunk(index, replies.DeltaMessage(role="assistant", content=""))
        answers: list[Finished] = []
        while not isinstance(event := await self.mail.take(), Done):
            if isinstance(event, Delta) and not (event.log_probs or event.numbers or event.live):
                if event.index not in spelled:
                    spelled[event.index] = self._around(event.index)
                yield json.dumps(event.text, ensure_ascii=False).join(spelled[event.index]).encode()
            elif isinstance(event, Delta):
                yield self._chunk(
                    event.index,
                    replies.DeltaMessage(content=event.text),
                    logprobs=self._log_probs(event.log_probs),
                    token_ids=list(event.numbers) or None,
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
                stop_reason=answer.by,
                seewhen=_choice_facts(answer).model_dump(),
            )
            yield self._envelope(choices=[choice], seewhen=facts if answer is answers[-1] else None)
        if self.include_usage:
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
            model=self.model,
            system_fingerprint=self._fingerprint,
            **fields,
        )

    def _chunk(self, index: int, delta: replies.DeltaMessage, **fields: Any) -> replies.ChatChunk:
        return self._envelope(choices=[replies.ChunkChoice(index=index, delta=delta, **fields)])

    def _around(self, index: int) -> tuple[str, str]:
        """A piece of an answer as JSON, before and after its text: thousands differ in nothing else."""
        piece = self._chunk(index, replies.DeltaMessage(content="")).model_dump_json(exclude_none=True)
        before, after = piece.split('"content":""')  # nowhere else: in a text the quotes are escaped
        return before + '"content":', after

    def _log_probs(self, entries: Sequence[LogProb]) -> replies.LogProbs | None:
        return None


class Completion(ChatReply):
    """A chat completion on its way."""

    def __init__(self, request: ChatRequest, engine: Engine, settings: Settings, request_id: str) -> None:
        super().__init__(engine.name, engine.cancel, settings, f"chatcmpl-{request_id}")
        self.request, self.engine, self.stream = request, engine, bool(request.stream)
        self.include_usage = request.stream_options is not None and request.stream_options.include_usage

    async def prepare(self) -> None:
        """Check, decode the images, and join the queue."""
        limits, engine = self.settings.limits, self.engine
        check_size(self.request, limits)
        decoding = decoding_of(self.request, self.settings.method, self.settings.temperature, limits)
        engine.check()
        goes_on = bool(self.request.continue_final_message)
        prompt = await asyncio.to_thread(engine.prompter.prompt, self.request.messages, goes_on)
        images = await self.opened(image_urls(self.request.messages))
        method = decoding.method.prepare(engine.prompter.tokenizer)
        stop, asked = self.request.stop, self.request.seewhen or Seewhen()
        self.job = Job(
            id=self.id,
            prompt=prompt,
            images=tuple(images),
            method=method,
            fingerprint=method.fingerprint,
            sampling=self._forbidding(decoding.sampling),
            n=decoding.n,
            max_tokens=decoding.max_tokens,
            deadline=self.deadline,
            post=self.mail.post,
            stops=() if stop is None else (stop,) if isinstance(stop, str) else tuple(stop),
            keeps_stop=bool(self.request.include_stop_str_in_output),
            begun="".join(texts(self.request.messages[-1:])) if goes_on else "",
            runners=decoding.runners,
            numbers=bool(self.request.return_token_ids),
            trace=asked.trace,
            objects=None if asked.objects is None else tuple(asked.objects),
            num_beams=decoding.num_beams,
            stream=self.stream,
        )
        engine.submit(self.job)

    def _forbidding(self, sampling: Sampling) -> Sampling:
        """With the tokens of the words that must not be written."""
        words, size = self.request.bad_words or (), self.engine.decoder.backbone.text_config.vocab_size
        if any(token >= size for token in sampling.bias):
            message = f"logit_bias has a token that the model does not have; it has {size:,}."
            raise ApiError(400, "invalid_request", message, "Use its token ids.", param="logit_bias")
        tokenizer = self.engine.prompter.tokenizer
        ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for w in words for text in (w, f" {w}")]
        return dataclasses.replace(sampling, forbidden=tuple(dict.fromkeys(tuple(row) for row in ids if row)))

    def _log_probs(self, entries: Sequence[LogProb]) -> replies.LogProbs | None:
        if self.job.runners is None:
            return None
        return replies.LogProbs(
            content=[
                replies.TokenLogProb(
                    **_token(entry.text, entry.log_prob),
                    top_logprobs=[replies.TopLogProb(**_token(*best)) for best in entry.best],
                )
                for entry in entries
            ]
        )


def _token(text: str, log_prob: float) -> dict[str, Any]:
    # Half a character has no text of its own; its bytes are not known here.
    known = None if "\ufffd" in text else list(text.encode("utf-8", "replace"))
    return {"token": text, "logprob": round(log_prob, 6), "bytes": known}


def _choice_facts(answer: Finished) -> replies.ChoiceFacts:
    fired = None if answer.fired is None else replies.Fired(tokens=answer.fired, of=answer.tokens)
    return replies.ChoiceFacts(fired=fired, stopped=answer.stopped, trace=answer.trace, told=answer.told)
