"""Ten thousand broken requests: each must get an answer or a refusal in the right shape, never a 5xx.

    python benchmarks/server/fuzz.py --count 10000

Then the server must still answer, and what it answered before must come again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import time
from collections import Counter
from typing import Any

import httpx2
import mutations
from serving import Served, about, serving, write

ALLOWED = {200, 400, 404}
LEAK = re.compile(r"0x[0-9a-f]{6,}|Traceback|File \\\"|site-packages")


async def run(server: Served, options: argparse.Namespace) -> dict[str, Any]:
    """Send them all, a few at a time."""
    statuses: Counter[int] = Counter()
    codes: Counter[str] = Counter()
    bad: list[str] = []
    bodies = mutations.requests(options.model, options.count, options.seed)
    url = f"{server.url}/v1/chat/completions"
    control = mutations.body(options.model, mutations.images(1, random.Random(7))[0]) | {"max_tokens": 24}

    async def one(client: httpx2.AsyncClient) -> None:
        for body in bodies:
            response = await client.post(url, content=body)
            statuses[response.status_code] += 1
            if response.status_code != 200:
                codes[response.json()["error"]["code"]] += 1
            if response.status_code not in ALLOWED or LEAK.search(response.text):
                bad.append(f"{response.status_code} {response.text[:200]} for {body[:300]!r}")

    async with httpx2.AsyncClient(headers={"Content-Type": "application/json"}, timeout=120) as client:
        before = (await client.post(url, json=control)).json()["choices"][0]["message"]["content"]
        memory = server.resident()
        began = time.monotonic()
        await asyncio.gather(*(one(client) for _ in range(options.clients)))
        elapsed = time.monotonic() - began
        after = (await client.post(url, json=control)).json()["choices"][0]["message"]["content"]
        ready = (await client.get(f"{server.url}/readyz")).status_code
    for line in bad[:10]:
        print(line, file=sys.stderr)
    return {
        "requests": sum(statuses.values()),
        "seconds": round(elapsed, 1),
        "statuses": {str(status): count for status, count in sorted(statuses.items())},
        "codes": dict(codes.most_common()),
        "answers_of_a_wrong_kind": len(bad),
        "same_answer_afterwards": before == after,
        "ready_afterwards": ready == 200,
        "memory_mib": {"before": round(memory / 2**20, 1), "after": round(server.resident() / 2**20, 1)},
    }


def main() -> None:
    """Run and write results/fuzz.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="packaged")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--name", default="fuzz", help="of the result file; empty: print only")
    options = parser.parse_args()
    result = about("fuzz.py")
    with serving(options.model, "cai") as server:
        result |= asyncio.run(run(server, options))
    print(json.dumps(result, indent=2))
    if options.name:
        write(options.name, result)
    if result["answers_of_a_wrong_kind"] or not result["ready_afterwards"] or not result["same_answer_afterwards"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
