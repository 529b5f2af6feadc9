"""Parameters that several methods share. The text beside a type is what `seewhen methods NAME` says of it."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

from seewhen.decoding.method import Method, parameter_kinds
from seewhen.decoding.tilted_attention import QueryForm, RelevanceForm
from seewhen.errors import InvalidMethod

Plausibility = Annotated[
    float | None, "tokens less likely than this share of the likeliest are never chosen; none: no cut"
]

# WHERE
Form = Annotated[
    RelevanceForm,
    "weights of image tokens: shifted (cosines above the lowest), sigmoid (as printed) or uniform (all alike)",
]
Scale = Annotated[
    float, "factor on the cosines before the sigmoid: larger tells similar and dissimilar apart more"
]
Floor = Annotated[float | None, "weight of the least similar image token in the shifted form; none in the others"]
Query = Annotated[
    QueryForm, "what the prompt looks for: its last token, or the mean of the tokens after the image"
]

# WHEN
StartLayer = Annotated[int | float, "only layers above this one act: a number, or a share of the depth below 1"]
Threshold = Annotated[
    float | None, "a layer acts when the entropy before it is above this; none: adapts to the entropies so far"
]
EntropyBase = Annotated[float, "base of the entropy's logarithm: e, or 10 as in the released code"]
DeviationFactor = Annotated[float, "adaptive threshold: mean plus this many standard deviations of the entropies"]
ThresholdStart = Annotated[float, "adaptive threshold: its value while there are no entropies yet"]

# CONTRAST
TextContrast = Annotated[
    float, "lambda: weight of the row with the image against the text-only row; 1: no contrast"
]
ContrastOn = Annotated[Literal["log_probs", "probs"], "whether logarithms or probabilities are contrasted"]


def required(method: str, condition: bool, message: str, hint: str) -> None:
    """Refuse parameters that make no sense."""
    if not condition:
        raise InvalidMethod(f"{method}: {message}", hint)


def check_words(method: Method) -> None:
    """Refuse a word that is none of those a parameter may be."""
    cls: Any = type(method)  # which mypy does not take for hashable
    for name, words in _words(cls).items():
        value = getattr(method, name)
        if value not in words:
            raise InvalidMethod(f"{method.name}: {name}={value!r} is unknown.", f"Choose from {', '.join(words)}.")


@cache
def _words(cls: type) -> dict[str, tuple[str, ...]]:
    return {name: get_args(kind) for name, kind in parameter_kinds(cls).items() if get_origin(kind) is Literal}
