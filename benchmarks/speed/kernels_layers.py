"""Kernels for whole layers and methods, on one GPU: each with and without, in one run.

    PYTHONPATH=src:benchmarks python benchmarks/speed/kernels_layers.py --out kernels-layers.json --seconds 110

Every item stands alone: one that fails leaves its traceback in the result, and the next one runs. The file is
written after each item; no item begins after `--seconds`. `--items a,b` chooses some, `--tiny` rehearses anywhere.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

import seewhen
from seewhen.asking.attach import Attachment
from seewhen.decoding.fast import forking, modules
from seewhen.decoding.kernels import recurrent_kernel, relevance_kernel, second_look_kernel
from seewhen.decoding.tilted_attention import Relevance
from seewhen.equations import where
from seewhen.methods.memvr import LookTwice
from seewhen.speed.measure import costs
from speed import kernels
from speed.items import Items, Setting, main

# What a run can leave out, and what stands in its place.
SWITCHES: dict[str, tuple[Any, str, Any]] = {
    "recurrent": (modules, "recurrent_layers", lambda _: iter(())),
    "relevance": (Relevance, "fuses", lambda *_: False),
    "second look": (LookTwice, "_fused", lambda *_: False),
    "gates at the end": (forking, "MOST_GATES", 0),
    "more than one gate at the end": (forking, "MOST_GATES", 1),
    "more than two gates at the end": (forking, "MOST_GATES", 2),
    "more than three gates at the end": (forking, "MOST_GATES", 3),
    "more than sixteen rows": (modules, "MOST_ROWS", 16),
}


@contextlib.contextmanager
def without(*names: str) -> Iterator[None]:
    """The fast path without some of its kernels."""
    stock = {name: getattr(*SWITCHES[name][:2]) for name in names}
    for name in names:
        setattr(*SWITCHES[name])
    try:
        yield
    finally:
        for name in names:
            setattr(*SWITCHES[name][:2], stock[name])


def replayed(call: Callable[[], object], device: str, repeats: int = 15, inside: int = 20) -> float:
    """Microseconds per call: `inside` calls in one graph, median of replays; on a CPU, of plain calls."""
    if device != "cpu":
        return kernels.replayed([call] * inside, repeats)
    call()
    begin = time.perf_counter()
    call()
    return 1e6 * (time.perf_counter() - begin)


def step_costs(setting: Setting, shape: str, methods: dict[str, Any], rows: int, repeats: int = 5) -> list[dict]:
    """ms per token of methods in turns, with ratio to regular decoding of the same rounds."""
    model, config = setting.model(shape)
    found, failures = costs(
        model,
        lambda batch: setting.inputs(config, batch),
        methods,
        batches=(rows,),
        tokens=6 if setting.tiny else 64,
        repeats=2 if setting.tiny else repeats,
        fast="graph",
    )
    table = [
        {
            "method": c.method,
            "way": c.way,
            "rows": rows,
            "ms": c.ms_per_token,
            "rounds": c.rounds,
            "ratio": c.ratio,
        }
        | {"low": c.ratio_low, "high": c.ratio_high, "floor share": c.floor_share, "prefill ms": c.prefill_ms}
        | {"first call s": c.first_call_s}
        for c in found
    ]
    for row in table:
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
        print(
            f"   {row['method']:14} rows {rows}: {row['ms']:.3f} ms, floor {row['floor share']:.0%} {ratio}",
            flush=True,
        )
    return table + [{"failed": failures}] * bool(failures)


def profiled(setting: Setting, shape: str, name: str, rows: int = 1) -> list[tuple[str, float, int]]:
    """Kernels of one captured step: microseconds and calls, largest first."""
    model, config = setting.model(shape)
    attachment = Attachment.of(model, seewhen.method(name), fast="graph")
    with attachment.placed():
        model.generate(
            **setting.inputs(config, rows), max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0
        )
    if setting.device == "cpu":
        return []
    from torch.profiler import ProfilerActivity, profile

    (step,) = attachment.loop.kept.all
    step.run()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        step.run()
        torch.cuda.synchronize()
    found = [(e.key[:90], float(e.device_time_total), e.count) for e in seen.key_averages()]
    return sorted(found, key=lambda one: -one[1])[:40]


# -- items ---------------------------------------------------------------------------------------------------


def recurrent_layer(setting: Setting) -> list[dict]:
    """One recurrent layer of Qwen3.5-4B's size between its projections, and its four projections."""
    out = []
    heads, key_heads, d, e, hidden = (4, 2, 16, 16, 64) if setting.tiny else (32, 16, 128, 128, 2560)
    channels, dtype = 2 * key_heads * d + heads * e, torch.bfloat16
    for rows in (1, 8):
        make = lambda *shape: torch.randn(shape, device=setting.device, dtype=dtype)  # noqa: E731
        given = (make(rows, channels), make(rows, heads * e), make(rows, heads), make(rows, heads))
        conv, state = make(rows, channels, 4), torch.randn(rows, heads, d, e, device=setting.device)
        weights = (make(channels, 4), make(heads), make(heads), make(e))
        row = {"rows": rows}
        row["two kernels us"] = replayed(
            lambda g=given, c=conv, s=state, w=weights: recurrent_kernel.recur(*g, c, s, *w, 1e-6), setting.device
        )
        from seewhen.decoding.kernels.linear_kernel import linear

        counts = (channels, heads * e, heads, heads)
        sets = [tuple(make(n, hidden) for n in counts) for _ in range(1 if setting.tiny else 12)]
        x = make(rows, 1, hidden)
        inside = len(sets)
        row["one launch us"] = (
            replayed(lambda: [linear(x, s, (None,) * 4) for s in sets], setting.device, inside=1) / inside
        )
        row["four launches us"] = (
            replayed(lambda: [linear(x, (w,), (None,)) for s in sets for w in s], setting.device, inside=1)
            / inside
        )
        row["floor us"] = sum(counts) * hidden * 2 / 4.29e6
        out.append(row)
    return out


def relevance(setting: Setting) -> list[dict]:
    """The relevance of 576 image tokens, plain and in kernels."""
    out = []
    for rows, tokens, d in ((1, 576, 4096), (8, 576, 4096), (1, 9216, 4096)):
        if setting.tiny:
            tokens, d = 20, 64
        units = where.unit(torch.randn(rows, tokens, d, device=setting.device))
        query = torch.randn(rows, d, device=setting.device, dtype=torch.bfloat16)
        valid = torch.ones(rows, tokens, dtype=torch.bool, device=setting.device)
        index = torch.arange(tokens, device=setting.device).expand(rows, -1).contiguous()
        rule, columns = Relevance(), tokens + 192

        def plain(q=query, u=units, v=valid, i=index, c=columns) -> object:
            return torch.zeros((len(q), c), device=q.device).scatter_add(1, i, rule.weights(q, u, v))

        def fused(q=query, u=units, v=valid, i=index, c=columns) -> object:
            return relevance_kernel.spread(rule.fused_weights(q, u, v, len(q)), i, v, c)

        times = {"plain us": replayed(plain, setting.device), "kernels us": replayed(fused, setting.device)}
        out.append({"rows": rows, "tokens": tokens, **times, "floor us": units.numel() * 4 / 4.29e6})
    return out


def second_look(setting: Setting) -> list[dict]:
    """MemVR's judgement and look: where the gate opens, and where there is nothing to do."""
    from seewhen.decoding.recorder import Recorder

    out = []
    count, d, tokens = (300, 64, 20) if setting.tiny else (32064, 4096, 576)
    for rows in (1, 8):
        make = lambda *shape: torch.randn(shape, device=setting.device, dtype=torch.bfloat16)  # noqa: E731
        recorder = Recorder("summary", rows, 4, 4, torch.device(setting.device))
        recorder.declare("top_entropy", (rows, 4))
        recorder.declare("gate", (rows, 4), fill=False)
        heads, states, x, output = (
            [make(count, d) for _ in range(3)],
            make(rows, d),
            make(rows, 1, d),
            make(rows, 1, d),
        )
        features, size = (
            torch.randn(rows, tokens, d, device=setting.device),
            torch.ones(rows, device=setting.device),
        )
        yes, no = (torch.full((rows,), value, device=setting.device) for value in (True, False))
        judge, look = second_look_kernel.judge, second_look_kernel.look
        row: dict[str, Any] = {"rows": rows}
        for name, used in (("judged", None), ("nothing to judge", yes)):
            row[f"{name} us"] = replayed(
                lambda u=used: [judge(states, h, yes, u, 0.5, recorder, 2) for h in heads],
                setting.device,
                inside=4,
            ) / len(heads)
        for name, open_ in (("looked", yes), ("nothing to look at", no)):
            row[f"{name} us"] = replayed(
                lambda o=open_: look(x, output, features, size, None, o, 0.1), setting.device
            )
        out.append(row)
    return out


def qwen(setting: Setting) -> list[dict]:
    """Qwen3.5-4B's shape with and without the recurrent kernels: regular, CAI, with contrast."""
    methods = {"regular": seewhen.method("regular"), "cai": seewhen.method("cai")}
    out = step_costs(setting, "qwen3.5-4b", methods | {"cai+contrast": seewhen.method("cai", contrast=3.0)}, 1)
    out += step_costs(setting, "qwen3.5-4b", methods, 8, repeats=3)
    with without("recurrent"):
        out.append({"without recurrent": step_costs(setting, "qwen3.5-4b", methods, 1, repeats=3)})
    return out


def qwen_profile(setting: Setting) -> list:
    """Where a regular step of Qwen3.5-4B's shape spends its time."""
    return profiled(setting, "qwen3.5-4b", "regular")


def second_tier(setting: Setting) -> list[dict]:
    """Methods with attention or hooks of their own, LLaVA-1.5-7B's shape."""
    names = ("regular", "cai", "locore", "sid", "memvr", "dola", "pai")
    return step_costs(setting, "llava-1.5-7b", {name: seewhen.method(name) for name in names}, 1, repeats=4)


def cai(setting: Setting) -> list[dict]:
    """CAI at one and eight rows, with and without the relevance kernels."""
    methods = {"regular": seewhen.method("regular"), "cai": seewhen.method("cai")}
    out = step_costs(setting, "llava-1.5-7b", methods, 1, repeats=4)
    with without("relevance"):
        out.append({"without relevance": step_costs(setting, "llava-1.5-7b", methods, 1, repeats=4)})
    return out + step_costs(setting, "llava-1.5-7b", methods, 8, repeats=4)


def gaps(setting: Setting) -> dict:
    """Where a regular step's time is that no kernel takes: replays alone, with the tape, and the pauses."""
    model, config = setting.model("llava-1.5-7b")
    attachment = Attachment.of(model, seewhen.method("regular"), fast="graph")
    given, options = setting.inputs(config, 1), {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}

    def answer(tokens: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        with attachment.placed():
            model.generate(**given, max_new_tokens=tokens, **options)
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end)

    if setting.device == "cpu":
        return {}
    for tokens in (30, 120, 30, 120):  # both within one cache of 768 columns
        answer(tokens)
    out: dict[str, Any] = {"loop ms": statistics.median((answer(120) - answer(30)) / 90 for _ in range(5))}
    answer(30)
    step = next(step for step in attachment.loop.kept.all if step.captured)
    times = []
    for _ in range(3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(20):
            step.run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 20)
    out["replays alone ms"] = statistics.median(times)
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        answer(12)
    found = sorted(
        (e.time_range.start, e.time_range.end, e.name[:60]) for e in seen.events() if e.device_type.name == "CUDA"
    )
    first = [at for at, one in enumerate(found) if "indexSelect" in one[2]][2:]  # the embedding begins a step
    part = found[first[2] : first[-1]]
    out["steps"] = steps = len(first) - 3
    out["kernels us per step"] = sum(end - start for start, end, _ in part) / steps
    out["pauses us per step"] = sum(max(0, b[0] - a[1]) for a, b in itertools.pairwise(part)) / steps
    by_name: dict[str, list[float]] = {}
    for a, b in itertools.pairwise(part):
        by_name.setdefault(f"before {b[2]}", []).append(b[0] - a[1])
    largest = sorted(by_name.items(), key=lambda one: -sum(one[1]))[:14]
    out["pauses"] = [(name, sum(each) / steps, len(each) / steps, max(each)) for name, each in largest]
    print("  ", out, flush=True)
    return out


def cai_profile(setting: Setting) -> list:
    """Where a CAI step spends its time."""
    return profiled(setting, "llava-1.5-7b", "cai")


def memvr_profile(setting: Setting) -> list:
    """Where a MemVR step spends its time."""
    return profiled(setting, "llava-1.5-7b", "memvr")


def sid_profile(setting: Setting) -> list:
    """Where a SID step spends its time."""
    return profiled(setting, "llava-1.5-7b", "sid")


# Small things first, then one model after the other.
ITEMS: Items = {
    item.__name__: item
    for item in (
        recurrent_layer, relevance, second_look, qwen, qwen_profile, gaps, second_tier, cai, cai_profile,
        memvr_profile, sid_profile,
    )
}  # fmt: skip


if __name__ == "__main__":
    main(ITEMS, __doc__)
