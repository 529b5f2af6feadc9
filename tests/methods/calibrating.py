"""A processor for the tiny LLaVA, and directions fitted on tiny models, for the tests of VTI and ICT."""

from __future__ import annotations

from typing import Any

import torch
from PIL import Image

import tiny


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
