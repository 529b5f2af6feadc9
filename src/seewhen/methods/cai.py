"""CAI: Context-aware Attention Intervention (Lei et al., ECCV 2026).

Idea: at each decoding step find where the current token's evidence lies in the image (similarity of
its embedding to the image tokens), act only in deep layers whose logit-lens entropy is high, and tilt
the attention of the newest token towards those image tokens: `A <- A + |A| w` before the softmax.
Optionally contrast with a text-only row: `lambda p(y|v,x) - (lambda - 1) p(y|x)`.

Source: the paper and its released code (MIT), which differ; the presets `paper` and `reference` are
the two, `adaptive` is the label-free rule of the paper's appendix and the default. Written from the
formulas.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar

from torch import Tensor

from seewhen.decoding.branches import TextOnly
from seewhen.decoding.method import Logits, Method, Parts, Preset
from seewhen.decoding.tilted_attention import Kernel, Relevance, Tilt, TiltForm
from seewhen.equations.contrast import log_prob_contrast, prob_contrast
from seewhen.equations.when import Gate
from seewhen.equations.when import start_layer as resolve_start_layer
from seewhen.errors import InvalidMethod
from seewhen.methods.cai_leak import LeakyTilt
from seewhen.methods.parameters import (
    ContrastOn,
    DeviationFactor,
    EntropyBase,
    Floor,
    Form,
    Plausibility,
    Query,
    Scale,
    StartLayer,
    TextContrast,
    Threshold,
    ThresholdStart,
    check_words,
    required,
)

if TYPE_CHECKING:
    from seewhen.backbones.backbone import Backbone

_SCRIPT = "released code, scripts/pope_eval.sh"
_DEPTH = 32  # all backbones of the script have 32 layers; start layers are kept as a share of the depth

# threshold (base 10), start layer, contrast: one cell per backbone, dataset and POPE split.
_CELLS = {
    "llava-1.5": {
        "coco": ((0.10, 30, 5), (0.10, 27, 3), (0.10, 27, 3)),
        "aokvqa": ((0.10, 27, 3), (0.10, 27, 3), (0.10, 27, 5)),
        "gqa": ((0.10, 28, 5), (0.10, 28, 5), (0.10, 28, 5)),
    },
    "instructblip": {
        "coco": ((0.10, 30, 5), (0.10, 26, 5), (0.10, 26, 5)),
        "aokvqa": ((0.15, 28, 5), (0.15, 28, 5), (0.15, 28, 5)),
        "gqa": ((0.05, 21, 5), (0.05, 21, 5), (0.20, 19, 5)),
    },
    "qwen-vl": {
        "coco": ((0.90, 30, 50), (0.90, 30, 10), (0.90, 28, 5)),
        "aokvqa": ((0.90, 25, 50), (0.90, 27, 50), (0.90, 23, 3)),
        "gqa": ((0.90, 30, 10), (0.90, 19, 5), (0.90, 19, 5)),
    },
}

_REFERENCE = {
    "relevance": "shifted",
    "scale": 100.0,
    "floor": 0.5,
    "query": "tail_mean",
    "entropy_base": 10.0,
    "threshold": 0.15,
    "start_layer": 25 / _DEPTH,
    "tilt": "score",
    "contrast": 1.0,
    "contrast_on": "log_probs",
    "plausibility": 0.1,
    "leak": True,
}


def _presets() -> dict[str, Preset]:
    presets = {
        "adaptive": Preset(
            {},
            "paper, appendix 'Hyperparameter sensitivity and adaptive rules'; weights as in the released code",
            {
                "start_layer": "floor(0.85 L), paper appendix",
                "threshold": "None: running mean + 0.5 sd per layer, paper appendix",
                "threshold_start": "0.1 in base 10, the paper's ablation optimum, used until there is a history",
                "relevance": "released code (the printed sigmoid of the cosine is nearly flat)",
                "query": "released code (the last prompt token is a role tag and points nowhere)",
            },
        ),
        "paper": Preset(
            {
                "relevance": "sigmoid",
                "scale": 1.0,
                "floor": None,
                "query": "last",
                "entropy_base": math.e,
                "threshold": 0.1,
                "start_layer": 27 / _DEPTH,
                "tilt": "score",
                "contrast": 3.0,
                "contrast_on": "probs",
                "plausibility": None,
            },
            "paper, Eqs. similarity, condition, intervention, decoding",
            {
                "threshold": "ablation optimum (A-OKVQA, random)",
                "start_layer": "ablation optimum 27 of 32 layers",
                "contrast": "ablation optimum lambda = 3",
            },
        ),
        "reference": Preset(
            _REFERENCE,
            "released code, utils/llava_utils.py and its argument defaults",
            {"start_layer": "25 of 32 layers", "leak": "a defect of the released code, kept for parity"},
        ),
    }
    for backbone, datasets in _CELLS.items():
        for dataset, cells in datasets.items():
            for split, (threshold, start, contrast) in zip(
                ("random", "popular", "adversarial"), cells, strict=True
            ):
                values = {
                    **_REFERENCE,
                    "threshold": threshold,
                    "start_layer": start / _DEPTH,
                    "contrast": float(contrast),
                }
                presets[f"reference:{backbone}/{dataset}/{split}"] = Preset(values, _SCRIPT)
    return presets


@dataclass(frozen=True)
class CAI(Method):
    """Context-aware Attention Intervention. The class defaults are the preset `adaptive`."""

    name: ClassVar[str] = "cai"
    summary: ClassVar[str] = "look again, where the evidence is, when the model is unsure"
    source: ClassVar[str] = "Lei et al., ECCV 2026; code MIT"
    endless: ClassVar[tuple[str, ...]] = ("threshold",)
    joins: ClassVar[bool] = True
    presets: ClassVar[Mapping[str, Preset]] = _presets()

    # WHERE
    relevance: Form = "shifted"
    scale: Scale = 100.0
    floor: Floor = 0.5
    query: Query = "tail_mean"
    source_layer: Annotated[int, "layer whose inputs are compared: 0 are the embeddings"] = 0
    # WHEN
    start_layer: StartLayer = 0.85
    threshold: Threshold = None
    entropy_base: EntropyBase = math.e
    sd_factor: DeviationFactor = 0.5
    threshold_start: ThresholdStart = 0.1 * math.log(10)
    # HOW
    tilt: Annotated[TiltForm, "score: A + |A| w, as printed; exponential: A + w, whose KL is known"] = "score"
    strength: Annotated[float, "factor on the weights w: 0 leaves attention as it is"] = 1.0
    kl_budget: Annotated[
        float | None, "exponential only: instead of strength, the largest tilt whose KL is within this"
    ] = None
    kernel: Annotated[
        Kernel, "how it is computed, with the same result: correction of the output, or bias on the scores"
    ] = "correction"
    # CONTRAST
    contrast: TextContrast = 1.0
    contrast_on: ContrastOn = "log_probs"
    plausibility: Plausibility = 0.1
    # See methods/cai_leak.py.
    leak: Annotated[bool, "keep a defect of the released code: the tilt stays on in its text-only pass"] = False

    def __post_init__(self) -> None:
        require = partial(required, "cai")
        check_words(self)
        require(
            (self.floor is None) == (self.relevance != "shifted"),
            f"floor={self.floor} does not go with relevance={self.relevance!r}.",
            "The shifted form has a floor (0.5 in the released code); set floor=None for the others.",
        )
        require(self.floor is None or 0 <= self.floor <= 1, f"floor={self.floor}.", "Choose it in [0, 1].")
        require(
            isinstance(self.start_layer, int) or 0 <= self.start_layer < 1,
            f"start_layer={self.start_layer}.",
            "Give a layer number, or a share of the depth below 1 such as 0.85.",
        )
        require(self.source_layer >= 0, f"source_layer={self.source_layer}.", "Use 0 (the embeddings) or more.")
        require(self.strength >= 0, f"strength={self.strength} is negative.", "Use 0 or more.")
        require(self.entropy_base > 1, f"entropy_base={self.entropy_base}.", "Use math.e or 10.")
        require(
            self.kl_budget is None or (self.tilt == "exponential" and self.kl_budget >= 0),
            "kl_budget needs tilt='exponential' and must not be negative.",
            "Only the exponential tilt has a known KL.",
        )
        require(self.contrast >= 1, f"contrast={self.contrast} is below 1.", "1 means no contrast.")

    def parts(self, backbone: Backbone) -> Parts:
        """A gated tilt and, for contrast > 1, a text-only row."""
        contrasted = self.contrast != 1.0
        return Parts(
            interventions=(self._tilt(backbone),),
            branches=(TextOnly(),) if contrasted else (),
            rule=self._rule if contrasted else None,
        )

    def tilted_layers(self, backbone: Backbone) -> tuple[int, ...]:
        """Softmax layers above l_s: each is gated by the entropy of the layer before it."""
        start = resolve_start_layer(self.start_layer, backbone.num_layers, backbone.softmax_layers)
        layers = tuple(la for la in backbone.softmax_layers if la > max(start, self.source_layer))
        if not layers:
            raise InvalidMethod(
                f"cai: start_layer={self.start_layer} leaves no layer to tilt: this model has "
                f"{backbone.num_layers} layers, of which {list(backbone.softmax_layers)} have softmax attention.",
                "Give a smaller start_layer, or a share of the depth such as 0.85.",
            )
        return layers

    def _tilt(self, backbone: Backbone) -> Tilt:
        leaks = self.leak and self.contrast != 1.0 and self.threshold is not None
        cls = LeakyTilt if leaks else Tilt
        return cls(
            layers=self.tilted_layers(backbone),
            relevance=Relevance(self.relevance, self.scale, self.floor or 0.0, self.query, self.source_layer),
            gate=Gate(self.threshold, self.entropy_base, self.sd_factor, self.threshold_start),
            form=self.tilt,
            strength=self.strength,
            kl_budget=self.kl_budget,
            kernel=self.kernel,
        )

    def _rule(self, logits: Logits) -> Tensor:
        contrast = log_prob_contrast if self.contrast_on == "log_probs" else prob_contrast
        return contrast(logits.main, logits.branches[0], self.contrast, self.plausibility)
