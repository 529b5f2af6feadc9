"""The server with captured steps beside the server without them and beside bare loops: one run, one model.

    python benchmarks/server/lanes.py --shape llava-1.5-7b --clients 1,8,32 --out lanes.json

`http` is the real server, asked by a process of its own: `graph` joins captured steps, `off` has none.
`lanes` are the same steps without a server. `generate` is one call on a whole batch: the most there is to gain.
Clients ask again as soon as they are answered, each with a prompt of its own.
Each part is written to the result when it is done, in the order of its worth; `--seconds` ends it.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import platform
import statistics
import sys
import time
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from seewhen.asking.attach import Attachment
from seewhen.backbones.backbone import Backbone
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
    answers: int
    asked: float = 0.0
    tokens: int = 0
    first: list[float] = field(default_factory=list)  # seconds to the first token
    each: list[float] = field(default_factory=list)  # seconds per token after it
    began: float = 0.0
    done: int = 0
    last: float = 0.0


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
        self.prompts = [
            random_inputs(config, device=device, dtype=dtype, seed=seed) for seed in range(max(options.clients))
        ]
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
        return {name: torch.cat([prompt[name] for prompt in some]) for name in some[0]}

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

    def http(self, name: str, clients: int, answers: int, fast: str) -> None:
        """Clients of a real server."""
        from shaped import asked, served

        side, words = self.model.config.vision_config.image_size, self._words
        with served(self.model, name, fast, max(self.options.clients), self.options.tokens) as (url, engine):
            if fast != "off":
                asked(url, clients, 1, self.options.tokens // 2, words, side)  # captures
            found = asked(url, clients, answers, self.options.tokens, words, side)
            captured = [
                step.captured for lane in engine.company.lanes.lanes.values() for step in lane.steps.values()
            ]
        first, each = found["first"], found["each"]
        self.note(
            what="http",
            method=name,
            way=fast,
            clients=clients,
            answers=len(first),
            seconds=found["seconds"],
            tokens_per_second=found["tokens"] / found["seconds"],
            ms_per_token=1000 * statistics.median(each),
            first_token_ms={
                "median": 1000 * statistics.median(first),
                "p95": 1000 * first[int(0.95 * (len(first) - 1))],
            },
            captured=sum(captured),
        )
        gc.collect()

    @property
    def _words(self) -> int:
        return int(self.prompts[0]["input_ids"].shape[1]) - self._images

    def lanes(self, name: str, clients: int, answers: int) -> None:
        """Clients that ask one prompt after the other."""
        method = make_method(name)
        lanes = Lanes(self.model, self.backbone, slots=max(self.options.clients), fast="graph")
        self._ask(lanes, method, clients, 1)  # captures
        settle()
        began = time.perf_counter()
        asked = self._ask(lanes, method, clients, answers)
        seconds = time.perf_counter() - began
        first = sorted(value for client in asked for value in client.first)
        each = [value for client in asked for value in client.each]
        self.note(
            what="lanes",
            method=name,
            clients=clients,
            answers=len(first),
            seconds=seconds,
            tokens_per_second=sum(client.tokens for client in asked) / seconds,
            ms_per_token=1000 * statistics.median(each),
            first_token_ms={
                "median": 1000 * statistics.median(first),
                "p95": 1000 * first[int(0.95 * (len(first) - 1))],
            },
            captured=all(s.captured for la in lanes.lanes.values() for s in la.steps.values() if s.made > 1),
            gigabytes=sum(lane.bytes for lane in lanes.lanes.values()) / 1e9,
        )
        lanes.clear()
        del lanes
        gc.collect()

    def _ask(self, lanes: Lanes, method: Any, clients: int, answers: int) -> list[Client]:
        everybody = [Client(number, answers) for number in range(clients)]
        # Clients do not come in step: the first answers have different lengths.
        waiting = list(everybody)
        seats: dict[Seat, Client] = {}
        tokens = self.options.tokens
        for client in waiting:
            client.asked = time.perf_counter()
        while waiting or lanes.busy:
            if waiting and lanes.fits(method, self._columns, self._images, 1):
                client = waiting.pop(0)
                staggered = client.done == 0 and answers > 1
                wanted = max(tokens * (1 + client.number) // clients, 2) if staggered else tokens
                seat = Seat(Choice(), wanted, 0)
                seats[seat] = client
                lanes.join(method, self.prompts[client.number], self._columns, [[seat]])
            for lane in lanes.busy:
                for token in list(lanes.advance(lane)):
                    client, now = seats[token.seat], time.perf_counter()
                    client.tokens += 1
                    client.last = now
                    if not client.began:
                        client.began = now
                        if client.done or answers == 1:
                            client.first.append(now - client.asked)
                    token.seat.notes += ("",)
                    if len(token.seat.notes) == token.seat.limit:
                        lane.leave(token.seat)
                        if client.done or answers == 1:
                            client.each.append((now - client.began) / max(token.seat.limit - 1, 1))
                        client.done += 1
                        client.began, client.asked = 0.0, now
                        if client.done < client.answers:
                            waiting.append(client)
        return everybody

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
    parser.add_argument("--answers", type=int, default=4, help="Of each client.")
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--out", type=Path, default=Path("lanes.json"))
    options = parser.parse_args()
    bench = Bench(options)
    most = max(options.clients)
    parts: list[tuple[Any, ...]] = []
    for name in options.methods:
        parts += [(bench.bare, name, 1, "graph", 3), (bench.http, name, 1, options.answers, "graph")]
        parts += [(bench.bare, name, most, "graph", 2), (bench.http, name, most, options.answers, "graph")]
        parts += [(bench.http, name, most, 2, "off")]
    for name in options.methods:
        parts += [(bench.lanes, name, clients, options.answers) for clients in options.clients]
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
