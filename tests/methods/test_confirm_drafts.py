"""Drafts of `confirm`: further texts on the prompt's own columns, which nobody's answer notices."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from test_confirm import LEXICON, OTHERS, TOKENIZER, TOKENS, confirm, described, generate, kept, two_ways
from transformers import StoppingCriteria, StoppingCriteriaList

import seewhen
import tiny
from seewhen.decoding.aside import Aside
from seewhen.decoding.drafting import Draft, DraftPasses
from seewhen.errors import InvalidMethod, UnsupportedMode
from seewhen.methods.confirm_drafts import Drafts
from seewhen.verdicts.fitting import fit_verdict
from seewhen.verdicts.reader import read_mentions
from seewhen.verdicts.verdict import Signals

WORDS = confirm().words.on(())  # type: ignore[attr-defined]
reading = pytest.mark.parametrize("family", [f for f in tiny.FAMILIES if f not in ("gemma3", "paligemma")])
pytestmark = pytest.mark.filterwarnings("ignore:This model's answers")


@pytest.fixture(scope="module")
def packaged() -> Any:
    return seewhen.load("packaged", device="cpu", dtype="float32")


@reading
@two_ways
def test_the_promise_with_drafts_on_every_family(family, fast):
    kept(generate(family, confirm(threshold=0.0, drafts=3), fast=fast), 0.0)


@reading
def test_drafts_alone_change_no_token(family):
    regular = generate(family, "regular")[0]
    assert torch.equal(generate(family, confirm(threshold=-math.inf, drafts=4))[0], regular)
    tokens, trace = generate(family, confirm(threshold=math.inf, drafts=2, on_denied="mark"))
    assert torch.equal(tokens, regular)
    assert all(v["elsewhere"] in (0.0, 0.5, 1.0) for told in trace.told for v in told["verdicts"])


@pytest.mark.parametrize("sampled", [False, True])
def test_an_answer_s_own_draws_are_not_disturbed(packaged, sampled):
    """Threshold -inf would not even draw drafts; marking does."""
    options = {"do_sample": sampled, **({"top_k": 0} if sampled else {})}
    torch.manual_seed(3)
    regular = described(packaged, "regular", "off", [0, 1], **options)[0]
    torch.manual_seed(3)
    tokens, told = described(packaged, "confirm:on_denied=mark,lexicon=coco,drafts=2", "off", [0, 1], **options)
    assert torch.equal(tokens, regular)
    assert any(v["elsewhere"] > 0 for row in told for v in row["verdicts"])


def test_drafts_are_what_the_model_itself_goes_on_with(packaged, monkeypatch):
    """Each draft's log-probabilities are those of one pass over prompt and draft, and rows do not meet."""
    found: list[dict[int, list[Draft]]] = []
    drafts = Aside.drafts
    monkeypatch.setattr(Aside, "drafts", lambda *a: found.append(drafts(*a)) or found[-1])
    method = "confirm:on_denied=mark,lexicon=coco,drafts=2"
    described(packaged, method, "off", [0, 1])
    described(packaged, method, "off", [1])
    described(packaged, method, "graph", [0, 1])
    both, alone, captured = found
    assert [d.tokens for d in both[1]] == [d.tokens for d in alone[0]]
    assert [[d.tokens for d in row] for row in both.values()] == [[d.tokens for d in r] for r in captured.values()]
    assert len({tuple(d.tokens) for row in both.values() for d in row}) == 4
    from seewhen.backbones.prompts import chat_prompt, model_inputs
    from seewhen.scenes import render, sample

    model, processor = packaged
    prompt = chat_prompt(processor, "Please describe this image in detail.", 1)
    inputs = model_inputs(model, processor, [[render(sample("shifted", 1))]], [prompt])
    for draft in both[1]:
        ids = torch.cat([inputs["input_ids"], torch.tensor([draft.tokens])], dim=1)
        whole = {**inputs, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
        with torch.inference_mode():
            logits = model(**whole).logits[0, inputs["input_ids"].shape[1] - 1 : -1].float()
        expected = torch.log_softmax(logits, dim=-1)[torch.arange(len(draft.tokens)), draft.tokens]
        assert torch.allclose(torch.tensor(draft.doubts)[:, 0], expected, atol=1e-3)


@two_ways
def test_rows_do_not_disturb_each_other(fast):
    method = confirm(threshold=0.3, drafts=3)
    batch, _ = generate("llava", method, rows=3, fast=fast)
    for row in range(3):
        single, _ = generate("llava", method, rows=3, only=row, fast=fast)
        assert torch.equal(batch[row][: single.shape[1]], single[0])


def test_neither_tower_nor_prompt_is_read_again(monkeypatch):
    """One pass of the tower; the decoder gets one token at a time for all drafts of all rows together."""
    model, towers, drawn = tiny.model("llava"), [], []
    handle = model.model.vision_tower.register_forward_hook(lambda *_: towers.append(1))
    logits = DraftPasses.logits
    monkeypatch.setattr(
        DraftPasses, "logits", lambda self, e: (drawn.append(tuple(e.shape[:2])), logits(self, e))[1]
    )
    try:
        generate("llava", confirm(threshold=0.3, drafts=4), rows=3)
    finally:
        handle.remove()
    assert len(towers) == 1
    assert set(drawn) == {(12, 1)} and len(drawn) <= 24


def test_several_answers_to_one_prompt_have_the_same_drafts_which_are_drawn_once(packaged, monkeypatch):
    method, texts, drawn = "confirm:on_denied=mark,lexicon=coco,drafts=2", [], []
    drafts, logits = Aside.drafts, DraftPasses.logits
    monkeypatch.setattr(Aside, "drafts", lambda *a: texts.append(drafts(*a)) or texts[-1])
    monkeypatch.setattr(DraftPasses, "logits", lambda self, e: (drawn.append(len(e)), logits(self, e))[1])
    described(packaged, method, "off", [0, 1])
    described(packaged, method, "off", [1, 0, 1])
    assert set(drawn) == {4}
    (first, second), again = texts[0].values(), texts[1]
    expected = [[d.tokens for d in row] for row in (second, first, second)]
    assert [[d.tokens for d in row] for row in again.values()] == expected


def test_drafts_end_when_nobody_waits(monkeypatch):
    """The clock of `generate`, a client who left: looked at while drafts are drawn, too."""
    logits, steps, late = DraftPasses.logits, [], []
    monkeypatch.setattr(
        DraftPasses, "logits", lambda self, e: (steps.append(1), late.append(1), logits(self, e))[2]
    )

    class Clock(StoppingCriteria):
        def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
            return torch.full((len(input_ids),), bool(late))

    rules = StoppingCriteriaList([Clock()])
    _, trace = generate("llava", confirm(threshold=0.3, drafts=2), stopping_criteria=rules)
    assert len(steps) == 8 < TOKENS
    assert all(told["asked"] for told in trace.told)


def test_drafts_are_streamed_like_anything_that_is_settled():
    seen: list[list[int]] = []

    class Streamer:
        def put(self, value: torch.Tensor) -> None:
            seen.append(value.flatten().tolist())

        def end(self) -> None:
            seen.append([])

    tokens, trace = generate("llava", confirm(threshold=0.0, drafts=4), rows=1, seed=4, streamer=Streamer())
    assert any(told["taken_back"] for told in trace.told)
    assert [token for piece in seen[1:] for token in piece] == tokens[0].tolist()


def test_beams_are_refused_with_drafts():
    with pytest.raises(UnsupportedMode, match="beam search"):
        generate("llava", confirm(drafts=2), num_beams=2)


def test_a_row_without_image_has_no_drafts():
    ids = tiny.inputs("llava", rows=1)["input_ids"][:, -4:]
    method = confirm(drafts=2)
    with pytest.warns(UserWarning, match="No image"), seewhen.attach(tiny.model("llava"), method) as handle:
        tiny.model("llava").generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False
        )
    assert handle.trace.told[0]["asked"] == 0


def test_words_said_without_doubt_draw_no_drafts(monkeypatch):
    monkeypatch.setattr(Aside, "drafts", None)  # must not be called
    _, trace = generate("llava", confirm(threshold=0.0, drafts=2, when=100.0))
    assert {v["verdict"] for told in trace.told for v in told["verdicts"]} == {"not asked"}


@two_ways
def test_sentences_of_drafts_take_the_place_of_denied_ones(packaged, fast):
    """Beyond what retries find: every object is confirmed, and some sentences stand word for word in a draft."""
    method = "confirm:lexicon=coco,threshold=1.0,verdict=auto,drafts=4"
    found: list[str] = []
    spare = Drafts.confirmed
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Drafts,
            "confirmed",
            lambda self, asked, threshold: [
                (found.append(packaged[1].tokenizer.decode(s.tokens).strip()), s)[1]
                for s in spare(self, asked, threshold)
            ],
        )
        tokens, told = described(packaged, method, fast, [0, 1, 2, 3])
    texts = [packaged[1].tokenizer.decode(row, skip_special_tokens=True) for row in tokens.tolist()]
    assert any(row["taken_back"] for row in told)
    assert any(sentence in text for sentence in found for text in texts)
    for row in told:
        denied = {one["object"] for back in row["taken_back"] for one in back["denied"]}
        marked = {v["object"] for v in row["verdicts"] if v["verdict"] == "denied"}
        assert {v["object"] for v in row["verdicts"]} & denied <= marked


def test_captured_steps_say_the_same_with_drafts(packaged):
    method = "confirm:lexicon=coco,threshold=1.0,drafts=2"
    expected, told = described(packaged, method, "off", [0, 1, 2])
    tokens, also = described(packaged, method, "graph", [0, 1, 2])
    assert torch.equal(tokens, expected)
    assert [[v["elsewhere"] for v in row["verdicts"]] for row in also] == [
        [v["elsewhere"] for v in row["verdicts"]] for row in told
    ]


@pytest.mark.parametrize("name", OTHERS)
def test_drafts_beside_other_methods(name):
    combined = OTHERS[name] + confirm(threshold=0.0, drafts=2)
    kept(generate("llava", combined), 0.0)


def test_reading_drafts():
    said = "a cat sits . a dog and a cat run . a bus"
    ids = TOKENIZER(said, add_special_tokens=False)["input_ids"]
    other = TOKENIZER("a cat sits .", add_special_tokens=False)["input_ids"]
    drafts = Drafts.read([Draft(list(t), [[-1.0, 2.0]] * len(t)) for t in (ids, other)], WORDS)
    names = {mention.object for mention in read_mentions(said, LEXICON)}
    assert set(drafts.named) == names - {"bus"}  # a sentence that was not finished is not read
    assert drafts.elsewhere("cat") == 1.0 and drafts.elsewhere("dog") == 0.5 and drafts.elsewhere("bus") == 0.0
    assert drafts.signals("cat", 1.5).elsewhere == 1.0 and drafts.signals("dog", 1.5).elsewhere == 0.0
    assert [spare.first for spare in drafts.spares] == [True, False, True]


def test_a_verdict_with_drafts_wants_them(tmp_path, packaged):
    signals = [Signals(n % 7 - 3.0, -1.0, 1.0, 3.0, 0.0, (n % 5) / 4) for n in range(100)]
    verdict = fit_verdict(signals, ["cat"] * 100, [n % 5 > 1 for n in range(100)])
    assert verdict.wants_drafts and verdict.written.weights["elsewhere"] > 0
    verdict.save(tmp_path / "v.json")
    assert "elsewhere" in json.loads((tmp_path / "v.json").read_text())["written"]["weights"]
    with pytest.raises(InvalidMethod, match="fitted with drafts"):
        described(packaged, f"confirm:lexicon=coco,verdict={tmp_path / 'v.json'}", "off", [0])
    described(packaged, f"confirm:lexicon=coco,drafts=1,verdict={tmp_path / 'v.json'}", "off", [0])


@pytest.mark.parametrize("drafts", [-1, 17])
def test_too_few_or_many(drafts):
    with pytest.raises(InvalidMethod, match="drafts="):
        seewhen.method("confirm", drafts=drafts)


def test_a_model_that_reads_prompts_both_ways_is_refused():
    with pytest.raises(UnsupportedMode, match="both ways"):
        generate("paligemma", confirm(drafts=2))


def test_where_layers_keep_no_columns_the_prompt_is_read_again():
    _, trace = generate("gemma3", confirm(on_denied="mark", drafts=2))
    assert all(v["elsewhere"] in (0.0, 0.5, 1.0) for told in trace.told for v in told["verdicts"])
