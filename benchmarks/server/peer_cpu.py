"""`transformers serve` beside `seewhen serve` on a CPU: the packaged model, the same questions, in turns.

    python benchmarks/server/peer_cpu.py --rounds 3 --seconds 15

Both answer greedily in float32, with `--threads` threads. Each is asked while the other has nothing to do; who
comes first changes from round to round. Ratios are taken within a round: of tokens per second, which other work on
the machine moves, and of the server's processor time per token, which it hardly does. Writes
results/peer_cpu.json. A GPU's captured steps are no part of this: that is `peer.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from load import alone, phase, questions
from peer import serving
from serving import Served, about, write

from seewhen.backbones.loading import PACKAGED_PATH

OURS, PEER = "seewhen", "transformers"


def bodies(model: str, count: int) -> list[dict[str, Any]]:
    """What is asked: nothing that only one of the two knows."""
    return [{key: body[key] for key in body if key != "seewhen"} for body in questions(model, count, ["regular"])]


async def measured(
    servers: dict[str, Served], asked: dict[str, list[dict[str, Any]]], options: argparse.Namespace
) -> dict[str, Any]:
    """All rounds."""
    expected = {name: await alone(server, asked[name]) for name, server in servers.items()}
    pairs = zip(*([text.strip() for text in texts] for texts in expected.values()), strict=True)
    found: dict[str, Any] = {"answers_alone": options.questions, "that_differ": sum(a != b for a, b in pairs)}
    for clients in options.clients:
        rounds = []
        for number in range(options.rounds):
            told = {}
            for name in (OURS, PEER) if number % 2 == 0 else (PEER, OURS):
                worked = processor_seconds(servers[name])
                tally = await phase(servers[name], asked[name], expected[name], clients, options.seconds)
                worked = processor_seconds(servers[name]) - worked
                told[name] = tally.summary() | {
                    "processor_ms_per_token": round(1000 * worked / tally.tokens, 2),
                    "load_average": round(os.getloadavg()[0], 2),
                }
                del told[name]["memory_mib"]
            rounds.append(told)
        found[f"clients: {clients}"] = {
            f"{what}, ours / peer": ratios([told[OURS][what] / told[PEER][what] for told in rounds])
            for what in ("tokens_per_second", "processor_ms_per_token")
        } | {"rounds": rounds}
    return found


def processor_seconds(server: Served) -> float:
    """What a server and its processes have used so far."""
    process = psutil.Process(server.pid)
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


def ratios(of_rounds: list[float]) -> dict[str, Any]:
    """Median, lowest and highest."""
    return {
        "median": round(statistics.median(of_rounds), 3),
        "low": round(min(of_rounds), 3),
        "high": round(max(of_rounds), 3),
    }


def main() -> None:
    """Run and write results/peer_cpu.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=lambda text: [int(n) for n in text.split(",")], default=[1, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--questions", type=int, default=24)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--name", default="peer_cpu", help="of the result file; empty: print only")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)  # for both servers
    path = str(PACKAGED_PATH)
    peer = ["transformers.cli.transformers", "serve", path, "--device", "cpu", "--dtype", "float32"]
    ours = ["seewhen", "serve", "--model", "packaged", "--method", "regular", "--log-level", "warning"]
    result = about("peer_cpu.py")
    with (
        tempfile.TemporaryDirectory() as logs,
        serving(OURS, ours, "packaged", "/readyz", Path(logs)) as first,
        serving(PEER, peer, path, "/health", Path(logs)) as second,
    ):
        for server in (first, second):
            server.ready(time.monotonic() + 180)
        servers = {each.name: Served(each.url, each.process.pid) for each in (first, second)}
        asked = {each.name: bodies(each.model, options.questions) for each in (first, second)}
        result |= asyncio.run(measured(servers, asked, options))
    result["commands"] = {OURS: " ".join(ours), PEER: " ".join(peer).replace(path, "PACKAGED")}
    if options.name:
        write(options.name, result)
    else:
        print(result)


if __name__ == "__main__":
    main()
