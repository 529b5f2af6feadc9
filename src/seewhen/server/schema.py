"""The request, as a closed schema: what is not named here is refused.

Only what holds for every server stands here; ceilings that an operator can set are in `limits.py`. Fields
of OpenAI that mean nothing to us are known by name, so that the refusal can say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from seewhen.server.failures import ApiError

_LARGEST_SEED = 2**63 - 1
_MOST_ENTRIES = 256  # of any list or object of a request
_MOST_VALUES = 32_768  # of a request, texts aside
_LONGEST_NAME = 80  # of a field, where an error repeats it
_NAME = r'^[A-Za-z0-9_][A-Za-z0-9_.:/+=,\[\]" \-]*$'

Number = bool | int | Annotated[float, Field(allow_inf_nan=False)] | str | None


class Closed(BaseModel):
    """Strict types, no other fields."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class TextPart(Closed):
    """A piece of text."""

    type: Literal["text"]
    text: str


class ImageUrl(Closed):
    """Where the image is: a data URL, or an address on a host that the server allows."""

    url: str = Field(min_length=1, description="data:image/png;base64,... (JPEG, PNG or WebP)")
    detail: Literal["auto", "low", "high", "original"] | None = Field(
        default=None, description="Accepted, without effect."
    )


class ImagePart(Closed):
    """An image."""

    type: Literal["image_url"]
    image_url: ImageUrl


Part = Annotated[TextPart | ImagePart, Field(discriminator="type")]

NothingIn = Annotated[list[None], Field(max_length=0)]
Unused = Annotated[str, Field(max_length=256, description="Accepted, without effect.")]


class UserMessage(Closed):
    """Text and images of the user."""

    role: Literal["user"]
    name: Unused | None = None  # agents send it unasked, and no chat template we know reads it
    content: str | Annotated[list[Part], Field(min_length=1, max_length=_MOST_ENTRIES, fail_fast=True)]


class OtherMessage(Closed):
    """Instructions, or an earlier answer: text only."""

    role: Literal["system", "developer", "assistant"]
    name: Unused | None = None
    content: str | Annotated[list[TextPart], Field(min_length=1, max_length=_MOST_ENTRIES, fail_fast=True)]
    # Clients send an answer back as they got it, with what their own classes add to it.
    refusal: None = None
    annotations: NothingIn | None = None
    audio: None = None
    function_call: None = None
    tool_calls: NothingIn | None = None
    parsed: None = None
    reasoning: None = None
    reasoning_content: None = None
    tool_call_id: None = None
    provider_specific_fields: Annotated[dict[str, None], Field(max_length=8)] | None = None


Message = Annotated[UserMessage | OtherMessage, Field(discriminator="role")]


class StreamOptions(Closed):
    """Of a streamed answer."""

    include_usage: bool = False
    include_obfuscation: Literal[False] | None = None


class Seewhen(Closed):
    """The extension: which method decodes, and whether the full trace comes back."""

    method: str | None = Field(
        default=None,
        pattern=_NAME,
        max_length=400,
        description="Such as cai:paper, cai:contrast=3,threshold=0.2, cai:attention, cai+vcd; see /v1/methods.",
    )
    preset: str | None = Field(default=None, pattern=_NAME, max_length=120)
    parameters: dict[Annotated[str, Field(max_length=40)], Number] = Field(default_factory=dict, max_length=40)
    num_beams: int | None = Field(default=None, ge=1, description="Beam search above 1.")
    trace: bool = Field(default=False, description="Send the full trace with each answer.")
    objects: Annotated[list[Annotated[str, Field(max_length=40)]], Field(max_length=200)] | None = Field(
        default=None, description="What the pictures show, by COCO's names: the trace marks the words for them."
    )


class TextFormat(Closed):
    """The only format."""

    type: Literal["text"]


class Unsupported(Closed):
    """Fields of OpenAI that this server knows, and accepts only where they change nothing."""

    frequency_penalty: Literal[0] | None = None
    presence_penalty: Literal[0] | None = None
    response_format: TextFormat | None = None
    modalities: Annotated[list[Literal["text"]], Field(max_length=8)] | None = None
    store: Literal[False] | None = None
    tools: NothingIn | None = None
    tool_choice: Literal["none"] | None = None
    parallel_tool_calls: bool | None = None  # of tools, of which there are none
    functions: NothingIn | None = None
    function_call: None = None
    audio: None = None
    prediction: None = None
    metadata: None = None
    reasoning_effort: None = None
    verbosity: None = None
    service_tier: Literal["auto", "default"] | None = None
    web_search_options: None = None
    moderation: None = None
    prompt_cache_options: None = None


Word = Annotated[str, Field(min_length=1, max_length=64)]
TokenId = Annotated[str, Field(pattern=r"^\d{1,9}$")]
Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]


class ChatRequest(Unsupported):
    """A chat completion."""

    model: str = Field(min_length=1, max_length=200)
    messages: Annotated[list[Message], Field(min_length=1, max_length=_MOST_ENTRIES, fail_fast=True)]
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0, le=1, allow_inf_nan=False)
    n: int | None = Field(default=None, ge=1)
    stop: Word | Annotated[list[Word], Field(max_length=4)] | None = None
    logit_bias: Annotated[dict[TokenId, Bias], Field(max_length=_MOST_ENTRIES)] | None = Field(
        default=None, description="By token id; changes the choice, not the log-probabilities that are told."
    )
    seed: int | None = Field(default=None, ge=-_LARGEST_SEED, le=_LARGEST_SEED)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    # What other engines have beyond OpenAI, by their names.
    min_p: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    bad_words: Annotated[list[Word], Field(max_length=_MOST_ENTRIES)] | None = Field(
        default=None, description="Words that are never written, as given and after a space."
    )
    include_stop_str_in_output: bool | None = None
    return_token_ids: bool | None = Field(default=None, description="Tell the numbers of the answer's tokens.")
    continue_final_message: bool | None = Field(
        default=None, description="Go on with the assistant's message that ends the conversation."
    )
    add_generation_prompt: bool | None = Field(default=None, description="Not true with continue_final_message.")
    seewhen: Seewhen | None = None
    # Accepted and not used: they say whose request it is, and how long its prompt is remembered.
    user: Unused | None = None
    safety_identifier: Unused | None = None
    prompt_cache_key: Unused | None = None
    prompt_cache_retention: Unused | None = None


class CheckRequest(Closed):
    """A text about an image, whose objects the model is asked about."""

    model: str = Field(min_length=1, max_length=200)
    image_url: ImageUrl
    text: str
    lexicon: Literal["open", "coco"] = Field(default="open", description="Which words are objects.")
    verdict: Literal["auto", "asking"] = Field(default="auto", description="The model's own fit, or asking alone.")
    threshold: float | None = Field(
        default=None, ge=-100, le=100, allow_inf_nan=False, description="Log-odds from which it is confirmed."
    )


Asked = TypeVar("Asked", ChatRequest, CheckRequest)
Model = TypeVar("Model", bound=Closed)


def parse(body: bytes, kind: type[Asked], text_characters: int = 0) -> Asked:
    """The request in `body`; one clear error otherwise. Its sizes are bounded before it is looked at in detail."""
    if has_too_many(body, text_characters):
        raise _too_many(_MOST_VALUES)
    try:
        value = from_json(body)
    except ValueError:
        raise ApiError(
            400, "invalid_json", "The body is not valid JSON.", "Send one JSON object as UTF-8."
        ) from None
    _check_entries(value)
    return validated(value, kind)


def has_too_many(body: bytes, text_characters: int) -> bool:
    """Whether a request has more values than are built. Counting is fast, building is not."""
    # Every value but the first of its list or object has a comma before it, and a text may have commas, too.
    return body.count(b",") + body.count(b"[") + body.count(b"{") > _MOST_VALUES + text_characters


def validated(value: Any, kind: type[Model]) -> Model:
    """A value of this kind; one clear error otherwise."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise _refusal(error) from None


def _check_entries(value: Any) -> None:
    """Refuse a list or an object with too many entries: pydantic would list what is wrong with each."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict | list):
            if len(value) > _MOST_ENTRIES:
                raise _too_many(_MOST_ENTRIES)
            waiting.extend(value.values() if isinstance(value, dict) else value)


def _too_many(limit: int) -> ApiError:
    return ApiError(400, "limit_exceeded", "The request has too many values.", f"At most {limit:,} in one place.")


def _refusal(error: ValidationError) -> ApiError:
    first = _first(error.errors(include_url=False, include_context=False, include_input=False))
    place = _fields(first["loc"])
    where = ".".join(place)
    if place and place[0] in Unsupported.model_fields:
        return ApiError(
            400,
            "unsupported_parameter",
            f"{place[0]!r} is not supported by this server.",
            "Leave it out.",
            param=place[0],
        )
    if first["type"] == "extra_forbidden":
        hint = f'Write "seewhen": {{"{where}": ...}}.' if where in Seewhen.model_fields else "Leave it out."
        return ApiError(400, "unknown_parameter", f"There is no field {where!r}.", hint, param=where)
    # Pydantic's messages are made of the schema; the client's value is left out.
    return ApiError(
        400,
        "invalid_request",
        f"{where or 'The body'}: {first['msg'][:1].lower()}{first['msg'][1:300]}.",
        "Correct the request.",
        param=where or None,
    )


def _first(errors: Sequence[Any]) -> Any:
    """The first error. Of a value that may be of several kinds, what is wrong with the kind that it is."""
    around = errors[0]["loc"][:-1]
    siblings = [each for each in errors if around and each["loc"][: len(around)] == around]
    # What is wrong further inside is wrong with a value of the right kind, too.
    deep = len(around) + 1
    inside = (each for each in siblings if not each["type"].endswith("_type") or len(each["loc"]) > deep)
    return next(inside, errors[0])


def _fields(place: tuple[int | str, ...]) -> list[str]:
    """The place of an error without the names of union branches, which a client does not know."""
    fields: list[str] = []
    before: int | str = ""
    for step in place:
        tag = isinstance(before, int) and isinstance(step, str)  # the kind of a list's entry
        branch = isinstance(step, str) and (
            "[" in step or step in ("str", "bool", "int", "float", "constrained-str")
        )
        if not tag and not branch:
            fields.append(str(step)[:_LONGEST_NAME])
        before = step
    return fields
