"""The teacher of the tower stage: its file, its lessons, and a stage that learns from them."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from photographs import dino, distil, loop, recipe, run, teachers, tiny, tower
from seewhen.errors import InvalidInput


def with_norms(seed: int) -> dict[str, torch.Tensor]:
    """Weights as the package has them: kernels without bias, a normalisation after each."""
    torch.manual_seed(seed)
    plain = {n: t.float() for n, t in tiny.tiny_teacher().items() if n.endswith(".weight")}
    found = dict(plain)
    for name, kernel in plain.items():
        start, _, layer = name.removesuffix(".weight").rpartition(".")
        norm = f"{start}.{teachers._NORMS[layer]}".lstrip(".")
        for part in ("weight", "bias", "running_mean", "running_var"):
            found[f"{norm}.{part}"] = 0.5 + torch.rand(len(kernel))
    return found | {"_fc.weight": torch.randn(5, 16), "_fc.bias": torch.randn(5)}


def test_norms_worked_into_kernels_change_nothing() -> None:
    weights = with_norms(0)
    merged = teachers.without_norms(weights)
    x = torch.randn(2, 8, 6, 6)
    for name in ("_blocks.3._depthwise_conv", "_blocks.3._project_conv"):
        norm = name.rpartition(".")[0] + "." + teachers._NORMS[name.rpartition(".")[2]]
        kernel = weights[f"{name}.weight"]
        groups = 8 // kernel.shape[1]
        parts = [weights[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
        before = F.batch_norm(F.conv2d(x, kernel, groups=groups), *parts, eps=1e-3)
        after = F.conv2d(x, merged[f"{name}.weight"], merged[f"{name}.bias"], groups=groups)
        assert torch.allclose(before, after, atol=1e-4)
    assert len(merged) == 2 * sum(n.endswith("conv.weight") or "_conv_" in n for n in weights) + 2


def test_the_stored_teacher_sees_what_the_published_one_sees(tmp_path: Path) -> None:
    torch.save(with_norms(1), tmp_path / "t.pth", _use_new_zipfile_serialization=False)
    teachers.save_efficientnet(tmp_path / "t.pth", tmp_path / "t.safetensors")
    pixels = torch.randint(0, 255, (3, 64, 64, 3), dtype=torch.uint8)
    theirs, ours = (
        teachers.efficientnet(tmp_path / f"t.{end}").last_map(pixels) for end in ("pth", "safetensors")
    )
    assert theirs.shape == (3, 4, 16) and theirs.std() > 0.1
    assert (theirs - ours).norm() / theirs.norm() < 0.1  # random layers amplify float16
    with pytest.raises(InvalidInput, match="prepare teacher"):
        teachers.efficientnet(tmp_path / "none.safetensors")


def test_patches_are_pooled_as_they_lie() -> None:
    rows = torch.arange(16.0).reshape(1, 16, 1)
    assert distil.on_grid(rows, 2).flatten().tolist() == [2.5, 4.5, 10.5, 12.5]
    assert distil.on_grid(rows, 4).equal(rows)


def test_the_teacher_gets_the_view_back_in_bytes() -> None:
    pixels = torch.randint(0, 255, (2, 8, 8, 3), dtype=torch.uint8)
    assert torch.allclose(distil.as_bytes(tower.normalised(pixels)), pixels.float(), atol=1e-3)


def test_lessons_can_be_learned_and_move_only_the_pupil() -> None:
    """The teacher tells mean colours; features that hold them learn to tell them, others cannot."""
    torch.manual_seed(0)
    mixing = torch.randn(3, 8)

    def colours(pixels: torch.Tensor) -> torch.Tensor:
        return F.avg_pool2d(pixels.float().permute(0, 3, 1, 2), 4).flatten(2).transpose(1, 2) @ mixing

    examples = torch.randint(0, 255, (64, 8, 8, 3), dtype=torch.uint8)
    pixels = tower.normalised(examples)
    blocks = F.avg_pool2d(pixels, 2).flatten(2).transpose(1, 2)  # (64, 16, 3): four patches a side
    knowing = torch.cat([blocks, blocks.square(), torch.ones_like(blocks)], -1)
    reached = {}
    for name, features in (("knowing", knowing), ("blind", torch.randn_like(knowing))):
        lessons = distil.Lessons(teachers.Teacher(colours, colours), features.shape[-1], examples)
        features = features.requires_grad_()
        optimiser = torch.optim.Adam(lessons.parameters(), 0.05)
        for _ in range(150):
            loss = lessons(features, pixels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        reached[name] = float(loss.detach())
        assert features.grad is not None and features.grad.abs().sum() > 0
        assert [n for n, _ in lessons.named_parameters()] == ["guess.weight", "guess.bias"]
    assert reached["knowing"] < 0.3 < 0.7 < reached["blind"]


def test_a_stage_with_a_teacher_learns_from_both_and_goes_on(store: Path, tmp_path: Path) -> None:
    place = run.Place(store, tmp_path / "one", "cpu", 1)
    longer = dataclasses.replace(tiny.RECIPE, tower=dataclasses.replace(tiny.RECIPE.tower, steps=30))
    state = run.Run(place, longer)
    run.train_tower(state)
    lines = [json.loads(line) for line in (place.out / "log.jsonl").read_text().splitlines()]
    told = [line for line in lines if "taught" in line]
    assert told[-1]["taught"] < told[0]["taught"] and told[-1]["loss"] < told[0]["loss"]
    weights, _ = loop.load_weights(place.out / "tower.safetensors")
    assert state.lessons is not None and weights["guess.weight"].equal(state.lessons.guess.weight.detach())
    again = dataclasses.replace(place, out=tmp_path / "two")
    again.out.mkdir()
    loop.save_weights(weights, again.out / "tower.part.safetensors", step=29)
    later = run.Run(again, longer)
    run.train_tower(later)
    moved = later.lessons.guess.weight.detach() - weights["guess.weight"]  # type: ignore[union-attr]
    assert moved.norm() < 0.1 * weights["guess.weight"].norm()  # one small step, not a fresh start


def test_without_the_teachers_weight_no_teacher_is_needed(store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    shutil.copytree(store, folder)
    (folder / run.TEACHER).unlink()
    stage = dataclasses.replace(tiny.RECIPE.tower, distil=0.0, steps=2)
    place = run.Place(folder, tmp_path / "run", "cpu", 1)
    run.train_tower(run.Run(place, dataclasses.replace(tiny.RECIPE, tower=stage)))
    assert (place.out / "tower.safetensors").is_file()
    with pytest.raises(InvalidInput, match="no teacher"):
        run.train_tower(run.Run(dataclasses.replace(place, out=tmp_path / "other"), tiny.RECIPE))


def test_heads_learn_faster_than_layers() -> None:
    model = dino.Dinov2Model(dino.Dinov2Config(hidden_size=16, num_hidden_layers=2, num_attention_heads=2))
    heads = [nn.Linear(4, 4), nn.Linear(2, 2)]
    groups = tower.layer_groups(model, heads, tiny.RECIPE.tower)
    fastest = max(groups, key=lambda group: group["lr"])
    assert len(fastest["params"]) == 4 and fastest["params"][0] is heads[0].weight


def test_the_recipe_takes_a_weight_that_the_committed_trial_found_to_help() -> None:
    told = json.loads(Path(distil.__file__).with_name("distil.json").read_text("utf-8"))["trials"]
    chosen = [its for its in told.values() if its["trial"]["distil"] == recipe.Recipe().tower.distil]
    assert len(chosen) == 1 and chosen[0]["minus plain"]["low"] > 0
    same = [{**its["trial"], "distil": None} for its in told.values()]
    assert all(trial == same[0] for trial in same)  # nothing but the weight differs
