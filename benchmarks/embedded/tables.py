"""Every method on the packaged scenes, many runs at a time: the runs behind benchmarks/embedded.md.

    python benchmarks/embedded/tables.py RUNS --scenes 150 --processes 16
    seewhen report RUNS --out benchmarks/embedded/report

The same runs, one after the other:

    seewhen eval pope,mme,chair --method all --split test,shifted --greedy --seeds 5 --scenes 150 --out RUNS

Runs resume: what was cut off goes on when the script is started again. What --seconds cuts off is scored
on the scenes that are complete by then.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seewhen.decoding.method import Method
    from seewhen.runs.evaluate import Ask

GRACE = 30  # seconds for the batches under way and for scoring
BENCHMARKS = (("chair", 64), ("pope", None), ("mme", None), ("chair", 128))

NAMES = (  # noqa: SIM905
    "saliency opera ict vti regular min-p cai cai-attention cai-contrast cai:paper cai:reference pai vcd icd m3id "
    "sid only dola farsight memvr locore agla ict:1"
).split()


def methods() -> dict[str, Method]:
    """The table's rows. Directions are named relative to the folder of the runs, so that it can be moved."""
    from seewhen.decoding.method import Part
    from seewhen.methods import method

    cai = method("cai", contrast=3.0)
    rows: dict[str, Method] = {"cai": cai}
    rows |= {"cai-attention": Part("attention", cai), "cai-contrast": Part("contrast", cai)}
    rows["cai:paper"] = method("cai:paper")
    rows["cai:reference"] = method("cai:reference:llava-1.5/coco/adversarial")
    for name in ("vti", "ict"):
        rows[name] = method(name, directions=f"{name}.safetensors")
    # Eight standard deviations, fitted to a 7B model, are far too many for this one; one is the plain choice.
    rows["ict:1"] = rows["ict"].replace(image_strength=1.0, object_strength=1.0)
    return rows | {name: method(name) for name in NAMES if name not in rows}


@dataclass(frozen=True)
class Unit:
    """One run: a method on one part of one benchmark, greedy (`seeds` is None) or sampled."""

    method: str
    bench: str
    tokens: int | None
    part: str
    seeds: int | None

    def __str__(self) -> str:
        return f"{self.method} {self.bench}{self.tokens or ''} {self.part} {self.seeds or 'greedy'}"


def units(names: list[str]) -> list[Unit]:
    """All runs in the order in which they start: slow methods first in each benchmark."""
    rows, found = methods(), []
    for bench, tokens in BENCHMARKS:
        for name in names:
            ways: list[int | None] = [] if rows[name].samples_only else [None]
            ways += [] if rows[name].beams_only else [5]
            found += [Unit(name, bench, tokens, part, seeds) for part in ("shifted", "test") for seeds in ways]
    return found


def ask_of(unit: Unit, scenes: int, batch: int) -> Ask:
    """What a unit asks."""
    from seewhen.runs.evaluate import Ask

    ask = Ask(unit.bench, split=unit.part, scenes=scenes, seeds=unit.seeds, max_new_tokens=unit.tokens)
    return replace(ask, dtype="float32", batch=batch)


def complete(ask: Ask, method: Method, runs: Path) -> Ask:
    """The ask cut down to the scenes (and seeds) that are all answered."""
    from seewhen.runs.evaluate import Machine, configuration, make_tasks, model_facts, run_name
    from seewhen.runs.store import SAMPLES, read_samples

    benchmark = ask.load()
    samples = list(benchmark.samples())
    config = configuration(ask, benchmark, samples, model_facts(ask, Machine().device), method)
    done = {record.key for record in read_samples(runs / run_name(config) / SAMPLES)[0]}
    tasks = make_tasks(ask, benchmark, samples)

    def answered(seeds: int) -> int:
        missing = {t.image for t in tasks if any((t.id, seed) not in done for seed in range(seeds))}
        return sum(1 for _ in takewhile(lambda task: task.image not in missing, tasks))

    seeds = max(range(1, (ask.seeds or 1) + 1), key=lambda n: n * answered(n))
    return replace(ask, limit=answered(seeds), seeds=seeds if ask.sampled else None)


def work(waiting: Any, stop: Any, runs: Path, scenes: int, batch: int) -> None:
    """A worker process: one unit after the other."""
    from seewhen.runs.engine import Interrupted
    from seewhen.runs.evaluate import evaluate

    # The end comes by SIGTERM, which `evaluate` understands while it answers; at other times it must not kill.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    rows = methods()
    while not stop.is_set():
        try:
            unit: Unit = waiting.get(timeout=0.2)
        except queue.Empty:
            return
        start, ask, method = time.perf_counter(), ask_of(unit, scenes, batch), rows[unit.method]
        note = ""
        if stop.is_set():
            return
        try:
            evaluate(ask, method, runs)
        except Interrupted:
            ask = complete(ask, method, runs)
            note = f", cut off after {ask.limit} samples of {ask.seeds or 'no'} seeds"
            if ask.limit:
                evaluate(ask, method, runs)
        except Exception:
            note = ", FAILED\n" + traceback.format_exc()
        print(f"{unit}: {time.perf_counter() - start:.1f} s{note}", flush=True)


def main() -> None:
    """Fit directions that are missing, start the workers, and stop them in time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--scenes", type=int, default=150)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop then; start again to go on")
    parser.add_argument("--methods", default=",".join(NAMES), help="only these, by comma")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    names = options.methods.split(",")
    options.runs.mkdir(parents=True, exist_ok=True)
    os.chdir(options.runs)
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    for name in ("vti", "ict"):
        file = Path(f"{name}.safetensors")
        if {name, f"{name}:1"} & set(names) and not file.exists():
            fit = "import sys; from seewhen.cli import main; sys.argv[0] = 'seewhen'; main()"
            subprocess.run([sys.executable, "-c", fit, "calibrate", name, "--out", str(file)], check=True)
    context = multiprocessing.get_context("spawn")
    waiting, stop = context.Queue(), context.Event()
    for unit in units(names):
        waiting.put(unit)
    arguments = (waiting, stop, Path(), options.scenes, options.batch)
    workers = [context.Process(target=work, args=arguments) for _ in range(options.processes)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.2)
    stop.set()
    for worker in workers:
        if worker.is_alive():
            worker.terminate()  # the run under way notes what it has and is scored
    waiting.cancel_join_thread()
    for worker in workers:
        worker.join(max(0.0, deadline + GRACE - time.monotonic()))
        worker.kill()


if __name__ == "__main__":
    main()
