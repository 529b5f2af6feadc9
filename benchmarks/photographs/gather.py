"""Bring a study home: complete runs, without the paths of the machine they were made on, scored again.

    python -m photographs.gather STUDY --exam RUN/exam/test --out runs

What was cut off is not lost silently: sampled runs keep the seeds that all methods of their group have, greedy
runs that are not complete are left out, and both are printed. Scores are computed anew from the answers. Times are
left behind: with many processes on one GPU they say nothing about a method.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from photographs.wanted import SAMPLED
from seewhen import atomic
from seewhen.methods import method_class
from seewhen.runs.cutting import write_cuts
from seewhen.runs.evaluate import Ask, run_name
from seewhen.runs.scoring import result_of, score_records, write_counts
from seewhen.runs.store import Record, Run, read_run, to_json
from seewhen.runs.work import Task, image_order

Group = tuple[str, str, int]


@dataclass(frozen=True)
class Found:
    """A run that was read, the questions that count, and the seeds that answered them all."""

    run: Run
    questions: frozenset[str]
    seeds: tuple[int, ...]

    @property
    def config(self) -> dict[str, Any]:
        return dict(self.run.config)

    @property
    def group(self) -> Group:
        """Runs that are compared with each other."""
        decoding = self.config["decoding"]
        return self.config["benchmark"]["name"], decoding["mode"], decoding["max_new_tokens"]

    def __str__(self) -> str:
        name, mode, tokens = self.group
        return f"{self.config['method']['label']} {name} {tokens} {mode}"


def nameless(value: Any) -> Any:
    """The configuration without folders of the machine: the last part of every absolute path."""
    if isinstance(value, dict):
        return {key: nameless(inner) for key, inner in value.items()}
    if isinstance(value, str) and value.startswith("/"):
        return Path(value).name
    return value


def in_order(benchmark: Any) -> list[str]:
    """Ids of its questions as they are asked: those about one image together."""
    return [task.id for task in image_order(Task(s.id, s.image, "", "") for s in benchmark.samples())]


def find(study: Path, needed: dict[str, list[str]]) -> list[Found]:
    """All runs below `study`, with the seeds that are complete; `needed` are the questions of each benchmark in
    order. Of sampled POPE the first count: the rest was asked if there was time."""
    found = []
    for path in sorted(study.glob("*/manifest.json")):
        run = read_run(path.parent)
        name, mode = run.config["benchmark"]["name"], run.config["decoding"]["mode"]
        most = 18 * SAMPLED if (name, mode) == ("pope", "sample") else None
        questions = frozenset(needed[name][:most])
        count = Counter(record.seed for record in run.records if not record.error and record.id in questions)
        seeds = tuple(seed for seed, n in sorted(count.items()) if n == len(questions))
        found.append(Found(run, questions, seeds))
    return found


def keep(found: list[Found]) -> tuple[list[tuple[Found, tuple[int, ...]]], list[str]]:
    """What is kept, with which seeds; and what is said about the rest."""
    kept, said = [], []
    shared: dict[Group, set[int]] = {}
    for one in found:
        if one.group[1] == "sample" and one.seeds:
            shared.setdefault(one.group, set(one.seeds)).intersection_update(one.seeds)
    for one in found:
        sampler = method_class(one.config["method"]["method"]).samples_only if _named(one) else False
        if one.group[1] == "greedy" and sampler:
            said.append(f"{one}: only samples, left out of the greedy runs")
        elif not one.seeds:
            said.append(f"{one}: {len(one.run.records)} of {len(one.questions)} answers, left out")
        elif one.group[1] == "greedy":
            kept.append((one, one.seeds))
        else:
            seeds = tuple(sorted(shared[one.group]))
            kept.append((one, seeds))
            said += [f"{one}: {len(one.seeds)} seeds, {len(seeds)} kept"] if len(seeds) < len(one.seeds) else []
    return kept, said


def _named(one: Found) -> bool:
    return one.config["method"]["method"] != "part"


def write(one: Found, seeds: tuple[int, ...], benchmark: Any, out: Path) -> None:
    """A finished run directory."""
    config = nameless(one.config)
    config["model"]["name"] = "photo"
    folder = out / run_name(config)
    folder.mkdir(parents=True, exist_ok=True)
    order = {sample.id: place for place, sample in enumerate(benchmark.samples())}
    records: list[Record] = [r for r in one.run.records if r.seed in seeds and r.id in one.questions]
    records.sort(key=lambda r: (r.seed or 0, order[r.id]))
    manifest = {"format": 1, "config": config, "environment": one.run.environment}
    atomic.write(folder / "manifest.json", to_json(manifest), durable=True)
    atomic.write(folder / "samples.jsonl", "".join(r.line() for r in records), durable=True)
    scored = score_records(benchmark, records, seeds)
    write_counts(folder, scored)
    if config["method"]["label"] == "regular":
        write_cuts(folder, benchmark, records, seeds)
    atomic.write(folder / "result.json", to_json(result_of(benchmark, scored, records)), durable=True)


def main() -> None:
    """Read, choose, write, say what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, help="the folder of runs that came back")
    parser.add_argument("--exam", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--captions", type=int, help="that many captions are a complete run; all unless said")
    parser.add_argument("--questions", type=int, help="that many questions are a complete greedy run of POPE")
    options = parser.parse_args()
    benchmarks = {
        "chair": Ask("chair", data=str(options.exam), image_list=str(options.exam / "chair.txt")).load(),
        "pope": Ask("pope", data=str(options.exam), split="coco").load(),
    }
    asked = {"chair": options.captions, "pope": options.questions}
    needed = {name: in_order(benchmark)[: asked[name]] for name, benchmark in benchmarks.items()}
    kept, said = keep(find(options.study, needed))
    for one, seeds in kept:
        write(one, seeds, benchmarks[one.group[0]], options.out)
    print("\n".join([*sorted(said), f"{len(kept)} runs are in {options.out}."]))


if __name__ == "__main__":
    main()
