"""VCD: Visual Contrastive Decoding (Leng et al., CVPR 2024).

Idea: what the model says of a picture drowned in noise is its prior; subtract it. A second row sees
`x' = sqrt(abar_t) x + sqrt(1 - abar_t) eps`, the normalised pixels after `t` steps of a diffusion
schedule, and the scores are `(1 + alpha) z - alpha z'` with the plausibility cut of `beta`.

Source: the paper and its released code (Apache-2.0). Written from the formulas. The released code
draws its noise from the global generator; here each image has a draw of its own, made from
`noise_seed` and the image's content, so that it is the same in any batch and after any restart.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from torch import Tensor

from seewhen.decoding.altered_images import AlteredImage
from seewhen.decoding.method import Logits, Method, Parts, Preset
from seewhen.equations.contrast import check_contrast, logit_contrast
from seewhen.errors import InvalidMethod
from seewhen.methods.parameters import Plausibility

if TYPE_CHECKING:
    from seewhen.backbones.backbone import Backbone

NOISE_STEPS = 1000
_LARGEST_SEED = 2**62


def noise_schedule(step: int) -> tuple[float, float]:
    """Coefficients of picture and noise after `step` (from 0) of the 1000 steps of the schedule."""
    rate = torch.sigmoid(torch.linspace(-6, 6, NOISE_STEPS, dtype=torch.float64)) * (0.005 - 1e-5) + 1e-5
    kept = float(torch.cumprod(1.0 - rate, dim=0)[step])
    return kept**0.5, (1.0 - kept) ** 0.5


@dataclass(frozen=True, eq=False)
class NoisedImage(AlteredImage):
    """The image after some steps of diffusion. `noise` replaces the draw, for comparisons."""

    step: int = 500
    seed: int | None = 0
    noise: Tensor | None = None

    def alter(self, pixels: Tensor, inputs: dict[str, Any]) -> Tensor:
        """Noise of the size the schedule says, one draw per image (or tile)."""
        picture, noise = noise_schedule(self.step)
        eps = self.noise if self.noise is not None else self._draw(pixels, inputs)
        return (picture * pixels.float() + noise * eps.to(pixels.device)).to(pixels.dtype)

    def _draw(self, pixels: Tensor, inputs: dict[str, Any]) -> Tensor:
        seed = self.seed if self.seed is not None else int(torch.randint(_LARGEST_SEED, ()))
        images = pixels.split(_patches(pixels, inputs)) if pixels.dim() == 2 else pixels.split(1)
        return torch.cat([_noise_for(image.float().cpu(), seed) for image in images])


def _noise_for(image: Tensor, seed: int) -> Tensor:
    """Normal noise that depends on `seed` and the image, and not on how the batch padded it.

    Images and tiles are padded with zeros at the end of each dimension; padding gets no noise (some
    models tell real tiles by it). Drawn on the CPU: a GPU's generator gives other numbers on other cards.
    """
    real = tuple(slice(0, int(part.max()) + 1) for part in image.nonzero().unbind(1) if len(part))
    content = image[real].contiguous()
    name = zlib.crc32(content.numpy().tobytes())
    generator = torch.Generator().manual_seed((seed * 0x9E3779B1 + name) % _LARGEST_SEED)
    noise = torch.zeros_like(image)
    if real:
        noise[real] = torch.randn(content.shape, generator=generator)
    return noise


def _patches(pixels: Tensor, inputs: dict[str, Any]) -> list[int]:
    """How many patches of a flat (patches, values) tensor belong to each image."""
    for name in ("image_grid_thw", "video_grid_thw"):
        grid = inputs.get(name)
        if isinstance(grid, Tensor) and int(grid.prod(dim=1).sum()) == len(pixels):
            return grid.prod(dim=1).tolist()
    return [len(pixels)]


@dataclass(frozen=True)
class VCD(Method):
    """Visual Contrastive Decoding. The class defaults are those of the released scripts."""

    name: ClassVar[str] = "vcd"
    summary: ClassVar[str] = "contrast with a noised image"
    source: ClassVar[str] = "Leng et al., CVPR 2024; code Apache-2.0"
    joins: ClassVar[bool] = True
    presets: ClassVar[Mapping[str, Preset]] = {
        "reference": Preset({}, "released code, argument defaults of all evaluation scripts"),
        "reference:llava-1.5/pope": Preset(
            {"plausibility": 0.2}, "released code, experiments/cd_scripts/llava1.5_pope.bash"
        ),
        "reference:instructblip": Preset(
            {"alpha": 0.5},
            "released code: the InstructBLIP path never forwards alpha, so the sampler's fallback acts",
        ),
        "reference:qwen-vl": Preset({}, "released code, Qwen-VL script"),
    }

    alpha: Annotated[float, "how much of the noised image's logits is subtracted; 0: no contrast"] = 1.0
    plausibility: Plausibility = 0.1
    noise_step: Annotated[int, "steps of the diffusion schedule: 0 is hardly any noise, 999 all noise"] = 500
    # None draws a seed from torch's generator at each call, as `torch.manual_seed` left it.
    noise_seed: Annotated[int | None, "seed of the noise; none: from torch's generator at each call"] = 0

    def __post_init__(self) -> None:
        check_contrast(self.name, self.alpha, self.plausibility)
        if not 0 <= self.noise_step < NOISE_STEPS:
            raise InvalidMethod(
                f"vcd: noise_step={self.noise_step} is not a step of the schedule.",
                f"Choose it between 0 (hardly any noise) and {NOISE_STEPS - 1}.",
            )

    def parts(self, backbone: Backbone) -> Parts:
        """A row with the noised image; nothing at all for alpha = 0."""
        if not self.alpha:
            return Parts()
        return Parts(branches=(NoisedImage(backbone, self.noise_step, self.noise_seed),), rule=self._rule)

    def _rule(self, logits: Logits) -> Tensor:
        return logit_contrast(logits.main, logits.branches[0], self.alpha, self.plausibility)
