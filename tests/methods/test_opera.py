"""OPERA: the original code's numbers, its formula, and a beam search that is stock when it should be."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import seewhen
import tiny
from seewhen.errors import InvalidMethod, UnsupportedMode
from seewhen.methods.opera_columns import AttentionWatch, column_logs, strongest_column

SHARED = Path(os.environ.get("SEEWHEN_SHARED", Path(__file__).parents[3] / "shared"))
GOLDEN = SHARED / "golden" / "llava"
needs_golden = pytest.mark.skipif(not GOLDEN.is_dir(), reason=f"golden files are not at {GOLDEN}")


def search(model: Any, inputs: dict[str, Any], method: seewhen.Method, **kwargs: Any) -> tuple[Any, list[Any]]:
    """The output of `generate`, and every choice the search made."""
    with seewhen.attach(model, method) as handle:
        output = model.generate(**inputs, **kwargs)
        sequence = handle.session.last
        assert sequence is not None
        watched = next(
            memory
            for one, memory in zip(sequence.interventions, sequence.memories, strict=True)
            if isinstance(one, AttentionWatch)
        )
        return output, watched.choices


@pytest.fixture(scope="module")
def golden_model() -> Any:
    from transformers import AutoModelForImageTextToText

    return AutoModelForImageTextToText.from_pretrained(GOLDEN / "model").eval()


def golden_run(model: Any, **parameters: Any) -> tuple[Any, list[Any]]:
    stored = load_file(GOLDEN / "inputs.safetensors")
    inputs = {name: stored[name] for name in ("input_ids", "pixel_values")}
    method = seewhen.method("opera", candidates=4, **parameters)
    output, choices = search(model, inputs, method, num_beams=3, max_new_tokens=24, eos_token_id=2, pad_token_id=0)
    return output[0, stored["input_ids"].shape[1] :], choices


@needs_golden
@pytest.mark.parametrize("parity", [True, False])
def test_golden_without_rollback(golden_model: Any, parity: bool) -> None:
    """Every beam of every step; without rollback the repaired search agrees to the float16 rounding."""
    golden = load_file(GOLDEN / "opera.safetensors")
    tokens, choices = golden_run(golden_model, reference_parity=parity)
    assert tokens.tolist() == golden["sequence"].tolist()
    assert [choice.position + 10 for choice in choices] == golden["length"].tolist()
    for name in ("tokens", "beams", "scores"):
        ours = torch.stack([getattr(choice, name) for choice in choices])
        theirs = golden["beam_" + {"beams": "indices"}.get(name, name)]
        torch.testing.assert_close(ours.float(), theirs.float(), atol=2e-4, rtol=0)


@needs_golden
def test_golden_with_rollback(golden_model: Any) -> None:
    """The first 45 choices, the number of all choices (156, with many rollbacks) and the final answer."""
    golden = load_file(GOLDEN / "opera_rollback.safetensors")
    tokens, choices = golden_run(golden_model, reference_parity=True, threshold=3, earliest_rollback=1)
    assert len(choices) == int(golden["total_steps"])
    assert tokens.tolist() == golden["sequence"].tolist()
    known = choices[: len(golden["length"])]
    assert [choice.position + 10 for choice in known] == golden["length"].tolist()
    for name in ("tokens", "beams", "scores"):
        ours = torch.stack([getattr(choice, name) for choice in known])
        theirs = golden["beam_" + {"beams": "indices"}.get(name, name)]
        torch.testing.assert_close(ours.float(), theirs.float(), atol=2e-4, rtol=0)


@needs_golden
def test_repaired_rollback_differs_only_after_the_second(golden_model: Any) -> None:
    """Up to the second rollback both agree; which of the four listed repairs parts them was not isolated."""
    golden = load_file(GOLDEN / "opera_rollback.safetensors")
    _, choices = golden_run(golden_model, threshold=3, earliest_rollback=1)
    same = [
        choice.tokens.tolist() == tokens and choice.position + 10 == length
        for choice, tokens, length in zip(
            choices, golden["beam_tokens"].tolist(), golden["length"].tolist(), strict=False
        )
    ]
    assert same.index(False) == 18


def test_column_products() -> None:
    """Window rows (0.02), (0.03, 0.05), scale 50: phi = (1.5e-7, 2.5e-7)."""
    logs = column_logs(torch.zeros(1, 0), torch.tensor([[0.02]]), 50.0)
    logs = column_logs(logs, torch.tensor([[0.03, 0.05]]), 50.0)
    torch.testing.assert_close(1e-7 * logs.exp(), torch.tensor([[1.5e-7, 2.5e-7]]))
    value, column = strongest_column(logs, rounded=False)
    assert column.tolist() == [1]
    torch.testing.assert_close(value, torch.tensor([2.5e-7]))
    # In float16 the second lies between two multiples of 2**-24, the smallest number there is.
    value, column = strongest_column(logs, rounded=True)
    assert value.item() == 4 * 2**-24


def test_columns_before_the_response_never_count() -> None:
    """Not even where all others are zero, or rounded to it: the first column of the response is the strongest."""
    logs = torch.tensor([[5.0, -torch.inf, -torch.inf], [5.0, -90.0, -80.0]])
    valid = torch.tensor([False, True, True]).expand(2, -1)
    assert strongest_column(logs, False, valid)[1].tolist() == [1, 2]
    value, column = strongest_column(logs, True, valid)
    assert column.tolist() == [1, 1] and value.tolist() == [0.0, 0.0]


def test_penalty_stays_finite() -> None:
    """Columns all later tokens lean on have products beyond any float: ordered, and finite, all the same."""
    logs = torch.tensor([[400.0, 300.0]])
    value, column = strongest_column(logs, rounded=False)
    assert column.item() == 0 and value.isfinite().all()
    assert strongest_column(logs, rounded=True)[0].isinf().all()


@pytest.mark.parametrize("eos", [tiny.EOS, [5, 17, 40, 71, 90, 101]])
@pytest.mark.parametrize("early_stopping", [False, True, "never"])
def test_no_weight_and_all_candidates_is_stock_beam_search(eos: Any, early_stopping: Any) -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava")
    options = {
        "num_beams": 3,
        "max_new_tokens": 9,
        "eos_token_id": eos,
        "pad_token_id": tiny.BOS,  # transformers fills with the first end token where padding is 0
        "early_stopping": early_stopping,
        "length_penalty": 0.7,
        "num_return_sequences": 2,
        "return_dict_in_generate": True,
        "output_scores": True,
    }
    method = seewhen.method("opera", weight=0.0, candidates=tiny.VOCABULARY, threshold=1000)
    stock = model.generate(**inputs, **options)
    ours, _ = search(model, inputs, method, **options)
    assert ours.sequences.tolist() == stock.sequences.tolist()
    torch.testing.assert_close(ours.sequences_scores, stock.sequences_scores, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("family", "at_once"),
    [("llava", 3), *((name, 4) for name in ("llava", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "internvl", "gemma3"))],
)
@pytest.mark.slow
def test_families_and_batches(family: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A left-padded batch makes every choice its rows make alone, with rollbacks at different places and times."""
    monkeypatch.setattr("seewhen.methods.opera_search.prompts_at_once", lambda *_: at_once)
    model = tiny.model(family)
    method = seewhen.method("opera", threshold=2, earliest_rollback=0, candidates=3, warmup=4)
    options = {"num_beams": 2, "max_new_tokens": 14, "pad_token_id": tiny.PAD}
    batch = tiny.inputs(family, rows=4)
    together, choices = search(model, batch, method, **options)
    prompt, steps, backs = batch["input_ids"].shape[1], iter(choices), []
    for row in range(4):
        single = tiny.inputs(family, rows=4, only=row)
        alone, expected = search(model, single, method, **options)
        new = alone[0, single["input_ids"].shape[1] :].tolist()
        assert together[row, prompt : prompt + len(new)].tolist() == new
        for ours, its in zip(itertools.islice(steps, len(expected)), expected, strict=True):
            assert (ours.position, ours.tokens.tolist()) == (its.position, its.tokens.tolist())
        positions = [choice.position for choice in expected]
        backs.append([b for a, b in itertools.pairwise(positions) if b <= a])
    assert next(steps, None) is None
    assert sum(map(len, backs)) > 3 and len({tuple(one) for one in backs}) > 1


def test_trace_is_of_the_answer() -> None:
    """A full trace has the answer's own attention, not that of everything that was tried."""
    model, inputs = tiny.model("llava"), tiny.inputs("llava", rows=2)
    method = seewhen.method("opera", candidates=3, threshold=3, earliest_rollback=1)
    options = {"num_beams": 2, "max_new_tokens": 8}
    with seewhen.attach(model, method, trace=True) as handle:
        output = model.generate(**inputs, **options)
        trace = handle.trace
    prompt = inputs["input_ids"].shape[1]
    assert trace.tokens.T.tolist() == output[:, prompt:].tolist()
    replayed = seewhen.replay(model, inputs, output[:, prompt:-1], "regular")
    torch.testing.assert_close(trace.entropy[:8], replayed.trace.entropy[:8], atol=1e-4, rtol=1e-4)


def test_too_few_candidates_still_fill_the_beams() -> None:
    """The `fast` preset has one candidate per beam, and the first step has one beam."""
    model, inputs = tiny.model("llava"), tiny.inputs("llava")
    output, choices = search(model, inputs, seewhen.method("opera:fast"), num_beams=3, max_new_tokens=6)
    assert output.shape[1] == inputs["input_ids"].shape[1] + 6
    assert all(choice.scores.isfinite().all() for choice in choices)


def test_processors_are_honoured() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava")
    method = seewhen.method("opera", candidates=3)
    free, _ = search(model, inputs, method, num_beams=2, max_new_tokens=6)
    banned = int(free[0, inputs["input_ids"].shape[1]])
    output, _ = search(model, inputs, method, num_beams=2, max_new_tokens=6, bad_words_ids=[[banned]])
    assert banned not in output[0, inputs["input_ids"].shape[1] :].tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "num_beams=1"),
        ({"num_beams": 2, "do_sample": True}, "do_sample=True"),
        ({"num_beams": 2, "cache_implementation": "static"}, "static cache"),
        ({"num_beams": 2, "streamer": object()}, "streamer"),
        ({"num_beams": 2, "num_return_sequences": 3}, "3 sequences of 2 beams"),
    ],
)
def test_modes_it_cannot_run_in(options: dict[str, Any], message: str) -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava")
    with seewhen.attach(model, "opera"), pytest.raises(UnsupportedMode, match=message):
        model.generate(**inputs, max_new_tokens=2, **options)


@pytest.mark.parametrize(
    "parameters", [{"candidates": 0}, {"scale": 0.0}, {"threshold": 0}, {"weight": -1.0}, {"warmup": -1}]
)
def test_bad_parameters(parameters: dict[str, Any]) -> None:
    with pytest.raises(InvalidMethod, match="opera"):
        seewhen.method("opera", **parameters)
