"""All stages on a tiny store, and that what was trained is what is measured."""

import argparse
import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

from photographs import (
    checks,
    exam,
    holdout,
    instructions,
    look,
    loop,
    lora,
    packing,
    photos,
    recipe,
    run,
    speaking,
    study,
    tiny,
    tower,
)
from seewhen import attach
from seewhen.backbones.loading import load
from seewhen.backbones.photo.building import build
from seewhen.backbones.prompts import chat_prompt
from seewhen.errors import InvalidInput
from seewhen.methods import method

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(store: Path, tmp_path_factory: pytest.TempPathFactory) -> run.Place:
    place = run.Place(store, tmp_path_factory.mktemp("run"), "cpu", 1)
    run.train(place, tiny.RECIPE)
    packed = packing.pack(place.out, store / "dinov2-small.int8.safetensors")
    build(packed, store / "smollm2.gguf", place.out / "model")
    exam.write_folders(store, place.out / "exam")
    return place


def lines(place: run.Place) -> list[dict]:
    return [json.loads(line) for line in (place.out / "log.jsonl").read_text().splitlines()]


def test_stages_log_what_they_do_and_are_not_done_twice(trained: run.Place) -> None:
    before = lines(trained)
    assert [line["stage"] for line in before if line.get("note") == "done"] == list(run.STAGES)
    assert all("pope" in line or "validation_map" in line for line in before if line.get("step") == 0)
    run.train(trained, tiny.RECIPE)
    assert len(lines(trained)) == len(before) + 1  # the recipe alone


def test_a_cut_off_stage_goes_on_where_it_was(trained: run.Place, store: Path, tmp_path: Path) -> None:
    place = dataclasses.replace(trained, out=tmp_path)
    for name in ("tower.safetensors", "projector.safetensors", "instructions.jsonl", "tokenizer.json"):
        shutil.copyfile(trained.out / name, tmp_path / name)
    weights, _ = loop.load_weights(trained.out / "finetune.safetensors")
    loop.save_weights(weights, tmp_path / "finetune.part.safetensors", step=5)
    run.train(place, tiny.RECIPE)
    steps = [line["step"] for line in lines(place) if line.get("stage") == "finetune" and "ask" in line]
    assert steps == [6] and not (tmp_path / "finetune.part.safetensors").exists()


def test_the_saved_model_is_the_trained_one(trained: run.Place) -> None:
    """The standard classes, given a picture, agree with the features and embeddings that training used."""
    state = run.Run(trained, tiny.RECIPE)
    talk = run.prepare_talk(state)
    speaker = talk.speaker
    lora.add(speaker.model.model.language_model.layers, tiny.RECIPE.finetune.rank)
    run.fill_talk(talk, loop.load_weights(trained.out / "finetune.safetensors")[0])
    model, processor = load(trained.out / "model", device="cpu")
    question = "Is there a dog in the image?"
    pixels = state.validation.pixels[0].numpy()
    inputs = processor(
        images=Image.fromarray(pixels), text=chat_prompt(processor, question, 1), return_tensors="pt"
    )
    with torch.no_grad():
        theirs = model(**inputs).logits[0, -1]
        ids = torch.tensor([checks.prompt_ids(processor.tokenizer, question)])
        patches = checks.project(speaker, talk.exam.features[:1])
        ours = speaker.model.lm_head(speaker.hidden(speaker.embedded(ids, patches)))[0, -1]
    assert inputs["input_ids"].shape[1] == len(speaker.before) + patches.shape[1] + ids.shape[1]
    assert (theirs - ours).norm() / ours.norm() < 0.05  # int8 and bfloat16 lie between them
    assert theirs.argmax() == ours.argmax()


def test_methods_run_on_it(trained: run.Place) -> None:
    model, processor = load(trained.out / "model", device="cpu")
    picture = Image.new("RGB", (60, 40), "green")
    inputs = processor(images=picture, text=chat_prompt(processor, "What is this?", 1), return_tensors="pt")
    for name in ("cai", "vcd", "pai"):
        with attach(model, method(name).prepare(processor.tokenizer)) as handle:
            made = model.generate(**inputs, max_new_tokens=3, min_new_tokens=3)
        assert made.shape[1] == inputs["input_ids"].shape[1] + 3
        assert len(handle.trace.tokens) == 3


def test_the_exam_holds_only_held_out_photographs(trained: run.Place) -> None:
    lists = holdout.read()
    for part, wanted in (
        ("test", lists["pope"] | lists["chair"] | lists["annotated"]),
        ("validation", lists["validation"]),
    ):
        folder = trained.out / "exam" / part
        pictures = {int(p.stem[-12:]) for p in (folder / "val2014").iterdir()}
        assert pictures and pictures <= wanted
        for ask in study.asks(trained.out, part=part)[:3]:
            asked = ask.load().samples()
            assert asked and {int(s.image[-16:-4] if "_" in s.image else s.image) for s in asked} <= pictures


def test_the_study_measures_and_resumes(trained: run.Place) -> None:
    found = study.measure_regular(trained.out, 2, 8)
    assert {"chair plain-64", "pope", "chair plain-128"} == set(found)
    before = sorted(p.stat().st_mtime_ns for p in (trained.out / "runs").glob("*/samples*"))
    assert study.measure_regular(trained.out, 2, 8) == found
    assert before == sorted(p.stat().st_mtime_ns for p in (trained.out / "runs").glob("*/samples*"))


def test_looking_uses_annotated_photographs_and_their_boxes(trained: run.Place) -> None:
    asked = look.cases(trained.store, "prompt", 5)
    annotated = holdout.read()["annotated"]
    for case in asked:
        assert int(case.name) in annotated and case.image is not None and case.boxes
        assert set(case.boxes) <= set(case.truth or ())
        assert case.inside((0.5, 0.5), next(iter(case.boxes))) and not case.inside(
            (0.1, 0.1), next(iter(case.boxes))
        )
    told = look.look(trained.store, trained.out, limit=2, tokens=4, batch=2)
    assert told["photographs"] == 2 and {"pointing", "auroc", "fired", "failure"} < set(told)


def test_settings_are_tried_chosen_and_asked_again(trained: run.Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("photographs.wanted.TRIED", {"icd": ({}, {"alpha": 0.25})})
    monkeypatch.setattr("photographs.wanted.ABLATIONS", (("base", {"contrast": 1.0}),))
    out = trained.out
    (out / "marks").mkdir(exist_ok=True)
    options = argparse.Namespace(run=out, limit=1, batch=18, methods="icd", greedy=True, tune=True)
    study.be_worker(options)
    tried = [json.loads(path.read_text("utf-8")) for path in (out / "marks").glob("trials-*/*.done")]
    assert len(tried) == 8 and all("metrics" in one for one in tried)
    assert len(list((out / "trials").glob("*/result.json"))) == 8
    assert set(json.loads((out / "tuned.json").read_text("utf-8"))) <= {"icd", "cai-attention"}
    (out / "tuned.json").write_text(json.dumps({"icd": {"alpha": 0.25}}))
    study.be_worker(options)
    alphas = [
        json.loads(path.read_text("utf-8"))["config"]["method"]["parameters"]["alpha"]
        for path in (out / "tuned").glob("*_icd*/manifest.json")
    ]
    assert alphas == [0.25] * 4
    options.tune = False
    study.be_worker(options)
    assert len(list((out / "runs").glob("*_icd_greedy_*/result.json"))) == 3


def test_the_control_samples_at_a_lower_temperature(trained: run.Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from photographs import cooler

    monkeypatch.setattr("sys.argv", ["cooler", str(trained.out), "--limit", "1"])
    cooler.main()
    made = [json.loads(path.read_text("utf-8")) for path in (trained.out / "cooler").glob("*/manifest.json")]
    assert [one["config"]["decoding"]["temperature"] for one in made] == [pytest.approx(1 / 3)] * 4
    methods = [one["config"]["method"] for one in made]
    assert sorted(one["method"] for one in methods) == ["min-p", "min-p", "regular", "regular"]
    assert {one["parameters"].get("min_p") for one in methods} == {None, 0.5}


def test_methods_are_timed_against_regular_decoding(trained: run.Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from photographs import latency

    few = ("regular", "cai", "opera", "saliency", "vti")  # the last has no directions there
    monkeypatch.setattr(latency, "NAMES", few)
    monkeypatch.setattr("sys.argv", ["latency", str(trained.out), "--rounds", "1", "--tokens", "2"])
    threads = torch.get_num_threads()
    try:
        latency.main()
    finally:
        torch.set_num_threads(threads)
    written = json.loads((trained.out / "latency-cpu.json").read_text("utf-8"))
    assert set(written["methods"]) == set(few) - {"vti"} and written["methods"]["regular"]["ratio"] == 1
    assert all(entry["ms_per_token"] > 0 for entry in written["methods"].values())


def test_every_row_of_the_study_can_be_made(trained: run.Place) -> None:
    made = {name: study.make(name, trained.out) for name in study.NAMES if name not in ("vti", "ict")}
    assert len({m.fingerprint for m in made.values()}) == len(made)


def test_answers_made_before_are_taken_from_the_store(
    trained: run.Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = (trained.out / run.ANSWERS).read_text()
    assert [json.loads(line)["prompt"] for line in own.splitlines()]
    store = tmp_path / "store"
    store.mkdir()
    for name in (run.TABLE, run.ANSWERS, "smollm2.gguf"):
        shutil.copyfile((trained.out if name == run.ANSWERS else trained.store) / name, store / name)
    monkeypatch.setattr(instructions, "answer_all", lambda *_: pytest.fail("nothing is to be made again"))
    place = dataclasses.replace(trained, store=store, out=tmp_path / "run")
    assert run.self_answers(run.Run(place, tiny.RECIPE)) == instructions.read(trained.out / run.ANSWERS)
    assert (place.out / run.ANSWERS).read_text() == own


def test_new_shards_are_taken_up_and_tested_ones_refused(store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    shutil.copytree(store, folder)
    (folder / "train-01.safetensors").rename(tmp_path / "later")
    state = run.Run(run.Place(folder, tmp_path / "run", "cpu", 1), tiny.RECIPE)
    few = len(state.training.photos)
    (tmp_path / "later").rename(folder / "train-01.safetensors")
    state.training.grow()
    assert len(state.training.photos) == len(state.training.labels) == 2 * few
    assert state.training.labels.any(1).all()
    shutil.copyfile(store / "train-00.safetensors", folder / "train-02.safetensors")
    for _ in range(2):  # the first look begins to decode, a later one takes up what is ready
        state.training.look()
        state.training._aside.submit(int).result()
    assert len(state.training.photos) == len(state.training.labels) == 3 * few
    (folder / "train-02.safetensors").unlink()
    tested = next(iter(holdout.read()["pope"]))
    picture = next(iter(photos.read_shard(store / "heldout-00.safetensors").values()))
    photos.write_shard(folder / "train-03.safetensors", {tested: picture})
    with pytest.raises(InvalidInput, match="held-out"):
        state.training.grow()


def test_the_rate_rises_and_falls_to_nothing() -> None:
    rates = [loop.rate_at(i / 100) for i in range(101)]
    peak = rates.index(max(rates))
    assert 0 < peak < 10 and rates[-1] < 1e-6
    assert rates[: peak + 1] == sorted(rates[: peak + 1]) and rates[peak:] == sorted(rates[peak:], reverse=True)


def test_the_loop_learns_and_stops_with_the_clock(tmp_path: Path) -> None:
    weight = nn.Parameter(torch.ones(4))

    def backward(step: int) -> dict[str, torch.Tensor]:
        loss = (weight**2).sum()
        loss.backward()
        return {"loss": loss}

    log = loop.Log(tmp_path / "log.jsonl")
    groups = [{"params": [weight], "lr": 0.05}]
    loop.train("toy", recipe.Stage(200, 1, 0.05), groups, backward, log)
    assert weight.abs().max() < 0.1
    loop.train("toy", recipe.Stage(10**9, 1, 0.05, minutes=0.005), groups, backward, log)
    assert "time is up" in (tmp_path / "log.jsonl").read_text()


def test_pooling_lies_between_mean_and_maximum() -> None:
    scores = torch.randn(3, 16, 5)
    pooled = tower.pooled(scores, 4.0)
    assert (pooled <= scores.amax(1) + 1e-5).all() and (pooled >= scores.mean(1) - 1e-5).all()
    assert torch.allclose(tower.pooled(scores, 200.0), scores.amax(1), atol=0.05)


def test_average_precision() -> None:
    scores = torch.tensor([[0.9], [0.8], [0.7], [0.1]])
    truth = torch.tensor([[True], [False], [True], [False]])
    assert float(tower.average_precision(scores, truth)) == pytest.approx((1 + 2 / 3) / 2)


def test_a_photograph_without_change_is_not_changed_by_augmenting() -> None:
    pixels = torch.zeros(6, 3, 28, 28)
    pixels[:, :, :, 20:] = 1
    torch.manual_seed(0)
    made = tower.augmented(pixels, 1.0)
    light = (made[:, 0, 14, 3] < made[:, 0, 14, 24]).tolist()
    assert True in light and False in light  # some are mirrored, and nothing else has moved
    assert all((row[:, :, 8:20].std() < 1e-5) for row in made)


def test_alignment_prefers_patches_that_are_the_word() -> None:
    names = torch.eye(4)
    aligned = speaking.Alignment(names)
    truth = torch.tensor([[True, False, False, False]])
    right, wrong = names[0].repeat(1, 6, 1), names[1].repeat(1, 6, 1)
    assert aligned(right, truth) < aligned(wrong, truth)


def test_recipes_are_read(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text('{"finetune": {"rank": 8}, "seed": 3}')
    read = recipe.load(tmp_path / "r.json")
    assert read.finetune.rank == 8 and read.seed == 3 and read.tower == recipe.Recipe().tower
    (tmp_path / "r.json").write_text('{"finetune": {"depth": 8}}')
    with pytest.raises(InvalidInput, match="depth"):
        recipe.load(tmp_path / "r.json")
