"""The server with captured steps beside the server without them and beside bare loops: one run, one model.

    python benchmarks/server/lanes.py --shape llava-1.5-7b --clients 1,32 --out lanes.json

`http` is the real server, asked by a process of its own: `graph` joins captured steps, `off` has none.
`lanes` are the same steps without a server: prompts read `beside` queued steps, or `in turn`. `generate` is one
call on a whole batch: the most there is to gain, with its prompts (`tokens_per_second`) and of its steps alone.
Clients ask again as soon as they are answered, each with a prompt of its own; what is counted is a span of time in
which all of them do. `where` tells what the server's inference thread did meanwhile.
Each part is written to the result when it is done, in the order of its worth; `--seconds` ends it.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import importlib.util
import json
import platform
import statistics
import sys
import threading
import time
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from seewhen.asking.attach import Attachment
from seewhen.backbones.backbone import Backbone
from seewhen.backbones.prompts import on_device
from seewhen.backbones.shapes import random_inputs, random_model, shape_config
from seewhen.decoding.fast.lane import Seat
from seewhen.decoding.fast.lanes import Lanes
from seewhen.decoding.fast.slots import Choice
from seewhen.methods import method as make_method


def settle() -> None:
    """Wait for the device."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@dataclass
class Client:
    """Asks one prompt after the other."""

    number: int
    asked: float = 0.0
    began: float = 0.0
    tokens: int = 0


@dataclass
class Window:
    """What is seen of all clients in a span of time, after some that is not counted."""

    opens: float
    closes: float
    tokens: int = 0
    first: list[float] = field(default_factory=list)  # seconds to the first token
    each: list[float] = field(default_factory=list)  # seconds per token after it

    @classmethod
    def after(cls, warm: float, seconds: float) -> Window:
        """One that opens `warm` seconds from now."""
        now = time.perf_counter()
        return cls(now + warm, now + warm + seconds)

    def told(self) -> dict[str, Any]:
        """In numbers."""
        first = sorted(self.first)
        return {
            "answers": len(first),
            "seconds": self.closes - self.opens,
            "tokens_per_second": self.tokens / (self.closes - self.opens),
            "ms_per_token": 1000 * statistics.median(self.each) if self.each else None,
            "first_token_ms": _times(first),
        }


def _times(seconds: list[float]) -> dict[str, float] | None:
    if not seconds:
        return None
    milli = [1000 * value for value in sorted(seconds)]
    return {"median": statistics.median(milli), "p95": milli[int(0.95 * (len(milli) - 1))], "most": milli[-1]}


_STARTING = 0.8  # seconds that the clients' process takes to begin
_STEPS = 4  # that are queued when a prompt is read: as many as the device may be ahead


class Bench:
    """A model and what is measured on it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        config = shape_config(options.shape, tiny=options.tiny)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = getattr(torch, options.dtype)
        self.model = random_model(config, device=device, dtype=dtype)
        self.backbone = Backbone.of(self.model)
        # Pictures and words of each client are its own; lengths are alike, so that all ways do the same work.
        self.prompts = [random_inputs(config, dtype=dtype, seed=seed) for seed in range(max(options.clients))]
        if device == "cuda":
            self.prompts = [{name: v.pin_memory() for name, v in prompt.items()} for prompt in self.prompts]
        self.end = time.monotonic() + options.seconds
        self.result: dict[str, Any] = {
            "command": " ".join(["python", "benchmarks/server/lanes.py", *map(_name, sys.argv[1:])]),
            "device": torch.cuda.get_device_name() if device == "cuda" else platform.processor(),
            "python": platform.python_version(),
            "versions": {name: _version(name) for name in ("torch", "transformers", "triton")},
            "prompt_tokens": int(self.prompts[0]["input_ids"].shape[1]),
            "new_tokens": options.tokens,
            "peer": _peer(),
            "parts": [],
        }

    def note(self, **part: Any) -> None:
        """Keep a part of the result, on disk too."""
        print(json.dumps(part), flush=True)
        self.result["parts"].append(part)
        self.options.out.write_text(json.dumps(self.result, indent=1) + "\n")

    def batch(self, rows: int) -> dict[str, Any]:
        """The prompts of `rows` clients as one batch."""
        some = self.prompts[:rows]
        return on_device(self.model, {name: torch.cat([prompt[name] for prompt in some]) for name in some[0]})

    def bare(self, name: str, rows: int, fast: str, repeats: int) -> None:
        """`generate` on a whole batch: the captured loop, or transformers' own."""
        attachment = Attachment.of(self.model, make_method(name), fast=fast)  # type: ignore[arg-type]
        inputs, tokens = self.batch(rows), self.options.tokens
        whole, short = [], []
        with attachment.placed(), torch.inference_mode():
            for repeat in range(repeats + 1):
                for new, found in ((tokens, whole), (2, short)):
                    settle()
                    began = time.perf_counter()
                    self.model.generate(
                        **inputs, max_new_tokens=new, do_sample=False, eos_token_id=None, pad_token_id=0
                    )
                    settle()
                    if repeat:
                        found.append(time.perf_counter() - began)
        seconds, first = statistics.median(whole), statistics.median(short)
        self.note(
            what="generate",
            method=name,
            way=fast,
            rows=rows,
            seconds=seconds,
            seconds_of_two_tokens=first,
            ms_per_step=1000 * (seconds - first) / (tokens - 2),
            tokens_per_second=rows * tokens / seconds,
            tokens_per_second_of_steps=rows * (tokens - 2) / (seconds - first),
        )
        del attachment
        gc.collect()

    def http(self, name: str, clients: int, fast: str, warm: float, seconds: float) -> None:
        """Clients of a real server."""
        from shaped import Asking, asked, served
        from watched import watched

        tokens = self.options.tokens
        ask = Asking(clients, tokens, self._words, self.model.config.vision_config.image_size, warm, seconds)
        most, tellers = max(self.options.clients), []
        with served(self.model, name, fast, most, tokens) as (url, engine), watched(engine) as watch:
            if fast != "off":
                asked(url, dataclasses.replace(ask, tokens=tokens // 2, warm=0.0, seconds=2.0))  # captures
            where: dict[str, Any] = {}
            for delay, do in ((warm, watch.reset), (warm + seconds, lambda: where.update(watch.found()))):
                tellers.append(threading.Timer(delay + _STARTING, do))
                tellers[-1].start()
            found = asked(url, ask)
            for teller in tellers:
                teller.join()
            steps = [step for lane in engine.company.lanes.lanes.values() for step in lane.steps.values()]
        window = Window(0.0, seconds, found["tokens"], found["first"], found["each"])
        told = {"what": "http", "method": name, "way": fast, "clients": clients, **window.told()}
        captured = {"captured": sum(step.captured for step in steps), "of": len(steps)}
        self.note(**told, pieces_per_second=found["pieces"] / seconds, **captured, where=where)
        gc.collect()

    @property
    def _words(self) -> int:
        return int(self.prompts[0]["input_ids"].shape[1]) - self._images

    def lanes(self, name: str, clients: int, way: str, warm: float, seconds: float) -> None:
        """Clients of the steps without a server. Prompts are read `beside` steps that are queued, or `in turn`."""
        method = make_method(name)
        lanes = Lanes(self.model, self.backbone, slots=max(self.options.clients), fast="graph")
        self._ask(lanes, method, clients, way, Window.after(0.0, 1.0))  # captures
        settle()
        window = Window.after(warm, seconds)
        self._ask(lanes, method, clients, way, window)
        steps = [step for lane in lanes.lanes.values() for step in lane.steps.values()]
        self.note(
            what="lanes",
            method=name,
            way=way,
            clients=clients,
            **window.told(),
            captured=all(step.captured for step in steps if step.made > 1),
            gigabytes=sum(lane.bytes for lane in lanes.lanes.values()) / 1e9,
        )
        lanes.clear()
        del lanes
        gc.collect()

    def _ask(self, lanes: Lanes, method: Any, clients: int, way: str, window: Window) -> None:
        waiting = [Client(number, time.perf_counter()) for number in range(clients)]
        seats: dict[Seat, Client] = {}
        limit = {client.number: self.options.tokens * (1 + client.number) // clients for client in waiting}
        while (waiting and time.perf_counter() < window.closes) or lanes.busy:
            open_ = time.perf_counter() < window.closes
            if waiting and open_ and lanes.fits(method, self._columns, self._images, 1):
                client = waiting.pop(0)
                # Clients do not come in step: their first answers have different lengths.
                seat = Seat(Choice(), max(limit.pop(client.number, self.options.tokens), 2), 0)
                seats[seat] = client
                if way == "in turn":
                    lanes._beside.in_turn()
                lanes.join(method, self.prompts[client.number], self._columns, [[seat]])
            for lane in lanes.busy:
                for token in list(lanes.advance(lane)):
                    client, now = seats[token.seat], time.perf_counter()
                    client.tokens += 1
                    window.tokens += window.opens <= now < window.closes
                    if client.tokens == 1:
                        client.began = now
                    if client.tokens == token.seat.limit:
                        lane.leave(token.seat)
                        if window.opens <= client.asked and now < window.closes:
                            window.first.append(client.began - client.asked)
                            window.each.append((now - client.began) / max(client.tokens - 1, 1))
                        waiting.append(Client(client.number, now))

    def overlap(self, name: str, rows: int) -> None:
        """A reading, steps, and both at once: how much of the one is hidden behind the other."""
        method = make_method(name)
        lanes = Lanes(self.model, self.backbone, slots=rows, fast="graph")

        def join() -> tuple[Any, Seat]:
            seat = Seat(Choice(), self.options.tokens, 0)
            return lanes.join(method, self.prompts[0], self._columns, [[seat]]), seat

        for _ in range(lanes.widths[-1] - 1):
            lane, _ = join()
        found: dict[str, list[float]] = {"reading": [], "steps": [], "in_turn": [], "beside": []}
        for repeat in range(8):
            for way, times in found.items():
                settle()
                began = time.perf_counter()
                if way != "reading":
                    for _ in range(_STEPS):
                        lane.advance()
                if way == "in_turn":
                    lanes._beside.in_turn()
                if way != "steps":
                    lane.leave(join()[1])
                settle()
                list(lane.arrived())
                if repeat > 2:
                    times.append(1000 * (time.perf_counter() - began))
        medians = {f"ms_{way}": statistics.median(times) for way, times in found.items()}
        self.note(what="overlap", method=name, rows=lane.busy, steps=_STEPS, **medians)
        lanes.clear()
        gc.collect()

    @property
    def _columns(self) -> int:
        return int(self.prompts[0]["input_ids"].shape[1]) + self.options.tokens

    @property
    def _images(self) -> int:
        return int(self.backbone.image_mask(self.prompts[0]["input_ids"]).sum())


def _name(argument: str) -> str:
    """A path without the folders of this machine."""
    return Path(argument).name if argument.startswith("/") else argument


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _peer() -> str:
    """Whether `transformers serve` could run here."""
    missing = [n for n in ("fastapi", "uvicorn", "openai", "pydantic") if importlib.util.find_spec(n) is None]
    return f"transformers serve needs {', '.join(missing)}, not installed" if missing else "can run"


def main() -> None:
    """Run all parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="llava-1.5-7b")
    parser.add_argument("--tiny", action="store_true", help="The family with tiny sizes, to rehearse.")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--clients", type=lambda text: [int(n) for n in text.split(",")], default=[1, 8, 32])
    parser.add_argument("--methods", type=lambda text: text.split(","), default=["regular", "cai"])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--window", type=float, default=6, help="Seconds that are counted of each part.")
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--out", type=Path, default=Path("lanes.json"))
    options = parser.parse_args()
    bench = Bench(options)
    most = max(options.clients)
    parts: list[tuple[Any, ...]] = []
    window = options.window
    for name in options.methods:
        parts += [(bench.bare, name, 1, "graph", 3), (bench.http, name, 1, "graph", window / 4, window / 2)]
        parts += [(bench.bare, name, most, "graph", 2), (bench.http, name, most, "graph", window / 2, window)]
        if name == options.methods[0]:
            parts += [(bench.overlap, name, most), (bench.http, name, most, "off", window, 2 * window)]
            parts += [(bench.lanes, name, most, way, window / 2, window) for way in ("beside", "in turn")]
    for work, *given in parts:
        if time.monotonic() > bench.end:
            bench.note(what="out of time", left=str(given))
            break
        try:
            work(*given)
        except Exception as error:  # the other parts are worth something without it
            bench.note(what="failed", part=str(given), error=repr(error)[:2000])


if __name__ == "__main__":
    main()
