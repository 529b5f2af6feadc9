"""Patch grids: they add up to the image tokens, and a cell is where its pixels are."""

from __future__ import annotations

import copy
import functools
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from torch import Tensor

import seewhen
import tiny
from seewhen.backbones.grids import ImageGrid, image_grids

FAMILIES = tiny.FAMILIES
PLACED = [family for family in FAMILIES if family != "instructblip"]


def grids_of(family: str, inputs: dict[str, Any]) -> tuple[tuple[ImageGrid, ...], ...]:
    return image_grids(seewhen.Backbone.of(tiny.model(family)), inputs, len(inputs["input_ids"]))


@pytest.mark.parametrize("images", [1, 2, (0, 1, 1)])
@pytest.mark.parametrize("family", FAMILIES)
def test_grids_add_up_to_the_image_tokens(family: str, images: Any) -> None:
    if images != 1 and family in tiny.ONE_IMAGE_ONLY:
        pytest.skip("takes one image per prompt")
    inputs = tiny.inputs(family, rows=3, images=images)
    counts = (images,) * 3 if isinstance(images, int) else images
    for row, grids in enumerate(grids_of(family, inputs)):
        assert len({grid.image for grid in grids}) == counts[row]
        end = 0
        for grid in grids:
            assert grid.start == end
            end += grid.tokens
            assert 0 <= grid.box[0] < grid.box[2] <= 1 and 0 <= grid.box[1] < grid.box[3] <= 1
        assert end == int((inputs["input_ids"][row] == tiny.IMAGE).sum())


def test_queries_have_no_place() -> None:
    for grids in grids_of("instructblip", tiny.inputs("instructblip", rows=2)):
        assert [(grid.kind, grid.tokens) for grid in grids] == [("queries", 5)]


def test_images_without_a_word_between_them_are_two_images() -> None:
    ids = torch.tensor([[tiny.BOS, *[tiny.IMAGE] * 32, 5, 6]])
    (grids,) = grids_of("llava", {"input_ids": ids})
    assert [(grid.image, grid.start, grid.height, grid.width) for grid in grids] == [(0, 0, 4, 4), (1, 16, 4, 4)]


def test_several_images_of_a_onevision_prompt_are_whole() -> None:
    """Then each has one view and one newline, which has no place."""
    ids = torch.tensor([[tiny.BOS, *[tiny.IMAGE] * 17, 7, *[tiny.IMAGE] * 17, 5]])
    sizes = torch.tensor([[20, 30], [30, 14]])
    inputs = {"input_ids": ids, "image_sizes": sizes, "batch_num_images": torch.tensor([2])}
    (grids,) = grids_of("llava_onevision", inputs)
    assert [(grid.image, grid.kind, grid.tokens) for grid in grids] == [
        (0, "image", 16),
        (0, "queries", 1),
        (1, "image", 16),
        (1, "queries", 1),
    ]


def test_frames_of_a_video_share_their_place() -> None:
    """Two frames of 2 x 3 tokens with a time stamp between them, then an image."""
    frame = [tiny.OPEN, *[tiny.VIDEO] * 6, tiny.CLOSE]
    ids = torch.tensor([[tiny.BOS, *frame, 9, *frame, 8, tiny.OPEN, *[tiny.IMAGE] * 4, tiny.CLOSE]])
    inputs = {
        "input_ids": ids,
        "video_grid_thw": torch.tensor([[2, 4, 6]]),
        "image_grid_thw": torch.tensor([[1, 4, 4]]),
    }
    (grids,) = grids_of("qwen3_vl", inputs)
    shapes = [(grid.image, grid.kind, grid.start, grid.height, grid.width) for grid in grids]
    assert shapes == [(0, "frame", 0, 2, 3), (0, "frame", 6, 2, 3), (1, "image", 12, 2, 2)]


def test_a_onevision_video_is_no_square() -> None:
    """Two frames of 2 x 2 tokens and a newline are nine tokens, not three rows of three."""
    ids = torch.tensor([[tiny.BOS, *[tiny.VIDEO] * 9, 7]])
    (grids,) = grids_of("llava_onevision", {"input_ids": ids, "pixel_values_videos": torch.zeros(1, 2, 3, 16, 16)})
    assert [(grid.kind, grid.tokens) for grid in grids] == [("queries", 9)]


def test_rows_of_beams_repeat_the_grids_of_their_prompt() -> None:
    backbone = seewhen.Backbone.of(tiny.model("llava_next"))
    inputs = tiny.inputs("llava_next", rows=2)
    first, second = image_grids(backbone, inputs, 2)
    assert first != second
    assert image_grids(backbone, inputs, 6) == (first,) * 3 + (second,) * 3


def test_what_cannot_be_told_is_not_guessed() -> None:
    backbone = seewhen.Backbone.of(tiny.model("internvl"))
    assert image_grids(backbone, {}, 2) == ((), ())
    inputs = tiny.inputs("internvl")
    del inputs["pixel_values"]  # the arrangement of the tiles is in the pixels only
    ((grid,),) = image_grids(backbone, inputs, 1)
    assert (grid.kind, grid.tokens) == ("queries", 12)
    # Sizes that contradict the prompt: a run of tokens without a place.
    inputs = {**tiny.inputs("mistral3"), "image_sizes": torch.tensor([[16, 80]])}
    assert all(grid.kind == "queries" for grid in grids_of("mistral3", inputs)[0])


def test_map_of_leaves_separators_out() -> None:
    grid = ImageGrid(0, 2, 2, 3, 4)
    expected = torch.tensor([[2.0, 3.0, 4.0], [6.0, 7.0, 8.0]])
    assert torch.equal(grid.map_of(torch.arange(10.0)), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_trace_knows_its_grids(family: str) -> None:
    model = tiny.model(family)
    with seewhen.attach(model, seewhen.method("cai", start_layer=0, threshold=-1.0)) as handle:
        model.generate(**tiny.inputs(family, rows=2), max_new_tokens=2, do_sample=False, num_beams=2)
        inputs = tiny.inputs(family, rows=2)
        model.generate(**inputs, max_new_tokens=2, do_sample=False)
    assert handle.trace.grids == grids_of(family, inputs)


# -- a cell is where its pixels are ------------------------------------------------------------------------


def processed(family: str, picture: Image.Image) -> dict[str, Any]:
    """The prompt of one picture, made with the family's own image processor at the tiny model's sizes."""
    square = {"height": 16, "width": 16}
    settings: dict[str, tuple[str, dict[str, Any]]] = {
        "llava": ("CLIP", {"size": {"shortest_edge": 16}, "crop_size": square}),
        "llava_next": (
            "LlavaNext",
            {"size": {"shortest_edge": 16}, "crop_size": square, "image_grid_pinpoints": tiny.PINPOINTS},
        ),
        "llava_onevision": ("LlavaOnevision", {"size": square, "image_grid_pinpoints": tiny.PINPOINTS}),
        "qwen": (
            "Qwen2VL",
            {"patch_size": 2, "merge_size": 2, "temporal_patch_size": 2, "min_pixels": 16, "max_pixels": 128},
        ),
        "internvl": ("GotOcr2", {"size": square, "crop_to_patches": True, "max_patches": 6}),
        "idefics3": (
            "Idefics3",
            {"size": {"longest_edge": 48}, "max_image_size": {"longest_edge": 16}, "return_row_col_info": True},
        ),
        "siglip": ("Siglip", {"size": square}),
        "mistral3": ("Pixtral", {"size": {"longest_edge": 32}, "patch_size": 8}),
    }
    name = {"paligemma": "siglip", "gemma3": "siglip", "smolvlm": "idefics3"}.get(family, family)
    prefix, options = settings["qwen" if family.startswith("qwen") else name]
    # Without torchvision there are the PIL twins of the image processors.
    kind = getattr(transformers, f"{prefix}ImageProcessorPil", None)
    try:
        processor = (kind or getattr(transformers, f"{prefix}ImageProcessor"))(**options)
    except ImportError:
        pytest.skip(f"{prefix} pictures need torchvision in transformers {transformers.__version__}")
    given = dict(processor(picture, return_tensors="pt"))
    if family.startswith("qwen"):
        count = int(given["image_grid_thw"].prod()) // 4
        tokens = [tiny.OPEN, *[tiny.IMAGE] * count, tiny.CLOSE]
    elif family in ("llava_next", "llava_onevision"):
        tokens = [tiny.IMAGE] * tiny.anyres(family, tuple(given["image_sizes"][0].tolist()))[0]
        given.pop("num_patches", None)
    elif family == "mistral3":
        height, width = (given["image_sizes"][0] // 8).tolist()
        tokens = [*([*[tiny.IMAGE] * width, tiny.BREAK] * height)[:-1], tiny.CLOSE]
    elif family == "internvl":
        tokens = [tiny.OPEN, *[tiny.IMAGE] * 4 * len(given["pixel_values"]), tiny.CLOSE]
        given.pop("num_patches")
    elif name == "idefics3":
        tokens = tiny.idefics_tokens(given.pop("rows")[0][0], given.pop("cols")[0][0])
    else:
        tokens = [tiny.IMAGE] * (4 if family == "gemma3" else 16)
    ids = torch.tensor([[tiny.BOS, 10, *tokens, 20, 30, 40]])
    prompt = {**given, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if family.startswith("qwen"):
        prompt["mm_token_type_ids"] = (ids == tiny.IMAGE).int()
    return prompt


@functools.cache
def quiet(family: str) -> Any:
    """The tiny model with next to no attention in its vision tower, so that a patch shows in its own token."""
    model = copy.deepcopy(tiny.model(family))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "vis" in name and ("attn" in name or "attention" in name) and parameter.dim() > 1:
                parameter.mul_(0.01)
    return model


@torch.no_grad()
def image_features(family: str, inputs: dict[str, Any]) -> Tensor:
    """What the decoder is given at the image tokens, (tokens, d)."""
    model = quiet(family)
    seen: list[Tensor] = []

    def keep(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        seen.append(kwargs["inputs_embeds"])

    handle = seewhen.Backbone.of(model).decoder.register_forward_pre_hook(keep, with_kwargs=True)
    try:
        model(**inputs)
    finally:
        handle.remove()
    return seen[0][0][inputs["input_ids"][0] == tiny.IMAGE]


@pytest.mark.parametrize("size", [(48, 32), (24, 48)], ids=["wide", "tall"])
@pytest.mark.parametrize("family", PLACED)
def test_a_changed_spot_changes_the_cells_that_cover_it(family: str, size: tuple[int, int]) -> None:
    """Through the real image processor: paint a spot, see which token of each grid changes most."""
    width, height = size if family not in ("llava",) else (32, 32)  # LLaVA crops what is not square
    noise = np.random.default_rng(3).integers(90, 166, (height, width, 3), dtype=np.uint8)
    inputs = processed(family, Image.fromarray(noise))
    before = image_features(family, inputs)
    (grids,) = grids_of(family, inputs)
    kinds = {grid.kind for grid in grids}
    assert "queries" not in kinds
    hits = total = 0
    for x, y in ((0.2, 0.2), (0.8, 0.3), (0.45, 0.55), (0.1, 0.9), (0.9, 0.8)):
        painted = noise.copy()
        left, top = int(x * width) - 1, int(y * height) - 1
        painted[max(top, 0) : top + 3, max(left, 0) : left + 3] = 255
        change = (image_features(family, processed(family, Image.fromarray(painted))) - before).norm(dim=-1)
        for grid in grids:
            x0, y0, x1, y1 = grid.box
            if not (x0 <= x < x1 and y0 <= y < y1):
                continue
            cells = grid.map_of(change)
            row, column = divmod(int(cells.argmax()), grid.width)
            total += 1
            # The spot may straddle two cells; half a cell of tolerance.
            down, across = (y - y0) / (y1 - y0) * grid.height, (x - x0) / (x1 - x0) * grid.width
            hits += abs(down - row - 0.5) <= 1.0 and abs(across - column - 0.5) <= 1.0
    assert hits == total >= 5
    if kinds == {"tile", "thumbnail"}:  # a spot in a tile changes no other tile
        assert total == 10
