"""describe, ask, compare and demo on a tiny checkpoint, held against the library's own answers."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import seewhen
from cli.command import Ran
from seewhen.asking import default_model as photograph
from seewhen.asking.asker import seen_box
from seewhen.asking.opening import plain_errors
from seewhen.asking.options import DESCRIBE
from seewhen.backbones import loading
from seewhen.backbones.photo import source
from seewhen.errors import InvalidInput
from showing.viewer.page_data import payload_of

Run = Callable[..., Ran]


def _library(checkpoint: Path, scene: Path, method: Any, text: str = DESCRIBE, **options: Any) -> seewhen.Answers:
    model, processor = seewhen.load(checkpoint)
    return seewhen.generate(model, processor, str(scene), text, method, trace=True, **options)


def test_describe_says_what_the_library_says(run: Run, checkpoint: Path, scene: Path) -> None:
    ran = run("describe", scene, "--model", checkpoint, "-n", 12)
    assert ran.code == 0
    assert ran.out.strip() == _library(checkpoint, scene, "cai", max_new_tokens=12, do_sample=False).text
    assert "\x1b" not in ran.out


def test_ask_as_json(run: Run, checkpoint: Path, scene: Path) -> None:
    question = "Is there a dog in the image?"
    ran = run(
        "ask",
        scene,
        question,
        "--model",
        checkpoint,
        "-n",
        9,
        "--json",
        "-M",
        "cai:start_layer=1",
        "--set",
        "threshold=0.5",
    )
    told = ran.json
    method = seewhen.CAI(start_layer=1, threshold=0.5)
    answer = _library(checkpoint, scene, method, question, max_new_tokens=9, do_sample=False)
    assert told["schema"] == "seewhen/answers/1"
    assert told["prompt"] == question
    (said,) = told["answers"]
    assert set(said) == {
        "label", "method", "text", "words", "tokens", "layers", "tilted_layers", "fired", "cost", "asked", "notes",
    }  # fmt: skip
    assert said["text"] == answer.text
    assert said["method"] == method.to_json()
    assert [token["id"] for token in said["tokens"]] == list(answer.answers[0].tokens)
    trace = answer.trace
    for step, token in enumerate(said["tokens"]):
        assert token["entropy"] == pytest.approx(float(trace.entropy[step, 0, -1]), abs=1e-4)
        assert token["risk"] == pytest.approx(1 - math.exp(-token["entropy"]), abs=2e-4)
        assert token["fired"] == trace.gate[step, 0].nonzero().flatten().tolist()
        best = max(token["runners"], key=lambda runner: runner["probability"])
        assert best["id"] == token["id"], "greedy takes the likeliest"
    assert said["fired"] == {"tokens": trace.fired_tokens()[0], "of": 9}
    assert said["fired"]["tokens"] > 0
    assert "".join(word["text"] for word in said["words"]).strip() == said["text"]


def test_entropies_are_in_nats_whatever_the_method_counts_in(run: Run, checkpoint: Path, scene: Path) -> None:
    entropies = []
    for base in (math.e, 10.0):
        flags = ("--json", "-n", 3, "-M", f"cai:entropy_base={base},threshold=99,start_layer=1")
        (said,) = run("describe", scene, "--model", checkpoint, *flags).json["answers"]
        entropies.append([token["entropy"] for token in said["tokens"]])
    assert entropies[0] == pytest.approx(entropies[1], abs=2e-4)


def test_compare_as_json(run: Run, checkpoint: Path, scene: Path) -> None:
    methods = "regular,cai:attention:start_layer=1,cai:start_layer=1"
    ran = run(
        "compare", scene, "--model", checkpoint, "-n", 6, "--json", "--methods", methods, "--set", "contrast=3"
    )
    regular, attention, both = ran.json["answers"]
    assert regular["label"] == "regular" and both["label"] == "cai:start_layer=1,contrast=3"
    options = {"max_new_tokens": 6, "do_sample": False}
    for said, method in (
        (regular, "regular"),
        (attention, seewhen.CAI(start_layer=1)),
        (both, seewhen.CAI(start_layer=1, contrast=3.0)),
    ):
        assert said["text"] == _library(checkpoint, scene, method, **options).text
    assert regular["fired"] is None and both["fired"]["of"] == len(both["tokens"])
    assert regular["cost"]["ratio"] == 1.0
    assert [said["cost"]["extra_rows"] for said in (regular, attention, both)] == [0, 0, 1]
    assert all(said["cost"]["ms_per_token"] > 0 for said in (regular, attention, both))


@pytest.mark.slow
def test_of_all_methods_those_are_compared_that_the_model_can_use(run: Run, checkpoint: Path, scene: Path) -> None:
    ran = run("compare", scene, "--model", checkpoint, "-n", 2, "--json", "--methods", "all")
    assert ran.code == 0, ran.err
    shown = {answer["label"] for answer in json.loads(ran.out)["answers"]}
    left_out = {line.split(" is left out: ")[0] for line in ran.err.splitlines() if " is left out: " in line}
    assert shown | left_out == set(seewhen.method_names()) and {"vti", "ict", "cai-gla"} <= left_out
    assert {"regular", "cai", "vcd", "confirm"} <= shown


def test_compare_prints_a_table(run: Run, checkpoint: Path, scene: Path) -> None:
    ran = run("compare", scene, "--model", checkpoint, "-n", 6, "--set", "start_layer=1")
    assert ran.code == 0
    for part in ("method", "said", "fired", "cost", "ms/token", "(1.00x)", "+1"):
        assert part in ran.out
    assert "of 6" in ran.out


def test_sampling_is_seeded_and_top_k_is_off(run: Run, checkpoint: Path, scene: Path) -> None:
    flags = ("--model", checkpoint, "-n", 12, "--do-sample", "-M", "regular", "--temperature", 2)
    texts = {seed: run("describe", scene, *flags, "--seed", seed).out for seed in (1, 1, 2)}
    assert texts[1] != texts[2]
    assert run("describe", scene, *flags, "--seed", 1).out == texts[1]
    torch.manual_seed(1)
    with_all = _library(checkpoint, scene, "regular", max_new_tokens=12, do_sample=True, temperature=2.0, top_k=0)
    assert texts[1].strip() == with_all.text


def test_beams_have_a_trace_too(run: Run, checkpoint: Path, scene: Path, tmp_path: Path) -> None:
    flags = ("--model", checkpoint, "-n", 5, "--num-beams", 3, "--set", "start_layer=1")
    ran = run("describe", scene, *flags, "--trace", tmp_path / "beams")
    assert ran.code == 0
    assert "not streamed" in ran.err
    trace = seewhen.Trace.load(tmp_path / "beams")
    assert trace.lengths == (5,)
    assert trace.similarity.shape == (5, 1, 16)
    processor = seewhen.load(checkpoint).processor
    assert processor.tokenizer.decode(trace.tokens[:, 0], skip_special_tokens=True).strip() == ran.out.strip()


def test_the_saved_trace_holds_the_similarity_of_each_word(
    run: Run, checkpoint: Path, scene: Path, tmp_path: Path
) -> None:
    run("describe", scene, "--model", checkpoint, "-n", 4, "--trace", tmp_path / "t", "-M", "cai:contrast=3")
    trace = seewhen.Trace.load(tmp_path / "t")
    model, processor = seewhen.load(checkpoint)
    from seewhen.backbones.prompts import model_inputs

    pixels = model_inputs(model, processor, [[scene]], ["<image>"])["pixel_values"]
    with torch.no_grad():
        features = torch.cat(list(model.get_image_features(pixel_values=pixels).pooler_output))
        words = model.get_input_embeddings()(trace.tokens[:, 0])
    expected = torch.nn.functional.cosine_similarity(words[:, None], features[None], dim=-1)
    torch.testing.assert_close(trace.similarity[:, 0], expected, atol=1e-5, rtol=0)


@pytest.mark.skipif(sys.platform == "darwin", reason="has no such names")
def test_the_name_of_a_picture_need_not_be_utf8(run: Run, checkpoint: Path, scene: Path, tmp_path: Path) -> None:
    """As from an old archive. JSON on stdout can say the name, a page and a trace have a question mark in it."""
    picture = tmp_path / os.fsdecode(b"b\xfcld.png")
    shutil.copy(scene, picture)
    page, kept = tmp_path / "page.html", tmp_path / "t"
    flags = ("--model", checkpoint, "-n", 4)
    assert run("describe", picture, *flags, "--json").json["image"] == str(picture)
    assert run("describe", picture, *flags, "--html", page, "--trace", kept).code == 0
    assert "b?ld.png" in page.read_text(encoding="utf-8")
    assert seewhen.Trace.load(kept).meta["image"].endswith("b?ld.png")
    assert run("view", kept, "--no-open").code == 0
    assert run("check", picture, "A cat.", "--model", checkpoint, "--html", page).code == 0


@pytest.fixture
def packaged(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny checkpoint in the place of the packaged model, and none for photographs."""
    monkeypatch.setattr(loading, "PACKAGED_PATH", checkpoint)
    monkeypatch.setattr(photograph, "find", lambda: None)


def test_the_packaged_model_warns_about_photographs_only(
    run: Run, packaged: None, scene: Path, tmp_path: Path
) -> None:
    Image.new("RGB", (320, 200), "gray").save(tmp_path / "photo.jpg")
    assert run("describe", scene, "-n", 2).err == ""
    ran = run("describe", tmp_path / "photo.jpg", "-n", 2)
    assert ran.code == 0
    assert "only knows its own drawn scenes" in ran.err and "llava-hf/llava-1.5-7b-hf" in ran.err
    assert "--model photo" in ran.err and source.INSTALL in ran.err


def test_another_model_does_not_warn(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    Image.new("RGB", (320, 200), "gray").save(tmp_path / "photo.jpg")
    assert run("describe", tmp_path / "photo.jpg", "-n", 2, "--model", checkpoint).err == ""


def test_demo_marks_what_is_really_there(run: Run, packaged: None, tmp_path: Path) -> None:
    from seewhen.benchmarks.chair.caption_reader import CaptionReader
    from seewhen.scenes import render, sample

    ran = run("demo", "--out", tmp_path / "demo", "--scene", 2, "-n", 40, "--greedy")
    assert ran.code == 0
    scene = sample("shifted", 2)
    assert Image.open(tmp_path / "demo" / "scene.png").tobytes() == render(scene).tobytes()
    assert ", ".join(scene.names) in ran.out
    assert "One picture proves nothing" in ran.out
    assert str(tmp_path / "demo" / "seen.html") in ran.out.replace("\n", "")
    data = payload_of(tmp_path / "demo" / "seen.html")
    assert data["truth"] == list(scene.names)
    assert [answer["label"] for answer in data["answers"]] == [
        "regular",
        "cai",
        "confirm:coco",
        "cai+confirm:coco",
    ]
    assert [answer["asked"] is not None for answer in data["answers"]] == [False, False, True, True]
    named = 0
    for answer in data["answers"]:
        found = [word for word in answer["words"] if "object" in word]
        assert {word["object"] for word in found} <= set(CaptionReader().objects(answer["text"]))
        assert all(word["present"] == (word["object"] in scene.names) for word in found)
        named += len(found)
    assert named > 0


def test_demo_describes_photographs_and_averages_stand_under_them(
    run: Run, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import json

    from seewhen.showing import averages

    row = {"method": "confirm", "mode": "sampled", "chair_i": 25.6, "chair_i_low": 23.0, "chair_i_high": 28.1}
    row |= {"chair_s": 51.1, "recall": 60.2, "images": 442, "captions": 442}
    known = {"model": str(checkpoint), "rows": [row, {**row, "mode": "greedy", "chair_i": 20.5}]}
    (tmp_path / "averages.json").write_text(json.dumps([{"model": "another", "rows": []}, known]))
    monkeypatch.setattr(averages, "_FILE", tmp_path / "averages.json")
    ran = run("demo", "--out", tmp_path / "demo", "--photo", "all", "-n", 4, "--model", checkpoint)
    assert ran.code == 0
    assert "25.6 % invented (23.0 to 28.1)" in ran.out and "20.5" not in ran.out
    pages = payload_of(tmp_path / "demo" / "seen.html")["samples"]
    assert [page["id"] for page in pages] == ["cat", "coffee", "astronaut"]
    assert all(page["averages"] == known for page in pages)
    for page in pages:
        assert page["note"].startswith("regular invents ") and "cai+confirm:coco invents " in page["note"]
        assert page["wrong"] == sum(answer["wrong"] for answer in page["answers"])
        assert all((answer["note"] == "invents nothing") == (answer["wrong"] == 0) for answer in page["answers"])


def test_demo_without_the_language_model_says_so_and_draws(
    run: Run, packaged: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = run("demo", "--out", tmp_path / "demo", "-n", 2)
    assert ran.out.startswith("A drawn scene: photographs need") and source.INSTALL in ran.out
    averages = payload_of(tmp_path / "demo" / "seen.html")["averages"]
    assert averages["model"] == "packaged"
    assert {f"{row['method']} {row['mode']}" for row in averages["rows"]} >= {
        f"{method} {mode}"
        for method in ("regular", "cai", "confirm as it comes", "cai+confirm as it comes")
        for mode in ("sampled", "greedy")
    }


def test_demo_of_the_packaged_model_draws_what_it_knows(run: Run, packaged: None, tmp_path: Path) -> None:
    """A photograph means nothing to it; who asks for one gets one."""
    flags = ("--model", "packaged", "-n", 2)
    ran = run("demo", "--out", tmp_path / "drawn", *flags)
    assert ran.code == 0 and ran.out.startswith("A drawn scene: the packaged model knows nothing else.")
    assert {path.name for path in (tmp_path / "drawn").glob("*.*g")} == {"scene.png"}
    assert run("demo", "--out", tmp_path / "asked", "--photo", "coffee", *flags).code == 0
    assert {path.name for path in (tmp_path / "asked").glob("*.*g")} == {"coffee.jpg"}


def test_photographs_are_small_and_their_sources_named() -> None:
    from seewhen.scenes.photographs import photographs

    notice = (Path(__file__).parents[2] / "NOTICE").read_text(encoding="utf-8")
    for each in photographs():
        assert each.path.stat().st_size < 100_000
        assert each.path.name in notice
        assert "CC0" in each.source or "public domain" in each.source


def test_a_crop_is_where_the_processor_cuts() -> None:
    from transformers import CLIPImageProcessorPil

    class Processor:
        image_processor = CLIPImageProcessorPil(
            size={"shortest_edge": 336}, crop_size={"height": 336, "width": 336}
        )

    assert seen_box(Processor, (672, 336)) == (0.25, 0.0, 0.75, 1.0)
    assert seen_box(Processor, (100, 400)) == (0.0, 0.375, 1.0, 0.625)
    assert seen_box(object(), (100, 400)) == (0.0, 0.0, 1.0, 1.0)


BAD = {
    "missing file": (["describe", "nowhere.png"], "There is no file nowhere.png"),
    "an address": (["describe", "https://example.com/cat.jpg"], "Nothing is fetched: save the picture"),
    "folder": (["describe", "."], "is a directory"),
    "not an image": (["describe", "text.png"], "is not an image"),
    "huge": (["describe", "huge.png"], "Make it smaller"),
    "cut off": (["describe", "cut.png"], "ends too early"),
    "unknown model": (["describe", "scene.png", "--model", "no/such-model"], "no/such-model cannot be loaded"),
    "no folder as model": (["describe", "scene.png", "--model", "./nowhere"], "There is no directory ./nowhere"),
    "empty question": (["ask", "scene.png", " "], "The question is empty"),
    "empty folder as model": (["describe", "scene.png", "--model", "empty"], "Is it a complete"),
    "unknown method": (["describe", "scene.png", "-M", "nonsense"], "There is no method 'nonsense'"),
    "unknown preset": (["compare", "scene.png", "--methods", "cai:nonsense"], "no preset 'nonsense'"),
    "unknown parameter": (["ask", "scene.png", "Why?", "--set", "nonsense=1"], "no parameter 'nonsense'"),
    "temperature alone": (["describe", "scene.png", "--temperature", "2"], "Add --do-sample"),
    "page in no folder": (["describe", "scene.png", "--html", "text.png/page.html"], "cannot be written"),
    "dtype": (["describe", "scene.png", "--dtype", "int3", "--model", "tiny"], "no dtype 'int3'"),
    "device": (["describe", "scene.png", "--device", "abacus", "--model", "tiny"], "no device 'abacus'"),
    "temperature": (
        ["describe", "scene.png", "--model", "tiny", "--do-sample", "--temperature", "-1"],
        "temperature -1.0 is out of range",
    ),
    "layer": (["describe", "scene.png", "--model", "tiny", "--set", "start_layer=40"], "leaves no layer"),
    "no packaged model": (["demo", "--out", "out", "--scene", "3"], "The small model is missing"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_one_line_and_code_2(
    run: Run, name: str, scene: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, told = BAD[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(loading, "PACKAGED_PATH", tmp_path / "absent")
    Path("text.png").write_text("not a picture")
    Path("empty").mkdir()
    shutil.copy(scene, "scene.png")
    Path("cut.png").write_bytes(scene.read_bytes()[:2000])
    Path("tiny").symlink_to(checkpoint)
    if name == "huge":
        Image.new("1", (20000, 10000)).save("huge.png")
    ran = run(*arguments)
    assert ran.code == 2
    assert ran.err.startswith("error: ") and ran.err.count("\n") == 1, ran.err
    assert told in ran.err
    assert "Traceback" not in ran.err + ran.out


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from seewhen import cli

    for arguments in (["describe", "nowhere.png", "--debug"], ["--debug", "describe", "nowhere.png"]):
        monkeypatch.setattr(sys, "argv", ["seewhen", *arguments])
        monkeypatch.setattr(cli, "_debug", False)
        with pytest.raises(InvalidInput, match="no file"):
            cli.main()


def test_out_of_memory_names_the_way_out() -> None:
    with pytest.raises(InvalidInput, match=r"Out of memory\. .*--dtype bfloat16"), plain_errors():
        torch.empty(1 << 48, dtype=torch.float32)
