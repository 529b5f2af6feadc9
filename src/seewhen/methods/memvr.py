"""MemVR: Look Twice Before You Answer (Zou et al., ICML 2025).

Idea: when the logit lens is uncertain after a layer `l` of the early middle, show the model the image again
through the feed-forward part of layer `l + 1`, with the image features `V` as a key-value memory:
`FFN(x) <- (1 - r) FFN(x) + r D(x)`, `D(x) = act(x V^T) V`, scaled to the mean size of `FFN(x)`. Uncertain
means that the entropy of the ten best tokens, over ln 10, exceeds 0.75. It happens at most once per forward
pass, in the first such layer, for all positions of the pass, in the prompt and at every token.

Source: the paper and its released code (Apache-2.0). Written from the formulas. The LLaVA code has no
activation between the two products (`activation="none"`, the default); the Qwen-VL code has one and reads
the lens without the final norm: the presets say which. `V` are all image tokens of the prompt, as
they enter the decoder (the code keeps the last image only). The code's ratio is never set in the last layer,
which no published window reaches; here that layer is like the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from seewhen.backbones.blocks import mlp_of
from seewhen.backbones.plain import plain_weight
from seewhen.decoding.kernels.availability import kernels_run_on
from seewhen.decoding.method import Method, Parts, Preset
from seewhen.decoding.prefill import Prefill
from seewhen.decoding.sequence import CachedSequence, CurrentStep, Intervention, Step
from seewhen.equations.when import entropy
from seewhen.errors import InvalidMethod, UnsupportedModel
from seewhen.methods.parameters import required

if TYPE_CHECKING:
    from seewhen.backbones.backbone import Backbone

_TOP = 10
_LLAVA = {"after": 5 / 32, "before": 16 / 32}
_QWEN = {"after": 9 / 32, "before": 16 / 32, "activation": "silu", "lens_norm": False}
_SCRIPTS = "released code, eval scripts"


def top_entropy(logits: Tensor) -> Tensor:
    """Entropy of the ten largest logits alone, over ln 10: between 0 and 1."""
    return entropy(logits.float().topk(min(_TOP, logits.shape[-1]), dim=-1).values, base=_TOP)


@dataclass
class _Memory:
    features: Tensor  # (rows, tokens, d), zero where a row has fewer image tokens
    size: Tensor  # (rows, 1, 1): mean absolute value of a row's features
    scales: dict[int, tuple[Tensor, Tensor]]  # of keys and values by layer, where there is an activation
    present: Tensor  # (rows,), bool: rows that have an image at all


@dataclass(frozen=True)
class LookTwice(Intervention):
    """Mixes the image memory into the first feed-forward part after an uncertain layer."""

    any_prompt_length: ClassVar[bool] = True

    layers: tuple[int, ...]  # those whose feed-forward part may be mixed: uncertain layer + 1
    ratio: float
    threshold: float
    activation: str
    lens_norm: bool

    def sees(self, backbone: Backbone) -> frozenset[int]:
        """The layers that may be mixed: their input is the output of the layer to judge."""
        return frozenset(self.layers)

    def begin(self, sequence: CachedSequence, prefill: Prefill) -> _Memory:
        """Gather the image features."""
        recorder, rows = sequence.recorder, sequence.rows
        recorder.declare("gate", (rows, recorder.layers), fill=False)
        recorder.declare("top_entropy", (rows, recorder.layers))
        columns, valid = sequence.image.columns, sequence.image.valid
        index = columns[..., None].expand(-1, -1, prefill.embeds.shape[-1])
        features = prefill.embeds.gather(1, index).float() * valid[..., None]
        count = valid.sum(dim=1).clamp(min=1) * features.shape[-1]
        size = features.abs().sum(dim=(1, 2)) / count
        scales = {}
        if self.activation != "none":
            scales = {layer: _scales(mlp_of(sequence.backbone.layers[layer])) for layer in self.layers}
        return _Memory(features, size[:, None, None], scales, valid.any(dim=1))

    def before_layer(self, step: Step, memory: _Memory, layer: int, hidden: Tensor) -> None:
        """Judge the layer before: uncertain, and the first one in this pass?"""
        sequence, scratch = step.sequence, step.scratch_of(self)
        state = hidden[: sequence.rows, -1]
        backbone = sequence.backbone
        if self._fused(step, memory, state):
            from seewhen.decoding.kernels.second_look_kernel import judge

            state = backbone.norm(state) if self.lens_norm else state
            scratch[f"open{layer}"], scratch["used"] = judge(
                state,
                backbone.head.weight,
                memory.present,
                scratch.get("used"),
                self.threshold,
                step.recorder,
                layer,
            )
            return
        uncertainty = top_entropy(backbone.lens(state) if self.lens_norm else backbone.project(state))
        open_ = memory.present.to(hidden.device) & (uncertainty > self.threshold)
        used = scratch.get("used")
        if used is not None:
            open_ = open_ & ~used.to(hidden.device)
        scratch["used"] = open_ if used is None else open_ | used.to(hidden.device)
        scratch[f"open{layer}"] = open_
        step.recorder.write("top_entropy", uncertainty, layer - 1)
        step.recorder.write("gate", open_, layer)

    def _fused(self, step: Step, memory: _Memory, state: Tensor) -> bool:
        """Whether our kernels judge and look. They leave out the entropy of layers that no longer matter, which a
        full trace keeps."""
        sequence, head = step.sequence, step.sequence.backbone.head
        if step.prefill is not None or step.recorder.full or not sequence.fast or not kernels_run_on(state.device):
            return False
        from seewhen.decoding.kernels import gate_kernel, second_look_kernel

        takes = sequence.backbone.plain_head and gate_kernel.takes(state, head)
        return takes and second_look_kernel.takes(head.weight) and memory.features.device == state.device

    def install(self, backbone: Backbone, current: CurrentStep) -> list[Any]:
        """Hooks on the feed-forward parts."""

        def hook_of(layer: int) -> Any:
            def hook(module: nn.Module, args: tuple, output: Any) -> Any:
                step = current.step
                if step is None or f"open{layer}" not in step.scratch_of(self):
                    return output
                if isinstance(output, tuple):
                    return self._mixed(step, layer, args[0], output[0]), *output[1:]
                return self._mixed(step, layer, args[0], output)

            return hook

        layers = backbone.layers
        return [mlp_of(layers[layer]).register_forward_hook(hook_of(layer)) for layer in self.layers]

    def _mixed(self, step: Step, layer: int, states: Tensor, output: Tensor) -> Tensor:
        rows = step.sequence.rows
        memory: _Memory = next(
            m for i, m in zip(step.sequence.interventions, step.sequence.memories, strict=True) if i is self
        )
        if not memory.features.shape[1]:
            return output
        device = output.device
        open_ = step.scratch_of(self)[f"open{layer}"]
        if self._fused(step, memory, states[:rows, -1]):
            from seewhen.decoding.kernels.second_look_kernel import look

            up = None if self.activation == "none" else memory.scales[layer][0]
            given = states.contiguous(), output.contiguous()
            return look(*given, memory.features, memory.size, up, open_, self.ratio)
        features = memory.features.to(device)
        ffn = output[:rows].float()
        delta = self._delta(states[:rows].float(), features, memory, layer)
        counted = torch.ones(ffn.shape[:2], dtype=torch.bool, device=device)
        if step.prefill is not None:
            counted = ~step.prefill.padding.to(device)
        scale = _mean_size(ffn, counted) / _mean_size(delta, counted).clamp(min=torch.finfo(torch.float32).tiny)
        mixed = ((1.0 - self.ratio) * ffn + self.ratio * scale * delta).to(output.dtype)
        return torch.cat([torch.where(open_.to(device)[:, None, None], mixed, output[:rows]), output[rows:]])

    def _delta(self, states: Tensor, features: Tensor, memory: _Memory, layer: int) -> Tensor:
        if self.activation == "none":  # then any scale of keys and values cancels in the scaling to FFN(x)
            return (states @ features.transpose(1, 2)) @ features
        up, down = (scale.to(states.device) / memory.size.to(states.device) for scale in memory.scales[layer])
        return nn.functional.silu(states @ (features * up).transpose(1, 2)) @ (features * down)


def _mean_size(states: Tensor, counted: Tensor) -> Tensor:
    """Mean absolute value over the counted positions of each row, (rows, 1, 1)."""
    total = (states.abs() * counted[..., None]).sum(dim=(1, 2), keepdim=True)
    return total / (counted.sum(dim=1).view(-1, 1, 1) * states.shape[-1])


def _scales(mlp: Any) -> tuple[Tensor, Tensor]:
    """Mean absolute weight of the up and the down projection."""
    up, down = (plain_weight(getattr(mlp, name, None)) for name in ("up_proj", "down_proj"))
    if up is None or down is None:
        raise UnsupportedModel(
            f"memvr: {type(mlp).__name__} has no up_proj and down_proj with weights at hand to scale by.",
            "Use activation='none', where the scales cancel; or merge the adapter, load whole weights.",
        )
    return up.detach().float().abs().mean(), down.detach().float().abs().mean()


@dataclass(frozen=True)
class MemVR(Method):
    """A second look at the image through one feed-forward part, when an early-middle layer is unsure.

    `after` and `before` bound the judged layer, both exclusive: numbers, or shares of the depth.
    """

    name: ClassVar[str] = "memvr"
    summary: ClassVar[str] = "show the image again through one MLP when a middle layer is unsure"
    source: ClassVar[str] = "Zou et al., ICML 2025; code Apache-2.0"
    endless: ClassVar[tuple[str, ...]] = ("threshold",)
    presets: ClassVar[Mapping[str, Preset]] = {
        "llava-1.5/mme": Preset({**_LLAVA, "ratio": 0.12}, _SCRIPTS),
        "llava-1.5/chair": Preset({**_LLAVA, "ratio": 0.12}, f"{_SCRIPTS}: 0.31 is given but 0.12 hard-coded"),
        "llava-1.5/llava-bench": Preset({**_LLAVA, "ratio": 0.32}, _SCRIPTS),
        "llava-1.5/vizwiz": Preset({**_LLAVA, "ratio": 0.28}, _SCRIPTS),
        "qwen-vl/mme": Preset({**_QWEN, "ratio": 0.28}, _SCRIPTS),
        "qwen-vl/chair": Preset({**_QWEN, "ratio": 0.29}, _SCRIPTS),
        "glm-4v/mme": Preset({"after": 9 / 32, "ratio": 0.28}, f"{_SCRIPTS} (which leave it switched off)"),
        "glm-4v/chair": Preset({"after": 9 / 32, "ratio": 0.26}, _SCRIPTS),
    }

    ratio: Annotated[float, "share of the image in the feed-forward output: 0 leaves it as it is"] = 0.12
    threshold: Annotated[float, "look again when the normalised entropy, 0 to 1, is above this"] = 0.75
    after: Annotated[int | float, "judge layers after this one: a number, or a share of the depth"] = 5 / 32
    before: Annotated[int | float, "judge layers before this one: a number, or a share of the depth"] = 16 / 32
    activation: Annotated[Literal["none", "silu"], "between the two products; silu in the Qwen-VL code"] = "none"
    lens_norm: Annotated[bool, "whether the final norm comes before the head when layers are judged"] = True

    def __post_init__(self) -> None:
        require = partial(required, "memvr")
        require(0 <= self.ratio <= 1, f"ratio={self.ratio}.", "Choose a share between 0 and 1.")
        require(self.threshold >= 0, f"threshold={self.threshold}.", "The entropy lies between 0 and 1.")
        require(self.activation in ("none", "silu"), f"activation={self.activation!r}.", "Use 'none' or 'silu'.")
        for name in ("after", "before"):
            value = getattr(self, name)
            valid = value >= 0 if isinstance(value, int) else 0 <= value <= 1
            require(valid, f"{name}={value}.", "Give a layer number, or a share of the depth such as 0.5.")

    def judged_layers(self, backbone: Backbone) -> tuple[int, ...]:
        """Layers whose uncertainty opens the gate of the next."""
        depth = backbone.num_layers
        low, high = (
            bound if isinstance(bound, int) else math.floor(bound * depth) for bound in (self.after, self.before)
        )
        layers = tuple(range(low + 1, min(high, depth - 1)))
        if not layers:
            raise InvalidMethod(
                f"memvr: after={self.after} and before={self.before} leave no layer of {depth} between them.",
                "Both are exclusive; 5 and 16 of 32 layers are usual.",
            )
        return layers

    def parts(self, backbone: Backbone) -> Parts:
        """One intervention on the layers after those that are judged."""
        layers = tuple(layer + 1 for layer in self.judged_layers(backbone))
        look = LookTwice(layers, self.ratio, self.threshold, self.activation, self.lens_norm)
        return Parts(interventions=(look,))
