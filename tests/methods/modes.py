"""Checks that several methods' tests share: goldens, and one method in all decoding modes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForImageTextToText, CompileConfig

import seewhen
import tiny
from seewhen.methods.base import Method

SHARED = Path(os.environ.get("SEEWHEN_SHARED", Path(__file__).parents[3] / "shared"))
GOLDEN = SHARED / "golden" / "llava"
needs_golden = pytest.mark.skipif(not GOLDEN.is_dir(), reason=f"golden files are not at {GOLDEN}")
FAMILIES = ("llava", "qwen2_5_vl", "qwen3_vl", "internvl")
NO_TOKEN = 2**31 - 1  # an end-of-sequence token that no model has


@cache
def golden_model() -> Any:
    return AutoModelForImageTextToText.from_pretrained(GOLDEN / "model").eval()


def golden(name: str) -> dict[str, Tensor]:
    return load_file(GOLDEN / f"{name}.safetensors")


def replay_golden(method: Method) -> seewhen.Replay:
    """`method` over the stored prompt and the first seven stored tokens."""
    stored = golden("inputs")
    inputs = {name: stored[name] for name in ("input_ids", "pixel_values")}
    return seewhen.replay(golden_model(), inputs, stored["continuation"][0, :7], method)


def close(ours: Tensor, theirs: Tensor, tolerance: float = 2e-4) -> None:
    """Equal to `tolerance`, and the same tokens removed."""
    torch.testing.assert_close(ours.float(), theirs.float(), atol=tolerance, rtol=0)


def tokens(rows: int = 1, steps: int = 5, seed: int = 3) -> Tensor:
    """A random continuation."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(tiny.FIRST_WORD, tiny.FIRST_WORD + tiny.WORDS, (rows, steps), generator=generator)


def generate(model: Any, inputs: Mapping[str, Any], method: str | Method, **options: Any) -> Any:
    """`generate` with `method`, scores returned."""
    settings = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": NO_TOKEN, "pad_token_id": 0}
    settings |= {"return_dict_in_generate": True, "output_logits": True, **options}
    with seewhen.attach(model, method):
        return model.generate(**inputs, **settings)


def batch_equals_singles(family: str, method: Method, tolerance: float = 1e-4) -> None:
    """A left-padded batch gives each row what it gets alone."""
    model, continuation = tiny.model(family), tokens(rows=2)
    together = seewhen.replay(model, tiny.inputs(family, rows=2), continuation, method)
    for row in range(2):
        alone = seewhen.replay(model, tiny.inputs(family, rows=2, only=row), continuation[row], method)
        close(together.scores[row], alone.scores, tolerance)


def changes_something(family: str, method: Method) -> None:
    """The method is not a no-op on this family."""
    model, continuation, inputs = tiny.model(family), tokens()[0], tiny.inputs(family)
    ours = seewhen.replay(model, inputs, continuation, method).scores
    stock = seewhen.replay(model, inputs, continuation, "regular").scores
    assert ours.shape == stock.shape and not ours.isnan().any()
    assert ((ours.softmax(-1) - stock.softmax(-1)).abs().amax(dim=-1) > 1e-5).any()


def equals_stock(family: str, method: Method) -> None:
    """Bit for bit what the model does alone, in every step."""
    model, continuation, inputs = tiny.model(family), tokens()[0], tiny.inputs(family)
    ours = seewhen.replay(model, inputs, continuation, method).scores
    stock = seewhen.replay(model, inputs, continuation, "regular").scores
    assert torch.equal(ours, stock)


def static_equals_dynamic(family: str, method: Method) -> None:
    """A static cache, eager and traced as one graph without breaks, changes nothing."""
    model, inputs = tiny.model(family, num_hidden_layers=3), tiny.inputs(family, rows=2)
    expected = generate(model, inputs, method)
    static = generate(model, inputs, method, cache_implementation="static", disable_compile=True)
    assert static.sequences.tolist() == expected.sequences.tolist()
    close(torch.stack(static.logits), torch.stack(expected.logits), 1e-4)
    if not type(method).compiles:
        return
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    config = CompileConfig(fullgraph=True, dynamic=False, backend="eager", mode=None)
    config._compile_all_devices = True
    compiled = generate(model, inputs, method, cache_implementation="static", compile_config=config)
    # The model is one graph; a logit rule, which runs in a hook on the outermost module, is a second.
    assert 1 <= counters["stats"]["unique_graphs"] <= 2 and not counters["graph_break"]
    assert compiled.sequences.tolist() == expected.sequences.tolist()
    close(torch.stack(compiled.logits), torch.stack(expected.logits), 1e-4)


def beams_carry_their_state(family: str, method: Method) -> None:
    """The score of the best beam is what its tokens get when they are fed one by one."""
    model, inputs = tiny.model(family), tiny.inputs(family, rows=2)
    found = generate(model, inputs, method, num_beams=3, length_penalty=0.0, output_scores=True)
    prompt = inputs["input_ids"].shape[1]
    for row in range(2):
        chosen = found.sequences[row, prompt:]
        single = tiny.inputs(family, rows=2, only=row)
        log_probs = seewhen.replay(model, single, chosen[:-1], method).scores.log_softmax(dim=-1)
        total = log_probs.gather(1, chosen[:, None]).sum()
        torch.testing.assert_close(found.sequences_scores[row], total, atol=1e-3, rtol=0)


def same_without_cache(family: str, method: Method) -> None:
    """Every step equals a fresh pass over prompt and tokens: the method keeps no state."""
    model, inputs, continuation = tiny.model(family), tiny.inputs(family), tokens()[0]
    scores = seewhen.replay(model, inputs, continuation, method).scores
    for step in range(len(continuation) + 1):
        with seewhen.attach(model, method), torch.no_grad():
            fresh = model(**longer(inputs, continuation[None, :step]), use_cache=False).logits[0, -1]
        close(scores[step], fresh, 1e-4)


def longer(inputs: Mapping[str, Any], continuation: Tensor) -> dict[str, Any]:
    """The prompt with tokens after it, as arguments of the model."""
    result = dict(inputs)
    result["input_ids"] = torch.cat([inputs["input_ids"], continuation], dim=1)
    result["attention_mask"] = torch.cat([inputs["attention_mask"], torch.ones_like(continuation)], dim=1)
    for name in ("mm_token_type_ids", "token_type_ids"):
        if name in inputs:
            result[name] = torch.cat([inputs[name], torch.zeros_like(continuation).to(inputs[name])], dim=1)
    return result
