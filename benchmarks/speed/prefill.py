"""Where the time to the first token goes, in parts, and what captured passes save: one process, methods in turns.

    python benchmarks/speed/prefill.py --out benchmarks/speed/results/prefill.json

Ways: `loop` is transformers' own loop, `steps` captures the steps but not the prompt, `prompts` captures the
prompt too. For each way and method: milliseconds until the first token is chosen (events on a GPU), until the
host has it (a streamer), and the parts of one call: before the tower, tower, merge (tower to decoder), decoder,
head and rest.
In a replayed pass a part is what the device took, and the host is free meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import LogitsProcessorList
from transformers.generation.streamers import BaseStreamer

import seewhen
from seewhen.asking.attach import Attachment
from seewhen.backbones.shapes import random_inputs, random_model, shape_config
from seewhen.decoding.fast.prompts import Passes
from seewhen.runs.versions import package_versions
from seewhen.speed.measure import FirstChoice, Mark, interval, settle

WAYS = ("loop", "steps", "prompts")
METHODS = ("regular", "cai", "cai:contrast=3", "vcd")


class Heard(BaseStreamer):
    """When the host had the first token."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Nothing to do."""


@contextlib.contextmanager
def way_of(way: str) -> Iterator[None]:
    """Without captured prompts, unless they are wanted."""
    stock = Passes.of
    if way != "prompts":
        Passes.of = lambda self, known, make: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        Passes.of = stock  # type: ignore[method-assign]


class Parts:
    """Marks at the borders of tower, decoder and head in one `generate` call."""

    def __init__(self, model: Any) -> None:
        self.backbone = seewhen.Backbone.of(model)
        self.marks: dict[str, Mark] = {}
        self.host = model.base_model

    @contextlib.contextmanager
    def placed(self) -> Iterator[None]:
        """Inside, the next call is marked."""
        self.marks.clear()
        inner = self.host.get_image_features  # the replaying one, where there is one

        @functools.wraps(inner)
        def looked(*args: Any, **kwargs: Any) -> Any:
            self._mark("tower")
            output = inner(*args, **kwargs)
            self._mark("merge")
            return output

        own = vars(self.host).get("get_image_features")
        vars(self.host)["get_image_features"] = looked
        hooks = [
            self.backbone.decoder.register_forward_pre_hook(lambda *_: self._mark("decoder")),
            self.backbone.decoder.register_forward_hook(lambda *_: self._mark("head")),
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            vars(self.host).pop("get_image_features")
            if own is not None:
                vars(self.host)["get_image_features"] = own

    def _mark(self, name: str) -> None:
        self.marks.setdefault(name, Mark())

    def split(self, begin: Mark, end: Mark) -> dict[str, dict[str, float]]:
        """Milliseconds of each part, on the device and on the host."""
        order = [("before", begin), *((n, self.marks[n]) for n in ("tower", "merge", "decoder", "head"))]
        times = [mark for _, mark in order] + [end]
        return {
            name: {"device": mark.until(after), "host": 1000 * (after.host - mark.host)}
            for (name, mark), after in zip(order, times[1:], strict=True)
        }


def call(model: Any, attachment: Attachment, inputs: dict[str, Any], parts: Parts | None = None) -> dict[str, Any]:
    """One call of eight tokens: milliseconds until the first is chosen and until it is heard."""
    watch, heard = FirstChoice(), Heard()
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with attachment.placed(), contextlib.ExitStack() as stack:
        if parts is not None:
            stack.enter_context(parts.placed())
        settle()
        begin = Mark()
        model.generate(**inputs, **options, logits_processor=LogitsProcessorList([watch]), streamer=heard)
        settle()
    assert watch.mark is not None
    found = {"chosen": begin.until(watch.mark), "heard": 1000 * (heard.times[1] - begin.host)}
    found["host"] = 1000 * (watch.mark.host - begin.host)
    return found if parts is None else found | {"parts": parts.split(begin, watch.mark)}


def profiled(model: Any, attachment: Attachment, inputs: dict[str, Any]) -> str:
    """A table of kernels and host calls of one call of one token."""
    from torch.profiler import ProfilerActivity, profile

    with attachment.placed(), profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        model.generate(**inputs, max_new_tokens=1, do_sample=False, eos_token_id=None, pad_token_id=0)
        settle()
    return str(seen.key_averages().table(sort_by="self_cuda_time_total", row_limit=25, max_name_column_width=60))


def measured(
    model: Any, inputs: dict[str, Any], methods: tuple[str, ...] = METHODS, rounds: int = 9, seconds: float = 60.0
) -> dict[str, Any]:
    """All ways of all methods, in turns; parts of one call each at the end."""
    runners = {
        (way, name): Attachment.of(model, seewhen.method(name), fast="off" if way == "loop" else "graph")
        for way in WAYS
        for name in methods
    }
    for (way, _), attachment in runners.items():
        with way_of(way):
            for _ in range(3):
                call(model, attachment, inputs)
    times: dict[tuple[str, str], list[dict[str, Any]]] = {key: [] for key in runners}
    end = time.perf_counter() + seconds  # of the rounds; warming up takes what it takes
    for number in range(rounds):
        if number > 1 and time.perf_counter() > end:
            break
        for (way, name), attachment in runners.items():
            with way_of(way):
                times[way, name].append(call(model, attachment, inputs))
    found = []
    for (way, name), each in times.items():
        attachment = runners[way, name]
        with way_of(way):
            parts = call(model, attachment, inputs, Parts(model))["parts"]
        row = {"way": way, "method": name, "parts": parts, "captured": _captured(attachment)}
        regular = times[way, "regular"]
        for what in ("chosen", "heard", "host"):
            row[what] = [one[what] for one in each]
            row[f"{what} ms"] = statistics.median(row[what])
        ratios = [a["chosen"] / b["chosen"] for a, b in zip(each, regular, strict=True)]
        row["ratio"] = [statistics.median(ratios), *interval(ratios)]
        found.append(row)
    return {"rows": found, "agreement": agreement(model, inputs, methods)}


def _captured(attachment: Attachment) -> dict[str, bool]:
    """Whether tower and prompt are replayed by now."""
    if attachment.loop is None:
        return {}
    prompts = [one for step in attachment.loop.kept.all for one in step.prompts.kept.values()]
    looks = list(attachment.loop.tower.passes.kept.values())
    return {"prompt": bool(prompts) and None not in prompts, "tower": bool(looks) and None not in looks}


def agreement(model: Any, inputs: dict[str, Any], methods: tuple[str, ...]) -> dict[str, float]:
    """The largest difference of the first token's logits, replayed prompt against the same pass uncaptured."""
    found = {}
    for name in methods:
        logits = []
        for way in ("steps", "prompts"):
            attachment = Attachment.of(model, seewhen.method(name), fast="graph")
            with way_of(way), attachment.placed():
                for _ in range(3):
                    output = model.generate(
                        **inputs, max_new_tokens=2, do_sample=False, eos_token_id=None, pad_token_id=0,
                        return_dict_in_generate=True, output_logits=True,
                    )  # fmt: skip
                logits.append(torch.stack(output.logits).float())
        finite = torch.isfinite(logits[0]) & torch.isfinite(logits[1])
        found[name] = float((logits[0] - logits[1])[finite].abs().max())
    return found


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="llava-1.5-7b")
    parser.add_argument("--tiny", action="store_true", help="a narrow model, to rehearse")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    config = shape_config(given.shape, tiny=given.tiny)
    model = random_model(config, device=device, dtype=dtype)
    inputs = random_inputs(config, device=device, dtype=dtype)
    methods = tuple(given.methods.split(","))
    result = measured(model, inputs, methods, given.rounds, given.seconds)
    result |= {"shape": given.shape, "dtype": str(dtype), "versions": package_versions()}
    result["device"] = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    for row in result["rows"]:
        print(
            row["way"],
            row["method"],
            *(f"{row[w + ' ms']:.1f}" for w in ("chosen", "heard", "host")),
            row["captured"],
        )
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n")
        if given.profile:
            for way in ("steps", "prompts"):
                attachment = Attachment.of(model, "cai", fast="graph")
                with way_of(way):
                    for _ in range(3):
                        call(model, attachment, inputs)
                    given.out.with_suffix(f".{way}.txt").write_text(profiled(model, attachment, inputs))


if __name__ == "__main__":
    main()
