"""Milliseconds per token of two source trees side by side: what a redesign costs, in one run.

    git worktree add ../before COMMIT
    python benchmarks/speed/trees.py ../before/src src --out benchmarks/speed/results/trees.json

Each tree has a process of its own with a model of a published shape and random weights. The processes live side by
side and take turns, so that a drift of the machine falls on both; the time of a long answer less that of a short
one is divided by the tokens between them. Ratios are taken within each round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# With a prompt of 638 tokens both have caches of one length, so that their prompts are read alike.
SHORT, LONG = 16, 128
SETTINGS = [(1, "regular"), (1, "cai"), (1, "contrast"), (8, "regular"), (8, "cai")]


class Tree:
    """The process of one source tree."""

    def __init__(self, source: Path, shape: str) -> None:
        command = [sys.executable, __file__, "--child", shape]
        environment = os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def answer(self) -> dict[str, Any]:
        """The next line it writes."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("A tree's process ended early; its message stands above.")
        found: dict[str, Any] = json.loads(line)
        return found

    def measured(self, batch: int, method: str) -> float:
        """Milliseconds per token, once."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"batch": batch, "method": method}) + "\n")
        self.process.stdin.flush()
        return float(self.answer()["ms"])


def child(shape: str) -> None:
    """Answer each line of standard input with a measurement."""
    import torch

    import seewhen

    place = "seewhen.backbones.shapes" if find_spec("seewhen.backbones") else "seewhen.shapes"
    shapes: Any = import_module(place)
    config = shapes.shape_config(shape)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = shapes.random_model(config, device=device, dtype=dtype)
    methods: dict[str, Any] = {
        "regular": seewhen.method("regular"),
        "cai": seewhen.method("cai"),
        "contrast": seewhen.method("cai", contrast=3.0),
    }
    prompts: dict[tuple[int, str], Any] = {}

    def once(inputs: Any, tokens: int) -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        model.generate(**inputs, max_new_tokens=tokens, do_sample=False, eos_token_id=None, pad_token_id=0)
        if device == "cuda":
            torch.cuda.synchronize()
        return 1000 * (time.perf_counter() - start)

    print(json.dumps({"ready": device, "torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        key = asked["batch"], asked["method"]
        inputs = prompts.setdefault(
            key, shapes.random_inputs(config, rows=key[0], images=1, device=device, dtype=dtype)
        )
        with seewhen.attach(model, methods[key[1]]):
            for _ in range(3):  # prompts are captured when they are seen again, steps at once
                once(inputs, LONG)
            pairs = [(once(inputs, SHORT), once(inputs, LONG)) for _ in range(3)]
        ms = statistics.median((long - short) / (LONG - SHORT) for short, long in pairs)
        print(json.dumps({"ms": ms}), flush=True)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", type=Path, nargs="*", help="before and after: folders that hold seewhen/")
    parser.add_argument("--shape", default="shape:llava-1.5-7b")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", metavar="SHAPE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child)
        return
    if len(arguments.trees) != 2 or arguments.out is None:
        parser.error("two trees and --out are needed")
    trees = [Tree(tree.resolve(), arguments.shape) for tree in arguments.trees]
    facts = [tree.answer() for tree in trees]
    result: dict[str, Any] = {
        "command": " ".join(sys.argv),
        "shape": arguments.shape,
        "facts": facts,
        "rounds": [],
    }
    for number in range(arguments.rounds):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        found: dict[str, list[float]] = {}
        for batch, method in SETTINGS:
            times = {which: trees[which].measured(batch, method) for which in order}
            found[f"{method}, batch {batch}"] = [times[0], times[1]]
        result["rounds"].append(found)
        result["ratios"] = {
            name: statistics.median(one[name][1] / one[name][0] for one in result["rounds"]) for name in found
        }
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(f"round {number + 1}:", {name: f"{a:.2f} {b:.2f}" for name, (a, b) in found.items()}, flush=True)
    print({name: f"{ratio:.4f}" for name, ratio in result["ratios"].items()})


if __name__ == "__main__":
    main()
