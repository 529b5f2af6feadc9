"""The kernels alone, on one GPU: streaming linear layers, the gate, one-row attention, against the stock ones.

    python benchmarks/speed/kernels.py --out kernels.json

Weights rotate among copies that together exceed the second-level cache several times; each time is the
median of replays of a CUDA graph over all copies. The bandwidth floor is measured first, with a copy.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.functional import linear as stock_linear

from seewhen.decoding.kernels import attention_kernel, gate_kernel, linear_kernel
from seewhen.equations.when import entropy


def replayed(calls: list[Callable[[], object]], repeats: int = 15) -> float:
    """Microseconds per call: all calls in one graph, median of replays."""
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / len(calls))
    return statistics.median(times)


def copy_bandwidth() -> float:
    """Bytes per second of a large copy on the device, reads and writes counted."""
    a = torch.randn(2**29, dtype=torch.float32, device="cuda")
    b = torch.empty_like(a)
    return 8 * a.numel() / (replayed([lambda: b.copy_(a)]) * 1e-6)


def read_bandwidth() -> float:
    """Bytes per second of a large sum, which only reads."""
    a = torch.randn(2**29, device="cuda", dtype=torch.float32)
    return a.numel() * 4 / (replayed([lambda: a.sum()]) * 1e-6)


def copies(shapes: list[tuple[int, int]]) -> list[list[torch.Tensor]]:
    """Sets of matrices, together at least 600 MB."""
    size = sum(n * k * 2 for n, k in shapes)
    return [
        [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) / k**0.5 for n, k in shapes]
        for _ in range(max(2, int(6e8 // size)))
    ]


def linears(tune: bool) -> list[dict]:
    """Each group of LLaVA-1.5-7B's matrices, for several numbers of rows."""
    groups = {
        "qkv": [(4096, 4096)] * 3,
        "o": [(4096, 4096)],
        "gate-up": [(11008, 4096)] * 2,
        "down": [(4096, 11008)],
        "head": [(32064, 4096)],
    }
    few = [
        (n, k, w, 3) for n in (1, 2, 4, 8) for k in (512, 1024, 2048) for w in (2, 4, 8) if 2048 <= n * k <= 8192
    ]
    several = [(n, k, w, s) for n in (32, 64, 128) for k in (64, 128, 256) for w in (4, 8) for s in (2, 3, 4, 6)]
    several = [c for c in several if c[0] * c[1] * 2 * c[3] <= 190_000 and c[0] * c[1] >= 4096]
    rows_out = []
    for name, shapes in groups.items():
        sets = copies(shapes)
        size = sum(n * k * 2 for n, k in shapes)
        for rows in (1, 2, 8):
            x = torch.randn(rows, 1, shapes[0][1], device="cuda", dtype=torch.bfloat16)
            none = (None,) * len(shapes)
            stock = replayed([lambda s=s: [stock_linear(x, w) for w in s] for s in sets])
            reference = [stock_linear(x.double(), w.double()) for w in sets[0]]
            found = []
            default = linear_kernel.tile_shape
            chosen = default(rows, sum(n for n, _ in shapes), shapes[0][1], x)
            for candidate in (few if rows == 1 else several) if tune else [chosen]:
                linear_kernel.tile_shape = lambda *_, c=candidate: c
                try:
                    ours = replayed([lambda s=s: linear_kernel.linear(x, tuple(s), none) for s in sets], 7)
                    got = linear_kernel.linear(x, tuple(sets[0]), none)
                    error = max(((g - r).norm() / r.norm()).item() for g, r in zip(got, reference, strict=True))
                    found.append((ours, candidate, error))
                except Exception as problem:
                    print(name, rows, candidate, type(problem).__name__, str(problem)[:80], flush=True)
            linear_kernel.tile_shape = default
            found.sort()
            best = found[0]
            row = {"matrices": name, "rows": rows, "bytes": size, "stock us": stock, "ours us": best[0]}
            row |= {"shape": best[1], "relative error": best[2], "runners-up": found[1:4]}
            rows_out.append(row)
            rate = size / best[0] * 1e-6
            print(
                f"{name:8} rows {rows}: stock {stock:7.1f} us, ours {best[0]:7.1f} us ({rate:.2f} TB/s) {best[1]} "
                f"error {best[2]:.1e}; next {[(round(t, 1), c) for t, c, _ in found[1:4]]}",
                flush=True,
            )
    return rows_out


def gates() -> list[dict]:
    """The gate's entropy for two vocabularies."""
    out = []
    for vocabulary, d in ((32064, 4096), (248320, 2560)):
        heads = [m[0] for m in copies([(vocabulary, d)])]
        for rows in (1, 2, 8):
            h = torch.randn(rows, d, device="cuda", dtype=torch.bfloat16)
            stock = replayed([lambda w=w: entropy(stock_linear(h, w)) for w in heads])
            ours = replayed([lambda w=w: gate_kernel.entropy(h, w) for w in heads])
            exact = entropy(h.double() @ heads[0].double().T)
            error = (gate_kernel.entropy(h, heads[0]) - exact).abs().max().item()
            row = {"vocabulary": vocabulary, "rows": rows, "stock us": stock, "ours us": ours, "error": error}
            out.append(row | {"TB/s": vocabulary * d * 2 / ours * 1e-6})
            print(out[-1], flush=True)
    return out


def attentions() -> list[dict]:
    """One query row over caches of several lengths, plain and tilted."""
    out = []
    for rows, heads, key_heads, d in ((1, 32, 32, 128), (2, 32, 32, 128), (8, 32, 32, 128), (1, 16, 4, 256)):
        for columns in (768, 1280, 4096, 9344):
            size = 4 * rows * key_heads * columns * d
            count = max(2, int(3e8 // size))
            caches = [
                torch.randn(2, rows, key_heads, columns, d, device="cuda", dtype=torch.bfloat16)
                for _ in range(count)
            ]
            q = torch.randn(rows, heads, 1, d, device="cuda", dtype=torch.bfloat16)
            mask = torch.ones(rows, 1, 1, columns, device="cuda", dtype=torch.bool)
            weights = torch.rand(rows, columns, device="cuda")
            gate = torch.ones(rows, dtype=torch.bool, device="cuda")
            sdpa = torch.nn.functional.scaled_dot_product_attention
            group = heads != key_heads
            row = {"rows": rows, "heads": heads, "key heads": key_heads, "columns": columns}
            row["sdpa us"] = replayed(
                [lambda c=c: sdpa(q, c[0], c[1], attn_mask=mask, enable_gqa=group) for c in caches]
            )
            ours = attention_kernel.attention
            row["ours us"] = replayed([lambda c=c: ours(q, c[0], c[1], mask, d**-0.5) for c in caches])
            row["tilted us"] = replayed(
                [lambda c=c: ours(q, c[0], c[1], mask, d**-0.5, weights, gate, "score") for c in caches]
            )
            row["floor us"] = size / 4.3e6
            out.append(row)
            print({k: round(v, 1) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    return out


def main() -> None:
    """Measure everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tune", action="store_true", help="try many tile shapes")
    parser.add_argument("--parts", default="linears,gates,attentions")
    options = parser.parse_args()
    began = time.time()
    result: dict = {
        "command": " ".join(sys.argv),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }
    result["copy TB/s"], result["read TB/s"] = copy_bandwidth() * 1e-12, read_bandwidth() * 1e-12
    print(result, flush=True)
    for part in options.parts.split(","):
        result[part] = linears(options.tune) if part == "linears" else globals()[part]()
        print(part, f"{time.time() - began:.0f} s", flush=True)
        if options.out:
            options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
