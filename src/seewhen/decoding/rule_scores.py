"""What a method's rule or judge gives back: scores of the right form, which something can be chosen by.

A wrong form is refused at once. What the numbers are is known on the device only, where a step must not wait for
it: it is written down there, and read when the call has ended.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from seewhen.decoding.recorder import Recorder
from seewhen.errors import InvalidMethod

_LOST = "lost"


def check_form(name: str, scores: Any, like: Tensor) -> None:
    """Refuse scores that are not one number for each row and token: some would be stretched to fit."""
    if not isinstance(scores, Tensor):
        raise InvalidMethod(f"{name} gave {type(scores).__name__} for scores, not a tensor.", "Return them.")
    if scores.shape != like.shape or not scores.is_floating_point():
        raise InvalidMethod(
            f"{name} gave scores {tuple(scores.shape)} of {scores.dtype}, where {tuple(like.shape)} of a floating "
            "kind are needed.",
            "Return a score for each row and token, as the logits have it.",
        )


def record(recorder: Recorder, scores: Tensor, main: Tensor, first: bool) -> None:
    """Where another token became the likeliest, and where none can be chosen though the model's own logits can."""
    if first:
        for name in ("changed", _LOST):
            recorder.declare(name, scores.shape[:1], fill=False)
    best, own = scores.argmax(dim=-1, keepdim=True), main.argmax(dim=-1, keepdim=True)
    recorder.write("changed", (best != own)[:, 0])
    # The largest number is NaN where any is.
    lost = ~(scores.gather(-1, best) > -math.inf) & (main.gather(-1, own) > -math.inf)
    recorder.write(_LOST, lost[:, 0])


def refuse_lost(name: str, recorder: Recorder) -> None:
    """Refuse answers with tokens that were chosen by no number."""
    lost = recorder.buffers.get(_LOST)
    if lost is not None and bool(torch.any(lost)):
        raise InvalidMethod(
            f"{name} gave scores that nothing can be chosen by: NaN, or -inf for every token.",
            "Look at its rule; seewhen.replay shows the scores of each token.",
        )
