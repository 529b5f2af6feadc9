"""What a judge costs: questions aside and sentences taken back, beside regular decoding, in one run.

    python benchmarks/speed/confirm_cost.py --out benchmarks/speed/results/confirm_cost.json

The model has a published shape and random weights, which say nothing: a plan stands for what it would say. An
answer has five sentences of equal length; three of them name one new object each; one of the five is taken back
once. All variants are timed in turns, whole answers with their prompt, and the ratio of each round counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

import seewhen
from seewhen.asking.attach import Attachment
from seewhen.backbones.backbone import Backbone
from seewhen.backbones.shapes import random_inputs, random_model, shape_config
from seewhen.decoding.aside import Aside
from seewhen.decoding.judge import Judge, Newest, Ruling
from seewhen.decoding.method import Method, Parts
from seewhen.runs.versions import package_versions

SENTENCES, ASKED, AGAIN, QUESTION = 5, (0, 2, 4), 1, 18
CAPTURING = 2  # rounds that do not count: the first captures steps, the second prompts
NEVER = 10**6  # no token; a least number of tokens would have to be looked after by the host


class Plan(Judge):
    """Asks about the sentences of `ASKED`, takes sentence `AGAIN` back once."""

    def __init__(self, aside: Aside, tokens: int, asks: bool, takes_back: bool) -> None:
        self.aside, self.asks, self.takes_back = aside, asks, takes_back
        self.length = tokens // SENTENCES
        self.taken = False

    def ruling(self, newest: Newest) -> Ruling:
        rows, said = len(newest.tokens), len(newest.tokens[0])
        if said % self.length:
            return Ruling([False] * rows)
        sentence = said // self.length - 1
        if self.asks and sentence in ASKED:
            logits = self.aside.ask(range(rows), [[7] * QUESTION] * rows)
            (logits[:, 3] - logits[:, 4]).tolist()  # the odds, on the host
        if self.takes_back and sentence == AGAIN and not self.taken:
            self.taken = True
            return Ruling([False] * rows, [True] * rows)
        return Ruling([True] * rows)


@dataclass(frozen=True)
class Planned(Method):
    """A method that is its judge."""

    name: ClassVar[str] = "planned"
    tokens: int = 125
    asks: bool = False
    takes_back: bool = False

    def parts(self, backbone: Backbone) -> Parts:
        """The judge."""
        budget = 2.0 if self.takes_back else 1.0
        return Parts(judge=lambda a: Plan(a, self.tokens, self.asks, self.takes_back), budget=budget)


def measure(model: Any, inputs: dict[str, Any], tokens: int, rounds: int) -> dict[str, Any]:
    """Seconds of whole answers, variant by variant, in turns."""
    on_gpu, batch = torch.cuda.is_available(), len(inputs["input_ids"])
    options = {"max_new_tokens": tokens, "eos_token_id": NEVER, "do_sample": False, "pad_token_id": 0}
    variants: dict[str, Method] = {
        "regular": seewhen.method("regular"),
        "judge": Planned(tokens),
        "questions": Planned(tokens, asks=True),
        "taken back": Planned(tokens, takes_back=True),
        "both": Planned(tokens, asks=True, takes_back=True),
    }
    attachments = {name: Attachment.of(model, m) for name, m in variants.items()}
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds + CAPTURING):
        for name, attachment in attachments.items():
            with attachment.placed(), torch.inference_mode():
                _wait(on_gpu)
                started = time.perf_counter()
                model.generate(**inputs, **options)
                _wait(on_gpu)
                if number >= CAPTURING:
                    seconds[name].append(time.perf_counter() - started)
    return {"batch": batch, "tokens": tokens, "seconds": seconds, "ratios": ratios(seconds)}


def _wait(on_gpu: bool) -> None:
    if on_gpu:
        torch.cuda.synchronize()


def ratios(seconds: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Each variant against regular decoding of the same round: median, lowest, highest."""
    found = {}
    for name, times in seconds.items():
        each = [mine / theirs for mine, theirs in zip(times, seconds["regular"], strict=True)]
        found[name] = {"median": statistics.median(each), "low": min(each), "high": max(each)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="shape:llava-1.5-7b")
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--tokens", type=int, default=125)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    place = {"device": "cuda", "dtype": torch.bfloat16} if on_gpu else {"device": "cpu", "dtype": torch.float32}
    config = shape_config(given.shape)
    model = random_model(config, **place)
    found = [
        measure(model, random_inputs(config, rows=batch, images=1, **place), given.tokens, given.rounds)
        for batch in given.batch
    ]
    device = torch.cuda.get_device_name() if on_gpu else "CPU"
    result = {"shape": given.shape, "device": device, "versions": package_versions(), "measured": found}
    for one in found:
        print(one["batch"], json.dumps(one["ratios"], indent=1))
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
