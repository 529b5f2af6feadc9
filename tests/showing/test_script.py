"""From a script to a page: what `generate`, `attach` and `check` give shows itself, with words and picture."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageChops

import seewhen
from cli.command import Ran, in_process
from seewhen.backbones.pictures import open_image
from seewhen.backbones.prompts import chat_prompt, model_inputs
from seewhen.errors import InvalidInput
from showing.viewer.page_data import payload_of

QUESTION = "Please describe this image in detail."
SHORT = {"max_new_tokens": 8, "do_sample": False}


@pytest.fixture(scope="module")
def loaded() -> Any:
    return seewhen.load("packaged", device="cpu")


@pytest.fixture(scope="module")
def scenes() -> list[Image.Image]:
    from seewhen.scenes import render, sample

    return [render(sample("shifted", index)) for index in (3, 8)]


@pytest.fixture
def view(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    run = in_process(monkeypatch, capsys)
    return lambda *arguments: run("view", *arguments, "--no-open")


@pytest.fixture(scope="module")
def handle(loaded: Any, scenes: list[Image.Image]) -> seewhen.Handle:
    """Of a script's own call: tensors in, tensors out."""
    model, processor = loaded
    inputs = model_inputs(model, processor, [[scenes[0]]], [chat_prompt(processor, QUESTION, 1)])
    with seewhen.attach(model, "cai", trace=True) as attached:
        model.generate(**inputs, **SHORT)
    return attached


def shown(sample: dict[str, Any]) -> Image.Image:
    """The picture on a page."""
    import base64

    return open_image(base64.b64decode(sample["images"][0]["src"].partition(",")[2]))


def alike(one: Image.Image, other: Image.Image) -> bool:
    """The same but for the rounding of a processor that resizes."""
    ends = ImageChops.difference(one.resize((32, 32)), other.resize((32, 32))).getextrema()
    return max(high for _, high in ends) < 40


def test_a_handle_makes_a_page_with_words_and_picture(
    handle: seewhen.Handle, loaded: Any, scenes: list[Image.Image], tmp_path: Path
) -> None:
    assert handle.page(tmp_path / "x.html") == tmp_path / "x.html"
    data = payload_of(tmp_path / "x.html")
    words = loaded.processor.tokenizer.decode(handle.trace.tokens[:, 0], skip_special_tokens=True)
    assert data["answers"][0]["text"] == words.strip() and QUESTION in data["prompt"]
    assert alike(shown(data), scenes[0]) and not alike(shown(data), scenes[1])
    assert {"relevance", "before"} <= data["answers"][0]["maps"].keys()
    handle.page(tmp_path / "y.html", image=scenes[1], processor=loaded.processor)
    assert alike(shown(payload_of(tmp_path / "y.html")), scenes[1])


def test_a_trace_saved_from_a_script_is_viewed_with_words_and_picture(
    handle: seewhen.Handle, scenes: list[Image.Image], view: Callable[..., Ran], tmp_path: Path
) -> None:
    handle.trace.save(tmp_path / "t.json")
    assert view(tmp_path / "t.json") == Ran(0, f"{tmp_path / 't.html'}\n", "")
    data = payload_of(tmp_path / "t.html")
    assert data["answers"][0]["text"] and data["model"] == "the packaged model"
    assert alike(shown(data), scenes[0])
    assert (
        handle.page(tmp_path / "own.html").read_text()
        == seewhen.Trace.load(tmp_path / "t").page(tmp_path / "again.html").read_text()
    )


def test_answers_of_a_batch_side_by_side(loaded: Any, scenes: list[Image.Image], tmp_path: Path) -> None:
    model, processor = loaded
    questions = [QUESTION, "Is there a dog in the image?"]
    regular, cai = (
        seewhen.generate(model, processor, scenes, questions, name, trace=True, **SHORT)
        for name in ("regular", "cai:contrast=3")
    )
    seewhen.page(tmp_path / "both.html", regular, cai)
    samples = payload_of(tmp_path / "both.html")["samples"]
    assert [sample["prompt"] for sample in samples] == questions
    assert [[a["text"] for a in sample["answers"]] for sample in samples] == [
        list(pair) for pair in zip(regular.texts, cai.texts, strict=True)
    ]
    assert [a["label"] for a in samples[0]["answers"]] == ["regular", "cai:contrast=3"]
    for sample, scene in zip(samples, scenes, strict=True):
        assert ImageChops.difference(shown(sample), open_image(scene)).getbbox() is None
    with pytest.raises(InvalidInput, match="2 pictures, not 1"):
        cai.trace.page(tmp_path / "one.html", image=scenes[0])
    cai.page(tmp_path / "one.html")
    assert len(payload_of(tmp_path / "one.html")["samples"]) == 2


def test_nothing_to_show_and_words_that_are_not_known(handle: seewhen.Handle, tmp_path: Path) -> None:
    import dataclasses

    with pytest.raises(InvalidInput, match="nothing to show"):
        seewhen.page(tmp_path / "x.html")
    mute = dataclasses.replace(handle.trace, completing=None)
    with pytest.raises(InvalidInput, match="does not know its words"):
        mute.page(tmp_path / "x.html")
    assert handle.page(tmp_path / "x.html", image=[]).exists()  # none given: its own


def test_notebooks_show_words_without_script(
    handle: seewhen.Handle, loaded: Any, scenes: list[Image.Image]
) -> None:
    model, processor = loaded
    answers = seewhen.generate(model, processor, scenes[0], "Is there a <b>dog</b>?", "confirm", **SHORT)
    checked = seewhen.check(model, processor, scenes[0], "A dog & a <b>frisbee</b>.")
    for each in (answers, handle.trace, checked):
        html = each._repr_html_()
        assert "<script" not in html and "<style" not in html and "<b>" not in html
    assert "data:image/png" in answers._repr_html_() and "data:image/png" in handle.trace._repr_html_()
    for told, question in ((answers, "Is there a &lt;b&gt;dog&lt;/b&gt;?"), (handle.trace, QUESTION)):
        assert f"<div>{question}</div>" in told._repr_html_(), "the question, without the template around it"
    assert not re.search(r"<(span|ins|del)[^>]*>\s", answers._repr_html_()), "a space is not part of a mark"
    assert checked.denied
    assert all(f">{name}</del>" in checked._repr_html_() for name in checked.denied)


def test_what_is_printed_by_itself_is_short(
    handle: seewhen.Handle, loaded: Any, scenes: list[Image.Image]
) -> None:
    model, processor = loaded
    answers = seewhen.generate(model, processor, scenes, [QUESTION] * 2, trace=True, **SHORT)
    inputs = model_inputs(model, processor, [[scenes[0]]], [chat_prompt(processor, QUESTION, 1)])
    replayed = seewhen.replay(model, inputs, [5, 6], "cai")
    checked = seewhen.check(model, processor, scenes[0], "A dog and a frisbee.")
    for each in (answers, answers.trace, handle, checked, loaded, replayed):
        assert len(repr(each)) < 500, type(each)
    assert "and 1 more" in repr(answers)
