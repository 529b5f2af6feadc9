"""VTI: visual and textual intervention (Liu et al., ICLR 2025).

Idea: what changes in the features when an image is averaged over random maskings, and what differs in
the text states between a faithful and a hallucinated caption, are directions; adding them steers the
model. Every MLP output `y`, of every vision layer and every decoder layer, at all positions, becomes
`|y| unit(unit(y) + 0.1 strength unit(direction))`. Directions are the mean difference plus the first
principal component over some demonstrations (`calibrate`): masked minus clean for the vision layers,
faithful minus hallucinated at the last token for the text layers.

Source: the paper and its released code (shengliu66/VTI, no licence found); written from the formulas.
Where we differ: the code reshapes the visual differences without a transpose, which mixes layers and
tokens before the principal component, and asks every demonstration the question of the last one; here
components are per token over all layers, and each demonstration has its own prompt. The code's
components include the embeddings, which it then drops, and its last text state is that after the final
norm; here they are of the states that leave the steered layers. It rounds the number of masked patches down;
here it is the nearest. Vision directions are per token where all images have as many tokens (CLIP), else
one for all tokens. In a combination such as `vti+vcd` the text part leaves branch rows alone; the vision
tower steers every image it sees.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from seewhen.backbones.blocks import mlp_of
from seewhen.decoding.method import Parts, Preset
from seewhen.decoding.sequence import CurrentStep, Intervention
from seewhen.errors import InvalidInput, InvalidMethod
from seewhen.methods.calibration import (
    Calibrated,
    Directions,
    outputs_of,
    principal_direction,
    provenance,
    vision_layers,
)

if TYPE_CHECKING:
    from seewhen.backbones.backbone import Backbone
    from seewhen.backbones.prompts import Picture

_README = "README of the released code (MMHal-Bench)"
_SHARE = 0.1  # of the strength, in the formula
_TOGETHER = 25  # maskings of one image in one pass


def steered(output: Tensor, direction: Tensor, strength: float) -> Tensor:
    """`output` turned towards the unit vectors `direction`; lengths stay."""
    states = output.float()
    turned = nn.functional.normalize(states, dim=-1) + _SHARE * strength * direction
    return (nn.functional.normalize(turned, dim=-1) * states.norm(dim=-1, keepdim=True)).to(output.dtype)


@dataclass(frozen=True, eq=False)
class Steer(Intervention):
    """Turns the output of each MLP of `layers` towards its own direction (layers, tokens or 1, d)."""

    any_prompt_length: ClassVar[bool] = True

    layers: tuple[nn.Module, ...]
    directions: Tensor
    strength: float
    main_rows_only: bool

    def install(self, backbone: Backbone, current: CurrentStep) -> list[Any]:
        """Hooks on the MLPs."""
        units = nn.functional.normalize(self.directions.float(), dim=-1)
        return [
            mlp_of(layer).register_forward_hook(self._hook(unit, current))
            for layer, unit in zip(self.layers, units, strict=True)
        ]

    def _hook(self, unit: Tensor, current: CurrentStep) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> Any:
            states: Tensor = output[0] if isinstance(output, tuple) else output
            if len(unit) not in (1, states.shape[-2]):
                raise InvalidInput(
                    f"The directions are for {len(unit)} image tokens, this image has {states.shape[-2]}.",
                    "Fit them on images of the same size, or set image_strength=0.",
                )
            rows = len(states)
            if self.main_rows_only and current.step is not None:
                rows = current.step.sequence.rows
            turned = steered(states[:rows], unit.to(states.device), self.strength)
            turned = torch.cat([turned, states[rows:]]) if rows < len(states) else turned
            return (turned, *output[1:]) if isinstance(output, tuple) else turned

        return hook


@dataclass(frozen=True)
class VTI(Calibrated):
    """Steers MLP outputs of vision and text layers along fitted directions."""

    name: ClassVar[str] = "vti"
    summary: ClassVar[str] = "steer vision and text features along fitted directions"
    source: ClassVar[str] = "Liu et al., ICLR 2025; no licence found, written from the formulas"
    presets: ClassVar[Mapping[str, Preset]] = {
        "readme": Preset({"image_strength": 0.9, "text_strength": 0.9}, f"{_README}; num_beams=5"),
        "script": Preset({"image_strength": 0.0, "text_strength": 0.8}, "released code, argument defaults"),
    }
    needs_image: ClassVar[bool] = False

    image_strength: Annotated[float, "of the steering in the vision layers; 0: none"] = 0.9
    text_strength: Annotated[float, "of the steering in the decoder's layers; 0: none"] = 0.9

    def __post_init__(self) -> None:
        for name in ("image_strength", "text_strength"):
            if getattr(self, name) < 0:
                raise InvalidMethod(f"vti: {name}={getattr(self, name)} is negative.", "0 switches it off.")

    def parts(self, backbone: Backbone) -> Parts:
        """Hooks on the MLPs of those towers whose strength is not zero."""
        if not self.image_strength and not self.text_strength:
            return Parts()
        tensors = self.loaded(backbone).tensors
        steers: list[Steer] = []
        if self.image_strength:
            layers = vision_layers(backbone.model)
            if len(layers) != len(tensors["visual"]):
                raise InvalidInput(
                    f"{self.directions} has {len(tensors['visual'])} vision layers, this model {len(layers)}.",
                    "Fit directions on this model.",
                )
            steers.append(Steer(layers, tensors["visual"], self.image_strength, main_rows_only=False))
        if self.text_strength:
            text = tensors["textual"][:, None]
            steers.append(Steer(backbone.layers, text, self.text_strength, main_rows_only=True))
        return Parts(interventions=tuple(steers))


@dataclass(frozen=True)
class Demonstration:
    """An image with a faithful and a hallucinated answer to the same prompt."""

    image: Picture
    prompt: str
    faithful: str
    hallucinated: str


def calibrate(
    model: Any,
    processor: Any,
    samples: Sequence[Demonstration],
    *,
    masked: float = 0.99,
    trials: int = 50,
    seed: int = 42,
    image_strength: float = 0.0,
) -> Directions:
    """Fit both directions on `samples`, which must not be part of any evaluation.

    `masked` is the share of patches replaced by the image's mean colour in each of `trials` random
    maskings. The released script fits the text direction with the visual one already at work:
    `image_strength=0.9` does that; the default fits both on the model as it is.
    """
    from seewhen.backbones.backbone import Backbone
    from seewhen.backbones.pictures import open_image
    from seewhen.backbones.prompts import chat_prompt, model_inputs

    if len(samples) < 2:
        raise InvalidInput(f"{len(samples)} samples are too few to fit directions.", "The paper uses 70.")
    backbone = Backbone.of(model)
    images = [open_image(sample.image) for sample in samples]
    generator = torch.Generator().manual_seed(seed)
    seen: list[Tensor] = []
    for image, sample in zip(images, samples, strict=True):
        inputs = model_inputs(model, processor, [[image]], [chat_prompt(processor, sample.prompt, 1)])
        seen.append(visual_difference(backbone, inputs, masked, trials, generator))
    visual = visual_direction(seen)
    steer = Steer(vision_layers(model), visual, image_strength, main_rows_only=False)
    handles = steer.install(backbone, CurrentStep()) if image_strength else []
    said: list[Tensor] = []
    try:
        for image, sample in zip(images, samples, strict=True):
            prompt = chat_prompt(processor, sample.prompt, 1)
            answers = (f"{prompt} {text}" for text in (sample.faithful, sample.hallucinated))
            said.append(
                text_difference(backbone, *(model_inputs(model, processor, [[image]], [a]) for a in answers))
            )
    finally:
        for handle in handles:
            handle.remove()
    settings = {"masked": masked, "trials": trials, "seed": seed, "image_strength": image_strength}
    tensors = {"visual": visual, "textual": text_direction(said)}
    return Directions(VTI.name, tensors, provenance(backbone, images, **settings))


@torch.no_grad()
def visual_difference(
    backbone: Backbone, inputs: Mapping[str, Any], masked: float, trials: int, generator: torch.Generator
) -> Tensor:
    """Vision states of one image averaged over maskings, minus those of the clean one: (layers, tokens, d)."""
    layers = vision_layers(backbone.model)
    look = backbone.model.get_image_features
    accepted = {name: inputs[name] for name in inspect.signature(look).parameters if name in inputs}

    def states(pixels: Tensor) -> Tensor:
        with outputs_of(layers) as found:
            look(**{**accepted, "pixel_values": pixels})
        # Tiles of one image are averaged; towers that pack all patches have no token dimension of their own.
        return torch.stack([_tokens(layer) for layer in found[: len(layers)]])

    pixels = inputs["pixel_values"]
    size = getattr(backbone.model.config.vision_config, "patch_size", 14)
    patch = size if isinstance(size, int) else size[0]
    # Whole images that need no other argument go through the tower together; their mean is that of the trials.
    together = _TOGETHER if pixels.dim() == 4 and len(accepted) == 1 else 1
    total = torch.zeros(())
    for start in range(0, trials, together):
        count = min(together, trials - start)
        views = [mask_patches(pixels, patch, masked, generator) for _ in range(count)]
        total = total + count * states(torch.cat(views)).float().cpu()
    return total / trials - states(pixels).float().cpu()


def _tokens(states: Tensor) -> Tensor:
    """(tokens, d) of one image from what a vision layer returns."""
    return states.mean(dim=0, keepdim=True) if states.dim() == 2 else states.flatten(0, -3).mean(dim=0)


def mask_patches(pixels: Tensor, patch: int, share: float, generator: torch.Generator) -> Tensor:
    """`pixels` with that share of their patches replaced by the mean colour of the image."""
    if pixels.dim() == 2:  # one row per patch: channels first, then whatever the patch holds
        colour = pixels.view(len(pixels), 3, -1).mean(dim=(0, 2))
        fill = colour.repeat_interleave(pixels.shape[1] // 3)
        return torch.where(_hidden(len(pixels), share, generator).to(pixels.device)[:, None], fill, pixels)
    height, width = pixels.shape[-2:]
    down, across = -(-height // patch), -(-width // patch)
    hidden = _hidden(down * across, share, generator).view(down, across)
    hidden = hidden.repeat_interleave(patch, dim=0).repeat_interleave(patch, dim=1)[:height, :width]
    return torch.where(hidden.to(pixels.device), pixels.mean(dim=(-2, -1), keepdim=True), pixels)


def _hidden(count: int, share: float, generator: torch.Generator) -> Tensor:
    hidden = torch.zeros(count, dtype=torch.bool)
    hidden[torch.randperm(count, generator=generator)[: round(share * count)]] = True
    return hidden


@torch.no_grad()
def text_difference(backbone: Backbone, faithful: Mapping[str, Any], hallucinated: Mapping[str, Any]) -> Tensor:
    """States of the last token after each decoder layer, faithful minus hallucinated: (layers, d)."""
    states = []
    for inputs in (faithful, hallucinated):
        with outputs_of(backbone.layers) as found:
            backbone.model(**inputs, use_cache=False)
        states.append(torch.stack([layer[0, -1].float().cpu() for layer in found]))
    return states[0] - states[1]


def visual_direction(differences: Sequence[Tensor]) -> Tensor:
    """The direction of each token over all layers: (layers, tokens, d), one token if images differ in size."""
    if len({tuple(one.shape) for one in differences}) > 1:
        differences = [one.mean(dim=1, keepdim=True) for one in differences]
    stacked = torch.stack(list(differences))  # (samples, layers, tokens, d)
    shape = stacked[0, :, 0].shape
    per_token = [principal_direction(stacked[:, :, t].flatten(1)).view(shape) for t in range(stacked.shape[2])]
    return torch.stack(per_token, dim=1)


def text_direction(differences: Sequence[Tensor]) -> Tensor:
    """The direction over all layers: (layers, d)."""
    return principal_direction(torch.stack([one.flatten() for one in differences])).view_as(differences[0])
