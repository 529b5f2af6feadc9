"""Telling the package's own scenes from other pictures."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from seewhen.asking.default_model import looks_like_scene
from seewhen.scenes import SPLITS, render, sample


@settings(max_examples=40)
@given(st.sampled_from(SPLITS), st.integers(0, 10_000), st.sampled_from([None, "twemoji"]))
def test_every_scene_is_known(split: str, index: int, artwork: str | None) -> None:
    assert looks_like_scene(render(sample(split, index, artwork=artwork)))  # type: ignore[arg-type]


def _photograph(size: tuple[int, int]) -> Image.Image:
    """Smooth shading with sensor noise."""
    noise = np.random.default_rng(0).normal(0, 4, (size[1], size[0], 3))
    ramp = np.linspace(20, 220, size[0])[None, :, None]
    return Image.fromarray(np.clip(ramp + noise, 0, 255).astype(np.uint8))


@pytest.mark.parametrize(
    "image",
    [
        Image.new("RGB", (192, 192), "white"),
        _photograph((192, 192)),
        _photograph((640, 480)),
        _photograph((96, 96)).resize((192, 192), Image.Resampling.BILINEAR),
    ],
    ids=["blank", "small photograph", "photograph", "enlarged photograph"],
)
def test_other_pictures_are_not(image: Image.Image) -> None:
    assert not looks_like_scene(image)


def test_a_lossy_copy_is_not() -> None:
    buffer = io.BytesIO()
    render(sample("test", 0)).save(buffer, "JPEG", quality=60)
    assert not looks_like_scene(Image.open(buffer))
