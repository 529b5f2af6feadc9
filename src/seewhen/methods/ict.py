"""ICT: image-object cross-level trusted intervention (Chen et al., CVPR 2025).

Idea: let attention outputs lean towards what they are when the image can be trusted. Calibration runs
labelled yes/no questions with their true answer on the clean image, and with a corrupted input: at the
image level (a blurred image, or the wrong answer) and at the object level (the object blacked out, or
a blurred image). The output of each layer's attention out-projection at the last token is cut into
groups of 32 numbers; a group's direction is the unit vector of mean clean minus mean corrupted, its
scale `s` the standard deviation of all activations along it. Logistic probes (two-fold
cross-validation) rank the groups. At every forward pass, at the last position,
`out_group += strength s direction` in the `top` groups of each level.

Source: the paper and its released code (THU-BPM/ICT, no licence found); written from the formulas. The
code's groups of 32 come after the out-projection and are not heads, as in the paper; we follow the
code, with which the published numbers were made. Its README fits and evaluates on the same POPE
questions and labels: it is a supervised method, so `calibrate` wants data disjoint from the evaluation.
The code shuffles all activations into its two folds and stops its probes after 1000 passes; here both
activations of a question are in one fold, and probes are fitted to the end.
The pictures with blacked-out objects were not published; here a box says where the object is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from PIL import Image, ImageDraw, ImageFilter
from torch import Tensor, nn

from seewhen.backbones.blocks import out_projection_of
from seewhen.decoding.method import Parts, Preset
from seewhen.decoding.sequence import CurrentStep, Intervention
from seewhen.errors import InvalidInput, InvalidMethod
from seewhen.methods.calibration import Calibrated, Directions, outputs_of, provenance

if TYPE_CHECKING:
    from seewhen.backbones.backbone import Backbone
    from seewhen.backbones.prompts import Picture

GROUP = 32
LEVELS = ("image", "object")
_NEWTON_STEPS = 12


@dataclass(frozen=True, eq=False)
class AddAtLast(Intervention):
    """Adds `shifts` (layers, d) to the attention out-projections' output at the last position."""

    any_prompt_length: ClassVar[bool] = True

    shifts: Tensor

    def install(self, backbone: Backbone, current: CurrentStep) -> list[Any]:
        """Hooks on the out-projections whose shift is not zero."""
        return [
            out_projection_of(layer).register_forward_hook(_hook(shift, current))
            for layer, shift in zip(backbone.layers, self.shifts, strict=True)
            if bool(shift.any())
        ]


def _hook(shift: Tensor, current: CurrentStep) -> Any:
    def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        # Branch rows of a combined method stay as they are.
        rows = len(output) if current.step is None else current.step.sequence.rows
        last = (output[:rows, -1:].float() + shift.to(output.device)).to(output.dtype)
        edited = torch.cat([output[:rows, :-1], last], dim=1)
        return torch.cat([edited, output[rows:]]) if rows < len(output) else edited

    return hook


@dataclass(frozen=True)
class ICT(Calibrated):
    """Shifts attention outputs towards those of trusted inputs."""

    name: ClassVar[str] = "ict"
    summary: ClassVar[str] = "shift attention outputs along fitted directions of trust"
    source: ClassVar[str] = "Chen et al., CVPR 2025; no licence found, written from the formulas"
    presets: ClassVar[Mapping[str, Preset]] = {
        "script": Preset(
            {"image_strength": 8.0, "object_strength": 8.0, "top": 256},
            "released code, LLaVA-1.5-7B; one strength for both levels, the paper has two",
        )
    }
    needs_image: ClassVar[bool] = False

    image_strength: Annotated[float, "of the shift at the image level; 0: none"] = 8.0
    object_strength: Annotated[float, "of the shift at the object level; 0: none"] = 8.0
    # LLaVA-1.5-7B has 4096 groups, of which the code takes 256.
    top: Annotated[int | float, "groups of 32 numbers that are shifted: a number, or a share below 1"] = 1 / 16

    def __post_init__(self) -> None:
        for name in ("image_strength", "object_strength"):
            if getattr(self, name) < 0:
                raise InvalidMethod(f"ict: {name}={getattr(self, name)} is negative.", "0 switches it off.")
        if not (self.top >= 1 if isinstance(self.top, int) else 0 < self.top < 1):
            raise InvalidMethod(
                f"ict: top={self.top}.", "Give a number of groups, or a share of all groups below 1."
            )

    def parts(self, backbone: Backbone) -> Parts:
        """Hooks on the out-projections, unless all strengths are zero."""
        strengths = {"image": self.image_strength, "object": self.object_strength}
        if not any(strengths.values()):
            return Parts()
        tensors = self.loaded(backbone).tensors
        shifts = torch.zeros(backbone.num_layers, backbone.text_config.hidden_size)
        for level, strength in strengths.items():
            if strength and f"{level}.directions" in tensors:
                shifts = shifts + strength * selected(tensors, level, self.top)
        return Parts(interventions=(AddAtLast(shifts),))


def selected(tensors: Mapping[str, Tensor], level: str, top: int | float) -> Tensor:
    """Scaled directions of the `top` groups by probe accuracy, zero elsewhere: (layers, d)."""
    directions, scales, accuracy = (tensors[f"{level}.{part}"] for part in ("directions", "scales", "accuracy"))
    count = top if isinstance(top, int) else max(1, round(top * accuracy.numel()))
    # A stable sort: of equally good groups the first.
    order = torch.argsort(accuracy.flatten(), descending=True, stable=True)[:count]
    chosen = torch.zeros(accuracy.numel(), dtype=torch.bool)
    chosen[order] = True
    return (directions * (scales * chosen.view_as(scales))[..., None]).flatten(1)


@dataclass(frozen=True)
class LabelledQuestion:
    """A yes/no question with its true answer; `box` is where the object is (left, top, right, bottom)."""

    image: Picture
    question: str
    answer: str
    box: tuple[int, int, int, int] | None = None


def calibrate(
    model: Any,
    processor: Any,
    samples: Sequence[LabelledQuestion],
    *,
    blur: float = 5.0,
    group: int = GROUP,
    seed: int = 0,
) -> Directions:
    """Fit both levels on `samples`, which must not be part of any evaluation.

    `blur` is the radius of the Gaussian blur in pixels. Questions whose answer is yes and that have no box
    are left out of the object level, which is left out altogether if there is none with a box.
    """
    from seewhen.backbones.backbone import Backbone
    from seewhen.backbones.pictures import open_image
    from seewhen.backbones.prompts import chat_prompt, model_inputs

    backbone = Backbone.of(model)
    width = backbone.text_config.hidden_size
    if width % group:
        raise InvalidInput(f"Groups of {group} do not divide the width {width}.", "Choose another group size.")
    answers = [_answer(sample) for sample in samples]
    if len(set(answers)) < 2 or len(samples) < 8:
        raise InvalidInput(
            f"{len(samples)} questions ({answers.count('yes')} yes) are too few.", "Give some of both answers."
        )
    images = [open_image(sample.image) for sample in samples]

    def state(picture: Image.Image, index: int, answer: str) -> Tensor:
        prompt = chat_prompt(processor, samples[index].question, 1)
        inputs = model_inputs(model, processor, [[picture]], [f"{prompt} {answer}"])
        return activations(backbone, inputs)

    base: list[Tensor] = []
    corrupted: dict[str, dict[int, Tensor]] = {level: {} for level in LEVELS}
    for index, (sample, image, answer) in enumerate(zip(samples, images, answers, strict=True)):
        blurred = image.filter(ImageFilter.GaussianBlur(blur))
        base.append(state(image, index, answer))
        corrupted["image"][index] = state(blurred if answer == "yes" else image, index, "yes")
        if answer == "no":
            corrupted["object"][index] = state(blurred, index, "no")
        elif sample.box is not None:
            corrupted["object"][index] = state(_without(image, sample.box), index, "yes")
    tensors: dict[str, Tensor] = {}
    boxes = any(
        sample.box is not None and answer == "yes" for sample, answer in zip(samples, answers, strict=True)
    )
    for level in LEVELS if boxes else LEVELS[:1]:
        pairs = corrupted[level]
        clean = torch.stack([base[index] for index in pairs])
        for part, tensor in fit(clean, torch.stack(list(pairs.values())), group, seed).items():
            tensors[f"{level}.{part}"] = tensor
    settings = {"blur": blur, "group": group, "seed": seed, "questions": len(samples)}
    return Directions(ICT.name, tensors, provenance(backbone, images, **settings))


def _answer(sample: LabelledQuestion) -> str:
    answer = sample.answer.strip().lower()
    if answer not in ("yes", "no"):
        raise InvalidInput(f"The answer to {sample.question!r} is {sample.answer!r}.", "It must be yes or no.")
    return answer


def _without(image: Image.Image, box: tuple[int, int, int, int]) -> Image.Image:
    """The image with the box blacked out."""
    copy = image.copy()
    left, top, right, bottom = box
    ImageDraw.Draw(copy).rectangle((left, top, right - 1, bottom - 1), fill=(0, 0, 0))
    return copy


@torch.no_grad()
def activations(backbone: Backbone, inputs: Mapping[str, Any]) -> Tensor:
    """Out-projection outputs at the last token of one prompt: (layers, d)."""
    with outputs_of([out_projection_of(layer) for layer in backbone.layers]) as found:
        backbone.model(**inputs, use_cache=False)
    return torch.stack([layer[0, -1].float().cpu() for layer in found])


def fit(clean: Tensor, corrupted: Tensor, group: int = GROUP, seed: int = 0) -> dict[str, Tensor]:
    """Directions, scales and probe accuracies from paired activations (samples, layers, d).

    Directions are (layers, groups, group), the others (layers, groups).
    """
    clean, corrupted = (states.unflatten(-1, (-1, group)) for states in (clean, corrupted))
    directions = nn.functional.normalize(clean.mean(dim=0) - corrupted.mean(dim=0), dim=-1)
    everything = torch.cat([clean, corrupted])
    scales = (everything * directions).sum(dim=-1).std(dim=0, correction=0)
    accuracy = torch.stack(
        [probe_accuracy(clean[:, layer], corrupted[:, layer], seed) for layer in range(clean.shape[1])]
    )
    return {"directions": directions, "scales": scales, "accuracy": accuracy}


def probe_accuracy(clean: Tensor, corrupted: Tensor, seed: int = 0) -> Tensor:
    """Two-fold cross-validated accuracy of a logistic probe per group, from (samples, groups, d): (groups,).

    Both activations of a sample are in the same fold.
    """
    order = torch.randperm(len(clean), generator=torch.Generator().manual_seed(seed))
    folds = (order[::2], order[1::2])
    correct = torch.zeros(clean.shape[1])
    for train, test in (folds, folds[::-1]):
        weights = logistic(clean[train], corrupted[train])
        for states, positive in ((clean[test], True), (corrupted[test], False)):
            score = torch.einsum("ngd,gd->ng", _with_one(states), weights)
            correct += ((score > 0) == positive).float().sum(dim=0).cpu()
    return correct / (2 * len(clean))


def logistic(positive: Tensor, negative: Tensor) -> Tensor:
    """Logistic regressions with an L2 penalty of 1/2 |w|^2 (not on the constant): (groups, d + 1)."""
    features = _with_one(torch.cat([positive, negative])).transpose(0, 1)  # (groups, samples, d + 1)
    labels = torch.cat([torch.ones(len(positive)), torch.zeros(len(negative))]).to(features)
    penalty = torch.ones(features.shape[-1]).to(features)
    penalty[-1] = 1e-6
    weights = torch.zeros(features.shape[0], features.shape[-1]).to(features)
    for _ in range(_NEWTON_STEPS):
        probability = torch.sigmoid((features @ weights[..., None])[..., 0])
        gradient = ((probability - labels)[..., None] * features).sum(dim=1) + penalty * weights
        curvature = (probability * (1 - probability))[..., None] * features
        hessian = features.transpose(1, 2) @ curvature + torch.diag(penalty)
        weights = weights - torch.linalg.solve(hessian, gradient)
    return weights


def _with_one(states: Tensor) -> Tensor:
    """(samples, groups, d) with a constant as last feature, in double precision."""
    return nn.functional.pad(states.double(), (0, 1), value=1.0)
