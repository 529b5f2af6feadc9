"""A judge between steps: asking aside, taking back. What it does not touch is stock decoding bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import seewhen
import tiny
from every_family import spread
from seewhen.backbones.backbone import Backbone
from seewhen.decoding.aside import Aside, Place
from seewhen.decoding.judge import Judge, Newest, Ruling
from seewhen.decoding.method import Method, Parts
from seewhen.errors import UnsupportedMode

TOKENS = 8
NEVER = 10**6
QUESTION = [tiny.FIRST_WORD + k for k in (3, 1, 4, 1, 5)]
families = pytest.mark.parametrize("family", tiny.FAMILIES)


@dataclass(frozen=True)
class Judged(Method):
    """A method that is nothing but its judge, or a judge beside another method."""

    name: ClassVar[str] = "judged"
    needs_image: ClassVar[bool] = False
    make: Callable[[Aside], Judge] = lambda aside: Judge()
    beside: Method | None = None
    budget: float = 1.0

    def parts(self, backbone: Backbone) -> Parts:
        other = Parts() if self.beside is None else self.beside.parts(backbone)
        return Parts(other.interventions, other.branches, other.rule, judge=self.make, budget=self.budget)


def generate(model: Any, inputs: dict[str, Any], **options: Any) -> Any:
    options = {"max_new_tokens": TOKENS, "do_sample": False, "eos_token_id": NEVER, "pad_token_id": 0, **options}
    return model.generate(**inputs, **options, return_dict_in_generate=True, output_logits=True)


class Asks(Judge):
    """Asks at every step and changes nothing."""

    def __init__(self, aside: Aside, after: Place, answers: list[Tensor]) -> None:
        self.aside, self.after, self.answers = aside, after, answers

    def ruling(self, newest: Newest) -> Ruling:
        rows = range(len(newest.tokens))
        self.answers.append(self.aside.ask([*rows, 0], [*[QUESTION] * len(rows), QUESTION[:3]], self.after))
        return super().ruling(newest)


def asked_plainly(model: Any, row_inputs: dict[str, Any], ids: list[int], after: Place) -> Tensor:
    """The plain model's logits after the row's prompt, or that up to its last image token, and `ids`."""
    prompt = row_inputs["input_ids"][0]
    backbone = Backbone.of(model)
    end = len(prompt) if after == "prompt" else int(backbone.image_mask(prompt[None])[0].nonzero().max()) + 1
    given = dict(row_inputs)
    given["input_ids"] = torch.cat([prompt[:end], torch.tensor(ids)])[None]
    given["attention_mask"] = torch.ones_like(given["input_ids"])
    for name in ("mm_token_type_ids", "token_type_ids"):
        if name in given:
            given[name] = torch.nn.functional.pad(given[name][:, :end], (0, len(ids)))
    with torch.no_grad():
        return generate(model, given, max_new_tokens=1).logits[0][0]


@pytest.mark.parametrize(("family", "fast", "after"), spread(tiny.FAMILIES, ["off", "graph"], ["image", "prompt"]))
def test_a_question_is_a_prompt_of_its_own(family, fast, after):
    model, inputs, answers = tiny.model(family), tiny.inputs(family, rows=2, text_lengths=(5, 8)), []
    stock = generate(model, inputs)
    method = Judged(lambda aside: Asks(aside, after, answers))
    with seewhen.attach(model, method, fast=fast):
        output = generate(model, inputs)
    with seewhen.attach(model, "regular", fast=fast):
        regular = generate(model, inputs)
    assert torch.equal(output.sequences, stock.sequences)  # the running sequence never notices
    assert all(torch.equal(a, b) for a, b in zip(output.logits, regular.logits, strict=True))
    for row, ids in ((0, QUESTION), (1, QUESTION), (0, QUESTION[:3])):
        single = tiny.inputs(family, rows=2, text_lengths=(5, 8), only=row)
        expected = asked_plainly(model, single, ids, after)
        place = row if ids is QUESTION else 2
        for answer in (answers[0], answers[-1]):
            torch.testing.assert_close(answer[place], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["llava", "qwen2_vl", "qwen3_5"])
def test_a_question_after_the_answer_so_far(family):
    model, inputs, answers = tiny.model(family), tiny.inputs(family), []
    with seewhen.attach(model, Judged(lambda aside: Asks(aside, "now", answers))):
        output = generate(model, inputs)
    # After n tokens n - 1 are in the cache: asking the newest one and a word is going on.
    tokens = output.sequences[0, -TOKENS:].tolist()
    for after, answer in enumerate(answers[1:], start=1):
        given = dict(inputs)
        words = torch.tensor([tokens[:after] + QUESTION])
        given["input_ids"] = torch.cat([inputs["input_ids"], words], dim=1)
        given["attention_mask"] = torch.ones_like(given["input_ids"])
        if "mm_token_type_ids" in given:
            given["mm_token_type_ids"] = torch.nn.functional.pad(given["mm_token_type_ids"], (0, words.shape[1]))
        expected = generate(model, given, max_new_tokens=1).logits[0][0]
        torch.testing.assert_close(answer[0], expected, atol=1e-4, rtol=1e-4)


def test_the_tower_runs_once():
    model, inputs, answers, passes = tiny.model("llava"), tiny.inputs("llava", rows=2), [], []
    tower = model.model.vision_tower
    handle = tower.register_forward_hook(lambda *_: passes.append(1))
    try:
        with seewhen.attach(model, Judged(lambda aside: Asks(aside, "image", answers))):
            generate(model, inputs)
    finally:
        handle.remove()
    assert len(passes) == 1 and len(answers) == TOKENS


@families
@pytest.mark.parametrize(("fast", "sampled"), [("off", False), ("graph", False), ("off", True)])
def test_a_judge_that_does_nothing_is_regular_decoding(family, fast, sampled):
    model, inputs = tiny.model(family), tiny.inputs(family, rows=2, text_lengths=(5, 8))
    ends = list(range(tiny.FIRST_WORD, tiny.FIRST_WORD + 20))
    options = {"do_sample": sampled, "top_k": 0, "eos_token_id": ends}
    outputs = []
    for method in ("regular", Judged()):
        torch.manual_seed(3)
        with seewhen.attach(model, method, fast=fast):
            outputs.append(generate(model, inputs, **options))
    assert torch.equal(outputs[0].sequences, outputs[1].sequences)
    for row, tokens in enumerate(outputs[0].sequences[:, -len(outputs[0].logits) :].tolist()):
        length = next((n for n, token in enumerate(tokens, start=1) if token in ends), len(tokens))
        ours, stock = (torch.stack(output.logits, dim=1)[row, :length] for output in outputs)
        assert torch.equal(ours, stock)


class Again(Judge):
    """Takes every `length` tokens back once, and forbids the first of them from then on."""

    def __init__(self, aside: Aside, length: int = 3, only: Sequence[int] = (0, 1)) -> None:
        self.length, self.only = length, only
        self.forbidden: dict[int, list[int]] = {row: [] for row in range(aside.sequence.rows)}
        self.settled = [0] * aside.sequence.rows
        self.tried: dict[int, int] = {}

    def scores(self, tokens: Sequence[list[int]], scores: Tensor) -> Tensor:
        scores = scores.clone()
        for row, words in self.forbidden.items():
            scores[row, words] = -torch.inf
        return scores

    def ruling(self, newest: Newest) -> Ruling:
        settle, again = [False] * len(newest.tokens), [False] * len(newest.tokens)
        for row, tokens in enumerate(newest.tokens):
            if not newest.running[row] or len(tokens) - self.settled[row] < self.length:
                continue
            if row in self.only and self.tried.get(row) != self.settled[row]:
                self.tried[row] = self.settled[row]
                self.forbidden[row].append(tokens[self.settled[row]])
                again[row] = True
            else:
                settle[row], self.settled[row] = True, len(tokens)
        return Ruling(settle, again)


class AgainAhead(Again):
    """The same, before cuts; a captured step may run ahead of it."""

    def logits(self, tokens: Sequence[list[int]], logits: Tensor) -> Tensor:
        return super().scores(tokens, logits)

    def scores(self, tokens: Sequence[list[int]], scores: Tensor) -> Tensor:
        return scores

    def accepts(self, tokens: Sequence[list[int]], chosen: Sequence[int | None]) -> bool:
        return not any(token in self.forbidden[row] for row, token in enumerate(chosen))


class Expects:
    """What `Again` leaves: where its sentences begin, one more token is forbidden from there on."""

    def __init__(self, length: int = 3) -> None:
        self.length, self.step = length, 0
        self.words: list[list[int]] = []

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        scores = scores.clone()
        if not self.words:
            self.words = [[] for _ in scores]
        for row, words in enumerate(self.words):
            scores[row, words] = -torch.inf
            if self.step % self.length == 0 and self.step + self.length <= TOKENS:
                words.append(int(scores[row].argmax()))
                scores[row, words] = -torch.inf
        self.step += 1
        return scores


WAYS = [("off", Again), ("graph", Again), ("graph", AgainAhead)]
METHODS = {
    "alone": None,
    "adaptive gate": seewhen.method("cai", start_layer=0),
    "contrast": seewhen.method("cai", start_layer=0, threshold=-1.0, contrast=3.0),
}


@pytest.mark.parametrize(("family", "way", "beside"), spread(tiny.FAMILIES, WAYS, list(METHODS)))
def test_taken_back_is_as_if_never_said(family, way, beside):
    fast, judge = way
    if beside == "contrast" and family in ("gemma3", "paligemma"):
        beside = "alone"
    model, inputs = tiny.model(family), tiny.inputs(family, rows=2, text_lengths=(5, 8))
    other = METHODS[beside]
    if family == "gemma3":  # its window slides over columns that were taken back
        with (
            seewhen.attach(model, Judged(judge, other, 3.0), fast=fast),
            pytest.raises(UnsupportedMode, match="last 8"),
        ):
            generate(model, inputs)
        return
    with seewhen.attach(model, other or "regular", fast="off"):
        expected = generate(model, inputs, logits_processor=[Expects()])
    with seewhen.attach(model, Judged(judge, other, 3.0), fast=fast) as handle:
        output = generate(model, inputs)
        trace = handle.trace
    assert torch.equal(output.sequences, expected.sequences)
    for a, b in zip(output.logits, expected.logits, strict=True):
        torch.testing.assert_close(a, b, atol=2e-4, rtol=1e-3)
    assert torch.equal(trace.tokens.T, output.sequences[:, -TOKENS:])


@pytest.mark.parametrize(("fast", "judge"), WAYS)
def test_rows_go_back_by_themselves(fast, judge):
    model = tiny.model("llava")
    inputs = tiny.inputs("llava", rows=3)
    make = lambda aside: judge(aside, only=(1,))  # noqa: E731
    with seewhen.attach(model, Judged(make, budget=3.0), fast=fast):
        batch = generate(model, inputs)
    with seewhen.attach(model, "regular", fast=fast):
        regular = generate(model, inputs)
    for row in (0, 2):
        assert torch.equal(batch.sequences[row], regular.sequences[row])
    with seewhen.attach(model, Judged(lambda aside: judge(aside, only=(0,)), budget=3.0), fast=fast):
        single = generate(model, tiny.inputs("llava", rows=3, only=1))
    assert torch.equal(batch.sequences[1, -TOKENS:], single.sequences[0, -TOKENS:])
    assert not torch.equal(batch.sequences[1], regular.sequences[1])


class Collects:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.prompt = True

    def put(self, value: Tensor) -> None:
        if not self.prompt:
            self.tokens += value.reshape(-1).tolist()
        self.prompt = False

    def end(self) -> None:
        self.tokens.append(-1)


@pytest.mark.parametrize(("fast", "judge"), WAYS)
def test_a_streamer_never_sees_what_is_taken_back(fast, judge):
    model, inputs, streamer = tiny.model("llava"), tiny.inputs("llava"), Collects()
    with seewhen.attach(model, Judged(judge, budget=3.0), fast=fast):
        output = generate(model, inputs, streamer=streamer)
    assert streamer.tokens == [*output.sequences[0, -TOKENS:].tolist(), -1]


def passes(model: Any, make: Callable[[Aside], Judge], **options: Any) -> tuple[int, Tensor]:
    """How often the decoder runs in captured steps, and what comes out."""
    counted: list[int] = []
    handle = Backbone.of(model).decoder.register_forward_hook(lambda *_: counted.append(1))
    try:
        with seewhen.attach(model, Judged(make, budget=3.0), fast="graph"):
            sequences = generate(model, tiny.inputs("llava"), **options).sequences
    finally:
        handle.remove()
    return len(counted), sequences


def test_a_step_runs_ahead_of_its_judge_by_one():
    """What the judge lets through costs no pass; what it takes back, or refuses, one more."""
    model = tiny.model("llava")
    plain, expected = passes(model, lambda aside: Judge())
    assert plain == TOKENS
    waits, sequences = passes(model, Again)
    ahead, same = passes(model, AgainAhead)
    assert torch.equal(sequences, same) and not torch.equal(sequences, expected)
    assert waits < ahead <= waits + 2 * (TOKENS // 3)
    scored, as_plain = passes(model, lambda aside: Judge(), output_scores=True)  # the host needs the scores
    assert scored == TOKENS and torch.equal(as_plain, expected)


@pytest.mark.parametrize("options", [{"top_k": 0}, {"top_k": 5}, {"min_p": 0.2, "top_k": 0, "temperature": 2.0}])
def test_sampled_ahead_of_its_judge(options):
    """A judge without wishes gets what regular captured steps draw; one with wishes never sees them broken."""
    model, inputs, drawn = tiny.model("llava"), tiny.inputs("llava", rows=2), []
    for method in ("regular", Judged()):
        torch.manual_seed(5)
        with seewhen.attach(model, method, fast="graph"):
            drawn.append(generate(model, inputs, do_sample=True, **options).sequences)
    assert torch.equal(*drawn)
    for seed in range(6):
        judges: list[AgainAhead] = []
        make = lambda aside, judges=judges: judges.append(AgainAhead(aside)) or judges[-1]  # noqa: E731
        torch.manual_seed(seed)
        with seewhen.attach(model, Judged(make, budget=3.0), fast="graph"):
            output = generate(model, inputs, do_sample=True, **options).sequences[:, -TOKENS:].tolist()
        for row, words in judges[0].forbidden.items():
            assert len(words) == TOKENS // 3
            for number, word in enumerate(words):
                assert word not in output[row][3 * number :]


@pytest.mark.parametrize("options", [{"num_beams": 2}, {"num_return_sequences": 2, "do_sample": True}])
def test_what_a_judge_cannot_do_is_refused(options):
    model = tiny.model("llava")
    with seewhen.attach(model, Judged()), pytest.raises(UnsupportedMode, match="judged cannot run"):
        generate(model, tiny.inputs("llava"), **options)
