"""Parameters that several methods share. The text beside a type is what `seewhen methods NAME` says of it."""

from __future__ import annotations

from typing import Annotated, Literal

from seewhen.decoding.tilted_attention import QueryForm, RelevanceForm

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
