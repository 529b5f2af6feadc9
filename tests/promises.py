"""What every method promises, as checks that a method's own tests call.

A method is checked on a tiny model of a family (`tiny.py`): off is stock, a batch is its rows alone, beams
carry their own state, a static cache is a growing one, a compiled step is an eager one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import CompileConfig, LogitsProcessor, LogitsProcessorList

import seewhen
import tiny
from seewhen.backbones.backbone import Backbone
from seewhen.decoding.method import Logits, Method, Parts

STEPS = 5
NEVER_A_TOKEN = 10**6
FAMILIES = ("llava", "qwen2_5_vl", "qwen3_vl", "internvl")  # for methods that are tested on a few
# Plain models that are right with a cache only: InstructBLIP hands embeddings to its language model, and
# PaliGemma (before transformers 5.22) takes generated tokens for a part of its two-way prefix.
NEEDS_CACHE = ("instructblip", "paligemma")


def generate(model: Any, inputs: Mapping[str, Any], method: str | Method | None = None, **options: Any) -> Any:
    """`generate`, with `method` if one is given; logits and scores are returned too."""
    options = {"max_new_tokens": STEPS, "do_sample": False, "eos_token_id": NEVER_A_TOKEN, **options}
    options |= {"return_dict_in_generate": True, "output_logits": True, "output_scores": True}
    if method is None:
        return model.generate(**inputs, **options)
    with seewhen.attach(model, method):
        return model.generate(**inputs, **options)


def logits_of(output: Any) -> Tensor:
    """(rows, steps, vocabulary)"""
    return torch.stack(output.logits, dim=1)


def new_tokens(output: Any) -> Tensor:
    """(rows, steps)"""
    return output.sequences[:, -len(output.logits) :]


def rounding(family: str) -> float:
    """How far the logits of one prompt may differ between batches of other widths; they are about 10.

    Measured over ATEN_CPU_CAPABILITY=default, avx2 and avx512: 2e-5, and 6e-4 for qwen3_5, whose linear attention
    inverts a triangular matrix of single precision (in double precision the difference is zero). Five times that.
    """
    return {"qwen3_5": 3e-3}.get(family, 1e-4)


def close(a: Tensor, b: Tensor, tolerance: float = 1e-4) -> None:
    """Equal to `tolerance`, and the same tokens removed."""
    assert torch.equal(torch.isneginf(a), torch.isneginf(b))
    torch.testing.assert_close(a, b, atol=tolerance, rtol=1e-4)


def some_tokens(rows: int = 1, steps: int = STEPS, seed: int = 5) -> Tensor:
    """A continuation to feed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(tiny.FIRST_WORD, tiny.FIRST_WORD + tiny.WORDS, (rows, steps), generator=generator)


def longer(inputs: Mapping[str, Any], continuation: Tensor) -> dict[str, Any]:
    """The prompt with tokens after it, as arguments of the model."""
    result = dict(inputs)
    result["input_ids"] = torch.cat([inputs["input_ids"], continuation], dim=1)
    result["attention_mask"] = torch.cat([inputs["attention_mask"], torch.ones_like(continuation)], dim=1)
    for name in ("mm_token_type_ids", "token_type_ids"):
        if name in inputs:
            result[name] = torch.cat([inputs[name], torch.zeros_like(continuation).to(inputs[name])], dim=1)
    return result


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


def check_off(family: str, method: Method) -> None:
    """A method of strength zero is the plain model, bit for bit."""
    model, inputs = tiny.model(family), tiny.inputs(family, rows=2)
    stock = generate(model, inputs)
    output = generate(model, inputs, method)
    assert torch.equal(output.sequences, stock.sequences)
    assert torch.equal(logits_of(output), logits_of(stock))


def check_acts(family: str, method: Method, *, first: bool = True) -> None:
    """Scores change by more than a cut and a constant, so that the identities mean something; those of the
    first token already, unless `first` is off."""
    model, inputs, continuation = tiny.model(family), tiny.inputs(family), some_tokens()[0]
    ours = seewhen.replay(model, inputs, continuation, method).scores
    stock = seewhen.replay(model, inputs, continuation, "regular").scores.log_softmax(dim=-1)
    assert ours.shape == stock.shape and not ours.isnan().any()
    gaps = []
    for step in range(1 if first else len(ours)):
        kept = torch.isfinite(ours[step])
        assert kept.sum() > 1 or not first
        gap = (ours[step] - stock[step])[kept]
        gaps.append(float(gap.max() - gap.min()))
    assert max(gaps) > 1e-3


def check_batch(family: str, method: Method, tolerance: float | None = None) -> None:
    """A left-padded batch of rows with other texts and images is its rows alone."""
    model = tiny.model(family)
    with seewhen.attach(model, method):
        batch = generate(model, tiny.inputs(family, rows=3))
        for row in range(3):
            single = generate(model, tiny.inputs(family, rows=3, only=row))
            assert torch.equal(new_tokens(batch)[row], new_tokens(single)[0])
            close(logits_of(batch)[row], logits_of(single)[0], tolerance or rounding(family))


def require_sound_beams(family: str) -> None:
    """Up to 5.17, transformers mixes the tiles of an image when it makes rows for beams (docs/models.md)."""
    model, inputs = tiny.model(family), tiny.inputs(family)
    output = generate(model, inputs, num_beams=2, max_new_tokens=1)
    alone = torch.log_softmax(generate(model, inputs, max_new_tokens=1).logits[0], dim=-1)
    if abs(float(output.sequences_scores[0] - alone.max())) > 1e-4:
        pytest.skip("this version of transformers gives beams other images than single rows")


def check_beams(family: str, method: Method, rows: int = 2, num_beams: int = 3) -> None:
    """Each beam carries its own state: the best sequence, fed by itself, has the score the search gave it."""
    require_sound_beams(family)
    model = tiny.model(family)
    output = generate(model, tiny.inputs(family, rows=rows), method, num_beams=num_beams, length_penalty=0.0)
    for row in range(rows):
        tokens = output.sequences[row, -STEPS:]
        alone = seewhen.replay(model, tiny.inputs(family, rows=rows, only=row), tokens, method)
        scores = torch.log_softmax(alone.scores, dim=-1)[:STEPS].gather(1, tokens[:, None])
        close(output.sequences_scores[row], scores.sum(), 5e-4)


def check_without_cache(family: str, method: Method) -> None:
    """Every step equals a fresh pass over prompt and tokens: the method keeps no state."""
    model, inputs, continuation = tiny.model(family), tiny.inputs(family), some_tokens()[0]
    scores = seewhen.replay(model, inputs, continuation, method).scores
    for step in range(len(continuation) + 1):
        with seewhen.attach(model, method), torch.no_grad():
            fresh = model(**longer(inputs, continuation[None, :step]), use_cache=False).logits[0, -1]
        close(scores[step], fresh, rounding(family))


def check_static_cache(family: str, method: Method) -> None:
    """A static cache equals a growing one."""
    model, inputs = tiny.model(family), tiny.inputs(family, rows=2)
    with seewhen.attach(model, method):
        growing = generate(model, inputs)
        static = generate(model, inputs, cache_implementation="static", disable_compile=True)
    assert torch.equal(growing.sequences, static.sequences)
    close(logits_of(growing), logits_of(static), rounding(family))


def check_compiled(family: str, method: Method, layers: int = 4) -> None:
    """The step traces without breaks, and computes the same. Tracing takes long, by the layer."""
    model, inputs = tiny.model(family, num_hidden_layers=layers), tiny.inputs(family, rows=2)
    config = CompileConfig(fullgraph=True, dynamic=False, backend="eager", mode=None)
    config._compile_all_devices = True
    torch.compiler.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    with seewhen.attach(model, method):
        eager = generate(model, inputs)
        compiled = generate(model, inputs, cache_implementation="static", compile_config=config)
    # The model is one graph; a logit rule, which runs in a hook on the outermost module, is a second.
    assert 1 <= counters["stats"]["unique_graphs"] <= 2 and not counters["graph_break"]
    assert torch.equal(eager.sequences, compiled.sequences)
    close(logits_of(eager), logits_of(compiled), rounding(family))
