"""A plan for millions of images: what it takes, what it costs, and where it breaks. Writes results/plan.json.

    python benchmarks/scale/plan.py

Times are those measured on one H200 (`costs.py`); everything else is an assumption that stands in `Scenario`,
`Machine` and `Prices`. Seeded: the same numbers come again. The tables of docs/serving-at-scale.md come from it.
"""

from __future__ import annotations

import json
import random
import re
import statistics
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[1]))

from scale.costs import Clock, Shape, about, asked_ms, llava
from scale.replicas import Machine
from scale.work import CAPTIONS, TOKENS_A_WORD, Scenario, simulate

HERE = Path(__file__).parent
RESULT = HERE / "results" / "plan.json"
PAGE = HERE.parents[1] / "docs" / "serving-at-scale.md"

PLAIN = Scenario()
CASES = {
    "regular": replace(PLAIN, confirm=False),
    "confirm": PLAIN,
    "confirm, no prefix cache": replace(PLAIN, machine=Machine(caches=False)),
    "confirm, each request as slow as a question of our own decoder": replace(
        PLAIN, machine=Machine(overhead_ms=round(asked_ms(), 1))
    ),
    "confirm, 8 replicas, an image stays on one": replace(PLAIN, replicas=8, images=8000),
    "confirm, 8 replicas, any replica each time": replace(PLAIN, replicas=8, images=8000, routing="any"),
    "confirm, 8 replicas, one dies for 6 minutes": replace(PLAIN, replicas=8, images=16000, dies=30.0),
}
IN_FLIGHT = (8, 32, 64, 128, 256, 512)
FAILING = (0.0, 0.01, 0.05, 0.2)


@dataclass(frozen=True)
class Prices:
    """What the fleet is assumed to be: prices are parameters, not quotes."""

    images: int = 10_000_000
    gpus: int = 16
    dollars_an_hour: float = 3.5  # a GPU that stays
    spot_dollars_an_hour: float = 2.0  # one that may be taken away
    spot_hours: float = 12.0  # until it is, on average
    boot_hours: float = 0.2  # until there is another, with the model loaded; paid for


def fleet(rate: float, in_flight: int, prices: Prices, spot: bool, seed: int) -> dict[str, float]:
    """Hours and dollars until all images are done. A GPU that is taken away loses the images it is at."""
    chance = random.Random(seed)
    left, hours, lost = float(prices.images), 0.0, 0.0
    ready = [prices.boot_hours] * prices.gpus  # from when on each GPU works
    gone = [chance.expovariate(1 / prices.spot_hours) if spot else float("inf") for _ in ready]
    while True:
        rate_now = 3600 * rate * sum(start <= hours for start in ready)  # images an hour
        ahead = min((moment for moment in (*ready, *gone) if moment > hours), default=float("inf"))
        if rate_now and hours + left / rate_now <= ahead:
            hours += left / rate_now
            break
        left -= rate_now * (ahead - hours)
        hours = ahead
        for number, moment in enumerate(gone):
            if moment <= hours:
                if ready[number] <= hours:
                    left += in_flight / 2  # on average half of each was done
                    lost += in_flight / 2
                ready[number] = hours + prices.boot_hours
                gone[number] = hours + chance.expovariate(1 / prices.spot_hours)
    paid = hours * prices.gpus
    price = prices.spot_dollars_an_hour if spot else prices.dollars_an_hour
    return {"hours": hours, "gpu_hours": paid, "dollars": paid * price, "images_done_again": lost}


def fleets(rate: float, in_flight: int, prices: Prices, seeds: int = 50) -> dict[str, Any]:
    """GPUs that stay, and such that may be taken away (median of many seeds, and the worst)."""
    spot = [fleet(rate, in_flight, prices, True, seed) for seed in range(seeds)]
    return {
        "stays": fleet(rate, in_flight, prices, False, 0),
        "spot": {name: statistics.median(one[name] for one in spot) for name in spot[0]},
        "spot_worst": {name: max(one[name] for one in spot) for name in spot[0]},
    }


def planned(shape: Shape, clock: Clock, prices: Prices) -> dict[str, Any]:
    """All of it."""

    def all_of(cases: Iterable[tuple[str, Scenario]]) -> dict[str, Any]:
        return {name: simulate(case, shape, clock) for name, case in cases}

    cases = all_of(CASES.items())
    sentences = [sentence for caption in CAPTIONS for sentence in caption]
    return {
        "question": about(shape, clock),
        "captions": {
            "sentences": len(sentences) / len(CAPTIONS),
            "words": sum(words for words, _ in sentences) / len(CAPTIONS),
            "objects": sum(objects for _, objects in sentences) / len(CAPTIONS),
            "tokens_a_word": TOKENS_A_WORD,
        },
        "prices": asdict(prices),
        "cases": cases,
        "in_flight": all_of((str(n), replace(PLAIN, in_flight=n)) for n in IN_FLIGHT),
        "failing": all_of((str(share), replace(PLAIN, failing=share)) for share in FAILING),
        "fleets": {
            name: fleets(cases[name]["images_per_s_and_gpu"], PLAIN.in_flight, prices)
            for name in ("regular", "confirm", "confirm, no prefix cache")
        },
    }


# -- the page ------------------------------------------------------------------------------------------------


_MEASURES = "| images/s per GPU | requests/image | prompt tokens cached | s/image, median (95 %)"


def _table(head: str, rows: Iterable[Iterable[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([f"| {head} |", "|" + "---|" * (head.count("|") + 1), *lines])


def tables(found: dict[str, Any]) -> dict[str, str]:
    """The generated parts of the page, by their marks."""
    with_cache, without = (found["question"][name] for name in ("question_with_cache", "question_without"))
    kinds = {
        "tokens of the prompt": ("tokens", "{:,.0f}"),
        "of them computed": ("computed", "{:,.0f}"),
        "operations, 10¹²": ("teraflop", "{:.2f}"),
        "keys and values written, MB": ("written_mb", "{:,.0f}"),
        "keys and values read from the cache, MB": ("read_mb", "{:,.0f}"),
        "ms of the GPU, at the measured rate": ("ms", "{:.1f}"),
    }
    question = [
        [title, *(form.format(one[k]) for one in (without, with_cache))] for title, (k, form) in kinds.items()
    ]
    prices = found["prices"]
    plan = [
        [name, kind.replace("stays", "stay"), *(f"{one[each]:,.0f}" for each in ("hours", "gpu_hours", "dollars"))]
        for name, of_kind in found["fleets"].items()
        for kind, one in of_kind.items()
        if kind != "spot_worst"
    ]
    return {
        "question": _table("one question | without prefix cache | with", question),
        "cases": _table(
            _MEASURES,
            ([name, *_cells(one)] for name, one in found["cases"].items()),
        ),
        "in flight": _table(
            f"images in flight per GPU {_MEASURES}",
            ([name, *_cells(one)] for name, one in found["in_flight"].items()),
        ),
        "failing": _table(
            f"requests that fail {_MEASURES}",
            ([f"{float(name):.0%}", *_cells(one)] for name, one in found["failing"].items()),
        ),
        "plan": _table(
            f"{prices['images']:,} images on {prices['gpus']} GPUs | GPUs | hours | GPU hours | dollars", plan
        ),
    }


def _cells(one: dict[str, Any]) -> list[str]:
    seconds = one["seconds_per_image"]
    return [
        f"{one['images_per_s_and_gpu']:.1f}",
        f"{one['requests_per_image']:.1f}",
        f"{one['cached_share']:.0%}",
        f"{seconds['median']:.1f} ({seconds['p95']:.1f})",
    ]


def filled(text: str, parts: dict[str, str]) -> str:
    """The page with its generated parts replaced."""
    for name, part in parts.items():
        text, count = re.subn(
            rf"(<!-- {name} -->\n).*?(\n<!-- /{name} -->)", lambda m, p=part: m[1] + p + m[2], text, flags=re.S
        )
        assert count == 1, name
    return text


def main() -> None:
    shape = llava()
    found = planned(shape, Clock.measured(shape), Prices())
    found["command"] = "python benchmarks/scale/plan.py"
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    if PAGE.exists():
        PAGE.write_text(filled(PAGE.read_text("utf-8"), tables(found)), "utf-8")
    for name, part in tables(found).items():
        print(f"{name}\n{part}\n")


if __name__ == "__main__":
    main()
