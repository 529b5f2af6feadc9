"""ONLY: One-Layer Intervention (Wan et al., ICCV 2025).

Idea: make a cheap "text-enhanced" second opinion from the attention of one layer `m`. In the last row of
its map, weights above mean + sd are removed, separately on text and image columns; heads whose ratio of
text to image entropy is below the mean over heads are dropped; the rest, `y = Wo concat(P_h V_h)`, is carried
past all layers to the last one, where `u = norm(y) + 0.2 x`, `y' = u + MLP(norm(u))`, and gives the side
logits `z~ = W (norm(y') + 0.5 x_final)`. Where they agree with the model they help, elsewhere they
are contrasted: `z + a1 z~` if `sum |p - p~| < gamma`, else `(1 + a2) z - a2 z~`, plausible tokens only.
Only the last row of the map matters for `z~`, so only that row is computed; nothing is kept between steps.
With the last layer as `m` the code has `y' = y`: a layer either gives the second opinion or takes it in.

Source: the paper and its released code (MIT). Written from the formulas. The 0.2 and 0.5 mixes and
the last-layer MLP are in the code only, and differ by backbone (`mix`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from seewhen.backbones.blocks import attention_of, feed_forward, input_norm, project_heads
from seewhen.decoding.attention_call import AttentionCall
from seewhen.decoding.method import Logits, Method, Parts, Preset
from seewhen.decoding.prefill import Prefill
from seewhen.decoding.sequence import CachedSequence, CurrentStep, Intervention, Step
from seewhen.equations.contrast import logit_contrast, logit_sum
from seewhen.errors import InvalidMethod
from seewhen.methods.parameters import Plausibility, check_words, required

if TYPE_CHECKING:
    from seewhen.backbones.backbone import Backbone

Mix = Literal["llava", "instructblip", "qwen-vl"]
_RESIDUAL, _FINAL = 0.2, 0.5
_SMALLEST = 1e-6  # inside the logarithm of the entropies, as in the code
_KEY = "only_side"


def suppress_outliers(attention: Tensor, among: Tensor) -> Tensor:
    """Set weights above mean + (unbiased) sd of the columns `among` to zero; other columns stay."""
    count = among.sum(dim=-1, keepdim=True)
    mean = (attention * among).sum(dim=-1, keepdim=True) / count.clamp(min=1)
    squares = ((attention - mean).square() * among).sum(dim=-1, keepdim=True)
    limit = mean + (squares / (count - 1).clamp(min=1)).sqrt()
    return attention.masked_fill(among & (attention > limit), 0.0)


def column_entropy(attention: Tensor, among: Tensor) -> Tensor:
    """Entropy of the attention on the columns `among`, made to sum to one; NaN where it is all zero."""
    share = attention * among
    share = share / share.sum(dim=-1, keepdim=True)
    return -(share * torch.log(share + _SMALLEST)).sum(dim=-1)


def head_ratios(attention: Tensor, text: Tensor, image: Tensor) -> Tensor:
    """Text entropy over image entropy of each head, (rows, heads).

    A head without attention on the text has ratio 0, and so has one whose image attention is gone or
    sits on a single column: a division by (almost) zero would decide the mean over heads alone.
    """
    of_text, of_image = column_entropy(attention, text), column_entropy(attention, image)
    of_image = torch.where(of_image > 10 * _SMALLEST, of_image, torch.inf)
    return of_text.nan_to_num(0.0) / of_image


@dataclass
class _Columns:
    image: Tensor  # (rows, prompt), bool
    skipped: Tensor  # (rows, prompt), bool: padding, and the first column where the mix leaves it alone


@dataclass(frozen=True)
class SideBranch(Intervention):
    """Computes the side logits' ingredients during the pass; the logit rule finishes them."""

    layer: int
    mix: Mix

    def sees(self, backbone: Backbone) -> frozenset[int]:
        """The layer itself (for gated attention) and the last one."""
        return frozenset({self.layer, backbone.num_layers - 1})

    def edits(self, backbone: Backbone) -> frozenset[int]:
        """The chosen layer, to read its attention; the output stays as it is."""
        return frozenset({self.layer})

    def begin(self, sequence: CachedSequence, prefill: Prefill) -> _Columns:
        """Sort the prompt's columns."""
        recorder, rows = sequence.recorder, sequence.rows
        recorder.declare("distance", (rows,))
        if recorder.full:
            recorder.declare("head_ratio", (rows, sequence.backbone.text_config.num_attention_heads))
        skipped = prefill.padding
        if self.mix != "instructblip":
            # The first column (start of text, or the tag that opens the image) is neither text nor image.
            skipped = skipped | ((~skipped).cumsum(dim=1) == 1)
        return _Columns(prefill.image_mask, skipped & ~prefill.image_mask)

    def before_layer(self, step: Step, memory: _Columns, layer: int, hidden: Tensor) -> None:
        """Keep the last position's input of both layers."""
        inputs = step.scratch_of(self).setdefault(_KEY, {})
        state = hidden[: step.sequence.rows, -1]
        if layer == self.layer:
            inputs["own"] = state
        if layer == step.sequence.backbone.num_layers - 1:
            inputs["last"] = state

    def attend(self, step: Step, memory: _Columns, call: AttentionCall) -> Tensor:
        """The side branch's attention output: suppressed weights, some heads dropped."""
        sequence, inputs = step.sequence, step.scratch_of(self)[_KEY]
        rows = sequence.rows
        attention = call.probabilities(call.scores)[:rows]
        text, image = self._column_sets(step, memory, attention)
        attention = suppress_outliers(suppress_outliers(attention, text), image)
        ratios = head_ratios(attention, text, image)
        step.recorder.write("head_ratio", ratios)
        kept = ratios >= ratios.mean(dim=-1, keepdim=True)
        attention = attention * kept[..., None]
        grouped = attention.view(rows, -1, call.groups, attention.shape[-1])
        heads = (grouped @ call.value[:rows].float()).reshape(rows, -1)
        normed = input_norm(sequence.backbone.layers[self.layer])(inputs["own"])
        inputs["side"] = project_heads(call.module, heads, normed)
        return call.output

    def _column_sets(self, step: Step, memory: _Columns, attention: Tensor) -> tuple[Tensor, Tensor]:
        """Text and image columns, (rows, 1, columns). Columns of a static cache still to come are neither."""
        device, columns = attention.device, attention.shape[-1]
        later = columns - memory.image.shape[1]
        image = nn.functional.pad(memory.image.to(device), (0, later))
        skipped = nn.functional.pad(memory.skipped.to(device), (0, later))
        newest = step.sequence.prompt_length - 1 + step.recorder.step.to(device)
        text = (torch.arange(columns, device=device) <= newest) & ~image & ~skipped
        return text[:, None], image[:, None]

    def install(self, backbone: Backbone, current: CurrentStep) -> list[Any]:
        """Watch the decoder's output and, for Qwen-VL's mix, the last layer's attention."""

        def keep(name: str) -> Any:
            def hook(module: nn.Module, args: tuple, output: Any) -> None:
                step = current.step
                if step is not None:
                    state = output if isinstance(output, Tensor) else output[0]
                    step.scratch_of(self)[_KEY][name] = state[: step.sequence.rows, -1]

            return hook

        handles = [backbone.decoder.register_forward_hook(keep("final"))]
        if self.mix == "qwen-vl":
            handles.append(attention_of(backbone.layers[-1]).register_forward_hook(keep("attention")))
        return handles

    def logits(self, backbone: Backbone, inputs: dict[str, Tensor]) -> Tensor:
        """The side logits, (rows, vocabulary)."""
        last = backbone.layers[-1]
        side = inputs["side"].to(inputs["last"].device)
        if self.layer == backbone.num_layers - 1:  # in the code a layer takes one part or the other
            return self._projected(backbone, side, inputs["final"])
        if self.mix == "instructblip":
            mixed = side + _RESIDUAL * inputs["last"]
        else:
            residual = inputs["last"] if self.mix == "llava" else inputs["attention"]
            mixed = input_norm(last)(side) + _RESIDUAL * residual
        return self._projected(backbone, feed_forward(last, mixed[:, None])[:, 0], inputs["final"])

    def _projected(self, backbone: Backbone, through: Tensor, final: Tensor) -> Tensor:
        return backbone.project(backbone.norm(through.to(final.device)) + _FINAL * final).float()


@dataclass(frozen=True)
class ONLY(Method):
    """Side logits from one layer's attention: added where they agree with the model, contrasted elsewhere.

    `mix="auto"` takes the released code's mix of the backbone's family (InstructBLIP, Qwen, all others as
    LLaVA). `reference_parity` (on: the published algorithm is its code) measures agreement as the code
    does, `sum |p - p~|` in [0, 2]; off halves it to the total variation. The code also sums this over the
    batch; here each row has its own. A row without an image keeps the model's logits.
    """

    name: ClassVar[str] = "only"
    summary: ClassVar[str] = "a text-enhanced second opinion from one layer, added or contrasted"
    source: ClassVar[str] = "Wan et al., ICCV 2025; code MIT"
    presets: ClassVar[Mapping[str, Preset]] = {
        "pope": Preset({"agreement": 0.2, "plausibility": 0.1}, "released code, POPE scripts; paper"),
        "chair": Preset({"agreement": 0.25, "plausibility": 0.1}, "released code, CHAIR scripts"),
        "mme": Preset({"agreement": 0.25, "plausibility": 0.4}, "released code, MME scripts"),
    }

    layer: Annotated[int, "layer whose attention gives the second opinion"] = 0
    collaboration: Annotated[float, "a1: how much of it is added where both agree"] = 3.0
    contrast: Annotated[float, "a2: how much of it is subtracted elsewhere"] = 1.0
    agreement: Annotated[float, "gamma: distance of the two distributions below which they agree"] = 0.2
    plausibility: Plausibility = 0.1
    mix: Annotated[
        Literal["auto", "llava", "instructblip", "qwen-vl"],
        "residuals of the released code for a family; auto: by the model's own",
    ] = "auto"
    reference_parity: Annotated[
        bool, "distance as in the released code, in [0, 2]; off: total variation, in [0, 1]"
    ] = True

    def __post_init__(self) -> None:
        require = partial(required, "only")
        require(self.layer >= 0, f"layer={self.layer}.", "Count layers from 0.")
        require(self.collaboration >= 0, f"collaboration={self.collaboration}.", "Use 0 or more.")
        require(self.contrast >= 0, f"contrast={self.contrast}.", "Use 0 or more.")
        check_words(self)
        beta = self.plausibility
        require(beta is None or 0 <= beta <= 1, f"plausibility={beta}.", "Choose a share, or None for no cut.")

    def parts(self, backbone: Backbone) -> Parts:
        """The side branch and the rule that mixes its logits in."""
        if self.layer >= backbone.num_layers:
            raise InvalidMethod(
                f"only: layer={self.layer} on a model with {backbone.num_layers} layers.",
                f"Choose one of {list(backbone.softmax_layers)}.",
            )
        side = SideBranch(self.layer, _mix_of(backbone) if self.mix == "auto" else self.mix)

        def rule(logits: Logits) -> Tensor:
            inputs = next(scratch[_KEY] for scratch in logits.scratch if _KEY in scratch)
            return self._rule(logits, side.logits(backbone, inputs).to(logits.main.device))

        return Parts(interventions=(side,), rule=rule)

    def _rule(self, logits: Logits, side: Tensor) -> Tensor:
        main, sequence = logits.main, logits.sequence
        distance = (torch.softmax(main, dim=-1) - torch.softmax(side, dim=-1)).abs().sum(dim=-1)
        if not self.reference_parity:
            distance = 0.5 * distance
        sequence.recorder.write("distance", distance)
        if sequence.recorder.level == "replay":  # here, as a packed head does not say how wide it is
            sequence.recorder.declare("side_logits", tuple(side.shape))
        sequence.recorder.write("side_logits", side)
        helped = logit_sum(main, side, self.collaboration, self.plausibility)
        contrasted = logit_contrast(main, side, self.contrast, self.plausibility)
        mixed = torch.where((distance < self.agreement)[:, None], helped, contrasted)
        has_image = sequence.image.valid.any(dim=1).to(main.device)
        return torch.where(has_image[:, None], mixed, main)


def _mix_of(backbone: Backbone) -> Mix:
    family = str(getattr(backbone.model.config, "model_type", ""))
    if family.startswith("qwen"):
        return "qwen-vl"
    return "instructblip" if family in ("instructblip", "blip-2") else "llava"
