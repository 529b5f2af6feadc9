"""Ways of decoding one shape, side by side: what each step of the fast path gains.

    python benchmarks/speed/explore.py --out explore.json
    python benchmarks/speed/explore.py --ways graph,graph-rotary,graph-norms    # minus: without that kernel
    python benchmarks/speed/explore.py --ways authors,off,graph

`authors` is how the published code decodes: eager attention, and the host reads a number after every layer.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
import traceback
from pathlib import Path

import torch

import seewhen
from seewhen.asking.attach import Attachment
from seewhen.backbones.shapes import random_inputs, random_model, shape_config
from seewhen.decoding.fast import modules, step

METHODS = {
    "regular": seewhen.method("regular"),
    "cai": seewhen.method("cai"),
    "cai:contrast=3": seewhen.method("cai", contrast=3.0),
}

# What a way can leave out, and what stands in its place.
KERNELS = {
    "linear": (modules, "_groups", lambda _: iter(())),
    "gated": (modules, "_feed_forwards", lambda _: iter(())),
    "norms": (modules, "_norms", lambda _: iter(())),
    "rotary": (modules, "turning", lambda _: contextlib.nullcontext()),
    "cache": (step, "_row_writer", lambda _: None),
}


@contextlib.contextmanager
def without(names: list[str]):
    """The fast path without some of its kernels."""
    stock = {name: getattr(*KERNELS[name][:2]) for name in names}
    for name in names:
        setattr(*KERNELS[name])
    try:
        yield
    finally:
        for name in names:
            setattr(*KERNELS[name][:2], stock[name])


@contextlib.contextmanager
def as_published(model):
    """Eager attention, and the host waits for the device after every layer."""
    kernel = model.config._attn_implementation
    model.set_attn_implementation("eager")
    layers = seewhen.Backbone.of(model).layers
    hooks = [layer.register_forward_hook(lambda _m, _i, output: _read(output)) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        model.set_attn_implementation(kernel)


def _read(output) -> None:
    state = output[0] if isinstance(output, tuple) else output
    state[0, -1, 0].item()


def seconds(model, inputs, attachment, tokens: int) -> float:
    """Seconds of one generate call."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    with attachment.placed():
        model.generate(**inputs, max_new_tokens=tokens, do_sample=False, eos_token_id=None, pad_token_id=0)
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--shape", default="llava-1.5-7b")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--ways", default="off,graph,graph-linear-gated-norms-rotary-cache")
    parser.add_argument("--methods", default="regular,cai,cai:contrast=3")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    config = shape_config(options.shape, layers=options.layers)
    model = random_model(config, device="cuda", dtype=torch.bfloat16)
    inputs = random_inputs(config, rows=options.rows, device="cuda", dtype=torch.bfloat16)
    results = []
    for way in options.ways.split(","):
        with as_published(model) if way == "authors" else without(way.split("-")[1:]):
            results += measure(model, inputs, way, options)
        torch.cuda.empty_cache()
        if options.out:
            options.out.write_text(json.dumps({"command": " ".join(sys.argv), "rows": results}, indent=1) + "\n")


def measure(model, inputs, way: str, options: argparse.Namespace) -> list[dict]:
    """All methods one way, in turns."""
    fast, results = "off" if way == "authors" else way.split("-")[0], []
    ready = {}
    for name in options.methods.split(","):
        began = time.perf_counter()
        try:
            attachment = Attachment.of(model, METHODS[name], fast=fast)
            tokens = 16 if fast == "off" else options.tokens
            seconds(model, inputs, attachment, tokens)
            warm = time.perf_counter() - began
            ready[name] = (attachment, tokens, warm, [], [])
        except Exception:
            traceback.print_exc()
    for _ in range(options.repeats):
        for attachment, tokens, _, short, long in ready.values():
            short.append(seconds(model, inputs, attachment, 1))
            torch.cuda.reset_peak_memory_stats()
            long.append(seconds(model, inputs, attachment, tokens))
    for name, (attachment, tokens, warm, short, long) in ready.items():
        prefill = statistics.median(short)
        per = (statistics.median(long) - prefill) / (tokens - 1) * 1000
        row = {"way": way, "method": name, "rows": options.rows, "ms/token": per, "prefill ms": prefill * 1000}
        row |= {"first call s": warm, "peak GB": torch.cuda.max_memory_allocated() / 1e9}
        kept = attachment.loop.kept if attachment.loop else []
        if kept:
            seconds(model, inputs, attachment, options.tokens - 40)  # leaves columns free
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(20):
                kept[-1].run()
            end.record()
            torch.cuda.synchronize()
            row["replay ms"] = start.elapsed_time(end) / 20
            if options.profile and options.out:
                from torch.profiler import ProfilerActivity, profile

                with profile(activities=[ProfilerActivity.CUDA]) as seen:
                    kept[-1].run()
                    torch.cuda.synchronize()
                table = seen.key_averages().table(
                    sort_by="cuda_time_total", row_limit=28, max_name_column_width=60
                )
                label = name.replace("+", "-")
                options.out.with_suffix(f".{way}.{label}.txt").write_text(table)
        results.append(row)
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    return results


if __name__ == "__main__":
    main()
