"""Gates at the end of a step, on one GPU: steps with so many of them, and the kernels that forks need, alone.

    PYTHONPATH=src:benchmarks python benchmarks/speed/forks.py --out forks.json --seconds 150

Runs as `kernels_layers.py` does. Each variant of a step takes turns with regular decoding of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import linear as stock_linear

import seewhen
from seewhen.decoding.kernels import attention_kernel, fork_kernel, linear_kernel
from speed.items import Items, Setting, main
from speed.kernels_layers import profiled, replayed, step_costs, without

NUMBERS = {
    "none": "gates at the end",
    "one": "more than one gate at the end",
    "two": "more than two gates at the end",
    "three": "more than three gates at the end",
    "four": "",
}
# What LLaVA-1.5-7B's layers multiply, and its head.
MATRICES = {
    "query, key, value": ((4096, 4096),) * 3,
    "output": ((4096, 4096),),
    "gate, up": ((11008, 4096),) * 2,
    "down": ((4096, 11008),),
    "head": ((32064, 4096),),
}
TILES = ((64, 128, 4, 3), (64, 256, 4, 4), (128, 128, 4, 3), (128, 128, 8, 3), (64, 64, 4, 6), (32, 256, 4, 4))


def _numbered(setting: Setting, shape: str, rows: int, numbers: tuple[str, ...], repeats: int = 4) -> dict:
    methods = {"regular": seewhen.method("regular"), "cai": seewhen.method("cai")}
    out = {}
    for number in numbers:
        print(f"   {number} at the end", flush=True)
        with without(*([NUMBERS[number]] if NUMBERS[number] else [])):
            out[number] = step_costs(setting, shape, methods, rows, repeats=repeats)
    return out


def llava(setting: Setting) -> dict:
    """CAI with none to four of its gates at the end, one row."""
    return _numbered(setting, "llava-1.5-7b", 1, ("four", "none", "three", "two"))


def llava_eight(setting: Setting) -> dict:
    """Eight rows, whose forks are thirty-two with two gates."""
    return _numbered(setting, "llava-1.5-7b", 8, ("four", "none", "one"))


def llava_two(setting: Setting) -> dict:
    """Two rows."""
    return _numbered(setting, "llava-1.5-7b", 2, ("four", "none"), repeats=3)


def contrasted(setting: Setting) -> dict:
    """With contrast, one row and eight."""
    methods = {"regular": seewhen.method("regular"), "cai+contrast": seewhen.method("cai", contrast=3.0)}
    out: dict[str, Any] = {}
    for rows in (1, 8):
        out[f"{rows}"] = step_costs(setting, "llava-1.5-7b", methods, rows, repeats=3)
        with without("gates at the end"):
            out[f"{rows}, none"] = step_costs(setting, "llava-1.5-7b", methods, rows, repeats=3)
    return out


def qwen(setting: Setting) -> dict:
    """Qwen3.5-4B's shape, which has one gate."""
    return {rows: _numbered(setting, "qwen3.5-4b", rows, ("four", "none"), 3) for rows in (1, 8)}


def many_rows(setting: Setting) -> dict:
    """Regular decoding of thirty-two rows in our kernels and in stock ones."""
    methods = {"regular": seewhen.method("regular")}
    out = {"ours": step_costs(setting, "llava-1.5-7b", methods, 32, repeats=3)}
    with without("more than sixteen rows"):
        return out | {"stock": step_costs(setting, "llava-1.5-7b", methods, 32, repeats=3)}


def profile(setting: Setting) -> list:
    """Where a CAI step spends its time."""
    return profiled(setting, "llava-1.5-7b", "cai")


def eight_profile(setting: Setting) -> list:
    """The same at eight rows."""
    return profiled(setting, "llava-1.5-7b", "cai", 8)


def eight_regular_profile(setting: Setting) -> list:
    """Regular decoding at eight rows."""
    return profiled(setting, "llava-1.5-7b", "regular", 8)


def _copies(setting: Setting, shapes: tuple[tuple[int, int], ...]) -> list[tuple[torch.Tensor, ...]]:
    """Sets of matrices, together larger than the cache."""
    if setting.tiny:
        shapes = tuple((n // 128, k // 128) for n, k in shapes)
    count = 1 if setting.tiny else max(2, int(5e8 // sum(2 * n * k for n, k in shapes)))
    make = {"device": setting.device, "dtype": torch.bfloat16}
    return [tuple(torch.randn(n, k, **make) / k**0.5 for n, k in shapes) for _ in range(count)]


def matrices(setting: Setting) -> list[dict]:
    """Each group of matrices for so many rows: stock, ours, and at thirty-two rows with other tiles."""
    out = []
    for name, shapes in MATRICES.items():
        sets = _copies(setting, shapes)
        none = (None,) * len(shapes)
        for rows in (1, 8, 16, 32):
            x = torch.randn(rows, 1, sets[0][0].shape[1], device=setting.device, dtype=torch.bfloat16)

            def ours(x=x, sets=sets, none=none) -> object:
                return [linear_kernel.linear(x, s, none) for s in sets]

            def stock(x=x, sets=sets) -> object:
                return [[stock_linear(x, w) for w in s] for s in sets]

            found: dict[str, Any] = {"matrices": name, "rows": rows}
            found |= {
                f"{way} us": replayed(call, setting.device, 9, 1) / len(sets)
                for way, call in (("stock", stock), ("ours", ours))
            }
            if rows == 32:
                found["tiles"] = _with_tiles(
                    linear_kernel, lambda ours=ours, n=len(sets): replayed(ours, setting.device, 7, 1) / n
                )
            out.append(found)
            print("  ", found, flush=True)
    return out


def _with_tiles(module: Any, timed: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    stock = module.tile_shape
    for tile in TILES:
        module.tile_shape = lambda *_, tile=tile: tile
        try:
            found[str(tile)] = timed()
        except Exception as error:  # too much shared memory, say
            found[str(tile)] = repr(error)[:80]
    module.tile_shape = stock
    return found


def ends(setting: Setting) -> list[dict]:
    """The head's one reading for so many paths and states."""
    out = []
    heads = [one for (one,) in _copies(setting, MATRICES["head"])]
    for paths, states in ((2, 1), (16, 15), (16, 8), (32, 24)):
        make = {"device": setting.device, "dtype": torch.bfloat16}
        x, h = (torch.randn(n, heads[0].shape[1], **make) for n in (paths, states))

        def both(x=x, h=h) -> object:
            return [fork_kernel.logits_and_parts(x, (h,), head) for head in heads]

        found: dict[str, Any] = {"paths": paths, "states": states}
        found["us"] = replayed(both, setting.device, 9, 1) / len(heads)
        if states > 8:
            found["tiles"] = _with_tiles(
                fork_kernel, lambda b=both: replayed(b, setting.device, 7, 1) / len(heads)
            )
        out.append(found)
        print("  ", found, flush=True)
    return out


def attentions(setting: Setting) -> list[dict]:
    """Attention of a row's forks together, beside one row alone."""
    out = []
    heads, columns, d = (4, 70, 16) if setting.tiny else (32, 768, 128)
    for main_rows, numbers in ((1, (1, 2, 4, 8, 16)), (8, (1, 2, 4))):
        make = {"device": setting.device, "dtype": torch.bfloat16}
        count = 2 if setting.tiny else max(3, 24 // main_rows)
        caches = [torch.randn(2, main_rows, heads, columns, d, **make) for _ in range(count)]
        mask = torch.ones(main_rows, 1, 1, columns, device=setting.device, dtype=torch.bool)
        weights = torch.rand(main_rows, columns, device=setting.device)
        newest = torch.tensor([columns - 2], device=setting.device)
        for paths in numbers:
            rows = main_rows * paths
            q, k, v = (torch.randn(rows, heads, 1, d, **make) for _ in range(3))
            gate = torch.rand(rows, device=setting.device) > 0.5
            fresh = (k, v, newest) if paths > 2 else None

            def all_paths(q=q, gate=gate, fresh=fresh, rows=main_rows, caches=caches, m=mask, w=weights) -> object:
                given = (d**-0.5, w, gate, "score", 1.0, rows, fresh)
                return [attention_kernel.attention(q, c[0], c[1], m, *given) for c in caches]

            us = replayed(all_paths, setting.device, 9, 1) / count
            out.append({"rows": main_rows, "paths": paths, "us": us})
            print("  ", out[-1], flush=True)
    return out


# What decides first.
ITEMS: Items = {
    item.__name__: item
    for item in (
        llava, llava_eight, attentions, ends, matrices, many_rows, eight_profile, profile, eight_regular_profile,
        contrasted, llava_two, qwen,
    )
}  # fmt: skip

if __name__ == "__main__":
    main(ITEMS, __doc__ or "")
