"""ICT: directions and probes, the edit at the last position, all decoding modes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from calibrating import TinyProcessor, pictures
from calibrating import fitted_ict as fitted

import seewhen
import tiny
from promises import check_acts
from seewhen.backbones.backbone import Backbone
from seewhen.backbones.blocks import out_projection_of
from seewhen.errors import InvalidInput, InvalidMethod
from seewhen.methods.calibration import Directions, outputs_of
from seewhen.methods.ict import LabelledQuestion, calibrate, fit, logistic, probe_accuracy, selected


def test_fit() -> None:
    """Unit vectors of the mean difference, scales along them, and probes that find the telling group."""
    generator = torch.Generator().manual_seed(0)
    clean = torch.randn(40, 2, 8, generator=generator)
    corrupted = torch.randn(40, 2, 8, generator=generator)
    corrupted[:, 1, 4:] -= torch.tensor([4.0, 0.0, 3.0, 0.0])  # layer 1, second group of 4
    found = fit(clean, corrupted, group=4)
    direction, scale = found["directions"][1, 1], found["scales"][1, 1]
    torch.testing.assert_close(direction.norm(), torch.tensor(1.0))
    assert direction @ torch.tensor([0.8, 0.0, 0.6, 0.0]) > 0.97
    projections = torch.cat([clean, corrupted])[:, 1, 4:] @ direction
    torch.testing.assert_close(scale, projections.std(correction=0))  # as NumPy does in the released code
    assert found["accuracy"].argmax() == 3 and found["accuracy"][1, 1] > 0.95
    assert found["accuracy"].flatten()[:3].max() < 0.8


def test_selected_groups() -> None:
    tensors = {
        "image.directions": torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.6, 0.8], [1.0, 0.0]]]),
        "image.scales": torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
        "image.accuracy": torch.tensor([[0.5, 0.9], [0.9, 0.8]]),
    }
    assert selected(tensors, "image", 1).tolist() == [[0, 0, 0, 2], [0, 0, 0, 0]]  # the first of two equals
    assert torch.equal(selected(tensors, "image", 0.5), selected(tensors, "image", 2))
    torch.testing.assert_close(selected(tensors, "image", 2), torch.tensor([[0, 0, 0, 2], [1.8, 2.4, 0, 0]]))


def test_logistic_regression_is_at_its_minimum() -> None:
    """The gradient of the penalised likelihood vanishes, also where the classes are separable."""
    generator = torch.Generator().manual_seed(1)
    for gap in (0.5, 20.0):
        positive = torch.randn(30, 3, 4, generator=generator) + gap
        negative = torch.randn(30, 3, 4, generator=generator)
        weights = logistic(positive, negative).requires_grad_()
        data = torch.nn.functional.pad(torch.cat([positive, negative]).double(), (0, 1), value=1.0)
        score = torch.einsum("ngd,gd->ng", data, weights)
        labels = torch.cat([torch.ones(30), torch.zeros(30)]).double()[:, None].expand_as(score)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(score, labels, reduction="sum")
        (loss + 0.5 * (weights[:, :-1] ** 2).sum()).backward()
        assert weights.grad is not None and weights.grad.abs().max() < 1e-3
    many = torch.randn(2, 2000, 3, 4, generator=generator)
    # One standard deviation apart: the best possible probe is right in 69 % of the cases.
    assert (probe_accuracy(many[0] + 0.5, many[1]) - 0.6915).abs().max() < 0.02
    assert (probe_accuracy(many[0] + 20.0, many[1]) == 1.0).all()


def test_edit_is_the_shift_at_the_last_position() -> None:
    """Layer 0 sees the same input as stock, so its out-projection differs by the shift, in the last row only."""
    model, inputs = tiny.model("llava"), tiny.inputs("llava", rows=2)
    method = fitted("llava", top=16)  # all groups
    tensors = Directions.load(method.directions).tensors
    projection = out_projection_of(Backbone.of(model).layers[0])
    found = []
    for attached in ("regular", method):
        with seewhen.attach(model, attached), outputs_of([projection]) as outputs, torch.no_grad():
            model(**inputs)
        found.append(outputs[0])
    shift = 8.0 * (selected(tensors, "image", 16) + selected(tensors, "object", 16))[0]
    torch.testing.assert_close(found[1][:, -1] - found[0][:, -1], shift.expand(2, -1), atol=1e-4, rtol=1e-4)
    assert torch.equal(found[1][:, :-1], found[0][:, :-1])


def test_calibrate(tmp_path: Path) -> None:
    """From questions to a file; without boxes there is no object level."""
    model, images = tiny.model("llava"), pictures(10)
    boxed = [
        LabelledQuestion(image, f"is there a thing {index}", "yes" if index % 2 else "No", (4, 4, 20, 20))
        for index, image in enumerate(images)
    ]
    directions = calibrate(model, TinyProcessor(), boxed, group=8, blur=2.0)
    assert directions.tensors["object.directions"].shape == (4, 4, 8)
    assert directions.seen(images) == 10
    path = directions.save(tmp_path / "ict.safetensors")
    assert path.read_bytes() == calibrate(model, TinyProcessor(), boxed, group=8, blur=2.0).save(path).read_bytes()
    check_acts("llava", seewhen.method("ict", directions=str(path)))
    plain = calibrate(
        model, TinyProcessor(), [LabelledQuestion(q.image, q.question, q.answer) for q in boxed], group=8
    )
    assert {name.split(".")[0] for name in plain.tensors} == {"image"}


def test_errors() -> None:
    model, images = tiny.model("llava"), pictures(8)
    with pytest.raises(InvalidMethod, match="seewhen calibrate ict"), seewhen.attach(model, "ict"):
        pass
    for top in (0, 1.0, -0.5):
        with pytest.raises(InvalidMethod, match=f"top={top}"):
            seewhen.method("ict", top=top)
    with pytest.raises(InvalidInput, match="do not divide the width 32"):
        calibrate(model, TinyProcessor(), [], group=24)
    with pytest.raises(InvalidInput, match="too few"):
        calibrate(model, TinyProcessor(), [LabelledQuestion(image, "q", "yes") for image in images])
    with pytest.raises(InvalidInput, match="must be yes or no"):
        calibrate(model, TinyProcessor(), [LabelledQuestion(images[0], "q", "maybe")])
