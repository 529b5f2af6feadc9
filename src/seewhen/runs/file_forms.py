"""What the files of a run directory must look like: they may come from a stranger, and reports rely on them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from annotated_types import MinLen
from pydantic import FailFast
from typing_extensions import TypedDict

from seewhen.reading import Count, Finite


class Asked(TypedDict):
    name: str
    data: str
    split: str | None
    settings: dict[str, str]
    questions: str
    style: str


class Model(TypedDict):
    name: str
    dtype: str


class MethodUsed(TypedDict):
    label: Annotated[str, MinLen(1)]
    fingerprint: str
    method: str
    parameters: dict[str, Any]


class Decoding(TypedDict):
    mode: str
    max_new_tokens: Count
    temperature: NotRequired[Finite | None]


class Config(TypedDict):
    benchmark: Asked
    model: Model
    method: MethodUsed
    decoding: Decoding
    versions: dict[str, Any]


class Manifest(TypedDict):
    format: int
    config: dict[str, Any]
    environment: dict[str, Any]


class Judged(TypedDict):
    """An object that a method asked about; places in the answer are those of what it still says."""

    object: str
    start: NotRequired[Count]
    end: NotRequired[Count]
    verdict: NotRequired[Literal["confirmed", "denied", "not asked"]]
    odds: NotRequired[Finite]
    probability: NotRequired[Finite]


class Back(TypedDict):
    """A sentence that was taken back."""

    text: str
    after: Count
    denied: list[Judged]


class AskedAnswer(TypedDict):
    """What a method that asks tells of an answer."""

    verdicts: list[Judged]
    taken_back: list[Back]
    asked: Count
    steps: Count
    tokens: Count


class SampleLine(TypedDict):
    """A line of samples.jsonl."""

    id: str
    seed: Count
    image: str
    answer: NotRequired[str]
    tokens: NotRequired[Count]
    error: NotRequired[str]
    facts: NotRequired[dict[str, Finite]]
    told: NotRequired[AskedAnswer]


class Entry(TypedDict):
    value: Finite
    low: Finite
    high: Finite
    seed_sd: Finite | None
    flat: bool


class Result(TypedDict):
    samples: Count
    images: Count
    seeds: Count
    facts: dict[str, Finite]
    metrics: Annotated[dict[str, Entry], MinLen(1)]


class Timing(TypedDict):
    samples: Count
    tokens: Count
    seconds: Finite


Grouped = dict[str, dict[str, Annotated[list[Annotated[list[Count], FailFast(), MinLen(1)]], FailFast()]]]


class Cuts(TypedDict):
    """cuts.json: counts of captions cut to so many words."""

    images: Annotated[list[str], FailFast()]
    cuts: dict[str, Grouped]


class Counts(TypedDict):
    format: Literal[1]
    images: Annotated[list[str], FailFast()]
    counts: Grouped
    right: dict[str, Annotated[list[Literal[0, 1] | None], MinLen(1)]]
    cluster: dict[str, str]
