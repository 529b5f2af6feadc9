"""The lmms-eval adapter, against the real package: found by its registry, answers as seewhen itself does."""

from __future__ import annotations

import importlib

import pytest

import seewhen
from seewhen.errors import UnsupportedMode
from seewhen.scenes import dataset, render

pytest.importorskip("lmms_eval", reason="lmms-eval is not installed (pip install --no-deps lmms-eval loguru pytz)")

from lmms_eval.api.instance import Instance
from lmms_eval.models import get_model
from lmms_eval.models.registry_v2 import ModelRegistryV2

QUESTION = "Is there a person in the image?"
CAPTION = "Please describe this image in detail."


@pytest.fixture(scope="module")
def scenes():
    return [render(scene) for scene in dataset("val", 3)]


@pytest.fixture(scope="module")
def adapter(scenes):
    cls = get_model("seewhen")
    made = cls(pretrained="packaged", method="cai", contrast="1.5", batch_size=2, device="cpu")
    made.task_dict = {"scenes": {"val": dict(enumerate(scenes))}}
    return made


def request(doc, text, options, index=0):
    arguments = (f"<image>\n{text}", options, lambda picture: [picture.convert("RGB")], doc, "scenes", "val")
    metadata = {"task": "scenes", "doc_id": doc, "repeats": 1}
    return Instance(request_type="generate_until", arguments=arguments, idx=index, metadata=metadata)


def test_the_registry_finds_it():
    registry = ModelRegistryV2()
    registry.load_entrypoint_manifests()
    manifest = registry.get_manifest("seewhen")
    module, _, name = manifest.simple_class_path.rpartition(".")
    assert getattr(importlib.import_module(module), name) is get_model("seewhen")


def test_parameters_belong_to_the_method(adapter):
    assert adapter.method == seewhen.method("cai", contrast=1.5)


@pytest.mark.filterwarnings("ignore:.*never fired")
def test_answers_are_seewhens_own_in_the_order_asked(adapter, scenes):
    short, long = {"max_new_tokens": 4, "temperature": 0, "until": ["\n\n"]}, {"max_new_tokens": 12}
    asked = [(0, QUESTION, short), (1, CAPTION, long), (2, QUESTION, short), (1, QUESTION, short)]
    answers = adapter.generate_until([request(*each) for each in asked])
    for answer, (doc, text, options) in zip(answers, asked, strict=True):
        alone = seewhen.generate(
            adapter.model,
            adapter.processor,
            scenes[doc],
            text,
            adapter.method,
            max_new_tokens=options["max_new_tokens"],
            do_sample=False,
        )
        assert answer == alone.text
    assert answers[0].lower().startswith(("yes", "no"))


@pytest.mark.filterwarnings("ignore:.*never fired")
def test_stop_strings_cut(adapter):
    first = adapter.generate_until([request(0, CAPTION, {"max_new_tokens": 12})])[0]
    word = first.split()[2]
    assert adapter.generate_until([request(0, CAPTION, {"max_new_tokens": 12, "until": [word]})])[0] in first
    assert word not in adapter.generate_until([request(0, CAPTION, {"max_new_tokens": 12, "until": word})])[0]


def test_likelihoods_are_refused(adapter):
    with pytest.raises(UnsupportedMode, match="likelihoods"):
        adapter.loglikelihood([])
