"""Work shared by the questions about one image gives the tokens of unshared work, in every family."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
import seewhen
import tiny
from seewhen.asking.asker import Asker, Question
from seewhen.asking.attach import attach
from seewhen.asking.features import shared_features
from seewhen.asking.one_picture import PictureQuestion
from seewhen.asking.options import DESCRIBE, Decoding
from seewhen.asking.prefix import KeptPrefix, PrefixHook, can_share, lay_out
from seewhen.backbones.backbone import Backbone
from seewhen.methods import method
from seewhen.scenes import render, sample

SHARE_FEATURES = {
    "llava",
    "llava_next",
    "paligemma",
    "gemma3",
    "mistral3",
    "idefics3",
    "smolvlm",
    "llava_onevision",
}
SHARE_PREFIX = {"llava", "llava_next", "llava_onevision", "internvl", "mistral3", "idefics3", "smolvlm"}
MORE_THAN_PIXELS = {"llava_onevision", "idefics3", "smolvlm"}
METHODS = (method("regular"), method("cai", start_layer=1, threshold=0.1, contrast=2.0))


def questions(family):
    """Two prompts of different length about one image."""
    one = tiny.inputs(family, rows=1, text_lengths=(14,))
    batch = {name: torch.cat([value, value]) for name, value in one.items()}
    ids, mask = batch["input_ids"].clone(), batch["attention_mask"].clone()
    ids[1, -3:] = torch.tensor([5, 6, 7])
    # The second question is two tokens shorter: padded on the left.
    for name, fill in (
        ("input_ids", tiny.PAD),
        ("attention_mask", 0),
        ("mm_token_type_ids", 0),
        ("token_type_ids", 0),
    ):
        if name in batch:
            row = {"input_ids": ids, "attention_mask": mask}.get(name, batch[name])
            short = torch.cat([torch.full((2,), fill, dtype=row.dtype), row[1, :-5], row[1, -3:]])
            batch[name] = torch.stack([row[0], short])
    return batch


def tokens(model, inputs):
    with torch.inference_mode():
        output = model.generate(**inputs, max_new_tokens=4, do_sample=False, pad_token_id=tiny.PAD)
    prompt = inputs["input_ids"]
    start = prompt.shape[1] if torch.equal(output[:, : prompt.shape[1]], prompt) else 0
    return output[:, start:].tolist()


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("chosen", METHODS, ids=lambda m: m.name)
def test_sharing_changes_no_token(family, chosen):
    model, batch = tiny.model(family), questions(family)
    backbone = Backbone.of(model)
    images = ["same", "same"]
    with attach(model, chosen):
        want = tokens(model, batch)
        features = shared_features(model, dict(batch), images)
        known = "mm_encoder_outputs" in inspect.signature(model.forward).parameters  # not in older transformers
        assert (features is not None) == (known and family in SHARE_FEATURES)
        found = lay_out(backbone, features or batch, images, tiny.PAD) if can_share(backbone) else None
        # Without features in their place some families have more than pixels, which a prefix does not know.
        assert (found is not None) == (family in SHARE_PREFIX and (known or family not in MORE_THAN_PIXELS))
        if features is not None:
            assert tokens(model, features) == want
        if found is not None:
            hook = PrefixHook(backbone, looks=(0,))
            try:
                with hook.expected(found[1]):
                    assert tokens(model, found[0]) == want
                assert tokens(model, batch) == want  # and it is out of the way afterwards
            finally:
                hook.remove()


def test_different_images_are_left_alone():
    batch = tiny.inputs("llava", rows=2)
    model = tiny.model("llava")
    assert shared_features(model, batch, ["a", "b"]) is None
    assert lay_out(Backbone.of(model), batch, ["a", "b"], tiny.PAD) is None


@pytest.mark.parametrize("do_sample", [True, False])
def test_methods_asked_the_same_read_the_prompt_once(do_sample, monkeypatch):
    """One method after the other, as `compare` does: same words, same trace, and the prompt's columns once."""
    monkeypatch.setattr("seewhen.decoding.observer._WAITING", 1)
    loaded, image = seewhen.load(device="cpu"), render(sample("shifted", 3))
    chosen = [method(name) for name in ("regular", "cai", "confirm:coco", "cai+confirm:coco", "cai:contrast=2")]
    read: list[int] = []
    decoder = Backbone.of(loaded.model).decoder
    forward = decoder.forward

    def counted(*args, **kwargs):
        read.append(kwargs["inputs_embeds"].shape[1])
        return forward(*args, **kwargs)

    def asked():
        return PictureQuestion(loaded, image, DESCRIBE, Decoding(max_new_tokens=12, do_sample=do_sample))

    apart = [asked().answer(each, full=True) for each in chosen]
    together = asked()
    monkeypatch.setattr(decoder, "forward", counted)
    replies = [together.answer(each, full=True) for each in chosen]
    prompt = replies[0].trace.prompt_length
    assert [length for length in read if length > 40] == [prompt - 1] * 2, (
        "once, and once for the contrast with its own row"
    )
    tokens = [len(reply.trace.tokens) for reply in replies]
    assert read.count(1) < sum(tokens), "and confirm goes on from what regular decoding said"
    for one, other in zip(apart, replies, strict=True):
        assert one.text == other.text
        for name, values in one.trace.tensors.items():
            torch.testing.assert_close(values, other.trace.tensors[name], atol=1e-4, rtol=1e-4, equal_nan=True)


def test_a_kept_prompt_is_only_for_the_same_prompt():
    """Another picture, or a state that nobody looked at, is read anew."""
    asker = Asker(seewhen.load(device="cpu"))
    kept, said = KeptPrefix(), []
    for number in (3, 4, 3):
        question = Question(asker.prompt(DESCRIBE), (render(sample("shifted", number)),))
        with asker.attached("cai", kept=kept) as attached:
            said.append(attached.answer([question], {"max_new_tokens": 12, "do_sample": False})[0].answers[0].text)
    assert said[0] == said[2] != said[1]
    assert kept.holds(kept.given, frozenset({0})) and not kept.holds(kept.given, frozenset({1}))
