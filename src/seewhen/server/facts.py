"""What a response tells of a trace: how many tokens fired, live facts while streaming, everything at the end."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from seewhen.asking.asker import seen_box
from seewhen.methods.grammar import label_of
from seewhen.showing.viewer.payload import Truth, answer_facts, answer_maps, attention_layers, packed
from seewhen.showing.viewer.word_risk import risk

if TYPE_CHECKING:
    from torch import Tensor

    from seewhen.asking.asker import Asker
    from seewhen.backbones.grids import ImageGrid
    from seewhen.decoding.sequence import CachedSequence
    from seewhen.decoding.session import Session
    from seewhen.decoding.trace import Trace
    from seewhen.server.jobs import Job


def fired(sequence: CachedSequence | None, row: int, tokens: int, steps: Tensor | None = None) -> int | None:
    """How many of a row's tokens were tilted; None where the method has no gate.

    `steps` (rows, tokens) says which pass made each token, where some were taken back.
    """
    gate = None if sequence is None else sequence.recorder.buffers.get("gate")
    if gate is None:
        return None
    made = gate[:tokens, row] if steps is None else gate[steps[row, :tokens].to(gate.device), row]
    return int(made.any(dim=-1).sum())


def told(known: dict[str, Any], text: str) -> dict[str, Any]:
    """What a method tells of an answer that a stop string may have cut off."""
    verdicts = known.get("verdicts")
    return known if verdicts is None else {**known, "verdicts": [v for v in verdicts if v["end"] <= len(text)]}


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


def full(trace: Trace, row: int, job: Job, text: str, asker: Asker, method: dict[str, Any]) -> dict[str, Any]:
    """The whole trace of one answer, as the viewer reads it."""
    grids = list(trace.grids)
    if row < len(grids):
        grids[row] = placed(grids[row], job, asker.processor)
        trace = trace.with_grids(tuple(grids))
    truth = None if job.objects is None else Truth(job.objects)
    facts = answer_facts(trace, label=label_of(method), text=text, row=row, special=asker.special, truth=truth)
    return facts | {"method": method, "maps": answer_maps(trace, attention_layers([trace]), row)}


def _rounded(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None
