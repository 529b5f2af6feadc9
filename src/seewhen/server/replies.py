"""Responses in OpenAI's shape. What is ours stands under `seewhen`, which other clients ignore."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer


class Reply(BaseModel):
    """A part of a response."""

    model_config = ConfigDict(frozen=True)


class ErrorDetail(Reply):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str
    hint: str


class ErrorReply(Reply):
    """The body of every error."""

    error: ErrorDetail


class TopLogProb(Reply):
    """A likely token."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogProb(TopLogProb):
    """The chosen token, with the likeliest ones."""

    top_logprobs: list[TopLogProb]


class LogProbs(Reply):
    """Of every token of an answer."""

    content: list[TokenLogProb]
    refusal: None = None


class Fired(Reply):
    """At how many tokens the method acted."""

    tokens: int
    of: int


class ChoiceFacts(Reply):
    """What the method did in one answer. `stopped` is "time" where the server's wall time ended it.

    `told` has what `confirm` found: verdicts on the objects of the answer, sentences taken back, costs.
    """

    fired: Fired | None
    stopped: str | None = None
    trace: dict[str, Any] | None = None
    told: dict[str, Any] | None = None


class AnswerMessage(Reply):
    """The answer."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class Choice(Reply):
    """One answer."""

    index: int
    message: AnswerMessage
    logprobs: LogProbs | None = None
    finish_reason: Literal["stop", "length"]
    stop_reason: str | None  # the stop string that ended it
    token_ids: list[int] | None = None  # where they are asked for
    seewhen: ChoiceFacts


class Usage(Reply):
    """Tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Facts(Reply):
    """How the answers were made: with the same method, seed and request they can be made again."""

    method: dict[str, Any]
    fingerprint: str
    seed: int
    notes: list[str] = []


class ChatCompletion(Reply):
    """The response to a request that is not streamed."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: Usage
    seewhen: Facts


class DeltaMessage(Reply):
    """New text."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChunkChoice(Reply):
    """A piece of one answer."""

    index: int
    delta: DeltaMessage
    logprobs: LogProbs | None = None
    finish_reason: Literal["stop", "length"] | None = None
    stop_reason: str | None = None
    token_ids: list[int] | None = None
    seewhen: dict[str, Any] | None = None

    @model_serializer(mode="wrap")
    def _with_reason(self, rest: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What is nothing is left out of pieces, but for the reason, which OpenAI's always have."""
        return {"finish_reason": None, **rest(self)}


class ChatChunk(Reply):
    """One event of a streamed response."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: Usage | None = None
    seewhen: Facts | None = None


class CheckedMention(Reply):
    """A word that names an object; what the model says when asked about it."""

    object: str
    text: str
    start: int
    end: int
    sentence: int
    verdict: Literal["confirmed", "denied", "not asked"]
    odds: float | None
    probability: float | None
    range: tuple[float | None, float | None] | None


class CheckReply(Reply):
    """A text with a verdict for each object it names."""

    id: str
    object: Literal["check"] = "check"
    created: int
    model: str
    text: str
    mentions: list[CheckedMention]
    denied: list[str]
    notes: list[str]


class ModelCard(Reply):
    """A model of this server."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "seewhen"
    seewhen: dict[str, Any]


class ModelList(Reply):
    """All models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class MethodList(Reply):
    """All methods."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]


class SceneReply(Reply):
    """A drawn scene: the picture as a data URL, and what is really in it."""

    id: str
    split: str
    index: int
    image: str
    width: int
    height: int
    objects: list[str]


class Health(Reply):
    """Whether the server (or each of its models) is well."""

    status: str
