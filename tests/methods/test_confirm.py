"""Confirm: what it promises of its answers, on every family; what it leaves alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import LogitsProcessor, LogitsProcessorList

import seewhen
import tiny
from seewhen.backbones.prompts import chat_prompt, model_inputs
from seewhen.decoding.aside import Aside
from seewhen.decoding.method import Method
from seewhen.errors import UnsupportedMode
from seewhen.methods.confirm_judge import Sentences
from seewhen.runs.noise import HashedNoise, OwnNoise
from seewhen.scenes import render, sample
from seewhen.verdicts.lexicon import lexicon_named
from seewhen.verdicts.reader import read_mentions
from wordy import WordyTokenizer

TOKENS = 24
NEVER = 10**6
TOKENIZER = WordyTokenizer()
LEXICON = lexicon_named("coco")
families = pytest.mark.parametrize("family", [f for f in tiny.FAMILIES if f != "gemma3"])
two_ways = pytest.mark.parametrize("fast", ["off", "graph"])


def confirm(**parameters: Any) -> Method:
    return seewhen.method("confirm", lexicon="coco", verdict="asking", **parameters).prepare(TOKENIZER)


class Wordy(LogitsProcessor):
    """Makes a tiny random model say words of objects and ends of sentences, each row by its own dice."""

    def __init__(self, seed: int, rows: int) -> None:
        self.streams = [torch.Generator().manual_seed(1000 * seed + row) for row in range(rows)]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        favoured = torch.full_like(scores, -20.0)
        favoured[:, TOKENIZER.words] = 0.0
        favoured[:, TOKENIZER.stops] = 1.0
        noise = torch.stack([torch.rand(scores.shape[1], generator=one) for one in self.streams])
        return torch.log_softmax(scores, dim=-1) * 0.1 + favoured - (-noise.to(scores).log()).log()


def generate(
    family: str, method: Any, seed: int = 0, rows: int = 2, only: int | None = None, **options: Any
) -> Any:
    model = tiny.model(family)
    fast, full = options.pop("fast", "off"), options.pop("trace", False)
    inputs = tiny.inputs(family, rows=rows, **({} if only is None else {"only": only}))
    wordy = Wordy(seed, rows)
    wordy.streams = wordy.streams if only is None else [wordy.streams[only]]
    options = {"max_new_tokens": TOKENS, "do_sample": False, "eos_token_id": NEVER, "pad_token_id": 0, **options}
    with seewhen.attach(model, method, fast=fast, trace=full) as handle:
        output = model.generate(**inputs, **options, logits_processor=[wordy])
        return output[:, -(output.shape[1] - inputs["input_ids"].shape[1]) :], handle.trace


def kept(promise: tuple[torch.Tensor, Any], threshold: float) -> None:
    """The promise: every object of every answer is confirmed, or marked in its trace."""
    tokens, trace = promise
    for row, told in enumerate(trace.told):
        text = TOKENIZER.decode(tokens[row].tolist(), skip_special_tokens=True)
        mentions = read_mentions(text, LEXICON)
        assert [m.object for m in mentions] == [v["object"] for v in told["verdicts"]]
        for mention, verdict in zip(mentions, told["verdicts"], strict=True):
            assert text.strip()[verdict["start"] : verdict["end"]] == mention.text == verdict["text"]
            confirmed = verdict["verdict"] == "confirmed"
            assert confirmed == (verdict["odds"] >= threshold)
            # Denied words are said only where not even a first sentence could be made.
            assert confirmed or mention.sentence == 0
        for said in told["taken_back"]:
            assert any(one["odds"] <= threshold for one in said["denied"])
        assert told["steps"] <= 2 * TOKENS


@families
@two_ways
def test_the_promise_on_every_family(family, fast):
    kept(generate(family, confirm(threshold=0.0), fast=fast), 0.0)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    family=st.sampled_from(["llava", "qwen2_vl", "internvl", "smolvlm"]),
    seed=st.integers(0, 10**6),
    threshold=st.floats(-3, 3),
    retries=st.integers(0, 3),
    rows=st.integers(1, 3),
)
def test_the_promise_for_any_model_seed_and_threshold(family, seed, threshold, retries, rows):
    kept(generate(family, confirm(threshold=threshold, retries=retries), seed, rows), threshold)


def test_a_window_too_short_to_go_back_in_is_refused():
    with pytest.raises(UnsupportedMode, match="takes tokens back"):
        generate("gemma3", confirm())
    _, trace = generate("gemma3", confirm(on_denied="mark"))
    assert all(told["asked"] for told in trace.told)


@families
@two_ways
def test_without_a_threshold_it_is_regular_decoding(family, fast):
    regular = generate(family, "regular", fast=fast)[0]
    assert torch.equal(generate(family, confirm(threshold=-math.inf), fast=fast)[0], regular)


@two_ways
def test_marking_changes_no_token(fast):
    regular = generate("llava", "regular", fast=fast)[0]
    tokens, trace = generate("llava", confirm(threshold=math.inf, on_denied="mark"), fast=fast)
    assert torch.equal(tokens, regular)
    verdicts = [v["verdict"] for told in trace.told for v in told["verdicts"]]
    assert verdicts and set(verdicts) == {"denied"}


@two_ways
def test_rows_do_not_disturb_each_other(fast):
    batch, _ = generate("llava", confirm(threshold=0.3), rows=3, fast=fast)
    for row in range(3):
        single, _ = generate("llava", confirm(threshold=0.3), rows=3, only=row, fast=fast)
        own = batch[row][: single.shape[1]]
        assert torch.equal(own, single[0]) and not batch[row][single.shape[1] :].any()


@pytest.fixture(scope="module")
def packaged():
    return seewhen.load("packaged", device="cpu", dtype="float32")


def described(packaged: Any, method: str, fast: str, scenes: Sequence[int], **options: Any) -> tuple[Any, Any]:
    """Captions of drawn scenes by the packaged model in one batch, and what was told."""
    model, processor = packaged
    pictures = [[render(sample("shifted", number))] for number in scenes]
    prompts = [chat_prompt(processor, "Please describe this image in detail.", 1)] * len(pictures)
    inputs = model_inputs(model, processor, pictures, prompts)
    prepared = seewhen.method(method).prepare(processor.tokenizer)
    with seewhen.attach(model, prepared, fast=fast) as handle, torch.inference_mode():
        output = model.generate(
            **inputs, **{"max_new_tokens": 40, "do_sample": False, "pad_token_id": 0, **options}
        )
        return output[:, inputs["input_ids"].shape[1] :], handle.trace.told


def test_captured_steps_that_run_ahead_say_the_same(packaged):
    """Sentences are taken back, words forbidden and refused; the answers are those of transformers' own steps."""
    method = "confirm:lexicon=coco,threshold=1.5"
    for scenes in ([0, 1, 2], [3]):
        expected, told = described(packaged, method, "off", scenes)
        tokens, also = described(packaged, method, "graph", scenes)
        assert torch.equal(tokens, expected)
        assert [[v["verdict"] for v in row["verdicts"]] for row in also] == [
            [v["verdict"] for v in row["verdicts"]] for row in told
        ]
        assert any(row["taken_back"] for row in told)
        assert [row["taken_back"] for row in also] == [
            [
                {**said, "denied": [pytest.approx(one, abs=1e-2) for one in said["denied"]]}
                for said in row["taken_back"]
            ]
            for row in told
        ]


def test_sampled_ahead_the_promise_is_kept(packaged):
    method, backs = "confirm:lexicon=coco,threshold=1.0,verdict=auto", 0
    for seed, cut in ((0, {}), (1, {"top_k": 20}), (2, {"min_p": 0.1})):
        torch.manual_seed(seed)
        given = {"do_sample": True, "top_k": 0, **cut}
        tokens, told = described(packaged, method, "graph", [seed, seed + 3], **given)
        for row, of_row in zip(tokens.tolist(), told, strict=True):
            said = packaged[1].tokenizer.decode(row, skip_special_tokens=True)
            denied = {one["object"] for back in of_row["taken_back"] for one in back["denied"]}
            marked = {v["object"] for v in of_row["verdicts"] if v["verdict"] == "denied"}
            assert {m.object for m in read_mentions(said, LEXICON)} & denied <= marked
            backs += len(of_row["taken_back"])
    assert backs


@pytest.mark.parametrize(
    ("fast", "draws"),
    [(fast, draws) for fast in ("off", "graph") for draws in ("torch", "streams", "hash")],
)
def test_sampled_rows_do_not_notice_that_a_neighbour_says_it_again(packaged, fast, draws):
    """Torch's own draws, the streams of runs, and hashed noise."""
    ends, answers, backs = frozenset([packaged[1].tokenizer.eos_token_id]), [], []
    for neighbour in (0, 9):
        torch.manual_seed(0)
        given: dict[str, Any] = {"do_sample": True, "top_k": 0}
        if draws != "torch":
            noise = OwnNoise([3, 4], 1.0, ends) if draws == "streams" else HashedNoise([3, 4], 1.0)
            given = {"logits_processor": LogitsProcessorList([noise])}
        method = "confirm:lexicon=coco,threshold=1.0,verdict=auto"
        tokens, told = described(packaged, method, fast, [neighbour, 1], **given)
        answers.append(tokens[1].tolist())
        backs.append(len(told[0]["taken_back"]))
    length = min(map(len, answers))
    assert answers[0][:length] == answers[1][:length]
    assert not any(answers[0][length:] + answers[1][length:])
    assert backs[0] == 0 < backs[1]


OTHERS = {
    "cai": seewhen.method("cai", start_layer=0, threshold=-1.0),
    "pai": seewhen.method("pai", plausibility=1e-9),
    "min-p": seewhen.method("min-p"),
    "vcd": seewhen.method("vcd", plausibility=1e-9),
}


@pytest.mark.parametrize("name", OTHERS)
def test_beside_other_methods(name):
    other = OTHERS[name]
    combined = other + confirm(threshold=0.0)
    kept(generate("llava", combined), 0.0)
    alone = generate("llava", other + confirm(threshold=-math.inf))[0]
    assert torch.equal(alone, generate("llava", other)[0])


def test_each_object_is_asked_once_and_the_tower_runs_once(monkeypatch):
    """Counted where the model is asked: sentences are taken back meanwhile, and all rows ask in one pass."""
    model, towers, asked = tiny.model("llava"), [], []
    ask = Aside.ask
    monkeypatch.setattr(
        Aside,
        "ask",
        lambda self, rows, ids, after: (
            asked.append(list(zip(rows, map(tuple, ids), strict=True))),
            ask(self, rows, ids, after),
        )[1],
    )
    handle = model.model.vision_tower.register_forward_hook(lambda *_: towers.append(1))
    try:
        _, trace = generate("llava", confirm(threshold=0.3), rows=3)
    finally:
        handle.remove()
    assert len(towers) == 1
    questions = [one for together in asked for one in together]
    assert len(questions) == len(set(questions)) == sum(told["asked"] for told in trace.told) > 5
    assert sum(len(told["taken_back"]) for told in trace.told) > 1
    assert any(len({row for row, _ in together}) > 1 for together in asked)


def test_a_full_trace_is_of_the_tokens_that_stay(monkeypatch):
    """Entropies of what is taken back may never be computed: those that stay are the same as if all were."""
    late = generate("llava", confirm(threshold=0.3), rows=3, trace=True)[1]
    monkeypatch.setattr("seewhen.decoding.observer._WAITING", 1)
    at_once = generate("llava", confirm(threshold=0.3), rows=3, trace=True)[1]
    assert sum(len(told["taken_back"]) for told in late.told) > 1
    assert late.entropy.isfinite().all()
    torch.testing.assert_close(late.entropy, at_once.entropy, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "sampled"),
    [("min-p", True), ("min-p", False), ("vcd", False), ("cai:contrast=3", True), ("pai", False), ("top_p", True)],
)
@pytest.mark.slow
def test_beside_what_cuts_unlikely_words(packaged, name, sampled):
    """Where a cut leaves nothing but words of denied objects, the sentence is given up and nothing breaks."""
    from seewhen.scenes import dataset, render

    model, processor = packaged
    pictures = [render(scene) for scene in dataset("shifted", 3)]
    options = {"do_sample": sampled, **({"top_p": 0.5} if name == "top_p" else {})}
    method = seewhen.method("confirm:lexicon=coco,verdict=asking,threshold=2")
    method = method if name == "top_p" else seewhen.method(name) + method
    torch.manual_seed(0)
    found = seewhen.generate(
        model,
        processor,
        pictures,
        ["Please describe this image in detail."] * 3,
        method,
        max_new_tokens=40,
        **options,
    )
    told = found.trace.told
    assert sum(len(row["taken_back"]) for row in told) > 1
    for text, row in zip(found.texts, told, strict=True):
        for mention, verdict in zip(read_mentions(text, LEXICON.with_variants), row["verdicts"], strict=True):
            assert verdict["verdict"] == "confirmed" or mention.sentence == 0


def test_several_images_are_asked_about_after_the_last():
    one = tiny.inputs("llava", rows=1)
    ids = one["input_ids"][0].tolist()
    last = max(place for place, token in enumerate(ids) if token == tiny.IMAGE)
    twice = torch.tensor([ids[: last + 1] + ids])
    inputs = {"input_ids": twice, "attention_mask": torch.ones_like(twice)}
    inputs["pixel_values"] = torch.cat([one["pixel_values"], one["pixel_values"].flip(-1)])
    model = tiny.model("llava")
    options = {"max_new_tokens": TOKENS, "do_sample": False, "eos_token_id": NEVER, "pad_token_id": 0}
    with seewhen.attach(model, confirm(threshold=0.0), fast="off") as handle:
        output = model.generate(**inputs, **options, logits_processor=[Wordy(0, 1)])
    assert handle.trace.told[0]["asked"] > 1
    kept((output[:, twice.shape[1] :], handle.trace), 0.0)


def test_ask_only_in_doubt():
    every = generate("llava", confirm(threshold=-5.0))[1]
    entropies = every.told[0]["asked"]
    none = generate("llava", confirm(threshold=-5.0, when=100.0))[1]
    assert entropies > 0 and none.told[0]["asked"] == 0
    assert {v["verdict"] for v in none.told[0]["verdicts"]} == {"not asked"}


def test_doubt_may_be_the_words_probability():
    """No word of the tiny model is certain, none is impossible."""
    asked = {}
    for doubt, when in (("entropy", 0.0), ("probability", 0.0), ("probability", 1.0), ("entropy", 9.0)):
        told = generate("llava", confirm(threshold=-5.0, when=when, doubt=doubt))[1].told
        asked[doubt, when] = sum(row["asked"] for row in told)
    assert asked["entropy", 0.0] == asked["probability", 0.0] > 0
    assert asked["probability", 1.0] == asked["entropy", 9.0] == 0


@two_ways
def test_an_answer_without_sentence_ends_is_one_sentence(monkeypatch, fast):
    """It ends with its last token: then its objects are asked about, and there is nothing left to make again."""
    monkeypatch.setattr(TOKENIZER, "stops", [])
    for threshold, verdict in ((math.inf, "denied"), (-20.0, "confirmed")):
        tokens, trace = generate("llava", confirm(threshold=threshold, retries=0), fast=fast)
        for row, told in zip(tokens.tolist(), trace.told, strict=True):
            assert len(row) == TOKENS and told["asked"] > 1 and not told["taken_back"]
            assert {v["verdict"] for v in told["verdicts"]} == {verdict}


def test_stopping_ends_before_the_denied_sentence():
    tokens, trace = generate("llava", confirm(threshold=0.0, on_denied="stop"), seed=4)
    for row, told in enumerate(trace.told):
        text = TOKENIZER.decode(tokens[row].tolist(), skip_special_tokens=True)
        assert len(told["taken_back"]) <= 1
        if told["taken_back"]:
            assert text.rstrip().endswith(".") and told["taken_back"][0]["text"] not in text


def test_a_row_without_image_is_not_asked():
    inputs = tiny.inputs("llava", rows=1)
    ids = inputs["input_ids"][:, -4:]
    model = tiny.model("llava")
    with pytest.warns(UserWarning, match="No image in the prompt"), seewhen.attach(model, confirm()) as handle:
        model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
        assert handle.trace.told[0]["asked"] == 0


def test_an_answer_in_another_language_has_a_note():
    class German(WordyTokenizer):
        def decode(self, tokens: Any, skip_special_tokens: bool = False) -> str:
            return "Der Hund liegt auf dem Sofa" if len(tokens) > 1 else super().decode(tokens)

    method = seewhen.method("confirm", lexicon="coco", verdict="asking").prepare(German())
    with pytest.warns(UserWarning, match="not English, but the lexicon is"):
        generate("llava", method, rows=1)


def test_a_streamer_gets_sentences(monkeypatch):
    """Each as soon as it is settled, nothing that is taken back, and the same tokens as the answer in the end."""
    seen: list[int] = []
    steps: list[int] = []  # that were made when each token came
    note = Sentences._note
    made: list[int] = []
    monkeypatch.setattr(Sentences, "_note", lambda self, newest: (made.append(1), note(self, newest))[1])

    class Streamer:
        def put(self, value: torch.Tensor) -> None:
            seen.extend(value.flatten().tolist())
            steps.extend([len(made)] * value.numel())

        def end(self) -> None:
            seen.append(NEVER)

    tokens, trace = generate("llava", confirm(threshold=0.0), rows=1, seed=4, streamer=Streamer())
    answer = tokens[0].tolist()
    assert seen[-len(answer) - 1 :] == [*answer, NEVER]
    when = steps[-len(answer) :]
    assert len(set(when)) > 1 and trace.told[0]["taken_back"]
    ends = [n for n in range(1, len(answer)) if when[n] != when[n - 1]]
    assert all(answer[end - 1] in TOKENIZER.stops for end in ends)
    assert all(step > place for place, step in enumerate(when))
