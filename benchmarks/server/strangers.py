"""Ten thousand silent, slow or lying connections while honest clients work.

    python benchmarks/server/strangers.py --connections 10000 --clients 64 --seconds 60

Server, strangers and honest clients are three processes. The clients ask for as long without strangers first. With
them, none may fail, their median latency may at most double, memory stays bounded and the log below a megabyte. A
stranger that is hung up on comes back, so that there are always as many.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from load import questions
from serving import KEY, Served, about, serving, write

CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
KEYED = CHAT + f"Authorization: Bearer {KEY}\r\nContent-Type: application/json\r\n".encode()
KINDS: dict[str, tuple[bytes, bytes]] = {  # what is sent at once, and what follows byte by byte
    "silent": (b"", b""),
    "half of the headers": (CHAT, b""),
    "headers byte by byte": (CHAT, b"X: " + b"a" * 1000),
    "no key, a body that does not come": (CHAT + b"Content-Length: 1000\r\n\r\n1", b""),
    "no key, a body byte by byte": (CHAT + b"Content-Length: 1000\r\n\r\n", b"1" * 1000),
    "a probe with a body that does not come": (
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n",
        b"",
    ),
    "another host": (b"POST / HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 1000\r\n\r\n1", b""),
    "no HTTP": (b"\x16\x03\x01 no HTTP\r\n\r\n", b""),
    "a lie about the length": (CHAT + b"Content-Length: 99999999999\r\n\r\n", b""),
    "an upload with the key that stops": (KEYED + b"Content-Length: 1000\r\n\r\n{", b""),
}


@dataclass
class Strangers:
    """What they saw."""

    opened: int = 0
    open: int = 0
    most_open: int = 0
    refused: int = 0
    heard: Counter[str] = field(default_factory=Counter)

    async def one(self, port: int, number: int, end: float, pause: float) -> None:
        """A stranger that comes back whenever it is hung up on, after a pause."""
        first, rest = list(KINDS.values())[number % len(KINDS)]
        while (left := end - time.monotonic()) > 0:
            try:
                async with asyncio.timeout(left):
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
            except (OSError, TimeoutError):
                self.refused += 1
                await asyncio.sleep(pause)
                continue
            self.opened += 1
            self.open += 1
            self.most_open = max(self.most_open, self.open)
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout_at(asyncio.get_running_loop().time() + left):
                    await self._talk(reader, writer, first, rest)
            self.open -= 1
            writer.transport.abort()
            await asyncio.sleep(pause)

    async def _talk(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: bytes, rest: bytes
    ) -> None:
        writer.write(first)
        for place in range(len(rest)):
            writer.write(rest[place : place + 1])
            with suppress(TimeoutError):
                async with asyncio.timeout(2):
                    answer = await reader.read(4096)
                    self.heard[answer[:12].decode("ascii", "replace") or "hung up"] += 1
                    return
        answer = await reader.read(4096)
        self.heard[answer[:12].decode("ascii", "replace") or "hung up"] += 1
        await reader.read(4096)


@dataclass
class Honest:
    """What the honest clients saw."""

    statuses: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    memory_mib: float = 0.0

    async def one(self, server: Served, bodies: list[dict[str, Any]], number: int, end: float) -> None:
        """A client with one question after the other."""
        headers = {"Authorization": f"Bearer {KEY}"}
        async with httpx2.AsyncClient(timeout=120, headers=headers, verify=False) as client:
            while time.monotonic() < end:
                began = time.monotonic()
                try:
                    url = f"{server.url}/v1/chat/completions"
                    response = await client.post(url, json=bodies[number % len(bodies)])
                    self.statuses[str(response.status_code)] += 1
                except httpx2.HTTPError as error:
                    self.statuses[type(error).__name__] += 1
                self.seconds.append(time.monotonic() - began)
                self.memory_mib = max(self.memory_mib, server.resident() / 2**20)

    def summary(self) -> dict[str, Any]:
        """As the result file has it."""
        ordered = sorted(self.seconds)
        return {
            "statuses": dict(self.statuses),
            "median_seconds": round(statistics.median(ordered), 3),
            "p95_seconds": round(ordered[int(0.95 * (len(ordered) - 1))], 3),
            "largest_memory_mib": round(self.memory_mib, 1),
        }


async def work(server: Served, bodies: list[dict[str, Any]], clients: int, seconds: float) -> Honest:
    """The honest clients alone."""
    honest, end = Honest(), time.monotonic() + seconds
    await asyncio.gather(*(honest.one(server, bodies, number, end) for number in range(clients)))
    return honest


def crowd(port: int, connections: int, seconds: float, pause: float) -> Strangers:
    """All strangers, in a process of their own."""

    async def visits() -> Strangers:
        strangers, end = Strangers(), time.monotonic() + seconds
        await asyncio.gather(*(strangers.one(port, number, end, pause) for number in range(connections)))
        return strangers

    return asyncio.run(visits())


def honest(server: Served, bodies: list[dict[str, Any]], clients: int, seconds: float) -> Honest:
    """The honest clients, in a process of theirs."""
    return asyncio.run(work(server, bodies, clients, seconds))


def measure(server: Served, model: str, options: argparse.Namespace) -> dict[str, Any]:
    """Without strangers, then with them. Neither waits for the other's interpreter."""
    bodies = [{**body, "stream": False, "max_tokens": 8} for body in questions(model, 16, ["cai"])]
    port = int(server.url.rsplit(":", 1)[1])
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawned) as theirs, ProcessPoolExecutor(1, spawned) as ours:

        def worked(seconds: float) -> Honest:
            return ours.submit(honest, server, bodies, options.clients, seconds).result()

        theirs.submit(crowd, port, 10, 1, 1).result()  # the first requests load this and that
        worked(3)
        before = worked(options.seconds)
        crowded = theirs.submit(crowd, port, options.connections, options.seconds + 10, options.pause)
        time.sleep(5)
        during = worked(options.seconds)
        strangers = crowded.result()
        after = worked(3)
    ratio = during.summary()["median_seconds"] / before.summary()["median_seconds"]
    return {
        "honest_clients": options.clients,
        "honest_before": before.summary(),
        "honest_with_strangers": during.summary(),
        "honest_afterwards": after.summary(),
        "median_ratio": round(ratio, 2),
        "strangers": {
            "at_a_time": options.connections,
            "connections": strangers.opened,
            "most_open": strangers.most_open,
            "not_connected": strangers.refused,
            "heard": dict(strangers.heard.most_common()),
        },
    }


def holds(result: dict[str, Any]) -> list[str]:
    """What of the promise is broken."""
    broken = []
    for phase in ("honest_before", "honest_with_strangers", "honest_afterwards"):
        if set(result[phase]["statuses"]) != {"200"}:
            broken.append(f"{phase}: {result[phase]['statuses']}")
    if result["median_ratio"] > 2:
        broken.append(f"the median latency is {result['median_ratio']} times as long")
    grown = result["honest_with_strangers"]["largest_memory_mib"] - result["honest_before"]["largest_memory_mib"]
    if grown > 512:
        broken.append(f"{grown:.0f} MiB more memory")
    if result["log_bytes"] > 2**20:
        broken.append(f"{result['log_bytes']} bytes of log")
    return broken


def main() -> None:
    """Run and write results/strangers.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="packaged")
    parser.add_argument("--connections", type=int, default=10_000, help="strangers at a time")
    parser.add_argument("--clients", type=int, default=64, help="honest ones")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--pause", type=float, default=10, help="seconds before a stranger comes back")
    parser.add_argument("--name", default="strangers", help="of the result file; empty: print only")
    options = parser.parse_args()
    result = about("strangers.py")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with serving(options.model, "cai", log=log) as server:
            result |= measure(server, Path(options.model).name, options)
        result["log_bytes"] = log.stat().st_size
    result["broken"] = holds(result)
    print(json.dumps(result, indent=2))
    if options.name:
        write(options.name, result)
    if result["broken"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
