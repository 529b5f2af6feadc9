"""What `confirm` gives where a server offers less: the same scenes, asked with all of it and with parts missing.

    python benchmarks/server/offered.py --scenes 60

The packaged model behind our own server, greedy and sampled; parts are left out on our side, as if a probe had not
found them. Writes results/offered.json; the table of docs/remote.md comes from it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import seewhen
from seewhen.benchmarks import load as load_benchmark
from seewhen.runs.pictures import open_picture, scene_source
from seewhen.runs.scoring import result_of, score_records
from seewhen.runs.store import Record

HERE = Path(__file__).parent
RESULT = HERE / "results" / "offered.json"
PAGE = HERE.parents[1] / "docs" / "remote.md"
ASK = "Please describe this image in detail."
METHOD = "confirm:coco:verdict=asking"
CASES: Mapping[str, Mapping[str, Any] | None] = {
    "regular": None,
    "everything offered": {},
    "no forbidden words": {"bans": ""},
    "no stop strings": {"stops": False},
    "an answer begun is not continued: asked in words": {"continues": False, "bans": "", "stops": False},
}
FIGURES = ("chair_s", "chair_i", "recall", "words")


def measured(model: seewhen.Remote, case: str, samples: Sequence[Any], sampled: bool) -> dict[str, Any]:
    """One way of asking, on all scenes."""
    missing, offers = CASES[case], model.offers
    if missing is not None:
        model._offers = dataclasses.replace(offers, **missing)
    method = "regular" if missing is None else METHOD
    how: dict[str, Any] = {"do_sample": True, "temperature": 1.0} if sampled else {}

    def answered(place: int) -> tuple[Record, Mapping[str, Any], int]:
        sample = samples[place]
        found = model.generate(
            open_picture(scene_source(sample.image)), ASK, method, max_new_tokens=64, seed=place, **how
        )
        record = Record(sample.id, 0, sample.image, found.text, found.tokens)
        return record, found.told or {}, found.usage.requests

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(answered, range(len(samples))))
    model._offers = offers
    records, told, requests = (list(each) for each in zip(*found, strict=True))
    verdicts = [verdict["verdict"] for each in told for verdict in each.get("verdicts", ())]
    return {
        "records": records,
        "texts": [record.answer for record in records],
        "requests": sum(requests) / len(requests),
        "taken_back": sum(len(each.get("taken_back", ())) for each in told) / len(told),
        "denied": verdicts.count("denied"),
        "asked_about": len(verdicts),
    }


def figures(benchmark: Any, found: Mapping[str, Any], all_offered: Sequence[str]) -> dict[str, Any]:
    """What is reported of it."""
    records = found["records"]
    metrics = result_of(benchmark, score_records(benchmark, records, (0,)), records)["metrics"]
    same = sum(one == other for one, other in zip(found["texts"], all_offered, strict=True))
    known = {name: metrics[name] for name in FIGURES}
    return {**known, **{k: v for k, v in found.items() if k not in ("records", "texts")}, "same_answers": same}


def table(result: Mapping[str, Any]) -> str:
    """For the page."""
    head = "| | CHAIR_S | CHAIR_I | recall | words | taken back | still denied | requests | same answers |"
    lines = [head, "|---" * 9 + "|"]
    for mode in ("greedy", "sampled"):
        for name, row in result[mode].items():
            values = [f"{row[figure]['value']:.1f}" for figure in FIGURES]
            denied = f"{row['denied']} of {row['asked_about']}" if name != "regular" else ""
            back = f"{row['taken_back']:.1f}" if name != "regular" else ""
            same = f"{row['same_answers']} of {result['scenes']}" if name != "regular" else ""
            cells = [f"{mode}: {name}", *values, back, denied, f"{row['requests']:.1f}", same]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def filled(text: str, made: str) -> str:
    """The page with its table."""
    text, count = re.subn(
        r"(<!-- offered -->\n).*?(\n<!-- /offered -->)", lambda m: m[1] + made + m[2], text, flags=re.S
    )
    assert count == 1
    return text


def main() -> None:
    """Measure, write the result, fill the page."""
    from serving import about, serving, write

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenes", type=int, default=60)
    options = parser.parse_args()
    result: dict[str, Any] = {**about("offered.py"), "model": "packaged", "method": METHOD, "split": "shifted"}
    result["scenes"] = options.scenes
    benchmark = load_benchmark("chair", "scenes", split="shifted", scenes=options.scenes)
    samples = benchmark.samples()
    with serving("packaged", "regular") as server:
        model = seewhen.remote(server.url, "packaged", at_once=8)
        result["offers"] = dataclasses.asdict(model.offers)
        for mode in ("greedy", "sampled"):
            found = {case: measured(model, case, samples, mode == "sampled") for case in CASES}
            whole = found["everything offered"]["texts"]
            result[mode] = {case: figures(benchmark, each, whole) for case, each in found.items()}
        model.close()
    write("offered", result)
    PAGE.write_text(filled(PAGE.read_text("utf-8"), table(json.loads(RESULT.read_text("utf-8")))), "utf-8")


if __name__ == "__main__":
    main()
