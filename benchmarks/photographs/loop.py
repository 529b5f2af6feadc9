"""One training loop for all stages: AdamW, cosine decay by steps or by the clock, log lines, checkpoints."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from photographs.recipe import Stage
from seewhen.atomic import replacing

WARM_UP = 0.03  # share of the stage


class Log:
    """Lines of JSON, also printed."""

    def __init__(self, path: Path) -> None:
        self._path, self._began = path, time.monotonic()
        path.parent.mkdir(parents=True, exist_ok=True)

    def __call__(self, **facts: Any) -> None:
        line = json.dumps({"seconds": round(time.monotonic() - self._began, 1), **facts})
        print(line, flush=True)
        with self._path.open("a", encoding="utf-8") as handle:
            handle.write(line + "\n")


def rate_at(progress: float) -> float:
    """Share of the peak rate at a point of the stage, 0 to 1."""
    if progress < WARM_UP:
        return max(progress / WARM_UP, 0.01)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (progress - WARM_UP) / (1 - WARM_UP))))


def save_weights(weights: dict[str, Tensor], path: Path, step: int = 0) -> None:
    with replacing(path) as part:
        save_file({n: t.detach().contiguous().cpu() for n, t in weights.items()}, part, {"step": str(step)})


def load_weights(path: Path) -> tuple[dict[str, Tensor], int]:
    with safe_open(path, "pt") as file:
        step = int((file.metadata() or {}).get("step", 0))
    return load_file(path), step


def train(
    name: str,
    stage: Stage,
    groups: Sequence[dict[str, Any]],
    backward: Callable[[int], dict[str, Tensor]],
    log: Log,
    *,
    first: int = 0,
    keep: Callable[[int], None] | None = None,
    check: Callable[[int], None] | None = None,
    check_every: int = 0,
) -> None:
    """All steps. `backward(step)` computes gradients and returns the losses to log; `groups` as AdamW takes them,
    each with its own peak `lr`; `keep` is called every minute to save; `check` at the start and every so often.

    The rate falls to zero with the last step or with the stage's last minute, whichever comes first.
    """
    parameters: list[nn.Parameter] = [p for group in groups for p in group["params"]]
    cuda = parameters[0].is_cuda
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), weight_decay=0.05, fused=cuda)
    peaks = [group["lr"] for group in optimizer.param_groups]
    began = kept = time.monotonic()
    checking = 0.0  # seconds spent on looks at the validation photographs do not count
    every = max(1, min(50, stage.steps // 5))
    sums: dict[str, Tensor] = {}
    counted, step = 0, first
    for step in range(first, stage.steps):
        if check and step % check_every == 0:
            start = time.monotonic()
            check(step)
            checking += time.monotonic() - start
        spent = (time.monotonic() - began - checking) / (60 * stage.minutes)
        if spent >= 1:
            log(stage=name, step=step, note="time is up")
            break
        share = rate_at(max(step / stage.steps, spent))
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * share
        for key, loss in backward(step).items():
            sums[key] = sums.get(key, torch.zeros((), device=loss.device)) + loss.detach()
        counted += 1
        norm = nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if (step + 1) % every == 0 or step + 1 == stage.steps:
            losses = {key: round(float(total) / counted, 4) for key, total in sums.items()}
            pace = (step + 1 - first) * stage.batch / (time.monotonic() - began - checking)
            log(stage=name, step=step + 1, **losses, norm=round(float(norm), 3), per_second=round(pace, 1))
            sums, counted = {}, 0
        if keep and time.monotonic() - kept > 60:
            keep(step + 1)
            kept = time.monotonic()
    if check:
        check(step + 1)
