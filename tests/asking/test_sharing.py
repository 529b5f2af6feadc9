"""Work shared by the questions about one image gives the tokens of unshared work, in every family."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
import tiny
from seewhen.asking.attach import attach
from seewhen.asking.features import shared_features
from seewhen.asking.prefix import PrefixHook, can_share, lay_out
from seewhen.backbones.backbone import Backbone
from seewhen.methods import method

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
        assert (found is not None) == (family in SHARE_PREFIX)
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
