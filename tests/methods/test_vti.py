"""VTI: the formula, fitted directions, zero strength, all decoding modes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from calibrating import TinyProcessor, directions_of, pictures
from calibrating import fitted_vti as fitted

import seewhen
import tiny
from promises import (
    FAMILIES,
    check_acts,
    close,
    some_tokens,
)
from seewhen.backbones.backbone import Backbone
from seewhen.errors import InvalidInput, InvalidMethod
from seewhen.methods.calibration import Directions, principal_direction, provenance, vision_layers
from seewhen.methods.vti import (
    Demonstration,
    calibrate,
    mask_patches,
    steered,
    visual_difference,
)

ALL = (*FAMILIES, "qwen3_5", "instructblip", "mistral3", "idefics3", "llava_next")


def test_formula() -> None:
    """Length stays, and the angle is that of `unit(y) + 0.1 strength unit(direction)`."""
    output = torch.tensor([[3.0, 4.0]])
    turned = steered(output, torch.tensor([[0.0, 1.0]]), 2.5)
    expected = torch.tensor([0.6, 0.8 + 0.25])
    torch.testing.assert_close(turned[0], 5 * expected / expected.norm())


def test_principal_direction() -> None:
    """Mean plus the unit vector of largest variance, with the sign of its largest coefficient positive."""
    along = torch.tensor([0.6, 0.8, 0.0])
    coefficients = torch.tensor([-1.0, -1.0, 5.0, -3.0])
    mean = torch.tensor([0.0, 0.0, 2.0])
    found = principal_direction(mean + coefficients[:, None] * along)
    torch.testing.assert_close(found, mean + along)
    torch.testing.assert_close(principal_direction(mean.expand(4, 3)), mean)


def test_masking_hides_that_share_with_the_mean_colour() -> None:
    pixels = torch.randn(1, 3, 16, 16)
    hidden = mask_patches(pixels, 4, 0.75, torch.Generator().manual_seed(0))
    mean = pixels.mean(dim=(-2, -1), keepdim=True)
    patches = (hidden == mean).all(dim=1)[0].view(4, 4, 4, 4).permute(0, 2, 1, 3).flatten(2).all(dim=-1)
    assert int(patches.sum()) == 12
    kept = ~(hidden == mean).all(dim=1, keepdim=True).expand_as(pixels)
    assert torch.equal(hidden[kept], pixels[kept])
    packed = torch.randn(8, 12)
    hidden = mask_patches(packed, 2, 0.5, torch.Generator().manual_seed(0))
    fill = packed.view(8, 3, 4).mean(dim=(0, 2)).repeat_interleave(4)
    same, filled = (hidden == packed).all(dim=1), torch.isclose(hidden, fill).all(dim=1)
    assert int(same.sum()) == int(filled.sum()) == 4


def test_difference_is_the_mean_of_the_maskings_minus_the_clean_image() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava")
    found = visual_difference(Backbone.of(model), inputs, 0.75, 3, torch.Generator().manual_seed(0))

    def states(pixels: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return torch.stack(model.model.vision_tower(pixels, output_hidden_states=True).hidden_states[1:])[:, 0]

    generator = torch.Generator().manual_seed(0)
    maskings = [states(mask_patches(inputs["pixel_values"], 4, 0.75, generator)) for _ in range(3)]
    torch.testing.assert_close(found, torch.stack(maskings).mean(0) - states(inputs["pixel_values"]))


@pytest.mark.parametrize("family", ALL)
def test_families(family: str) -> None:
    """It acts, alone in either tower; directions are per token where all images have as many."""
    check_acts(family, fitted(family, text_strength=0.0))
    check_acts(family, fitted(family, image_strength=0.0))
    visual = Directions.load(directions_of("vti", family)).tensors["visual"]
    assert len(visual) == len(vision_layers(tiny.model(family)))
    assert (visual.shape[1] > 1) == (not family.startswith(("qwen", "mistral")))


def test_branch_rows_are_not_steered() -> None:
    """With a text-only row beside it, that row stays stock."""
    model, inputs, continuation = tiny.model("llava"), tiny.inputs("llava"), some_tokens()[0]
    contrast = seewhen.method("cai", contrast=3.0, plausibility=None, strength=0.0)
    steering = fitted("llava")
    alone = seewhen.replay(model, inputs, continuation, steering)
    stock = seewhen.replay(model, inputs, continuation, contrast)
    both = seewhen.replay(model, inputs, continuation, steering + contrast)
    close(both.logits, alone.logits, 1e-4)
    # 3 lp+ - 2 lp-, so that lp- can be had back from both.
    other = (3 * stock.logits.log_softmax(-1) - stock.scores) / 2
    close((3 * both.logits.log_softmax(-1) - both.scores) / 2, other, 1e-3)


def test_calibrate_and_file(tmp_path: Path) -> None:
    """From pictures and captions to a file, the same bytes each time, with its origin in the header."""
    images = pictures(4)
    samples = [
        Demonstration(image, f"describe {index} please", "a cat on a mat", "a cat and a dog")
        for index, image in enumerate(images)
    ]
    model = tiny.model("llava")
    first, second = (
        calibrate(model, TinyProcessor(), samples, masked=0.9, trials=2).save(tmp_path / name)
        for name in ("a.safetensors", "b.safetensors")
    )
    assert first.read_bytes() == second.read_bytes()
    loaded = Directions.load(first)
    assert loaded.tensors["visual"].shape == (2, 17, 16) and loaded.tensors["textual"].shape == (4, 32)
    assert loaded.provenance["settings"]["masked"] == 0.9
    assert loaded.seen([images[2], *pictures(2, size=16)]) == 1
    # Fitted with the visual direction at work, the text direction is another one.
    steered_fit = calibrate(model, TinyProcessor(), samples, masked=0.9, trials=2, image_strength=0.9)
    assert torch.equal(steered_fit.tensors["visual"], loaded.tensors["visual"])
    assert not torch.equal(steered_fit.tensors["textual"], loaded.tensors["textual"])
    check_acts("llava", seewhen.method("vti", directions=str(first)))


def test_fingerprint_follows_the_file(tmp_path: Path) -> None:
    path = tmp_path / "d.safetensors"
    method = seewhen.method("vti", directions=str(path))
    found = [method.fingerprint]
    for value in (1.0, 2.0):
        Directions("vti", {"textual": torch.full((2, 2), value)}, {}).save(path)
        found.append(method.fingerprint)
    assert len(set(found)) == 3


def test_errors(tmp_path: Path) -> None:
    model = tiny.model("llava")

    def attach(**parameters: Any) -> None:
        with seewhen.attach(model, seewhen.method("vti", **parameters)):
            pass

    with pytest.raises(InvalidMethod, match="seewhen calibrate vti"):
        attach()
    with pytest.raises(InvalidInput, match="There is no file"):
        attach(directions=str(tmp_path / "none.safetensors"))
    (tmp_path / "text.safetensors").write_text("hello")
    with pytest.raises(InvalidInput, match="no safetensors file"):
        attach(directions=str(tmp_path / "text.safetensors"))
    other = tmp_path / "other.safetensors"
    Directions("ict", {}, provenance(Backbone.of(model), [])).save(other)
    with pytest.raises(InvalidInput, match="directions of 'ict'"):
        attach(directions=str(other))
    wider = {**provenance(Backbone.of(model), []), "width": 64}
    Directions("vti", {}, wider).save(other)
    with pytest.raises(InvalidInput, match="4 layers of width 64"):
        attach(directions=str(other))
    with pytest.raises(InvalidMethod, match="negative"):
        seewhen.method("vti", text_strength=-1.0)
    with pytest.raises(InvalidInput, match="too few"):
        calibrate(model, TinyProcessor(), [])
