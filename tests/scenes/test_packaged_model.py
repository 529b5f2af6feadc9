"""The checkpoint in the package: standard, small, and saying what it said when it was released."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

import seewhen
from embedded.train.stages import features, in_front, normalised, words
from seewhen.scenes import CATEGORIES, Scene, render, sample
from seewhen.scenes.rendering import pixels
from seewhen.scenes.world import plural

FOLDER = Path(seewhen.__file__).parent / "weights" / "emoji"
CAPTIONS = {
    1: "The image shows an office with a stop sign and a bicycle. There is also a laptop and a pair of scissors "
    "nearby. The place feels lively and bright.",
    2: "The image features a zoo, where two hot dogs and a person can be seen. There are also two horses in the "
    "middle. The place feels pleasant and quiet.",
}


@cache
def loaded() -> tuple[Any, Any]:
    model = AutoModelForImageTextToText.from_pretrained(FOLDER, dtype=torch.float32)
    return model.eval(), AutoProcessor.from_pretrained(FOLDER)


def inputs(scene: Scene, text: str) -> Any:
    processor = loaded()[1]
    content = [{"type": "image"}, {"type": "text", "text": text}]
    prompt = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    assert prompt == f"USER: <image>\n{text} ASSISTANT:"
    return processor(images=[render(scene)], text=[prompt], return_tensors="pt")


def answer(scene: Scene, text: str, tokens: int) -> str:
    model, processor = loaded()
    given = inputs(scene, text)
    ids = model.generate(**given, max_new_tokens=tokens, do_sample=False)
    return processor.decode(ids[0, given["input_ids"].shape[1] :], skip_special_tokens=True).strip()


def test_is_a_small_standard_directory() -> None:
    files = {path.name: path.stat().st_size for path in FOLDER.iterdir() if path.is_file()}
    assert sum(files.values()) <= 25_000_000
    assert {"config.json", "model.safetensors", "tokenizer.json", "generation_config.json", "README.md"} <= set(
        files
    )
    assert not {name for name in files if name.endswith((".py", ".bin", ".pt", ".pkl"))}
    model, _ = loaded()
    assert type(model).__name__ == "LlavaForConditionalGeneration"
    assert len(model.model.language_model.layers) >= 12


@pytest.mark.parametrize("index", sorted(CAPTIONS))
def test_greedy_captions_are_exactly_these(index: int) -> None:
    scene = sample("shifted", index)
    assert answer(scene, "Please describe this image in detail.", 64) == CAPTIONS[index]


def test_answers_questions_with_one_word() -> None:
    scene = sample("shifted", 2)
    assert answer(scene, "Is there a person in the image?", 8) == "Yes"
    assert answer(scene, "Is there a toothbrush in the image?", 8) == "No"


def test_every_name_is_one_token_a_word() -> None:
    tokenizer = loaded()[1].tokenizer
    for name in CATEGORIES:
        for form in (name, plural(name)):
            assert len(tokenizer.encode(f" {form}", add_special_tokens=False)) == len(form.split())
    anything = "Où est l'éléphant? \U0001f418 <b>42</b>"
    assert tokenizer.decode(tokenizer.encode(anything, add_special_tokens=False)) == anything


def test_training_and_processor_see_the_same_picture() -> None:
    model, processor = loaded()
    scene = sample("test", 0)
    given = inputs(scene, "Describe this image.")
    drawn = torch.from_numpy(pixels(scene))[None]
    torch.testing.assert_close(normalised(drawn), given["pixel_values"], rtol=0, atol=1e-5)
    with torch.no_grad():
        front = in_front(model, features(model, drawn), words(processor.tokenizer))
        embedded = model.model.get_image_features(given["pixel_values"]).pooler_output[0]
    torch.testing.assert_close(front[0, -144:], embedded, rtol=1e-4, atol=1e-4)
    assert given["input_ids"][0, : front.shape[1] - 144].tolist() == list(words(processor.tokenizer).before_image)


def test_relevance_points_at_the_object() -> None:
    """Chance is about 7 %; the recipe's aim is half, and most of these are hit."""
    model, processor = loaded()
    known = words(processor.tokenizer)
    table = model.get_input_embeddings().weight
    hits = asked = 0
    for index in range(12):
        scene = sample("shifted", index)
        with torch.no_grad():
            patches = in_front(model, features(model, torch.from_numpy(pixels(scene))[None]), known)[0, -144:]
        for name in scene.names:
            query = table[list(known.singular[CATEGORIES.index(name)])].mean(0)
            best = int(torch.cosine_similarity(patches, query[None], dim=-1).argmax())
            x, y = (best % 12 + 0.5) * 16, (best // 12 + 0.5) * 16
            asked += 1
            hits += any(t.box[0] <= x < t.box[2] and t.box[1] <= y < t.box[3] for t in scene.of(name))
    assert hits / asked >= 0.7
