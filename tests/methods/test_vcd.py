"""VCD: the noise, parity with the released code, and the noised row against the plain model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import seewhen
import tiny
from goldens import golden, golden_replay, matches
from promises import (
    NEEDS_CACHE,
    STEPS,
    branch_logits,
    close,
    rounding,
    some_tokens,
    stock_logits,
)
from seewhen.backbones.backbone import Backbone
from seewhen.decoding.method import Parts
from seewhen.equations.contrast import logit_contrast
from seewhen.errors import InvalidMethod, UnsupportedMode
from seewhen.methods.vcd import VCD, NoisedImage, noise_schedule

all_families = pytest.mark.parametrize("family", tiny.FAMILIES)


@dataclass(frozen=True)
class WithNoise(VCD):
    """VCD with a given draw."""

    noise: Tensor | None = None

    def parts(self, backbone: Backbone) -> Parts:
        parts = super().parts(backbone)
        branch = parts.branches[0]
        assert isinstance(branch, NoisedImage)
        return replace(parts, branches=(replace(branch, noise=self.noise),))


def noised(family: str, inputs: dict[str, Any], method: VCD = VCD()) -> dict[str, Any]:
    """The inputs of the second row, as a user would have to make them."""
    branch = method.parts(Backbone.of(tiny.model(family))).branches[0]
    assert isinstance(branch, NoisedImage)
    return {**inputs, "pixel_values": branch.alter(inputs["pixel_values"], inputs)}


@pytest.mark.parametrize(
    ("step", "picture", "noise"),
    [
        (0, 0.999989, 0.004726),
        (100, 0.998293, 0.058406),
        (300, 0.980984, 0.194089),
        (500, 0.863017, 0.505175),
        (700, 0.592677, 0.805440),
        (900, 0.364888, 0.931051),
        (999, 0.285042, 0.958515),
    ],
)
def test_noise_schedule(step: int, picture: float, noise: float) -> None:
    assert noise_schedule(step) == pytest.approx((picture, noise), abs=1e-6)


def test_contrast_of_logits() -> None:
    main, other = torch.tensor([[2.0, 1.0, 0.0]]), torch.ones(1, 3)
    assert logit_contrast(main, other, 1.0, 0.1).tolist() == [[3.0, 1.0, -1.0]]


def test_scores_match_the_released_code() -> None:
    stored = golden("vcd")
    method = WithNoise(noise=stored["eps"])
    replay, given = golden_replay(method)
    matches(replay.scores, stored["scores"])
    close(replay.logits, given["base_logits"], 2e-4)
    branch = NoisedImage(Backbone.of(tiny.model("llava")), noise=stored["eps"])
    close(branch.alter(given["pixel_values"], {}), stored["pixel_values_noised"], 1e-5)
    steps = stored["steps"].tolist()
    for step, picture, noise in zip(steps, stored["signal_coef"], stored["noise_coef"], strict=True):
        assert noise_schedule(int(step)) == pytest.approx((float(picture), float(noise)), abs=1e-5)


@all_families
def test_the_second_row_is_the_plain_model_on_the_noised_image(family: str) -> None:
    """At every step, against a run of the plain model without any cache."""
    model, inputs, tokens = tiny.model(family), tiny.inputs(family, rows=2), some_tokens(2)
    ours = branch_logits(model, inputs, tokens, VCD())
    plain = stock_logits(model, noised(family, inputs), tokens, use_cache=family in NEEDS_CACHE)
    close(ours, plain, rounding(family))
    assert (plain - stock_logits(model, inputs, tokens, use_cache=True)).abs().max() > 1e-2


@all_families
def test_an_unaltered_image_gives_the_main_row(family: str) -> None:
    """Noise 0 at a step where the picture is all but unchanged: what the embedding path adds is nothing."""
    model, inputs = tiny.model(family), tiny.inputs(family, rows=2)
    method = WithNoise(noise=torch.zeros_like(inputs["pixel_values"]), noise_step=0, plausibility=None)
    replay = seewhen.replay(model, inputs, some_tokens(2), method)
    close(replay.scores, replay.logits, 2e-3)


def test_noise_depends_on_the_seed_and_the_image_alone() -> None:
    inputs = tiny.inputs("qwen2_5_vl", rows=3)
    batch = noised("qwen2_5_vl", inputs)["pixel_values"]
    sizes = inputs["image_grid_thw"].prod(1).tolist()
    for row, part in enumerate(batch.split(sizes)):
        alone = noised("qwen2_5_vl", tiny.inputs("qwen2_5_vl", rows=3, only=row))["pixel_values"]
        assert torch.equal(part, alone)
    assert torch.equal(batch, noised("qwen2_5_vl", inputs)["pixel_values"])
    assert not torch.equal(batch, noised("qwen2_5_vl", inputs, VCD(noise_seed=1))["pixel_values"])


def test_noise_is_normal_and_leaves_padding_alone() -> None:
    pixels = torch.zeros(2, 3, 64, 64)
    pixels[0, :, :48, :32] = 1.0
    pixels[1] = -1.0
    picture, noise = noise_schedule(500)
    branch = NoisedImage(Backbone.of(tiny.model("llava")))
    eps = (branch.alter(pixels, {}) - picture * pixels) / noise
    assert not eps[0, :, 48:].any() and not eps[0, :, :, 32:].any()
    drawn = torch.cat([eps[0, :, :48, :32].flatten(), eps[1].flatten()])
    assert drawn.mean().abs() < 0.03 and (drawn.std() - 1).abs() < 0.03
    assert not torch.equal(eps[0, :, :32, :32], eps[1, :, :32, :32])


def test_without_a_seed_noise_comes_from_torchs_generator() -> None:
    inputs, method = tiny.inputs("llava"), VCD(noise_seed=None)
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(noised("llava", inputs, method)["pixel_values"])
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_sampling_repeats_and_does_not_touch_the_global_generator() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava", rows=2)
    runs = []
    with seewhen.attach(model, VCD()):
        for _ in range(2):
            torch.manual_seed(3)
            runs.append(model.generate(**inputs, do_sample=True, max_new_tokens=STEPS))
    assert torch.equal(*runs)


def test_a_forward_call_works_like_generate() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava")
    with seewhen.attach(model, VCD()):
        generated = model.generate(**inputs, max_new_tokens=1, output_logits=True, return_dict_in_generate=True)
        direct = model(**inputs).logits
    assert direct.shape[:2] == inputs["input_ids"].shape
    close(direct[:, -1], generated.logits[0])


def test_attention_of_cai_with_this_contrast() -> None:
    cai = seewhen.method("cai", preset="reference", start_layer=0, threshold=-1.0)
    model, inputs, tokens = tiny.model("qwen3_vl"), tiny.inputs("qwen3_vl"), some_tokens(1)
    both = seewhen.replay(model, inputs, tokens, cai + VCD())
    close(both.logits, seewhen.replay(model, inputs, tokens, cai).logits)
    noise = branch_logits(model, inputs, tokens, VCD())[0]
    close(both.scores[:STEPS], logit_contrast(both.logits[:STEPS], noise, 1.0, 0.1))


def test_image_tokens_without_pixels_are_refused() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava")
    pixels = inputs.pop("pixel_values")
    with seewhen.attach(model, VCD()):
        with pytest.raises(UnsupportedMode, match="without pixels"):
            model.generate(**inputs, max_new_tokens=1)
        # ... and the model still works.
        model.generate(**inputs, pixel_values=pixels, max_new_tokens=1)


def test_a_prompt_without_an_image_passes_through() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava")
    ids = inputs["input_ids"][inputs["input_ids"] != tiny.IMAGE][None]
    prompt = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    plain = stock_logits(model, prompt, some_tokens(1))
    with seewhen.attach(model, VCD()), pytest.warns(UserWarning, match="No image"):
        close(stock_logits(model, prompt, some_tokens(1), use_cache=True), plain)


@pytest.mark.parametrize("wrong", [{"alpha": -1.0}, {"plausibility": -0.1}, {"noise_step": 1000}])
def test_parameters_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidMethod, match="vcd"):
        VCD(**wrong)


def test_a_preset_of_a_model() -> None:
    assert seewhen.method("vcd:reference:instructblip").parameters()["alpha"] == 0.5
