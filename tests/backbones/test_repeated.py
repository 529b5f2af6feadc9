"""Preparing a repeated picture once changes no value, whatever way the processor packs pictures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from seewhen.backbones.repeated_pictures import once_per_picture


def image_processor(family: str) -> Any:
    """Of transformers, in the form that needs Pillow alone."""
    for name in (f"{family}ImageProcessorPil", f"{family}ImageProcessor"):
        try:
            return getattr(transformers, name)()
        except (AttributeError, ImportError):
            continue
    pytest.skip(f"{family} has no image processor here")


def pictures(*sizes: tuple[int, int]) -> list[Image.Image]:
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 255, (h, w, 3), dtype=np.uint8)) for w, h in sizes]


class Processor:
    """As transformers' processors: the pictures go to `image_processor`, nested or flat."""

    def __init__(self, inner: Any, flat: bool) -> None:
        self.image_processor, self.flat = inner, flat

    def __call__(self, images: Any) -> Any:
        given = [picture for row in images for picture in row] if self.flat else images
        return self.image_processor(given, return_tensors="pt")


class Counting:
    """An image processor that notes how many pictures it has seen."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.seen = inner, []

    def __call__(self, images: Any, **kwargs: Any) -> Any:
        self.seen.append(len(images))
        return self.inner(images, **kwargs)


@pytest.mark.parametrize("flat", [True, False], ids=["flat", "nested"])
@pytest.mark.parametrize("family", ["CLIP", "Bit", "Siglip", "LlavaNext", "Qwen2VL", "Idefics3", "Gemma3"])
def test_the_values_are_those_of_all_pictures(family: str, flat: bool) -> None:
    a, b = pictures((64, 48), (50, 90))
    rows = [[a], [b], [a], [a], [b]]
    processor = Processor(image_processor(family), flat)
    want, got = processor(rows), once_per_picture(processor, rows)(rows)
    assert set(got) == set(want)
    for name, value in want.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(got[name], value), name
        else:
            assert str(got[name]) == str(value), name


@pytest.mark.parametrize("flat", [True, False], ids=["flat", "nested"])
def test_each_picture_is_seen_once_where_it_has_a_row(flat: bool) -> None:
    a, b = pictures((64, 48), (50, 90))
    counting = Counting(image_processor("CLIP"))
    processor = Processor(counting, flat)
    rows = [[a], [b], [a], [a]]
    assert len(once_per_picture(processor, rows)(rows)["pixel_values"]) == 4
    assert counting.seen == [2]
    assert processor.image_processor is counting  # the one given is left as it was


def test_nothing_is_wrapped_where_nothing_repeats() -> None:
    a, b = pictures((64, 48), (50, 90))
    processor = Processor(image_processor("CLIP"), True)
    assert once_per_picture(processor, [[a], [b]]) is processor
    text_only = SimpleNamespace()
    assert once_per_picture(text_only, [[], []]) is text_only
