"""Families people use now, from a checkpoint directory to an answer: processor, tiles, grids, batches.

Structure and image sizes are those of published checkpoints (see `published.py`); what the processor
makes of a picture is counted by the processor's own arithmetic and must be what the grids cover.
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import published
import pytest
import torch
import transformers
from PIL import Image

import seewhen
from seewhen.backbones.prompts import chat_prompt, model_inputs
from seewhen.errors import UnsupportedModel

METHOD = seewhen.method("cai", start_layer=0, threshold=-1.0, contrast=2.0, plausibility=None)
STEPS = 3
TEXTS = ["What is in the image?", "What differs?"]
_noise = np.random.default_rng(0).integers(0, 255, (120, 240, 3), dtype=np.uint8)
WIDE = Image.fromarray(_noise)
TALL = Image.fromarray(_noise.transpose(1, 0, 2)[:200])
# Grids of the wide picture and of the tall one: kind, rows and columns of patches.
TILE, THUMBNAIL = "tile", "thumbnail"
EXPECTED: dict[str, list[list[tuple[str, int, int]]]] = {
    "qwen2_5_vl": [[("image", 4, 9)], [("image", 7, 4)]],
    "qwen3_vl": [[("image", 4, 8)], [("image", 6, 4)]],
    "qwen3_5": [[("image", 4, 8)], [("image", 6, 4)]],
    "internvl": [[(TILE, 16, 16)] * 2 + [(THUMBNAIL, 16, 16)], [(TILE, 16, 16)] * 6 + [(THUMBNAIL, 16, 16)]],
    "smolvlm": [[(TILE, 9, 9)] * 2 + [(THUMBNAIL, 9, 9)], [(TILE, 9, 9)] * 4 + [(THUMBNAIL, 9, 9)]],
    "idefics3": [[(TILE, 13, 13)] * 2 + [(THUMBNAIL, 13, 13)], [(TILE, 13, 13)] * 4 + [(THUMBNAIL, 13, 13)]],
    "gemma3": [[("image", 16, 16)]] * 2,
}
ALONE = {"llava_onevision"}  # several pictures in one prompt are not cut into tiles there, one is


@functools.cache  # a fixture of the module would be made again at every change of family
def read(name: str) -> tuple[Any, Any]:
    with tempfile.TemporaryDirectory() as directory:
        published.write(name, Path(directory))
        return seewhen.load(directory, device="cpu")


@pytest.fixture(params=list(published.FAMILIES))
def loaded(request: pytest.FixtureRequest) -> tuple[str, Any, Any]:
    try:
        return request.param, *read(request.param)
    except UnsupportedModel as error:
        if "torchvision" in str(error):
            pytest.skip(f"needs torchvision in transformers {transformers.__version__}")
        raise


def answer(model: Any, processor: Any, images: Any, texts: Any) -> seewhen.Answers:
    return seewhen.generate(
        model, processor, images, texts, METHOD, trace=True, max_new_tokens=STEPS, do_sample=False
    )


@functools.cache
def both(name: str) -> seewhen.Answers:
    """A batch of a prompt with one picture and one with two."""
    return answer(*read(name), [[WIDE], [WIDE, TALL]], TEXTS)


def counted(processor: Any, pictures: list[Image.Image]) -> list[int] | None:
    """Image tokens of each picture by the processor's own arithmetic, which looks at sizes only."""
    count = getattr(processor, "_get_num_multimodal_tokens", None)
    sizes = [(picture.height, picture.width) for picture in pictures]
    return None if count is None else list(count(image_sizes=sizes)["num_image_tokens"])


@pytest.mark.slow
def test_from_a_directory_to_answers(loaded: tuple[str, Any, Any]) -> None:
    """Tokens, grids, and each row as if alone."""
    name, model, processor = loaded
    rows: list[list[Image.Image]] = [[WIDE], [WIDE, TALL]]
    batch = both(name)
    assert [len(reply.tokens) for reply in batch.answers] == [STEPS, STEPS]
    assert batch.trace.fired_tokens() == (STEPS, STEPS)
    for row, pictures in enumerate(rows):
        alone = answer(model, processor, pictures, TEXTS[row])
        assert alone.answers[0].tokens == batch.answers[row].tokens
        assert alone.trace.image_tokens[0] == batch.trace.image_tokens[row]
        assert alone.trace.grids[0] == batch.trace.grids[row]
        grids = batch.trace.grids[row]
        assert sum(grid.tokens for grid in grids) == batch.trace.image_tokens[row]
        expected = counted(processor, pictures)
        if expected is not None and not (name in ALONE and len(pictures) > 1):
            found = [sum(g.tokens for g in grids if g.image == index) for index in range(len(pictures))]
            # InternVL counts the two tags of each picture, Idefics the markers between tiles as well.
            tags = 2 if name == "internvl" else 0
            if name not in ("idefics3", "smolvlm"):
                assert [number + tags for number in found] == expected


def test_tiles_and_thumbnails(loaded: tuple[str, Any, Any]) -> None:
    name, _, _ = loaded
    if name not in EXPECTED:
        pytest.skip("see the test of any-resolution pictures")
    trace = both(name).trace
    for index, expected in enumerate(EXPECTED[name]):
        grids = [grid for grid in trace.grids[1] if grid.image == index]
        assert [(grid.kind, grid.height, grid.width) for grid in grids] == expected
        tiles = [grid for grid in grids if grid.kind == TILE]
        if tiles:  # they cover the picture once
            area = sum((g.box[2] - g.box[0]) * (g.box[3] - g.box[1]) for g in tiles)
            assert area == pytest.approx(1.0)
            assert (tiles[0].box[:2], tiles[-1].box[2:]) == ((0.0, 0.0), (1.0, 1.0))


@pytest.mark.parametrize("loaded", ["llava_onevision"], indirect=True)
def test_any_resolution(loaded: tuple[str, Any, Any]) -> None:
    """LLaVA-OneVision: a thumbnail of 27 x 27, then the picture at its own aspect with a newline per row."""
    alone, two = both("llava_onevision").trace.grids
    small, large = alone
    assert (small.kind, small.height, small.width) == (THUMBNAIL, 27, 27)
    assert large.stride == large.width + 1 and large.width == pytest.approx(2 * large.height, abs=1)
    assert sum(grid.tokens for grid in two) == 2 * 730


def test_relevance_maps_have_the_shape_of_the_grids(loaded: tuple[str, Any, Any]) -> None:
    trace = both(loaded[0]).trace
    for grid in trace.grids[1]:
        shown = grid.map_of(trace.relevance[0, 1])
        assert shown.shape == (grid.height, grid.width)
        assert bool(torch.isfinite(shown).all())


def test_a_prompt_of_the_chat_template_holds_one_place_per_picture(loaded: tuple[str, Any, Any]) -> None:
    name, model, processor = loaded
    prompt = chat_prompt(processor, "What?", 2)
    assert prompt.count(published.FAMILIES[name].placeholder) == 2
    inputs = model_inputs(model, processor, [[WIDE, TALL]], [prompt])
    assert int(seewhen.Backbone.of(model).image_mask(inputs["input_ids"]).sum()) > 2
