"""What a response tells of a trace: how many tokens fired, live facts while streaming, everything at the end."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from seewhen.cli.asking import seen_box
from seewhen.viewer.payload import _packed, answer_facts, answer_maps, attention_layers
from seewhen.viewer.words import risk

if TYPE_CHECKING:
    from seewhen.sequence import Sequence
    from seewhen.server.jobs import Job
    from seewhen.trace import Trace


def fired(sequence: Sequence | None, row: int, tokens: int) -> int | None:
    """How many of a row's tokens were tilted; None where the method has no gate."""
    gate = None if sequence is None else sequence.recorder.buffers.get("gate")
    return None if gate is None else int(gate[:tokens, row].any(dim=-1).sum())


def live(sequence: Sequence | None, row: int, token: int, text: str) -> dict[str, Any]:
    """What is known of the token just chosen: doubt, fired layers, the weights that looked at the image."""
    facts: dict[str, Any] = {"id": token, "text": text}
    if sequence is None:
        return facts
    buffers, step = sequence.recorder.buffers, int(sequence.recorder.step)
    if "entropy" in buffers:
        known = [value for value in buffers["entropy"][step, row].tolist() if value == value]
        if known:
            facts |= {"entropy": round(known[-1], 4), "risk": round(risk(known[-1]) or 0.0, 4)}
    if "gate" in buffers:
        facts["fired"] = buffers["gate"][step, row].nonzero().flatten().tolist()
    if "relevance" in buffers:
        count = int(sequence.image.valid[row].sum())
        facts["relevance"] = _packed(buffers["relevance"][step, row, :count].cpu())
    return facts


def full(trace: Trace, row: int, job: Job, text: str, processor: Any, method: dict[str, Any]) -> dict[str, Any]:
    """The whole trace of one answer, as the viewer reads it."""
    grids = list(trace.grids)
    if row < len(grids):
        grids[row] = tuple(
            dataclasses.replace(grid, box=seen_box(processor, job.images[grid.image].size))
            if grid.kind == "image" and grid.image < len(job.images)
            else grid
            for grid in grids[row]
        )
        trace = trace.with_grids(tuple(grids))
    tokenizer = getattr(processor, "tokenizer", processor)
    special = frozenset(tokenizer.all_special_ids)
    facts = answer_facts(trace, label=str(method["method"]), text=text, row=row, special=special)
    return facts | {"method": method, "maps": answer_maps(trace, attention_layers([trace]), row)}
