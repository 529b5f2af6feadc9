"""AGLA: masks, the sum of two views, its own cache, relevance maps of others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import seewhen
import tiny
from promises import (
    FAMILIES,
    check_acts,
    close,
    generate,
    longer,
    some_tokens,
)
from seewhen.backbones.backbone import Backbone
from seewhen.backbones.pixels import Views
from seewhen.equations.contrast import cut
from seewhen.errors import InvalidMethod, UnsupportedMode
from seewhen.methods.agla import _MAPS, MaskedImage, blurred, kept, register_relevance

METHOD = seewhen.method("agla", keep=0.5)


def test_kept_pixels() -> None:
    """The share with the largest relevance, at the picture's size, in one piece."""
    relevance = torch.zeros(4, 4)
    relevance[0, 0] = 1.0
    mask = kept(relevance, torch.zeros(3, 32, 32), 1 / 16)
    assert int(mask.sum()) == 64 and mask[:4, :4].all() and not mask[16:].any() and not mask[:, 16:].any()
    assert kept(relevance, torch.zeros(3, 32, 32), 1.0).all()


def test_blur_keeps_the_mean_and_spreads_by_sigma() -> None:
    maps = torch.zeros(1, 1, 65, 65)
    maps[0, 0, 32, 32] = 1.0
    smooth = blurred(maps, 4.0)[0, 0]
    offsets = torch.arange(65.0) - 32
    torch.testing.assert_close(smooth.sum(), torch.tensor(1.0))
    torch.testing.assert_close((smooth.sum(dim=0) * offsets**2).sum().sqrt(), torch.tensor(4.0), atol=0.02, rtol=0)


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "internvl", "idefics3"])
def test_masked_pixels_are_the_darkest_and_others_stay(family: str) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family, rows=2)
    backbone = Backbone.of(model)
    own = torch.randn(int(backbone.image_mask(inputs["input_ids"]).sum()))
    pixels = inputs["pixel_values"]
    altered = MaskedImage(backbone, keep=0.5, own=own).alter(pixels, inputs)
    before, after = (Views.of(p, inputs, model.config.vision_config).pictures for p in (pixels, altered))
    assert len(before) == len(after) >= 2
    for old, new in zip(before, after, strict=True):
        same, black = new == old, new == old.amin(dim=(-2, -1), keepdim=True)
        assert (same | black).all()
        seen = same.all(dim=0).float().mean()
        assert 0.45 < seen < 0.55


def test_packed_pixels_are_read_as_the_processor_lays_them_out() -> None:
    """Blocks of 2 x 2 patches become one token: tokens and pixels of one place belong together."""
    from types import SimpleNamespace

    image = torch.arange(3 * 8 * 12.0).view(3, 8, 12)
    blocks = image.unfold(1, 2, 2).unfold(2, 2, 2)  # (3, 4, 6, 2, 2): patches of 2 x 2 pixels
    rows = [
        blocks[:, 2 * i + k, 2 * j + m][:, None].expand(-1, 2, -1, -1).flatten()
        for i in range(2)
        for j in range(3)
        for k in range(2)
        for m in range(2)
    ]
    pixels = torch.stack(rows)
    config = SimpleNamespace(spatial_merge_size=2, patch_size=2)
    views = Views.of(pixels, {"image_grid_thw": torch.tensor([[1, 4, 6]])}, config)
    assert torch.equal(views.pictures[0], image)
    assert torch.equal(views.packed([image]), pixels)
    assert views.token_grids(6) == ((2, 3),) and views.token_grids(7) is None


@pytest.mark.parametrize("family", FAMILIES)
def test_sum_of_two_views_with_a_cache_of_its_own(family: str) -> None:
    """Every step is `z + alpha z'`, with z' from passes without any cache over the masked image."""
    model, inputs, continuation = tiny.model(family), tiny.inputs(family), some_tokens()[0]
    method = METHOD.replace(plausibility=None)
    replay = seewhen.replay(model, inputs, continuation, method)
    stock = seewhen.replay(model, inputs, continuation, "regular")
    close(replay.logits, stock.logits, 1e-4)
    masked = {**inputs, "pixel_values": seen_pixels(model, inputs)}
    for step in range(len(continuation) + 1):
        with torch.no_grad():
            other = model(**longer(masked, continuation[None, :step]), use_cache=False).logits[0, -1]
        close(replay.scores[step], stock.logits[step] + 2.0 * other, 1e-3)


def seen_pixels(model: Any, inputs: dict[str, Any]) -> Tensor:
    """What the second row saw, caught on its way."""
    caught: list[Tensor] = []
    original = MaskedImage.alter

    def alter(self: MaskedImage, pixels: Tensor, given: dict[str, Any]) -> Tensor:
        caught.append(original(self, pixels, given))
        return caught[-1]

    MaskedImage.alter = alter  # type: ignore[method-assign]
    try:
        generate(model, inputs, METHOD, max_new_tokens=1)
    finally:
        MaskedImage.alter = original  # type: ignore[method-assign]
    assert not torch.equal(caught[0], inputs["pixel_values"])
    return caught[0]


def test_the_whole_image_sharpens() -> None:
    """The whole image added to itself sharpens."""
    model, inputs, continuation = tiny.model("llava"), tiny.inputs("llava"), some_tokens()[0]
    stock = seewhen.replay(model, inputs, continuation, "regular").logits
    whole = seewhen.replay(model, inputs, continuation, METHOD.replace(keep=1.0)).scores
    close(whole, cut(3.0 * stock, stock, 0.5), 1e-4)


def test_reference_parity_only_sharpens_from_the_second_token() -> None:
    model, inputs, continuation = tiny.model("llava"), tiny.inputs("llava"), some_tokens()[0]
    stock = seewhen.replay(model, inputs, continuation, "regular").logits
    ours = seewhen.replay(model, inputs, continuation, METHOD).scores
    parity = seewhen.replay(model, inputs, continuation, METHOD.replace(reference_parity=True)).scores
    close(parity[0], ours[0], 1e-6)
    close(parity[1:], cut(3.0 * stock[1:], stock[1:], 0.5), 1e-4)
    assert not torch.equal(ours[1:], parity[1:])


@pytest.fixture
def left_half() -> Any:
    """A relevance function that keeps the left half, and what it was asked."""
    asked: list[tuple[Tensor, Tensor]] = []

    def function(picture: Tensor, prompt: Tensor) -> Tensor:
        asked.append((picture, prompt))
        mask = torch.zeros(picture.shape[-2:], dtype=torch.bool)
        mask[:, : picture.shape[-1] // 2] = True
        return mask

    register_relevance("left-half", function)
    yield asked
    del _MAPS["left-half"]


@pytest.mark.parametrize("family", ["llava", "llava_next", "mistral3"])
def test_relevance_of_others(family: str, left_half: list[Any]) -> None:
    """Any function of picture and prompt; also for families whose tokens have no plain grid."""
    method = seewhen.method("agla", relevance="left-half")
    check_acts(family, method.replace(plausibility=None))
    left_half.clear()
    inputs = tiny.inputs(family, rows=2, seed=3)
    generate(tiny.model(family), inputs, method, num_beams=2, max_new_tokens=2)
    words = (inputs["input_ids"] != tiny.IMAGE) & inputs["attention_mask"].bool()
    assert [prompt.tolist() for _, prompt in (left_half[0], left_half[-1])] == [
        ids[mask].tolist() for ids, mask in zip(inputs["input_ids"], words, strict=True)
    ]
    assert all(picture.shape[0] == 3 for picture, _ in left_half)


def test_errors(left_half: list[Any]) -> None:
    with pytest.raises(InvalidMethod, match="no relevance map 'blip'"):
        seewhen.method("agla", relevance="blip")
    with pytest.raises(InvalidMethod, match="taken"):
        register_relevance("own", lambda picture, prompt: picture[0])
    with pytest.raises(InvalidMethod, match="keep=0"):
        seewhen.method("agla", keep=0.0)
    with pytest.raises(UnsupportedMode, match="register_relevance"):
        generate(tiny.model("llava_next"), tiny.inputs("llava_next"), "agla")
    with pytest.raises(UnsupportedMode, match=r"mask of \(2, 2\)"):
        kept(torch.ones(2, 2, dtype=torch.bool), torch.zeros(3, 4, 4), 0.5)
