"""A processor for the tiny LLaVA, and directions fitted on tiny models, for the tests of VTI and ICT."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from PIL import Image

import seewhen
import tiny
from promises import longer, some_tokens
from seewhen.backbones.backbone import Backbone
from seewhen.methods.calibration import Directions, provenance
from seewhen.methods.ict import activations, fit
from seewhen.methods.vti import text_difference, text_direction, visual_difference, visual_direction

_FOLDER = tempfile.TemporaryDirectory(prefix="directions-")  # goes with the process


class TinyProcessor:
    """Words to ids by their letters, pictures to 16 x 16 pixels: all that calibration asks of a processor."""

    image_token = "<image>"
    chat_template = None

    def __call__(self, images: Any, text: list[str], **_: Any) -> dict[str, torch.Tensor]:
        assert len(text) == 1 and len(images[0]) == 1
        words = text[0].removeprefix(self.image_token).split()
        ids = [tiny.FIRST_WORD + sum(map(ord, word)) % tiny.WORDS for word in words]
        prompt = torch.tensor([[tiny.BOS, *[tiny.IMAGE] * 16, *ids]])
        small = images[0][0].convert("RGB").resize((16, 16))
        pixels = torch.tensor(list(small.tobytes()), dtype=torch.float32).view(16, 16, 3).permute(2, 0, 1)
        return {
            "input_ids": prompt,
            "attention_mask": torch.ones_like(prompt),
            "pixel_values": pixels[None] / 64 - 2,
        }


def pictures(count: int, size: int = 32) -> list[Image.Image]:
    generator = torch.Generator().manual_seed(5)
    drawn = torch.randint(0, 256, (count, size, size, 3), generator=generator, dtype=torch.uint8)
    return [Image.frombytes("RGB", (size, size), bytes(one.flatten().tolist())) for one in drawn]


def directions_of(method: str, family: str) -> Path:
    """Where the directions of a tiny model are kept."""
    return Path(_FOLDER.name) / f"{method}-{family}.safetensors"


def fitted_vti(family: str, **parameters: Any) -> seewhen.Method:
    """VTI with directions fitted on a few random prompts of the tiny model."""
    path = directions_of("vti", family)
    if not path.exists():
        backbone, generator = Backbone.of(tiny.model(family)), torch.Generator().manual_seed(0)
        seen, said = [], []
        for seed in range(3):
            inputs = tiny.inputs(family, seed=seed)
            seen.append(visual_difference(backbone, inputs, 0.75, 2, generator))
            texts = [longer(inputs, some_tokens(steps=3, seed=seed + k)) for k in (10, 20)]
            said.append(text_difference(backbone, *texts))
        tensors = {"visual": visual_direction(seen), "textual": text_direction(said)}
        Directions("vti", tensors, provenance(backbone, [])).save(path)
    return seewhen.method("vti", directions=str(path), **parameters)


def fitted_ict(family: str, **parameters: Any) -> seewhen.Method:
    """ICT with directions fitted on a few random prompts of the tiny model, in groups of 8."""
    path = directions_of("ict", family)
    if not path.exists():
        backbone = Backbone.of(tiny.model(family))
        tensors: dict[str, torch.Tensor] = {}
        for level, shift in (("image", 0), ("object", 50)):
            states = [
                torch.stack([activations(backbone, tiny.inputs(family, seed=seed + k)) for seed in range(4)])
                for k in (shift, shift + 20)
            ]
            tensors |= {f"{level}.{part}": value for part, value in fit(*states, group=8).items()}
        Directions("ict", tensors, provenance(backbone, [])).save(path)
    return seewhen.method("ict", directions=str(path), **{"top": 5, **parameters})
