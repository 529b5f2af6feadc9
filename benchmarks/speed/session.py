"""The whole speed session in one process, one model loaded once: what benchmarks/speed.md tells comes from here.

    python benchmarks/speed/session.py --out OUT --seconds 200
    python benchmarks/speed/session.py --out /tmp/session --tiny --tokens 6 --rounds 2    # a rehearsal anywhere

Parts run in the order of their worth; one is begun only while its share of the time is left. After each part
OUT/session.json is written anew, so a session that is ended early keeps what it has.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import seewhen
from seewhen.asking.doctor import machine_facts
from seewhen.backbones.shapes import random_inputs, random_model, shape_config
from seewhen.decoding.fast import Fast
from seewhen.speed.bench import as_markdown, red_flags
from seewhen.speed.measure import costs, read_bandwidth

sys.path.insert(0, str(Path(__file__).parents[1]))

from speed import confirm_cost, explore, items, kernels_layers, prefill

FIRST = ("regular", "cai", "cai:contrast=3", "vcd")
MEMVR = ("regular", "memvr")
SECOND = ("regular", "memvr", "locore", "sid", "dola")
OTHERS = ("regular", "pai", "only", "m3id", "farsight", "agla")


@dataclass
class Session:
    """What was found, where it is written, and how long it may go on."""

    out: Path
    end: float
    tiny: bool
    tokens: int
    rounds: int
    result: dict[str, Any] = field(default_factory=dict)
    _loaded: tuple[str, Any, Any] | None = None

    def part(self, name: str, seconds: float, work: Callable[[], Any]) -> None:
        """Do a part if `seconds` are left for it; what goes wrong is written down, and the next begins."""
        left = self.end - time.perf_counter()
        if left < seconds:
            self.result[name] = {"left out": f"{left:.0f} s were left, {seconds:.0f} wanted"}
        else:
            began = time.perf_counter()
            try:
                self.result[name] = {"found": work()}
            except Exception:
                self.result[name] = {"failed": traceback.format_exc()}
            self.result[name]["seconds"] = round(time.perf_counter() - began, 1)
        print(name, {k: v for k, v in self.result[name].items() if k != "found"}, flush=True)
        partial = self.out / "session.json.part"
        partial.write_text(json.dumps(self.result, indent=1) + "\n")
        partial.replace(self.out / "session.json")

    def place(self) -> dict[str, Any]:
        """Where models live."""
        on_gpu = torch.cuda.is_available()
        return {"device": "cuda", "dtype": torch.bfloat16} if on_gpu else {"device": "cpu", "dtype": torch.float32}

    def model(self, shape: str) -> tuple[Any, Any]:
        """The model of a shape and its configuration; one model at a time is held."""
        if self._loaded is None or self._loaded[0] != shape:
            self._loaded = None
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            config = shape_config(shape, tiny=self.tiny)
            self._loaded = (shape, random_model(config, **self.place()), config)
        return self._loaded[1:]

    def inputs(self, shape: str, rows: int) -> dict[str, Any]:
        """A prompt with an image in each row."""
        return random_inputs(self.model(shape)[1], rows=rows, **self.place())

    def bench(
        self,
        shape: str,
        methods: tuple[str, ...],
        batch: int,
        tokens: int,
        without: str = "",
        published: bool = False,
    ) -> Any:
        """What `seewhen bench` measures; `without` names a kernel to leave out."""
        model, _ = self.model(shape)
        chosen = {name: seewhen.method(name) for name in methods}
        captured: Fast = "auto" if torch.cuda.is_available() else "graph"
        way = explore.as_published(model) if published else kernels_layers.without(*([without] if without else []))
        with way:
            found, failures = costs(
                model, lambda rows: self.inputs(shape, rows), chosen,
                batches=[batch], tokens=min(tokens, self.tokens), repeats=self.rounds,
                fast="off" if published else captured,
            )  # fmt: skip
        gc.collect()
        print(as_markdown(found), flush=True)
        return {"costs": [one.to_json() for one in found], "left_out": failures, "red_flags": red_flags(found)}


def main() -> None:
    """Run all that fits."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--tiny", action="store_true", help="narrow models, to rehearse")
    parser.add_argument("--only", help="parts whose names contain this")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    session = Session(given.out, time.perf_counter() + given.seconds, given.tiny, given.tokens, given.rounds)
    session.result["about"] = about(sys.argv)
    for name, seconds, work in parts(session):
        if given.only is None or given.only in name:
            session.part(name, seconds, work)


def about(command: list[str]) -> dict[str, Any]:
    """Machine, versions, command."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    return {
        "command": items.told(command), "device": name, "machine": machine_facts(),
        "read_bandwidth": read_bandwidth(device),
    }  # fmt: skip


def parts(session: Session) -> list[tuple[str, float, Callable[[], Any]]]:
    """Name, seconds that must be left, and work, in the order of their worth."""
    llava, qwen = "llava-1.5-7b", "qwen3.5-4b"

    def prompts() -> Any:
        return prefill.measured(
            session.model(llava)[0], session.inputs(llava, 1), rounds=session.rounds, seconds=15
        )

    def judged(batch: int) -> Any:
        tokens = min(125, 5 * session.tokens)
        return confirm_cost.measure(session.model(llava)[0], session.inputs(llava, batch), tokens, session.rounds)

    def alone() -> Any:
        setting = items.Setting(session.place()["device"], session.tiny)
        chosen = (kernels_layers.recurrent_layer, kernels_layers.relevance, kernels_layers.second_look)
        return {item.__name__: item(setting) for item in chosen}

    return [
        ("llava, batch 1", 20, lambda: session.bench(llava, FIRST, 1, 96)),
        ("llava, batch 8", 15, lambda: session.bench(llava, FIRST[:3], 8, 64)),
        ("llava, second tier", 15, lambda: session.bench(llava, SECOND, 1, 48)),
        ("llava, the published way", 10, lambda: session.bench(llava, FIRST[:2], 1, 12, published=True)),
        ("llava, judge, batch 1", 20, lambda: judged(1)),
        ("qwen3.5, batch 1", 15, lambda: session.bench(qwen, FIRST[:2], 1, 64)),
        ("qwen3.5, batch 8", 12, lambda: session.bench(qwen, FIRST[:2], 8, 48)),
        ("llava, prefill", 20, prompts),
        ("llava, judge, batch 8", 25, lambda: judged(8)),
        ("llava, other methods", 20, lambda: session.bench(llava, OTHERS, 1, 48)),
        ("qwen3.5, without recurrent", 12, lambda: session.bench(qwen, FIRST[:2], 1, 48, "recurrent")),
        ("kernels alone", 8, alone),
        ("llava, without relevance", 10, lambda: session.bench(llava, FIRST[:2], 1, 48, "relevance")),
        ("llava, without second look", 10, lambda: session.bench(llava, MEMVR, 1, 48, "second look")),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
