"""From a trace to plain data: what `--json` prints and what the page shows.

`answer_facts` is small and readable; `answer_maps` adds what only a picture can show. A map is a list
of bytes between its own `low` and `high`, one byte per image token, base64: a 7B model's answer stays
under a megabyte. The page finds token t's maps under number t:

- `similarity`: the cosine of token t's own embedding with each image token: the evidence for it;
- `relevance`: the weights with which the step that chose token t looked at the image, whose query is
  the token before;
- `before`, `after`: attention on the image while token t was chosen, by layer, mean over heads.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from seewhen.showing.viewer.object_words import marked
from seewhen.showing.viewer.word_risk import group, risk, word_risk

if TYPE_CHECKING:
    from torch import Tensor

    from seewhen.asking.one_picture import Cost
    from seewhen.decoding.trace import Trace

FORMAT = 1
MOST_MAP_BYTES = 12_000_000  # of one answer; beyond it, attention is kept as a mean over layers only


@dataclass(frozen=True)
class Truth:
    """What the picture really shows."""

    objects: tuple[str, ...]


def answer_facts(
    trace: Trace,
    *,
    label: str,
    text: str,
    row: int = 0,
    special: Collection[int] = (),
    cost: Cost | None = None,
    truth: Truth | None = None,
) -> dict[str, Any]:
    """One answer: its words, their risk, what fired, what it cost."""
    tokens = _tokens(trace, row, frozenset(special))
    spoken = [index for index, token in enumerate(tokens) if not token["special"]]
    risks = [tokens[index]["risk"] for index in spoken]
    words: list[dict[str, Any]] = [
        {
            "text": word.text,
            "start": spoken[word.start],
            "end": spoken[word.end - 1] + 1,
            "risk": word_risk(word, risks),
        }
        for word in group([tokens[index]["text"] for index in spoken])
    ]
    told = trace.told[row] if _has_verdicts(trace, row) else None
    return {
        "label": label,
        "method": trace.method,
        "text": text,
        "words": words,
        "tokens": tokens,
        "layers": trace.num_layers,
        "tilted_layers": list(trace.tilted_layers),
        "fired": {"tokens": trace.fired_tokens()[row], "of": trace.lengths[row]} if trace.tilted_layers else None,
        "cost": None if cost is None else asdict(cost),
        "asked": marked(words, None if truth is None else truth.objects, told),
    }


def _has_verdicts(trace: Trace, row: int) -> bool:
    """Whether the method asked: what others tell has another form."""
    return row < len(trace.told) and "verdicts" in trace.told[row]


def _tokens(trace: Trace, row: int, special: frozenset[int]) -> list[dict[str, Any]]:
    tensors, length = trace.row(row), trace.lengths[row]
    texts = trace.texts[row] if trace.texts else ("",) * length
    gate, entropy = tensors.get("gate"), tensors.get("entropy")
    nats = math.log(trace.entropy_base)
    found = []
    for step in range(length):
        token = int(trace.tokens[step, row])
        deepest = None if entropy is None else _deepest((entropy[step] * nats).tolist())
        runners = _runners(trace, row, step)
        found.append(
            {
                "id": token,
                "text": texts[step],
                "special": token in special,
                "entropy": _rounded(deepest),
                "risk": _rounded(risk(deepest)),
                "probability": next((r["probability"] for r in runners if r["id"] == token), None),
                "fired": [] if gate is None else gate[step].nonzero().flatten().tolist(),
                "runners": runners,
            }
        )
    return found


def _deepest(entropies: list[float]) -> float | None:
    """The output's entropy in a full trace; in a summary, that of the deepest layer the gate read."""
    return next((value for value in reversed(entropies) if not math.isnan(value)), None)


def _runners(trace: Trace, row: int, step: int) -> list[dict[str, Any]]:
    if "top_ids" not in trace.tensors:
        return []
    ids = trace.tensors["top_ids"][step, row].tolist()
    chances = trace.tensors["top_log_probs"][step, row].exp().tolist()
    texts = trace.runner_texts[row][step] if trace.runner_texts else ("",) * len(ids)
    # A plausibility cut leaves some of the five at probability zero: they were not choices.
    return [
        {"id": token, "text": text, "probability": _rounded(chance)}
        for token, text, chance in zip(ids, texts, chances, strict=True)
        if chance > 0
    ]


def answer_maps(trace: Trace, layers: Sequence[int], row: int = 0) -> dict[str, Any]:
    """Entropy by layer, thresholds and the maps of one answer. `layers` are those whose attention is kept."""
    tensors = trace.row(row)
    count = trace.image_tokens[row]
    size = trace.lengths[row] * count * 2 * max(len(layers), 1)
    kept = list(layers) if size <= MOST_MAP_BYTES else []
    maps: dict[str, Any] = {"attention_layers": kept}
    for name in ("similarity", "relevance"):
        if name in tensors:
            maps[name] = [packed(weights[:count]) for weights in tensors[name]]
    for name, key in (("before", "attention_before"), ("after", "attention_after")):
        if key not in tensors or not layers:
            continue
        attention = tensors[key][:, list(layers), :count]
        maps[name] = [[packed(layer) for layer in step] for step in attention[:, : len(kept)]]
        maps[f"{name}_mean"] = [packed(step.nanmean(dim=0)) for step in attention]
    nats = math.log(trace.entropy_base)
    for name, unit in (("entropy", nats), ("threshold", nats), ("mass_before", 1.0), ("mass_after", 1.0)):
        if name in tensors:
            maps[name] = [[_rounded(value) for value in step] for step in (tensors[name] * unit).tolist()]
    grids = trace.grids[row] if trace.grids else ()
    maps["grids"] = [asdict(grid) for grid in grids]
    return maps


def attention_layers(traces: Sequence[Trace]) -> tuple[int, ...]:
    """The layers worth a picture: all that any method tilted, else the last quarter."""
    tilted = {layer for trace in traces for layer in trace.tilted_layers}
    if tilted or not traces:
        return tuple(sorted(tilted))
    layers = traces[0].softmax_layers
    return layers[-max(len(layers) // 4, 1) :]


def page_payload(
    answers: Sequence[dict[str, Any]],
    images: Sequence[dict[str, Any]],
    *,
    model: str,
    prompt: str,
    truth: Truth | None = None,
    about: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """All that a page shows. `about` says how the answers were decoded."""
    return {
        "format": FORMAT,
        "model": model,
        "prompt": prompt,
        "images": list(images),
        "truth": None if truth is None else list(truth.objects),
        "about": about or {},
        "answers": list(answers),
    }


def packed(values: Tensor) -> dict[str, Any]:
    """A map as bytes between its lowest and highest value."""
    import torch

    values = values.float().nan_to_num(0.0)
    if not values.numel():
        return {"low": 0.0, "high": 0.0, "bytes": ""}
    low, high = float(values.min()), float(values.max())
    scaled = (values - low) / (high - low) if high > low else torch.zeros_like(values)
    data = (scaled * 255).round().to(torch.uint8).numpy().tobytes()
    return {"low": _short(low), "high": _short(high), "bytes": base64.b64encode(data).decode()}


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 4)


def _short(value: float) -> float:
    return float(f"{value:.4g}")
