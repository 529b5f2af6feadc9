"""AGLA: assembly of global and local attention (An et al., CVPR 2025).

Idea: a second row sees the image with everything black that does not matter for the prompt; what both
views say is added, `z + alpha z'`, and cut at the plausibility `beta`. The second view keeps the most
relevant share of the pixels, of a relevance map that is brought to the image's size, blurred by 2 % of
its longer side and ranked.

Source: the paper and its released code (Lackel/AGLA, no licence found); written from the formulas. The
released code takes its map from BLIP (gradients of the image-text match) and its share from BLIP's
similarity. `relevance="own"`, the default, is our variant and needs no second model: the cosine of the
prompt's words (the tokens after the image) with the image tokens, both as they enter the decoder, as
in CAI; and a fixed share `keep`. Another map is plugged in by `register_relevance("name", function)`
and `relevance="name"`. Black is the darkest value of each channel of the image, because a model does
not know how its processor normalises.

Where else we differ: the code masks the picture squeezed to 384 x 384 and then lets the processor crop it, so its
second row also sees another frame; here the pixels that the model gets are masked, and both rows see the same
frame. Its blur mirrors the map at the edges, ours repeats the outermost value.

Adding logits also sharpens: rows that agree give `(1 + alpha) z`, the temperature divided by `1 + alpha`. When
sampling, compare with regular sampling that cool (docs/evidence.md: most of its effect there).

`reference_parity` keeps a defect of the released code: from the second token on its second branch
continues the cache of the first, so that both rows agree and the rule only sharpens, `(1 + alpha) z`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from torch import Tensor

from seewhen.backbones.pixels import Views
from seewhen.decoding.altered_images import AlteredImage
from seewhen.decoding.method import Logits, Method, Parts, Preset
from seewhen.decoding.prefill import BranchRows
from seewhen.equations import where
from seewhen.equations.contrast import check_contrast, cut, logit_sum
from seewhen.errors import InvalidMethod, UnsupportedMode
from seewhen.methods.parameters import Plausibility

if TYPE_CHECKING:
    from seewhen.backbones.backbone import Backbone
    from seewhen.decoding.prefill import Prefill

# From a picture (3, height, width), normalised, and the prompt's token ids without image and padding, to a
# map of any size whose larger values are kept first, or to booleans (height, width) of what is kept.
RelevanceMap = Callable[[Tensor, Tensor], Tensor]
_OWN = "own"
_MAPS: dict[str, RelevanceMap] = {}
_BLUR = 0.02  # of the longer side


def register_relevance(name: str, function: RelevanceMap) -> None:
    """Make `function` known as `AGLA(relevance=name)`."""
    if name == _OWN:
        raise InvalidMethod(f"agla: the name {_OWN!r} is taken.", "Choose another one.")
    _MAPS[name] = function


@dataclass(frozen=True, eq=False)
class MaskedImage(AlteredImage):
    """The image with everything black but the most relevant share of its pixels."""

    keep: float = 0.8
    relevance: RelevanceMap | None = None  # None: the backbone's own
    # Filled in for each prompt:
    own: Tensor | None = None  # relevance of all image tokens, in the order of the prompts
    prompts: tuple[Tensor, ...] = ()

    def rows(self, prefill: Prefill) -> BranchRows:
        """The main rows with the masked image."""
        if not bool(prefill.image_mask.any()):
            return super().rows(prefill)
        ids = prefill.inputs.get("input_ids")
        repeats = len(prefill.embeds) // len(ids) if isinstance(ids, Tensor) else 1  # beams see the same
        embeds, image, padding = (t[::repeats] for t in (prefill.embeds, prefill.image_mask, prefill.padding))
        if self.relevance is None:
            tail = prefill.tail[::repeats]
            everywhere = torch.ones_like(image)
            own = where.cosine(where.tail_mean(embeds, tail), embeds, everywhere)[image]
            return AlteredImage.rows(dataclasses.replace(self, own=own), prefill)
        if prefill.input_ids is None:
            raise UnsupportedMode("agla needs the prompt's token ids.", "Give input_ids to generate().")
        words = ~(image | padding)
        tokens = prefill.input_ids[::repeats].to(words.device)
        prompts = tuple(row[mask] for row, mask in zip(tokens, words, strict=True))
        return AlteredImage.rows(dataclasses.replace(self, prompts=prompts), prefill)

    def alter(self, pixels: Tensor, inputs: dict[str, Any]) -> Tensor:
        """Mask each picture by its map."""
        views = Views.of(pixels, inputs, self.backbone.model.config.vision_config)
        maps = self._own_maps(views) if self.relevance is None else self._given_maps(views)
        masks = [kept(map_, one, self.keep) for one, map_ in zip(views.pictures, maps, strict=True)]
        seen = views.packed([mask.expand_as(one) for one, mask in zip(views.pictures, masks, strict=True)])
        black = views.packed([one.amin(dim=(-2, -1), keepdim=True).expand_as(one) for one in views.pictures])
        return torch.where(seen, pixels, black)

    def _own_maps(self, views: Views) -> list[Tensor]:
        assert self.own is not None
        grids = views.token_grids(len(self.own))
        if grids is None:
            raise UnsupportedMode(
                f"agla cannot tell where the {len(self.own)} image tokens of this model lie in its "
                f"{len(views.pictures)} pictures.",
                "Give it a relevance map: seewhen.plugin.register_relevance(name, function).",
            )
        parts = self.own.split([height * width for height, width in grids])
        return [part.view(grid) for part, grid in zip(parts, grids, strict=True)]

    def _given_maps(self, views: Views) -> list[Tensor]:
        assert self.relevance is not None
        each, rest = divmod(len(views.pictures), len(self.prompts))
        if rest:
            raise UnsupportedMode(
                f"agla cannot tell which of {len(views.pictures)} pictures belong to which of "
                f"{len(self.prompts)} prompts.",
                "Give prompts with the same number of pictures, or one at a time.",
            )
        return [self.relevance(one, self.prompts[index // each]) for index, one in enumerate(views.pictures)]


def kept(relevance: Tensor, picture: Tensor, share: float) -> Tensor:
    """Which pixels of `picture` (3, H, W) are kept, (H, W): the `share` with the largest relevance."""
    size = picture.shape[-2:]
    if relevance.dtype == torch.bool:
        if relevance.shape != size:
            raise UnsupportedMode(
                f"The relevance function gave a mask of {tuple(relevance.shape)} for a picture of {tuple(size)}.",
                "Booleans must have the picture's size; give numbers for a map of another size.",
            )
        return relevance.to(picture.device)
    large = torch.nn.functional.interpolate(
        relevance.float()[None, None].to(picture.device), size, mode="bicubic", align_corners=False
    )
    smooth = blurred(large, _BLUR * max(size))[0, 0]
    order = smooth.flatten().argsort(descending=True, stable=True)
    mask = torch.zeros(order.shape, dtype=torch.bool, device=picture.device)
    mask[order[: round(share * len(order))]] = True
    return mask.view(size)


def blurred(maps: Tensor, sigma: float) -> Tensor:
    """Gaussian blur of (n, 1, H, W), the border repeated."""
    radius = max(1, round(4 * sigma))
    offsets = torch.arange(-radius, radius + 1, device=maps.device, dtype=maps.dtype)
    weights = torch.softmax(-0.5 * (offsets / sigma) ** 2, dim=0)
    padded = torch.nn.functional.pad(maps, (radius,) * 4, mode="replicate")
    across = torch.nn.functional.conv2d(padded, weights.view(1, 1, 1, -1))
    return torch.nn.functional.conv2d(across, weights.view(1, 1, -1, 1))


@dataclass(frozen=True)
class AGLA(Method):
    """Adds the logits of a view of the image that shows only what matters for the prompt."""

    name: ClassVar[str] = "agla"
    summary: ClassVar[str] = "add what the model says of the relevant part of the image"
    source: ClassVar[str] = "An et al., CVPR 2025; no licence found, written from the formulas"
    joins: ClassVar[bool] = True
    presets: ClassVar[Mapping[str, Preset]] = {
        "reference": Preset(
            {"reference_parity": True},
            "released code, evaluation scripts",
            {"relevance": "our variant; the code uses BLIP", "keep": "ours; the code: 1 - similarity / 2 of BLIP"},
        ),
        "reference:fallback": Preset(
            {"alpha": 1.0, "reference_parity": True}, "released code, the sampler's own defaults"
        ),
    }

    alpha: Annotated[float, "how much of the masked image's logits is added; 0: nothing"] = 2.0
    plausibility: Plausibility = 0.5
    keep: Annotated[float, "share of the pixels that stay visible"] = 0.8
    relevance: Annotated[str, "what ranks the pixels: own, or a name given to register_relevance"] = _OWN
    reference_parity: Annotated[
        bool, "keep a defect of the released code: after the first token the rule only sharpens"
    ] = False

    def __post_init__(self) -> None:
        check_contrast(self.name, self.alpha, self.plausibility)
        if not 0 < self.keep <= 1:
            raise InvalidMethod(f"agla: keep={self.keep} is no share of the image.", "Choose it in (0, 1].")
        if self.relevance != _OWN and self.relevance not in _MAPS:
            raise InvalidMethod(
                f"agla: there is no relevance map {self.relevance!r}.",
                f"Known: {', '.join((_OWN, *_MAPS))}; add one with register_relevance(name, function).",
            )

    def parts(self, backbone: Backbone) -> Parts:
        """A row with the masked image; nothing at all for alpha = 0."""
        if not self.alpha:
            return Parts()
        function = None if self.relevance == _OWN else _MAPS[self.relevance]
        return Parts(branches=(MaskedImage(backbone, self.keep, function),), rule=self._rule)

    def _rule(self, logits: Logits) -> Tensor:
        scores = logit_sum(logits.main, logits.branches[0], self.alpha, self.plausibility)
        if not self.reference_parity:
            return scores
        sharper = cut((1.0 + self.alpha) * logits.main, logits.main, self.plausibility)
        return torch.where(logits.sequence.recorder.step.to(scores.device) == 0, scores, sharper)
