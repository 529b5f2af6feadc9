"""What `confirm` costs on a CPU: `python -m confirm.cost [--model photo]`.

Whole answers, one picture at a time, regular decoding and `confirm` by turns. Sampled with the same seeds. Ratios
are of processor time, which others on the machine do not change; seconds on the clock stand beside it. The test
photographs are not part of the repository, so the photo model describes the demonstration's three, several times.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from confirm.captions import Writer, noise
from confirm.material import Item, scenes
from confirm.settings import Run, confirm
from seewhen.scenes.photographs import photographs

RESULTS = Path(__file__).parent / "results"
FILES = {"packaged": RESULTS / "cost-cpu.json", "photo": RESULTS / "cost-cpu-photo.json"}
METHODS = {
    "regular": "regular",
    "mark": confirm(on_denied="mark"),
    "confirm": confirm(),
    "four drafts": confirm(drafts=4),
}
FIRST, TOKENS = 4000, 128


def answer(writer: Writer, item: Item, method: str) -> dict[str, float]:
    """One whole answer: seconds, tokens of the final text, questions, steps for each token."""
    import torch

    import seewhen

    run, tokenizer = Run("scenes-test", method, 0, tokens=TOKENS), writer.processor.tokenizer
    inputs, pad = writer.plain_inputs([item]), tokenizer.pad_token_id
    began, worked = time.perf_counter(), time.process_time()
    with seewhen.attach(writer.model, seewhen.method(method).prepare(tokenizer)) as handle, torch.inference_mode():
        output = writer.model.generate(
            **inputs,
            max_new_tokens=TOKENS,
            do_sample=False,
            logits_processor=noise(run, [item]),
            pad_token_id=pad,
        )
    seconds, worked = time.perf_counter() - began, time.process_time() - worked
    told: dict[str, Any] = handle.trace.told[0] if handle.trace.told else {}
    tokens = output.shape[1] - inputs["input_ids"].shape[1]
    return {
        "seconds": seconds,
        "processor": worked,
        "tokens": tokens,
        "asked": told.get("asked", 0),
        "taken_back": len(told.get("taken_back", ())),
    }


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Of sums, with its interval by drawing pictures again."""
    pairs = np.array([ours, theirs])
    drawn = np.random.default_rng(0).integers(0, pairs.shape[1], (2000, pairs.shape[1]))
    sums = pairs[:, drawn].sum(axis=2)
    low, high = np.quantile(sums[0] / sums[1], (0.025, 0.975))
    point = pairs[0].sum() / pairs[1].sum()
    return {"value": round(float(point), 3), "low": round(float(low), 3), "high": round(float(high), 3)}


def material(model: str, pictures: int) -> tuple[Item, ...]:
    """Drawn scenes, or the demonstration's photographs by turns: a name of its own is a seed of its own."""
    if model == "packaged":
        return scenes("shifted", FIRST, pictures)
    known = photographs()
    chosen = [(known[number % len(known)], number) for number in range(pictures)]
    return tuple(Item(f"{one.name}-{number}", str(one.path), frozenset(one.objects)) for one, number in chosen)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m confirm.cost", description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", type=int, default=60)
    parser.add_argument("--model", choices=tuple(FILES), default="packaged")
    given = parser.parse_args()
    import torch
    import transformers

    torch.set_num_threads(1)
    writer = Writer("photo" if given.model == "photo" else "scenes", 1, "cpu")
    items = material(given.model, given.pictures)
    for method in METHODS.values():
        answer(writer, items[0], method)  # the first call pays for what later ones find ready
    rows = {name: [] for name in METHODS}  # type: dict[str, list[dict[str, float]]]
    for number, item in enumerate(items):
        names = list(METHODS)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            rows[name].append(answer(writer, item, METHODS[name]))
    mean = {name: {key: float(np.mean([row[key] for row in own])) for key in own[0]} for name, own in rows.items()}
    worked = {name: [row["processor"] for row in own] for name, own in rows.items()}
    each = {name: [row["processor"] / row["tokens"] for row in own] for name, own in rows.items()}
    result = {
        "command": f"python -m confirm.cost --model {given.model} --pictures {given.pictures}",
        "machine": f"{torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "mean": mean,
        "whole answer": {name: ratio(worked[name], worked["regular"]) for name in METHODS if name != "regular"},
        "token of the final answer": {
            name: ratio(each[name], each["regular"]) for name in METHODS if name != "regular"
        },
    }
    FILES[given.model].write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
