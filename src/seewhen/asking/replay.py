"""`replay`: feed a given continuation token by token and see what the method does at each.

For parity tests, and for auditing a caption that already exists: which of its words the model was
unsure of, where it looked, what it would have said instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from seewhen.asking.attach import attach
from seewhen.backbones.backbone import Backbone
from seewhen.decoding.method import Method
from seewhen.decoding.trace import Trace
from seewhen.errors import InvalidInput

_NO_TOKEN = 2**31 - 1


@dataclass(frozen=True, repr=False)
class Replay:
    """Row 0 of every tensor is after the prompt, row t after feeding token t-1.

    For one sequence the tensors are (steps, ...); for a batch (rows, steps, ...). `gates` is true where a
    layer was tilted; `entropy` of layer l is that of the layer's output (NaN where the method did not
    read it); `relevance` is per image token.
    """

    logits: Tensor  # raw, of the main row
    scores: Tensor  # after the method's logit rule
    gates: Tensor  # (steps, layers), bool
    entropy: Tensor  # (steps, layers)
    relevance: Tensor  # (steps, image tokens)
    trace: Trace

    def __repr__(self) -> str:
        return f"Replay({self.trace!r})"


class _Force(LogitsProcessor):
    """Make the sampler choose the given tokens."""

    def __init__(self, tokens: Tensor, prompt_length: int) -> None:
        self.tokens, self.prompt_length = tokens, prompt_length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        step = input_ids.shape[1] - self.prompt_length
        # The last step has no given token: its scores are what we want, its choice is dropped.
        token = self.tokens[:, min(step, self.tokens.shape[1] - 1), None].to(scores.device)
        return torch.full_like(scores, -torch.inf).scatter(1, token, 0.0)


def replay(
    model: Any,
    inputs: Mapping[str, Any],
    tokens: Tensor | Sequence[int],
    method: str | Method = "cai",
    *,
    relevance_layers: tuple[int, ...] = (),
    head_layers: tuple[int, ...] = (),
    backbone: Backbone | None = None,
) -> Replay:
    """Feed a given continuation token by token, and see what `method` does at each.

    Args:
        model: A vision-language model of transformers.
        inputs: The prompt, as its processor gives it.
        tokens: The continuation, (steps,) or (rows, steps).
        method: A method, or text such as `"cai:paper"`.
        relevance_layers: Relevance read at these source layers too.
        head_layers: The attention of each head of these layers.
        backbone: How the model is built, where that cannot be told from the model.

    Returns:
        Logits, scores, gates, entropy and relevance of every step, and the whole trace.
    """
    ids = torch.as_tensor(tokens, dtype=torch.long)
    ids = ids[None] if ids.dim() == 1 else ids
    prompt = inputs.get("input_ids")
    rows, prompt_length = (1, 0) if prompt is None else prompt.shape
    if ids.dim() != 2 or ids.shape[0] != rows or ids.shape[1] == 0:
        raise InvalidInput(
            f"tokens has shape {tuple(ids.shape)} for {rows} prompt row(s).",
            "Give one non-empty continuation per prompt: (steps,) or (rows, steps).",
        )
    looks: dict[str, Any] = {"relevance_layers": relevance_layers, "head_layers": head_layers}
    with attach(model, method, trace="replay", backbone=backbone, **looks) as handle:
        model.generate(
            **inputs,
            max_new_tokens=ids.shape[1] + 1,
            do_sample=False,
            num_beams=1,
            # A continuation may hold end-of-sequence tokens; an id no model has keeps the loop going.
            eos_token_id=_NO_TOKEN,
            pad_token_id=0,
            logits_processor=LogitsProcessorList([_Force(ids, prompt_length)]),
        )
        trace = handle.trace
    steps = ids.shape[1] + 1
    blank = torch.zeros(steps, rows, trace.num_layers, dtype=torch.bool)

    def per_row(tensor: Tensor) -> Tensor:
        return tensor[:steps, 0] if rows == 1 else tensor[:steps].transpose(0, 1)

    return Replay(
        logits=per_row(trace.logits),
        scores=per_row(trace.scores),
        gates=per_row(trace.tensors.get("gate", blank)),
        entropy=per_row(trace.entropy),
        relevance=per_row(trace.relevance),
        trace=trace,
    )
