"""The recipe, from pictures to a checkpoint, at a size that trains nothing but runs everything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

import seewhen
from embedded.train.data import patch_owners
from embedded.train.measure import auroc, mentions
from embedded.train.recipe import Shape, load
from embedded.train.stages import Words, decode, sharpened
from embedded.train.words import build_tokenizer
from seewhen.errors import InvalidInput
from seewhen.scenes import dataset
from seewhen.scenes.world import CATEGORIES

PACKAGED = Path(seewhen.__file__).parent / "weights" / "emoji"
TINY = {
    "scenes": 64,
    "texts": 64,
    "measured_scenes": 6,
    "shape": {
        "width": 32,
        "layers": 4,
        "heads": 2,
        "inner": 48,
        "tower_width": 32,
        "tower_layers": 2,
        "tower_heads": 2,
    },
    "tower": {"steps": 3, "batch": 4, "rate": 0.001},
    "language": {"steps": 3, "batch": 4, "rate": 0.001},
    "projector": {"steps": 2, "batch": 4, "rate": 0.001},
    "finetunes": [
        {
            "name": "a",
            "steps": 2,
            "batch": 8,
            "rate": 0.0005,
            "unseen": 1.5,
            "doubt": 0.2,
            "slip": 0.1,
            "sharpen": 1.5,
        }
    ],
}


def train(recipe: Path, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "embedded.train", str(recipe), "--out", str(out), "--device", "cpu", *more],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.mark.slow
def test_stages_run_resume_and_leave_a_checkpoint(tmp_path: Path) -> None:
    recipe, run = tmp_path / "recipe.json", tmp_path / "run"
    recipe.write_text(json.dumps(TINY))
    AutoProcessor.from_pretrained(PACKAGED).save_pretrained(run / "words")  # its stage is the slowest here
    first = train(recipe, run)
    assert first.returncode == 0, first.stderr
    assert "done before" not in first.stdout and "chosen a@2" in first.stdout
    figures = json.loads((run / "tried.json").read_text())
    assert set(figures["final"]) == {"shifted", "test", "test, held-out artwork"}
    assert [entry["step"] for entry in figures["tried"]] == [0, 2]
    model = AutoModelForImageTextToText.from_pretrained(run / "model", dtype=torch.float32)
    processor = AutoProcessor.from_pretrained(run / "model")
    assert model.config.image_token_id == processor.tokenizer.convert_tokens_to_ids("<image>")
    again = train(recipe, run, "--minutes", "0")
    assert again.stdout.count("done before") == 3
    assert "more --minutes" in again.stderr and again.returncode == 1


def test_the_packaged_tokenizer_is_the_one_the_recipe_builds() -> None:
    packaged = AutoProcessor.from_pretrained(PACKAGED).tokenizer
    built = build_tokenizer(Shape())
    assert built.get_vocab() == packaged.get_vocab()
    text = "USER: <image>\nIs there a hot dog in the image? ASSISTANT: No</s>"
    assert built.encode(text) == packaged.encode(text)


def test_a_recipe_with_a_mistake_is_an_error_that_names_it(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps({**TINY, "colour": 1}))
    with pytest.raises(InvalidInput, match="colour"):
        load(recipe)
    recipe.write_text("{")
    with pytest.raises(InvalidInput, match="not JSON"):
        load(recipe)
    with pytest.raises(InvalidInput, match="Cannot read"):
        load(tmp_path / "none.json")


def test_auroc_counts_pairs() -> None:
    high, low = np.array([3.0, 1.0, 2.0]), np.array([0.0, 2.0])
    pairs = [1.0 if h > b else 0.5 if h == b else 0.0 for h in high for b in low]
    assert auroc(high, low) == pytest.approx(sum(pairs) / len(pairs))
    assert auroc(np.array([]), low) == 0.5


def test_mentions_prefers_the_longest_name() -> None:
    ids = {name: (i,) for i, name in enumerate(CATEGORIES)}
    ids["hot dog"] = (500, ids["dog"][0])
    known = Words(
        tuple(ids[n] for n in CATEGORIES), tuple((1000 + i,) for i in range(len(CATEGORIES))), (), (), ()
    )
    dog, hot_dog = CATEGORIES.index("dog"), CATEGORIES.index("hot dog")
    assert mentions([900, 500, dog, 900, dog, 1000 + dog], known) == [(1, hot_dog), (4, dog), (5, dog)]


def test_patches_belong_to_things_that_cover_them() -> None:
    for scene in dataset("val", 20):
        owners = patch_owners(scene)
        for patch in np.nonzero(owners >= 0)[0]:
            x, y = patch % 12 * 16, patch // 12 * 16
            left, top, right, bottom = scene.things[owners[patch]].box
            assert left < x + 16 and x < right and top < y + 16 and y < bottom


def test_sharpening_is_undone() -> None:
    class Model:
        lm_head = torch.nn.Linear(3, 2, bias=False)

    before = Model.lm_head.weight.detach().clone()
    with sharpened(Model, 2.0):
        assert torch.equal(Model.lm_head.weight, 2 * before)
    assert torch.equal(Model.lm_head.weight, before)


def test_the_training_pass_is_the_model_s_own() -> None:
    model, _ = seewhen.load("packaged", device="cpu", dtype=torch.float32)
    embedded = 0.05 * torch.randn(2, 20, 256, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        own = model.model.language_model(inputs_embeds=embedded).last_hidden_state
        torch.testing.assert_close(decode(model, embedded), own, rtol=1e-4, atol=1e-4)
