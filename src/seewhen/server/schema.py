"""The request, as a closed schema: what is not named here is refused.

Only what holds for every server stands here; ceilings that an operator can set are in `limits.py`. Fields
of OpenAI that mean nothing to us are known by name, so that the refusal can say so.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from seewhen.server.failures import ApiError

_LARGEST_SEED = 2**63 - 1
_NAME = r"^[a-z0-9_][a-z0-9_.:/+\-]*$"

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
    detail: Literal["auto", "low", "high"] | None = Field(default=None, description="Accepted, without effect.")


class ImagePart(Closed):
    """An image."""

    type: Literal["image_url"]
    image_url: ImageUrl


Part = Annotated[TextPart | ImagePart, Field(discriminator="type")]


class UserMessage(Closed):
    """Text and images of the user."""

    role: Literal["user"]
    content: str | Annotated[list[Part], Field(min_length=1)]


class OtherMessage(Closed):
    """Instructions, or an earlier answer: text only."""

    role: Literal["system", "developer", "assistant"]
    content: str | Annotated[list[TextPart], Field(min_length=1)]


Message = Annotated[UserMessage | OtherMessage, Field(discriminator="role")]


class StreamOptions(Closed):
    """Of a streamed answer."""

    include_usage: bool = False


class Seewhen(Closed):
    """The extension: which method decodes, and whether the full trace comes back."""

    method: str | None = Field(
        default=None, pattern=_NAME, max_length=120, description="Such as cai, regular, cai+vcd; see /v1/methods."
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
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = None
    response_format: TextFormat | None = None
    modalities: list[Literal["text"]] | None = None
    store: Literal[False] | None = None
    tools: None = None
    tool_choice: Literal["none"] | None = None
    parallel_tool_calls: None = None
    functions: None = None
    function_call: None = None
    audio: None = None
    prediction: None = None
    metadata: None = None
    reasoning_effort: None = None
    verbosity: None = None
    service_tier: Literal["auto", "default"] | None = None
    web_search_options: None = None


class ChatRequest(Unsupported):
    """A chat completion."""

    model: str = Field(min_length=1, max_length=200)
    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0, le=1, allow_inf_nan=False)
    n: int | None = Field(default=None, ge=1)
    stop: (
        Annotated[str, Field(min_length=1, max_length=64)]
        | Annotated[list[Annotated[str, Field(min_length=1, max_length=64)]], Field(max_length=4)]
        | None
    ) = None
    seed: int | None = Field(default=None, ge=-_LARGEST_SEED, le=_LARGEST_SEED)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    seewhen: Seewhen | None = None
    # Accepted and not used.
    user: str | None = Field(default=None, max_length=256, description="Accepted, without effect.")


_BRANCHES = ("str", "bool", "int", "float", "constrained-str")


def parse(body: bytes) -> ChatRequest:
    """The request in `body`; one clear error otherwise."""
    try:
        return ChatRequest.model_validate_json(body)
    except ValidationError as error:
        raise _refusal(error) from None


def _refusal(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = _fields(first["loc"])
    where = ".".join(place)
    if first["type"] == "json_invalid":
        return ApiError(400, "invalid_json", "The body is not valid JSON.", "Send one JSON object as UTF-8.")
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
            fields.append(str(step))
        before = step
    return fields
