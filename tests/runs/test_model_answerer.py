"""The model answerer on a tiny checkpoint: batches, sampling streams, broken images, controls."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import seewhen
import tiny
from seewhen.decoding.method import Method, Part
from seewhen.equations.drawing import hashed_uniform
from seewhen.errors import UnsupportedMode
from seewhen.methods import method_from_json
from seewhen.methods.controls import with_controls
from seewhen.methods.grammar import label
from seewhen.methods.known import METHODS
from seewhen.runs.evaluate import Ask, directory_fingerprint, evaluate
from seewhen.runs.light_model import LightModel
from seewhen.runs.model_answerer import ModelAnswerer
from seewhen.runs.noise import HashedNoise, OwnNoise, stream_seed
from seewhen.runs.pictures import open_picture, scene_source
from seewhen.runs.store import RunConflict, read_run
from seewhen.runs.work import Task
from seewhen.speed.measure import costs

CAI = seewhen.method("cai", contrast=3.0, start_layer=1, threshold=0.5)


def tasks(count=6):
    things = ("dog", "cat", "bus", "cup", "clock", "bed")
    return [
        Task(
            f"q{k}",
            f"i{k // 2}",
            scene_source(f"test_0_{k // 2:06d}.png"),
            f"Is there a {things[k]} in the image?",
        )
        for k in range(count)
    ]


@pytest.fixture
def answerer(checkpoint):
    made = ModelAnswerer(str(checkpoint), CAI.to_json(), max_new_tokens=5, device="cpu")
    yield made
    made.close()


def test_a_method_that_asks_tells_what_it_asked_took_back_and_cost():
    strict = seewhen.method("confirm", lexicon="coco", threshold=1.0)
    answerer = ModelAnswerer("packaged", strict.to_json(), max_new_tokens=48, device="cpu")
    describe = Task("d", "i", scene_source("shifted_0_000003.png"), "Please describe this image in detail.")
    (answer,) = answerer.answer([describe], None)
    answerer.close()
    assert set(answer.facts) == {"asked", "denied", "taken_back", "steps_per_token"}
    assert answer.facts["asked"] >= answer.facts["taken_back"] > 0
    assert answer.facts["steps_per_token"] > 1


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_a_batch_equals_its_single_samples(answerer, seed):
    """Also when sampling: the noise of a sample is its own, whoever shares the batch."""
    together = answerer.answer(tasks(), seed)
    alone = [answer for task in tasks() for answer in answerer.answer([task], seed)]
    assert [a.text for a in together] == [a.text for a in alone]
    backwards = answerer.answer(tasks()[::-1], seed)[::-1]
    assert [a.text for a in together] == [a.text for a in backwards]
    assert all(0 < answer.tokens <= 5 for answer in together)
    assert all(0 <= answer.facts["fired"] <= 1 for answer in together)


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize(
    "method", [CAI, seewhen.method("regular"), seewhen.method("vcd", noise_seed=3)], ids=lambda m: m.name
)
def test_fast_decoding_gives_the_same_answers(checkpoint, method, seed):
    """Also with a prefix that the questions about one image share, and noise drawn on the host."""
    answers = []
    for fast in ("off", "graph"):
        made = ModelAnswerer(str(checkpoint), method.to_json(), max_new_tokens=6, device="cpu", fast=fast)
        try:
            answers.append(made.answer(tasks(), seed) + made.answer(tasks(4)[::-1], seed))
        finally:
            made.close()
    assert answers[0] == answers[1]


def test_other_noise_is_another_run_where_it_is_drawn(checkpoint, tmp_path):
    ask = Ask("pope", split="test", scenes=2, limit=6, model=str(checkpoint), max_new_tokens=3, noise="hash")
    greedy, _ = evaluate(ask, seewhen.method("regular"), tmp_path)
    drawn, _ = evaluate(replace(ask, seeds=1), seewhen.method("regular"), tmp_path)
    assert (
        "noise" not in read_run(greedy).config["decoding"]
        and read_run(drawn).config["decoding"]["noise"] == "hash"
    )
    with pytest.raises(seewhen.SeewhenError, match="no noise 'pink'"):
        replace(ask, noise="pink")


def test_fast_decoding_is_another_run(checkpoint, tmp_path):
    ask = Ask("pope", split="test", scenes=2, limit=6, model=str(checkpoint), max_new_tokens=3)
    plain, _ = evaluate(ask, seewhen.method("regular"), tmp_path)
    quick, _ = evaluate(replace(ask, fast=True), seewhen.method("regular"), tmp_path)
    assert plain != quick
    assert "fast" not in read_run(plain).config["decoding"] and read_run(quick).config["decoding"]["fast"]
    with pytest.raises(RunConflict, match="fast"):
        evaluate(replace(ask, fast=True), seewhen.method("regular"), tmp_path, directory=plain)


@dataclass(frozen=True)
class Dice(Method):
    """A method of another package that only samples, and takes no generators."""

    name: ClassVar[str] = "dice"
    samples_only: ClassVar[bool] = True


@dataclass(frozen=True)
class Wide(Method):
    """And one that is a beam search."""

    name: ClassVar[str] = "wide"
    beams_only: ClassVar[bool] = True


@pytest.mark.parametrize(("cls", "seed"), [(Dice, 1), (Wide, None)])
def test_how_methods_of_other_packages_decode_their_classes_say(checkpoint, monkeypatch, cls, seed):
    entry = EntryPoint(cls.name, f"{__name__}:{cls.__name__}", "seewhen.methods")
    monkeypatch.setitem(METHODS._others, cls.name, entry)
    made = ModelAnswerer(str(checkpoint), cls().to_json(), max_new_tokens=4, device="cpu")
    try:
        answers = made.answer(tasks(2), seed)
        assert answers == made.answer(tasks(2), seed) and not any(answer.error for answer in answers)
    finally:
        made.close()
    model, inputs = tiny.model("llava"), tiny.inputs("llava")
    found, failures = costs(model, lambda rows: inputs, {cls.name: cls()}, tokens=2, repeats=1, fast="off")
    assert len(found) == 1 and not failures


@pytest.mark.parametrize(("name", "seed"), [("saliency", 0), ("saliency", 1), ("opera", None)])
def test_a_batch_equals_its_single_samples_for_loops_of_their_own(checkpoint, name, seed):
    made = ModelAnswerer(str(checkpoint), seewhen.method(name).to_json(), max_new_tokens=5, device="cpu")
    try:
        together = made.answer(tasks(), seed)
        alone = [answer for task in tasks() for answer in made.answer([task], seed)]
        assert together == alone
        if seed is not None:
            assert made.answer(tasks(), 2) != alone
    finally:
        made.close()


@pytest.mark.parametrize("method", [CAI, seewhen.method("regular"), seewhen.method("pai")], ids=lambda m: m.name)
def test_shared_features_change_nothing(checkpoint, method):
    made = ModelAnswerer(str(checkpoint), method.to_json(), max_new_tokens=5, device="cpu")
    try:
        assert made._attached.shares
        if "mm_encoder_outputs" not in inspect.signature(made._asker.model.forward).parameters:
            pytest.skip("this transformers cannot be given finished image features")
        sizes = []
        tower = made._asker.model.base_model.vision_tower
        hook = tower.register_forward_hook(lambda m, args, out: sizes.append(out.last_hidden_state.shape[0]))
        shared = made.answer(tasks(), 0)
        assert sizes == [3]  # six questions, three images
        made._attached.shares = False
        assert made.answer(tasks(), 0) == shared
        assert sizes == [3, 6]
        hook.remove()
    finally:
        made.close()


ATTENTION = CAI.replace(contrast=1.0)
LAST_ROW_ONLY = {
    "regular": seewhen.method("regular"),
    "min-p": seewhen.method("min-p"),
    "cai": ATTENTION,
    "cai that looks at layer 1": ATTENTION.replace(source_layer=1, query="last"),
    "pai": seewhen.method("pai"),
    "cai with contrast": CAI,
    "icd": seewhen.method("icd"),
    "m3id": seewhen.method("m3id"),
}


@pytest.mark.parametrize("method", LAST_ROW_ONLY.values(), ids=LAST_ROW_ONLY)
@pytest.mark.parametrize("seed", [None, 0])
def test_a_shared_prefix_changes_nothing(checkpoint, method, seed):
    made = ModelAnswerer(str(checkpoint), method.to_json(), max_new_tokens=5, device="cpu")
    some = [*tasks(), Task("long", "i0", tasks()[0].source, "Is there a dog and a cat and a bus in the image ?")]
    try:
        lengths = []
        hook = made._asker.model.base_model.language_model.layers[0].register_forward_pre_hook(
            lambda m, args, kwargs: lengths.append(args[0].shape[:2]), with_kwargs=True
        )
        shared = made.answer(some, seed)
        hook.remove()
        (distinct, prefix), (rows, rest) = lengths[:2]
        assert prefix > 16 > rest
        if rows == 7:  # the prefix once per image, the rest once per question
            assert distinct == 3
        assert distinct < rows
        made._attached.prefix = None
        assert made.answer(some, seed) == shared
    finally:
        made.close()


def test_methods_that_do_more_than_tilt_do_not_share(checkpoint):
    leaking = seewhen.method("cai:reference", contrast=3.0, start_layer=1)  # a defect kept for parity
    for method in (leaking, *map(seewhen.method, ("vcd", "only", "dola"))):
        made = ModelAnswerer(str(checkpoint), method.to_json(), max_new_tokens=3, device="cpu")
        try:
            assert not made._attached.shares
            assert made._attached.prefix is None
            assert len(made.answer(tasks(4), 0)) == 4
        finally:
            made.close()


def test_seeds_differ_and_repeat(answerer):
    first, again, other = (answerer.answer(tasks(), seed) for seed in (0, 0, 1))
    assert first == again
    assert [a.text for a in first] != [a.text for a in other]


@pytest.mark.parametrize("kind", [OwnNoise, HashedNoise])
def test_own_noise_samples_the_distribution(kind):
    scores = torch.tensor([0.7, 0.2, 0.1]).log().expand(4000, 3)
    seeds = [stream_seed(3, str(k)) for k in range(4000)]
    chosen = kind(seeds)(None, scores).argmax(dim=-1)
    shares = np.bincount(chosen.numpy(), minlength=3) / 4000
    assert shares == pytest.approx([0.7, 0.2, 0.1], abs=0.025)
    cold = kind(seeds, temperature=0.25)(None, scores).argmax(dim=-1)
    assert float((cold == 0).float().mean()) == pytest.approx(0.7**4 / (0.7**4 + 0.2**4 + 0.1**4), abs=0.02)
    assert bool((kind(seeds)(None, torch.tensor([[0.0, -torch.inf]]).expand(4000, 2)).argmax(-1) == 0).all())


def test_a_row_that_has_ended_draws_no_more_noise_and_others_are_as_alone():
    scores, (first, second) = torch.randn(2, 50), (stream_seed(0, "a"), stream_seed(0, "b"))
    noise, alone = OwnNoise([first, second], ends={7}), OwnNoise([second], ends={7})
    drawn = [
        torch.tensor([[7], [7]]),
        torch.tensor([[7], [3]]),
        torch.tensor([[0], [4]]),
    ]  # the prompt may end in a 7
    for step, ids in enumerate(drawn):
        both = noise(ids, scores)
        assert torch.equal(both[1], alone(ids[1:], scores[1:])[0])
        assert torch.equal(both[0], scores[0]) == (step > 0)
    plain = torch.empty(50).exponential_(generator=torch.Generator().manual_seed(first))
    assert torch.equal(OwnNoise([first])(None, scores[:1])[0], scores[0] - plain.log())


@given(st.integers(-(2**63), 2**63 - 1))
def test_hashed_numbers_are_those_of_splitmix64(key):
    """Against plain integers: what a device wraps around must come out the same everywhere."""
    state, mask = key % 2**64, 2**64 - 1
    for found in hashed_uniform(torch.tensor([key]), 4)[0].tolist():
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        assert found == ((z ^ (z >> 31)) // 2**12 + 0.5) / 2**52 and 0 < found < 1


def test_hashed_noise_belongs_to_the_sample_and_the_step(checkpoint):
    scores = torch.zeros(2, 40)
    both, alone = HashedNoise([5, 6]), HashedNoise([6])
    first, second = both(None, scores), both(None, scores)
    assert torch.equal(first[1], alone(None, scores[1:])[0]) and torch.equal(second[1], alone(None, scores[1:])[0])
    assert not torch.equal(first, second) and not torch.equal(first[0], first[1])
    made = ModelAnswerer(str(checkpoint), CAI.to_json(), max_new_tokens=5, device="cpu", noise="hash")
    try:
        together = made.answer(tasks(), 1)
        assert [a.text for a in together] == [a.text for t in tasks() for a in made.answer([t], 1)]
        assert [a.text for a in together] != [a.text for a in made.answer(tasks(), 2)]
    finally:
        made.close()


def test_a_broken_image_is_an_error_of_its_own(answerer, tmp_path):
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"\xff\xd8 this is not a picture")
    some = tasks(3)
    some[1] = Task("bad", "bad", str(broken), "Is there a dog in the image?")
    got = answerer.answer(some, None)
    assert "is not an image" in got[1].error
    want = answerer.answer([some[0], some[2]], None)
    assert [got[0], got[2]] == want
    missing = answerer.answer([Task("x", "x", str(tmp_path / "none.png"), "?")], None)
    assert "There is no file" in missing[0].error


def test_scene_pictures_are_drawn_from_their_names():
    picture = open_picture(scene_source("shifted_0_000003.png"))
    assert picture.size == (192, 192)
    assert picture.tobytes() == open_picture("scene:shifted_0_000003.png").tobytes()
    with pytest.raises(seewhen.SeewhenError, match="not the name of a scene"):
        open_picture("scene:nonsense.png")


def test_parts_are_the_method_with_the_other_part_off(checkpoint):
    some = tasks()

    def say(method):
        made = ModelAnswerer(str(checkpoint), method.to_json(), max_new_tokens=5, device="cpu")
        try:
            return [answer.text for answer in made.answer(some, 0)]
        finally:
            made.close()

    assert say(Part("attention", CAI)) == say(CAI.replace(contrast=1.0))
    assert say(Part("contrast", CAI)) == say(CAI.replace(strength=0.0))
    assert say(Part("attention", CAI.replace(strength=0.0))) == say(seewhen.method("regular"))


def test_controls(checkpoint):
    backbone = LightModel.of(Ask("pope", model=str(checkpoint))).backbone
    assert [label(m) for m in with_controls(CAI, backbone)] == [
        "regular",
        "min-p",
        "cai:start_layer=1,threshold=0.5,contrast=3",
        "cai:start_layer=1,threshold=0.5,contrast=3:attention",
        "cai:start_layer=1,threshold=0.5,contrast=3:contrast",
    ]
    alone = CAI.replace(contrast=1.0)
    assert with_controls(alone, backbone) == [seewhen.method("regular"), seewhen.method("min-p"), alone]
    assert [label(m) for m in with_controls(seewhen.method("regular"), backbone)] == ["regular", "min-p"]
    part = Part("contrast", CAI)
    assert method_from_json(part.to_json()) == part
    assert part.fingerprint != CAI.fingerprint


def test_evaluate_resumes_extends_and_refuses(checkpoint, tmp_path):
    ask = Ask("pope", split="test-random", scenes=4, model=str(checkpoint), max_new_tokens=3, batch=8)
    method = seewhen.method("regular")

    def go(**changes):
        from dataclasses import replace

        return evaluate(replace(ask, **changes), method, tmp_path, directory=tmp_path / "run")

    _, short = go(limit=7)
    assert short["samples"] == 7
    before = read_run(tmp_path / "run").records
    path, whole = go()
    run = read_run(path)
    assert run.records[:7] == before
    assert whole["samples"] == len(run.records) > 7
    assert run.config["method"]["fingerprint"] == method.fingerprint
    assert {"dtype", "device", "attention", "weights"} <= set(run.config["model"])
    assert {"parser", "splits"} == set(run.config["benchmark"]["settings"])
    assert {"torch", "transformers", "seewhen"} <= set(run.config["versions"])
    with pytest.raises(RunConflict, match=r"decoding.max_new_tokens: 3 there, 4 now"):
        go(max_new_tokens=4)
    with pytest.raises(RunConflict, match=r"decoding.mode"):
        go(seeds=2)
    elsewhere, again = evaluate(ask, method, tmp_path)
    assert elsewhere != path
    assert again == whole


def test_the_fingerprint_of_a_checkpoint_sees_its_files(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"1")
    first = directory_fingerprint(tmp_path)
    (tmp_path / "README.md").write_text("A better description of the same model.")
    assert directory_fingerprint(tmp_path) == first
    (tmp_path / "a.bin").write_bytes(b"2")
    assert directory_fingerprint(tmp_path) != first


@pytest.mark.parametrize(("name", "seeds"), [("saliency", None), ("opera", 2)])
def test_a_mode_that_a_method_does_not_have_is_refused(name: str, seeds: int | None, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedMode):
        evaluate(Ask("pope", scenes=1, seeds=seeds), seewhen.method(name), tmp_path)
    assert not list(tmp_path.iterdir())
