"""The comparison of towers: pooling, precision, probes, pointing, intervals, and the readers of networks."""

import json
import struct
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from photographs import holdout, probes, pth, teachers
from seewhen.errors import InvalidInput


def test_summary_is_mean_and_maximum() -> None:
    maps = torch.tensor([[[1.0, -2.0], [3.0, -4.0]], [[0.0, 8.0], [0.0, 0.0]]], dtype=torch.float16)
    assert probes.summary(maps).tolist() == [[2.0, -3.0, 3.0, -2.0], [0.0, 4.0, 0.0, 8.0]]


def test_mean_precision_by_hand() -> None:
    # First object, ranked: hit, miss, hit, miss -> (1/1 + 2/3) / 2. Second: miss, miss, hit, miss -> 1/3.
    # Nobody shows the third, so it does not count.
    scores = torch.tensor([[0.9, 0.1, 0.5], [0.8, 0.9, 0.4], [0.7, 0.8, 0.3], [0.1, 0.7, 0.2]])
    truth = torch.tensor([[1, 0, 0], [0, 0, 0], [1, 0, 0], [0, 1, 0]], dtype=torch.bool)
    assert probes.mean_precision(scores, truth) == pytest.approx(((1 + 2 / 3) / 2 + 1 / 3) / 2)


def noisy(n: int, width: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of which the first two tell two objects, up to noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, width, generator=generator)
    return 5 + 3 * x, (x[:, :2] + 0.5 * torch.randn(n, 2, generator=generator)) > 0.5


def test_fit_is_at_the_minimum_for_every_penalty() -> None:
    features, truth = noisy(200, 6, 0)
    for penalty, probe in zip((1.0, 0.01), probes.fit(features, truth, (1.0, 0.01)), strict=True):
        weight, bias = probe.weight.clone().requires_grad_(), probe.bias.clone().requires_grad_()
        x = (features - features.mean(0)) / features.std(0)
        loss = F.binary_cross_entropy_with_logits(x @ weight.T + bias, truth.float(), reduction="sum") / 200
        (loss + penalty / 2 * weight.square().sum()).backward()
        assert weight.grad is not None and bias.grad is not None
        assert weight.grad.abs().max() < 1e-3 and bias.grad.abs().max() < 1e-3


def test_the_penalty_is_chosen_on_a_fifth_and_the_probe_fitted_to_all() -> None:
    features, truth = noisy(200, 60, 1)
    penalty, probe = probes.best_probe(features, truth)
    tried = probes.fit(features[:160], truth[:160], probes.PENALTIES)
    reached = [probes.mean_precision(its(features[160:]), truth[160:]) for its in tried]
    assert reached[probes.PENALTIES.index(penalty)] == max(reached) > min(reached)
    assert torch.equal(probe.mean, features.mean(0))
    new, shown = noisy(400, 60, 2)
    assert probes.mean_precision(probe(new), shown) > 0.75  # the share of photographs with an object is 0.33


def test_boxes_become_positions() -> None:
    known = {"7": [("cup", 0.0, 0.0, 0.5, 0.25), ("dog", 0.6, 0.6, 1.0, 1.0), ("cup", 0.7, 0.7, 0.8, 0.8)]}
    where = probes.spots(known, [7], ["cup", "dog"], side=2)
    assert [(row, thing, share) for row, thing, _, share in where] == [
        (0, 0, pytest.approx(0.125)),
        (0, 1, pytest.approx(0.16)),
    ]
    # Centres are at 0.25 and 0.75: rows are down the picture, columns across it.
    assert where[0][2].tolist() == [[True, False], [False, True]]
    assert where[1][2].tolist() == [[False, False], [False, True]]


def test_a_probe_of_positions_finds_and_points() -> None:
    """Each object is one direction at one position; only the photograph's objects are told."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.rand(160, 2, generator=generator) > 0.5
    maps = 0.3 * torch.randn(160, 9, 8, generator=generator)
    maps[:, :, 7] += 4  # ground, so that each position's own scale does not blow up the noise
    place = torch.randint(9, (160, 2), generator=generator)
    for row in range(160):
        for thing in range(2):
            if truth[row, thing]:
                maps[row, place[row, thing], thing] += 4
    seen = probes.Seen(maps.half(), truth)
    scores, reached = probes.train_scores(seen[:120], 0.02, 150, seen[120:], seed=0)
    assert len(reached) == 150 and reached[-1] > 0.95
    where = []
    for row, thing in truth[120:].nonzero().tolist():
        inside = torch.zeros(9, dtype=torch.bool)
        inside[place[120 + row, thing]] = True
        where.append((row, thing, inside.reshape(3, 3), 1 / 9))
    hits = probes.pointing(scores, maps[120:].half(), where)
    assert len(hits) == int(truth[120:].sum()) and hits.float().mean() > 0.9


def test_draws_are_the_same_for_all_networks() -> None:
    features, truth = noisy(80, 4, 3)
    drawn = probes.drawn_precision({"a": features[:, :2], "b": 2 * features[:, :2] + 1}, truth, 20, seed=0)
    assert torch.equal(drawn["a"], drawn["b"]) and drawn["a"].std() > 0
    rows = torch.tensor([0, 0, 1, 2])
    shares = probes.drawn_shares({"all": torch.ones(4), "first": torch.tensor([1, 1, 0, 0])}, rows, 3, 500, seed=0)
    assert torch.equal(shares["all"], torch.ones(500))
    # Photograph 0 is drawn k of three times and has two objects: 2k / (2k + 3 - k).
    assert sorted(set(shares["first"].tolist())) == pytest.approx([2 * k / (k + 3) for k in range(4)])


def test_an_interval_keeps_the_spread_and_forgets_the_lift() -> None:
    draws = torch.linspace(0.6, 0.8, 1001)
    assert probes.around(0.5, draws) == {"value": 0.5, "low": 0.405, "high": 0.595}
    told = probes.compared({probes.DINO: 0.5, "other": 0.25}, {probes.DINO: draws, "other": draws})
    assert told[f"{probes.DINO} minus other"] == {"value": 0.25, "low": 0.25, "high": 0.25}


def test_a_state_dict_is_read_without_unpickling(tmp_path: Path) -> None:
    layer = torch.nn.BatchNorm2d(3)
    state = {
        "kernel": torch.randn(2, 3, 4).permute(2, 0, 1),
        "a.part": torch.arange(12.0)[3:7],
        **layer.state_dict(),
    }
    torch.save(state, tmp_path / "state.pth", _use_new_zipfile_serialization=False)
    read = pth.read_pth(tmp_path / "state.pth")
    assert read.keys() == state.keys()
    for name, tensor in state.items():
        assert torch.equal(read[name], tensor), name


def test_a_state_dict_that_calls_something_is_refused(tmp_path: Path) -> None:
    """It would make a file if it were unpickled."""
    marker = tmp_path / "ran"

    class Evil:
        def __reduce__(self) -> tuple:
            return Path.touch, (marker,)

    torch.save({"weight": Evil()}, tmp_path / "evil.pth", _use_new_zipfile_serialization=False)
    with pytest.raises(InvalidInput, match="not a plain state dict"):
        pth.read_pth(tmp_path / "evil.pth")
    assert not marker.exists()
    (tmp_path / "cut.pth").write_bytes(b"\x80\x02]")
    with pytest.raises(InvalidInput, match="not a plain state dict"):
        pth.read_pth(tmp_path / "cut.pth")


def test_layers_run_as_the_file_lists_them(tmp_path: Path) -> None:
    """A residual block written as TensorFlow.js writes it gives what PyTorch's own modules give."""
    torch.manual_seed(0)
    convolution, norm = torch.nn.Conv2d(3, 3, 3, padding=1), torch.nn.BatchNorm2d(3, eps=1e-3).eval()
    for tensor in (norm.weight.data, norm.bias.data, norm.running_mean, norm.running_var):
        assert tensor is not None
        tensor.uniform_(0.5, 2)
    stored = {
        "c/kernel": convolution.weight.detach().permute(2, 3, 1, 0),
        "c/bias": convolution.bias.detach(),
        "n/gamma": norm.weight.detach(),
        "n/beta": norm.bias.detach(),
        "n/moving_mean": norm.running_mean,
        "n/moving_variance": norm.running_var,
    }

    def layer(kind: str, name: str, *inputs: str, **config: object) -> dict:
        return {
            "class_name": kind,
            "name": name,
            "config": config,
            "inbound_nodes": [[[i, 0, 0, {}] for i in inputs]],
        }

    layers = [
        {**layer("InputLayer", "x"), "inbound_nodes": []},
        layer("Conv2D", "c", "x", padding="same", kernel_size=[3, 3], strides=[1, 1]),
        layer("BatchNormalization", "n", "c", epsilon=1e-3),
        layer("Add", "s", "n", "x"),
        layer("Activation", "r", "s", activation="relu"),
        layer("GlobalAveragePooling2D", "g", "r"),
    ]
    entries = [{"name": name, "shape": list(tensor.shape), "dtype": "float32"} for name, tensor in stored.items()]
    numbers = [float(x) for tensor in stored.values() for x in tensor.flatten()]
    raw = struct.pack(f"<{len(numbers)}f", *numbers)
    (tmp_path / "1.bin").write_bytes(raw[:50])  # shards cut anywhere
    (tmp_path / "2.bin").write_bytes(raw[50:])
    content = {
        "modelTopology": {"model_config": {"config": {"layers": layers}}},
        "weightsManifest": [{"paths": ["1.bin", "2.bin"], "weights": entries}],
    }
    (tmp_path / "model.json").write_text(json.dumps(content), encoding="utf-8")
    read, weights = teachers.read_layers(tmp_path)
    x = torch.randn(2, 3, 5, 5)
    with torch.no_grad():
        found = teachers.run_layers(read, teachers.merged(read, weights), x)
        assert torch.allclose(found, (norm(convolution(x)) + x).relu(), atol=1e-5)


def test_same_padding_is_tensorflows() -> None:
    padded, around = teachers._same(torch.ones(1, 1, 4, 4), 3, 2)
    assert padded[0, 0].sum(0).tolist() == [4.0, 4.0, 4.0, 4.0, 0.0] and around == (0, 0)
    left, around = teachers._same(torch.ones(1, 1, 5, 5), 3, 1)
    assert left.shape[-1] == 5 and around == (1, 1)  # the convolution pads both sides alike


def test_the_committed_comparison_is_whole() -> None:
    told = json.loads(Path(probes.__file__).with_name("towers.json").read_text("utf-8"))
    assert told["photographs"]["validation"] == len(holdout.read()["validation"])
    main = told["mean average precision"]
    for name in told["networks"]:
        assert main[name]["low"] <= main[name]["value"] <= main[name]["high"]
        assert told["networks"][name]["penalty"] not in (max(probes.PENALTIES), min(probes.PENALTIES))
