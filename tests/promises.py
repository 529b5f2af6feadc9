"""What every method promises, as checks that a method's own tests call; and the golden files.

A method is checked on a tiny model of a family (`tiny.py`): a batch is its rows alone, beams carry
their own state, a static cache is a growing one, a compiled step is an eager one.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForImageTextToText, CompileConfig, LogitsProcessor, LogitsProcessorList

import seewhen
import tiny
from seewhen.backbone import Backbone
from seewhen.methods.base import Logits, Method, Parts

STEPS = 4
NEVER_A_TOKEN = 10**6
# Plain models that are right with a cache only: InstructBLIP hands embeddings to its language model, and
# PaliGemma (before transformers 5.22) takes generated tokens for a part of its two-way prefix.
NEEDS_CACHE = ("instructblip", "paligemma")


def generate(model: Any, inputs: dict[str, Any], **options: Any) -> Any:
    options = {"max_new_tokens": STEPS, "do_sample": False, "eos_token_id": NEVER_A_TOKEN, **options}
    return model.generate(**inputs, **options, return_dict_in_generate=True, output_logits=True)


def logits_of(output: Any) -> Tensor:
    """(rows, steps, vocabulary)"""
    return torch.stack(output.logits, dim=1)


def close(a: Tensor, b: Tensor, tolerance: float = 1e-4) -> None:
    assert torch.equal(torch.isneginf(a), torch.isneginf(b))
    torch.testing.assert_close(a, b, atol=tolerance, rtol=1e-4)


def some_tokens(rows: int, steps: int = STEPS) -> Tensor:
    """A continuation to feed."""
    return torch.randint(3, 120, (rows, steps), generator=torch.Generator().manual_seed(5))


class Forced(LogitsProcessor):
    """Makes `generate` follow given tokens (rows, steps)."""

    def __init__(self, tokens: Tensor) -> None:
        self.tokens, self.step = tokens, 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        token = self.tokens[:, self.step, None]
        self.step += 1
        return torch.full_like(scores, -torch.inf).scatter(1, token, 0.0)


def stock_logits(model: Any, inputs: dict[str, Any], tokens: Tensor, **options: Any) -> Tensor:
    """Logits (rows, steps, vocabulary) of the plain model that is fed `tokens`, without a cache."""
    forced = LogitsProcessorList([Forced(tokens)])
    return logits_of(
        generate(
            model,
            inputs,
            max_new_tokens=tokens.shape[1],
            logits_processor=forced,
            **{"use_cache": False, **options},
        )
    )


@dataclass(frozen=True)
class Watched(Method):
    """Another method whose rule also keeps what it saw: (main, branch) logits of each step."""

    inner: Method = field(default_factory=Method)
    seen: list[tuple[Tensor, ...]] = field(default_factory=list)

    def parts(self, backbone: Backbone) -> Parts:
        parts = self.inner.parts(backbone)
        rule: Callable[[Logits], Tensor] | None = parts.rule
        assert rule is not None

        def watch(logits: Logits) -> Tensor:
            self.seen.append((logits.main, *logits.branches))
            return rule(logits)

        return replace(parts, rule=watch)

    def branch(self) -> Tensor:
        """The first branch's logits: (rows, steps, vocabulary)."""
        return torch.stack([step[1] for step in self.seen], dim=1)


def branch_logits(model: Any, inputs: dict[str, Any], tokens: Tensor, method: Method, **options: Any) -> Tensor:
    """Logits (rows, steps, vocabulary) of the first branch while `tokens` are fed."""
    watched = Watched(method)
    with seewhen.attach(model, watched):
        stock_logits(model, inputs, tokens, use_cache=True, **options)
    return watched.branch()


# -- promises ----------------------------------------------------------------------------------------------


def check_batch(family: str, method: Method) -> None:
    """A left-padded batch of rows with other texts and images is its rows alone."""
    model = tiny.model(family)
    with seewhen.attach(model, method):
        batch = generate(model, tiny.inputs(family, rows=3))
        for row in range(3):
            single = generate(model, tiny.inputs(family, rows=3, only=row))
            assert torch.equal(batch.sequences[row, -STEPS:], single.sequences[0, -STEPS:])
            close(logits_of(batch)[row], logits_of(single)[0])


def check_beams(family: str, method: Method) -> None:
    """Each beam carries its own state: the best sequence, fed by itself, has the score the search gave it."""
    model = tiny.model(family)
    plain = torch.log_softmax(generate(model, tiny.inputs(family), max_new_tokens=1).logits[0], dim=-1)
    beams = generate(model, tiny.inputs(family), max_new_tokens=1, num_beams=2, output_scores=True)
    if abs(float(beams.sequences_scores[0] - plain.max())) > 1e-4:
        pytest.skip("this version of transformers mixes the tiles of an image when it makes rows for beams")
    with seewhen.attach(model, method):
        output = generate(model, tiny.inputs(family, rows=2), num_beams=3, output_scores=True)
    for row in range(2):
        tokens = output.sequences[row, -STEPS:]
        alone = seewhen.replay(model, tiny.inputs(family, rows=2, only=row), tokens, method)
        scores = torch.log_softmax(alone.scores, dim=-1)[:STEPS].gather(1, tokens[:, None])
        close(output.sequences_scores[row], scores.sum() / STEPS)


def check_static_cache(family: str, method: Method) -> None:
    """A static cache equals a growing one."""
    model, inputs = tiny.model(family), tiny.inputs(family, rows=2)
    with seewhen.attach(model, method):
        growing = generate(model, inputs)
        static = generate(model, inputs, cache_implementation="static")
    assert torch.equal(growing.sequences, static.sequences)
    close(logits_of(growing), logits_of(static))


def check_compiled(family: str, method: Method) -> None:
    """The step traces as one graph, and computes the same."""
    model, inputs = tiny.model(family), tiny.inputs(family, rows=2)
    config = CompileConfig(fullgraph=True, backend="eager", mode=None)
    config._compile_all_devices = True
    torch.compiler.reset()
    with seewhen.attach(model, method):
        eager = generate(model, inputs)
        compiled = generate(model, inputs, cache_implementation="static", compile_config=config)
    assert torch.equal(eager.sequences, compiled.sequences)
    close(logits_of(eager), logits_of(compiled))


def check_off(family: str, method: Method) -> None:
    """A method of strength zero is the plain model, bit for bit."""
    model, inputs = tiny.model(family), tiny.inputs(family, rows=2)
    stock = generate(model, inputs)
    with seewhen.attach(model, method):
        output = generate(model, inputs)
    assert torch.equal(output.sequences, stock.sequences)
    assert torch.equal(logits_of(output), logits_of(stock))


def check_acts(family: str, method: Method) -> None:
    """The first token's scores change by more than a cut and a constant, so that the identities mean something."""
    model, inputs = tiny.model(family), tiny.inputs(family)
    stock = torch.log_softmax(generate(model, inputs).logits[0], dim=-1)
    with seewhen.attach(model, method):
        output = generate(model, inputs).logits[0]
    kept = torch.isfinite(output)
    assert kept.sum() > 1
    gap = (output - stock)[kept]
    assert gap.max() - gap.min() > 1e-3


# -- goldens -----------------------------------------------------------------------------------------------


@functools.cache
def golden_folder() -> Path:
    shared = os.environ.get("SEEWHEN_SHARED") or Path(__file__).resolve().parents[2] / "shared"
    folder = Path(shared) / "golden" / "llava"
    if not folder.is_dir():
        pytest.skip("the golden files are not here: set SEEWHEN_SHARED to the folder that holds golden/")
    return folder


def golden(name: str) -> dict[str, Tensor]:
    """Tensors computed by a method's own released code."""
    return load_file(golden_folder() / f"{name}.safetensors")


@functools.cache
def golden_model() -> Any:
    return AutoModelForImageTextToText.from_pretrained(golden_folder() / "model").eval()


def golden_replay(method: Method) -> tuple[seewhen.Replay, dict[str, Tensor]]:
    """The method over the golden prompt and its continuation; and the golden inputs."""
    given = golden("inputs")
    prompt = {name: given[name] for name in ("input_ids", "pixel_values")}
    prompt["attention_mask"] = torch.ones_like(prompt["input_ids"])
    return seewhen.replay(golden_model(), prompt, given["continuation"][0], method), given


def matches(ours: Tensor, theirs: Tensor) -> None:
    """Equal to 2e-4 over the rows that are stored, and cut at the same tokens."""
    close(ours[: len(theirs)], theirs, 2e-4)
