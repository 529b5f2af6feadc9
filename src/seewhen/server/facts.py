"""What a response tells of a trace: how many tokens fired, live facts while streaming, everything at the end."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from seewhen.cli.asking import seen_box
from seewhen.viewer.payload import Truth, answer_facts, answer_maps, attention_layers, packed
from seewhen.viewer.words import risk

if TYPE_CHECKING:
    from seewhen.grids import ImageGrid
    from seewhen.intervene import Session
    from seewhen.sequence import Sequence
    from seewhen.server.jobs import Job
    from seewhen.trace import Trace


def fired(sequence: Sequence | None, row: int, tokens: int) -> int | None:
    """How many of a row's tokens were tilted; None where the method has no gate."""
    gate = None if sequence is None else sequence.recorder.buffers.get("gate")
    return None if gate is None else int(gate[:tokens, row].any(dim=-1).sum())


def live(session: Session, row: int, token: int, text: str) -> dict[str, Any]:
    """What is known of the token just chosen: doubt, fired layers, the weights that looked at the image."""
    facts: dict[str, Any] = {"id": token, "text": text}
    sequence = session.last
    if sequence is None:
        return facts
    buffers, step = sequence.recorder.buffers, int(sequence.recorder.step)
    if "entropy" in buffers:
        nats = math.log(session.entropy_base)
        layers = [_rounded(value * nats) for value in buffers["entropy"][step, row].tolist()]
        known = [value for value in layers if value is not None]
        if known:
            facts |= {"entropy": known[-1], "risk": _rounded(risk(known[-1]) or 0.0), "entropy_by_layer": layers}
    if "gate" in buffers:
        facts["fired"] = buffers["gate"][step, row].nonzero().flatten().tolist()
    if "relevance" in buffers:
        count = int(sequence.image.valid[row].sum())
        facts["relevance"] = packed(buffers["relevance"][step, row, :count].cpu())
    return facts


def placed(grids: tuple[ImageGrid, ...], job: Job, processor: Any) -> tuple[ImageGrid, ...]:
    """Grids with the part of each picture that the processor did not crop away."""
    return tuple(
        dataclasses.replace(grid, box=seen_box(processor, job.images[grid.image].size))
        if grid.kind == "image" and grid.image < len(job.images)
        else grid
        for grid in grids
    )


def full(trace: Trace, row: int, job: Job, text: str, processor: Any, method: dict[str, Any]) -> dict[str, Any]:
    """The whole trace of one answer, as the viewer reads it."""
    grids = list(trace.grids)
    if row < len(grids):
        grids[row] = placed(grids[row], job, processor)
        trace = trace.with_grids(tuple(grids))
    tokenizer = getattr(processor, "tokenizer", processor)
    special = frozenset(tokenizer.all_special_ids)
    truth = None if job.objects is None else Truth(job.objects)
    facts = answer_facts(trace, label=str(method["method"]), text=text, row=row, special=special, truth=truth)
    return facts | {"method": method, "maps": answer_maps(trace, attention_layers([trace]), row)}


def _rounded(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None
