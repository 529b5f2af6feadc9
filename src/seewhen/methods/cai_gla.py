"""CAI on the gates of linear layers, for hybrid models: the paper's `CAI GLA-gated`.

A gated linear layer keeps no attention row that could be tilted, only a state with two gates per head,
here those of the gated delta rule (Qwen3.5):

    S_t = alpha_t S_{t-1} (1 - beta_t k_t k_t') + beta_t v_t k_t',   o_t = S_t q_t
    alpha_t = exp(-A softplus(a_t)),   beta_t = sigmoid(b_t)

The image tokens were written into S during the prefill; the newest token reads them with q_t, after alpha
has made S forget and beta has written the newest token over it. The paper says only that intervening on
these gates was less reliable than tilting the softmax layers, and gives no formula. Ours carries its
Eq. intervention, `A + |A| w`, over to the pre-activations of both gates, with the sign that keeps the image:

    a_t <- a_t - strength r_t |a_t|     (forget less)
    b_t <- b_t - strength r_t |b_t|     (overwrite less)

r_t in [0, 1] is the mean relevance of the image tokens to the newest token. WHERE and WHEN are CAI's: the
same weights, and the entropy gate before each linear layer above l_s. A state cannot say which of its
content came from which patch, so, unlike the softmax tilt, this cannot prefer one patch to another,
and unlike it the edit stays in the state for the tokens that follow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from seewhen.decoding.branches import TextOnly
from seewhen.decoding.method import Logits, Method, Parts, Preset
from seewhen.decoding.prefill import pad_rows
from seewhen.decoding.sequence import CurrentStep, Step
from seewhen.decoding.tilted_attention import Relevance, Tilt
from seewhen.equations.contrast import log_prob_contrast, prob_contrast
from seewhen.equations.when import Gate
from seewhen.equations.when import start_layer as resolve_start_layer
from seewhen.errors import InvalidMethod, UnsupportedModel
from seewhen.methods.cai import CAI
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
)

if TYPE_CHECKING:
    from seewhen.backbones.backbone import Backbone


def gated_linear_layers(backbone: Backbone) -> tuple[int, ...]:
    """Layers that run the gated delta rule, by what they are made of."""
    return tuple(
        index
        for index, layer in enumerate(backbone.layers)
        if all(
            hasattr(getattr(layer, "linear_attn", None), part) for part in ("in_proj_a", "in_proj_b", "dt_bias")
        )
    )


@dataclass(frozen=True)
class GateTilt(Tilt):
    """CAI's relevance and entropy gate, acting on the pre-activations of `layers`' two gates."""

    def edits(self, backbone: Backbone) -> frozenset[int]:
        """No attention: the gates are edited where they are computed."""
        return frozenset()

    def install(self, backbone: Backbone, current: CurrentStep) -> list[Any]:
        """A hook on the two projections of each layer that give the gates."""
        handles = []
        for layer in self.layers:
            linear: Any = backbone.layers[layer].linear_attn
            handles.append(linear.in_proj_a.register_forward_hook(self._hook(current, layer, linear.dt_bias)))
            handles.append(linear.in_proj_b.register_forward_hook(self._hook(current, layer, None)))
        return handles

    def _hook(self, current: CurrentStep, layer: int, bias: Tensor | None) -> Any:
        def hook(module: nn.Module, args: tuple, output: Tensor) -> Tensor:
            step = current.step
            return output if step is None else self._edited(step, layer, output, bias)

        return hook

    def _edited(self, step: Step, layer: int, output: Tensor, bias: Tensor | None) -> Tensor:
        """`output` (rows, positions, heads) with its last position lowered where the gate is open."""
        scratch, valid = step.scratch_of(self), step.sequence.image.valid
        rows, last = output.shape[0], output[:, -1]
        weights = scratch["targets"].weights[: len(valid)]
        relevance = weights.sum(dim=1) / valid.to(weights.device).sum(dim=1).clamp(min=1)
        shift = pad_rows(self.strength * relevance, rows).to(output.device, output.dtype)
        open_ = pad_rows(scratch[f"gate{layer}"], rows).to(output.device)
        size = last.abs() if bias is None else (last + bias).abs()
        new = torch.where(open_[:, None], last - shift[:, None] * size.to(last.dtype), last)
        return torch.cat([output[:, :-1], new.unsqueeze(1)], dim=1)


@dataclass(frozen=True)
class CAIGLA(Method):
    """CAI on the gates of gated linear layers (Qwen3.5). Parameters as in `cai`, where they exist there."""

    name: ClassVar[str] = "cai-gla"
    summary: ClassVar[str] = "CAI on the gates of linear layers, for hybrid models"
    source: ClassVar[str] = "Lei et al., ECCV 2026, 'CAI GLA-gated'; the formula is ours"
    endless: ClassVar[tuple[str, ...]] = ("threshold",)
    presets: ClassVar[Mapping[str, Preset]] = {
        "adaptive": Preset({}, "CAI's preset of that name; the paper gives no values for this variant"),
    }

    # WHERE
    relevance: Form = "shifted"
    scale: Scale = 100.0
    floor: Floor = 0.5
    query: Query = "tail_mean"
    # WHEN
    start_layer: StartLayer = 0.85
    threshold: Threshold = None
    entropy_base: EntropyBase = math.e
    sd_factor: DeviationFactor = 0.5
    threshold_start: ThresholdStart = 0.1 * math.log(10)
    # HOW
    strength: Annotated[float, "how much less the gates forget and overwrite: 0 leaves them as they are"] = 1.0
    # CONTRAST
    contrast: TextContrast = 1.0
    contrast_on: ContrastOn = "log_probs"
    plausibility: Plausibility = 0.1

    def __post_init__(self) -> None:
        try:
            CAI(**self.parameters())  # the parameters are CAI's, and so are their limits
        except InvalidMethod as error:
            raise InvalidMethod(error.message.replace("cai:", "cai-gla:", 1), error.hint) from None

    def gated_layers(self, backbone: Backbone) -> tuple[int, ...]:
        """Gated linear layers above l_s."""
        linear = gated_linear_layers(backbone)
        if not linear:
            raise UnsupportedModel(
                f"cai-gla acts on gated linear layers, and {type(backbone.model).__name__} has none.",
                "Use cai, which acts on softmax attention.",
            )
        start = resolve_start_layer(self.start_layer, backbone.num_layers, linear)
        layers = tuple(layer for layer in linear if layer > max(start, 0))
        if not layers:
            raise InvalidMethod(
                f"cai-gla: start_layer={self.start_layer} leaves no linear layer; they are {list(linear)}.",
                "Give a smaller start_layer, or a share of the depth such as 0.85.",
            )
        return layers

    def parts(self, backbone: Backbone) -> Parts:
        """Gated edits of the linear layers' gates and, for contrast > 1, a text-only row."""
        contrasted = self.contrast != 1.0
        edit = GateTilt(
            layers=self.gated_layers(backbone),
            relevance=Relevance(self.relevance, self.scale, self.floor or 0.0, self.query),
            gate=Gate(self.threshold, self.entropy_base, self.sd_factor, self.threshold_start),
            strength=self.strength,
        )
        return Parts(
            interventions=(edit,),
            branches=(TextOnly(),) if contrasted else (),
            rule=self._rule if contrasted else None,
        )

    def _rule(self, logits: Logits) -> Tensor:
        contrast = log_prob_contrast if self.contrast_on == "log_probs" else prob_contrast
        return contrast(logits.main, logits.branches[0], self.contrast, self.plausibility)
