"""Many clients at once: throughput with batches and without, mixed-up answers, memory.

    python benchmarks/server/load.py --seconds 120 --clients 64

Two servers with the same model run side by side, one with batches and one that takes requests one by one; only one
of them is asked at a time. First every question is asked once, alone: the answers under greedy decoding that all
later ones must equal.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import random
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx2
from serving import Served, about, serving, write

from seewhen.scenes import dataset, pope, render


@dataclass
class Tally:
    """What the clients of one phase saw."""

    statuses: Counter[int] = field(default_factory=Counter)
    tokens: int = 0
    wrong: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    elapsed: float = 0.0
    memory_mib: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """As the result file has it."""
        ordered = sorted(self.seconds)
        answered = len(ordered)
        told: dict[str, Any] = {
            "seconds": round(self.elapsed, 1),
            "statuses": {str(status): count for status, count in sorted(self.statuses.items())},
            "answers": answered,
            "answers_that_differ_from_the_single_answer": len(self.wrong),
            "answers_per_second": round(answered / self.elapsed, 2),
            "tokens_per_second": round(self.tokens / self.elapsed, 1),
        }
        if answered > 1:
            told["latency_seconds"] = {
                "median": round(statistics.median(ordered), 3),
                "p95": round(ordered[int(0.95 * (answered - 1))], 3),
                "largest": round(ordered[-1], 3),
            }
        if self.memory_mib:
            quarter = max(len(self.memory_mib) // 4, 1)
            told["memory_mib"] = {
                "at_start": round(self.memory_mib[0], 1),
                "mean_of_second_quarter": round(statistics.mean(self.memory_mib[quarter : 2 * quarter] or [0]), 1),
                "mean_of_last_quarter": round(statistics.mean(self.memory_mib[-quarter:]), 1),
                "largest": round(max(self.memory_mib), 1),
            }
        return told


def questions(model: str, count: int, methods: list[str]) -> list[dict[str, Any]]:
    """Captions and yes/no questions about the package's own scenes; methods take turns."""
    scenes = dataset("shifted", count)
    short = [record["text"] for record in pope(scenes, "adversarial")]
    bodies = []
    for number, scene in enumerate(scenes):
        buffer = io.BytesIO()
        render(scene).save(buffer, "PNG")
        url = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
        ask_one = number % 4 == 0
        text = short[number % len(short)] if ask_one else "Please describe this image in detail."
        content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
        bodies.append(
            {
                "model": model,
                "messages": [{"role": "user", "content": content}],
                "temperature": 0,
                "max_tokens": 8 if ask_one else 64,
                "stream": number % 3 == 0,
                "seewhen": {"method": methods[number % len(methods)]},
            }
        )
    return bodies


async def ask(client: httpx2.AsyncClient, url: str, body: dict[str, Any]) -> tuple[int, str, int, float]:
    """Status, text, tokens and Retry-After of one request."""
    if not body["stream"]:
        response = await client.post(f"{url}/v1/chat/completions", json=body)
        if response.status_code != 200:
            return response.status_code, "", 0, float(response.headers.get("retry-after", 1))
        answer = response.json()
        return 200, answer["choices"][0]["message"]["content"], answer["usage"]["completion_tokens"], 0.0
    text, tokens = "", 0
    sent = {**body, "stream_options": {"include_usage": True}}
    async with client.stream("POST", f"{url}/v1/chat/completions", json=sent) as response:
        if response.status_code != 200:
            return response.status_code, "", 0, float(response.headers.get("retry-after", 1))
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                return 599, "", 0, 1.0
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
            for choice in event["choices"]:
                text += choice["delta"].get("content") or ""
    return 200, text, tokens, 0.0


async def phase(
    server: Served, bodies: list[dict[str, Any]], expected: list[str], clients: int, seconds: float
) -> Tally:
    """`clients` ask at random, one question after the other, for `seconds`; open requests are finished."""
    tally = Tally()
    end = time.monotonic() + seconds

    async def one(number: int, client: httpx2.AsyncClient) -> None:
        generator = random.Random(number)
        while time.monotonic() < end:
            which = generator.randrange(len(bodies))
            began = time.monotonic()
            status, text, tokens, wait = await ask(client, server.url, bodies[which])
            tally.statuses[status] += 1
            if status == 200:
                tally.seconds.append(time.monotonic() - began)
                tally.tokens += tokens
                if text != expected[which]:
                    tally.wrong.append(f"{text!r} for {expected[which]!r}")
            else:
                await asyncio.sleep(min(wait, 5.0))

    async def watch() -> None:
        while True:
            tally.memory_mib.append(server.resident() / 2**20)
            await asyncio.sleep(1)

    limits = httpx2.Limits(max_connections=clients + 1)
    began = time.monotonic()
    async with httpx2.AsyncClient(timeout=120, limits=limits) as client:
        watcher = asyncio.create_task(watch())
        await asyncio.gather(*(one(number, client) for number in range(clients)))
        watcher.cancel()
    tally.elapsed = time.monotonic() - began
    return tally


async def alone(server: Served, bodies: list[dict[str, Any]]) -> list[str]:
    """Every question once, with nobody else there."""
    async with httpx2.AsyncClient(timeout=120) as client:
        answers = [await ask(client, server.url, body) for body in bodies]
    assert all(answer[0] == 200 for answer in answers), Counter(answer[0] for answer in answers)
    return [answer[1] for answer in answers]


async def measure(batched: Served, single: Served, options: argparse.Namespace) -> dict[str, Any]:
    """All phases."""
    bodies = questions(options.model, options.questions, options.methods)
    expected = await alone(batched, bodies)
    assert expected == await alone(single, bodies)
    side = options.seconds / 6
    before = await phase(single, bodies, expected, options.clients, side)
    together = await phase(batched, bodies, expected, options.clients, options.seconds)
    after = await phase(single, bodies, expected, options.clients, side)
    async with httpx2.AsyncClient() as client:
        metrics = (await client.get(f"{batched.url}/metrics")).text
        ready = (await client.get(f"{batched.url}/readyz")).status_code
    one_by_one = (before.tokens + after.tokens) / (before.elapsed + after.elapsed)
    numbers = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if line[0] != "#")
    first = len(bodies)  # those asked alone at the beginning
    total, batches = (float(numbers[f"seewhen_batch_rows_{what}"]) - first for what in ("sum", "count"))
    for line in (together.wrong + before.wrong + after.wrong)[:5]:
        print("differs:", line, file=sys.stderr)
    return {
        "one_by_one_before": before.summary(),
        "batched": together.summary(),
        "one_by_one_after": after.summary(),
        "throughput_ratio": round(together.tokens / together.elapsed / one_by_one, 2),
        "mean_rows_of_a_batch": round(total / batches, 1),
        "ready_afterwards": ready == 200,
    }


def main() -> None:
    """Run and write results/load.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="packaged")
    parser.add_argument(
        "--methods", default=["cai"], type=lambda text: text.split(","), help="cai, or cai,regular"
    )
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--questions", type=int, default=48)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--name", default="load", help="of the result file; empty: print only")
    options = parser.parse_args()
    result = about("load.py")
    result["settings"] = {key: value for key, value in vars(options).items() if key != "name"}
    with (
        serving(options.model, options.methods[0], f"batch_rows={options.rows}") as batched,
        serving(options.model, options.methods[0], "batch_rows=1", "n=1") as single,
    ):
        result |= asyncio.run(measure(batched, single, options))
    print(json.dumps(result, indent=2))
    if options.name:
        write(options.name, result)


if __name__ == "__main__":
    main()
