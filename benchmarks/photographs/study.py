"""Every method on photographs: POPE and CHAIR, greedy and sampled, many processes on one GPU.

    python -m photographs.study RUN --processes 8 --seconds 500
    python -m photographs.study RUN --tune
    seewhen report RUN/runs --out report

RUN holds model/ and exam/ (`python -m photographs pack`, `exam`). Methods run with their published settings. With
`--tune` those of `settings.py` are tried on validation photographs instead, the best written to RUN/tuned.json and
(unless published) asked about the test photographs: RUN/trials, RUN/tuned. There is one list of runs, the most
telling first; each process takes the first that nobody has. Runs resume: start it again to go on. Many small
processes share a GPU far better under NVIDIA's multi-process service: `--mps` starts one and stops it again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from photographs.wanted import (
    BATCH,
    NAMES,
    Wanted,
    ablation_trials,
    asks,
    choose,
    in_order,
    make,
    trials,
    tuned_runs,
)
from seewhen.atomic import replacing

# Rows of a batch, and processes that share the batches: one keeps five beams of each row, one goes back through
# the layers for each token.
HEAVY = {"opera": (112, 4), "saliency": (225, 4)}


@contextmanager
def locked(path: Path, wait: bool) -> Iterator[bool]:
    """Whether the lock was got; it goes with the process, however that ends."""
    lock = FileLock(path, blocking=wait)
    try:
        lock.acquire()
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def calibrate(name: str, run: Path) -> None:
    """VTI and ICT need directions: fitted on validation photographs, by the first process that wants them."""
    out = run / f"{name}.safetensors"
    exam = run / "exam" / "validation"
    options = ["calibrate", name, "--model", str(run / "model"), "--images", str(exam), "--out", str(out)]
    options += ["--samples", str(exam / f"{name}.jsonl")]
    code = "import sys; from seewhen.cli import main; sys.argv = ['seewhen', *sys.argv[1:]]; main()"
    with locked(run / f"{name}.lock", wait=True):
        if not out.is_file():
            subprocess.run([sys.executable, "-c", code, *options], check=True)


def answer(wanted: Wanted, run: Path) -> str:
    """One run, from where it was; what was found, as JSON."""
    import torch

    from seewhen.errors import UnsupportedMode
    from seewhen.runs.evaluate import Machine, evaluate

    start = time.perf_counter()
    if wanted.method in ("vti", "ict"):
        calibrate(wanted.method, run)
    setting = None if wanted.setting is None else json.loads(wanted.setting)
    try:
        method = make(wanted.method, run, setting)
        # Of questions it is the arithmetic that takes the time: half the rows, half the memory.
        usual = wanted.ask.batch if wanted.ask.benchmark == "chair" else max(1, wanted.ask.batch // 2)
        rows, processes = HEAVY.get(wanted.method, (usual, 1))
        ask = replace(wanted.ask, batch=min(wanted.ask.batch, rows))
        machine = Machine(devices=("cuda:0",) * processes if torch.cuda.is_available() and processes > 1 else ())
        path, result = evaluate(ask, method, run / wanted.folder, machine)
    except UnsupportedMode as error:
        print(f"{wanted}: {error}", flush=True)
        return json.dumps({"refused": str(error)})
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # others need the memory
    print(f"{wanted}: {time.perf_counter() - start:.1f} s", flush=True)
    metrics = {name: entry["value"] for name, entry in result["metrics"].items()}
    return json.dumps({"run": path.name, "fired": result["facts"].get("fired"), "metrics": metrics})


def work(todo: list[Wanted], run: Path, marks: Path) -> None:
    """Take runs from the list until all are taken. What fails is marked and ends this process: a GPU's error stays
    with the process it came up in."""
    from seewhen.runs.engine import Interrupted

    for wanted in todo:
        done, failed = marks / f"{wanted.file}.done", marks / f"{wanted.file}.failed"
        with locked(marks / f"{wanted.file}.lock", wait=False) as mine:
            if not mine or done.is_file() or failed.is_file():
                continue
            try:
                found = answer(wanted, run)
            except Interrupted:
                sys.exit(0)
            except Exception:
                failed.write_text(traceback.format_exc(), encoding="utf-8")
                print(f"{wanted} failed:\n{traceback.format_exc()}", flush=True)
                sys.exit(1)
            done.write_text(found, encoding="utf-8")


def fingerprint(run: Path, limit: int | None) -> str:
    """Of the model and the photographs that the runs are made with."""
    from seewhen.runs.evaluate import directory_fingerprint

    return hashlib.sha256(f"{directory_fingerprint(run / 'model')} {limit}".encode()).hexdigest()[:12]


def measure_regular(run: Path, limit: int | None, batch: int) -> dict[str, Any]:
    """The model without any method: the numbers that say whether it is worth measuring."""
    from seewhen.methods import method
    from seewhen.runs.evaluate import Machine, evaluate

    found: dict[str, Any] = {}
    for ask in asks(run, limit, batch)[:3]:
        _, result = evaluate(ask, method("regular"), run / "runs", Machine())
        metrics = {name: round(entry["value"], 2) for name, entry in result["metrics"].items()}
        found[f"{ask.benchmark} {ask.style or ''}".strip()] = metrics
    (run / "measured.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


@contextmanager
def shared_gpu(wanted: bool, folder: Path) -> Iterator[dict[str, str]]:
    """The environment of the workers, with the multi-process service running where it is wanted."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    if not wanted:
        yield environment
        return
    pipe = folder / "mps"
    pipe.mkdir(parents=True, exist_ok=True)
    environment |= {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(pipe)}
    subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True, env=environment)
    try:
        yield environment
    finally:
        subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", check=False, env=environment)


def supervise(command: list[str], processes: int, seconds: float, logs: Path, environment: dict[str, str]) -> None:
    """Keep so many processes at work until the time is over or someone asks for the end (SIGTERM); one that ended
    with an error is replaced."""
    from seewhen.runs.engine import stop_on_signals

    deadline = time.monotonic() + seconds
    running: dict[int, subprocess.Popen[bytes]] = {}

    def start(place: int) -> None:
        with (logs / f"{place:02d}.log").open("a") as log:
            running[place] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)

    for place in range(processes):
        start(place)
    with stop_on_signals() as stop:
        while running and time.monotonic() < deadline and not stop.wait(0.5):
            for place, process in list(running.items()):
                if process.poll() is not None:
                    del running[place]
                    if process.returncode:
                        start(place)
    for process in running.values():
        process.terminate()  # the batch at hand is finished and kept
    patience = time.monotonic() + 30
    for process in running.values():
        try:
            process.wait(max(0.1, patience - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()


def main() -> None:
    """Start the processes, stop them in time, say what is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--limit", type=int, help="photographs, for a quick look")
    parser.add_argument(
        "--tune", action="store_true", help="choose settings on validation photographs, ask with them"
    )
    parser.add_argument("--greedy", action="store_true", help="no sampled runs")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop then; start again to go on")
    parser.add_argument("--mps", action="store_true")
    parser.add_argument("--methods", default=",".join(NAMES))
    parser.add_argument("--worker", action="store_true", help="be one of the processes")
    options = parser.parse_args()
    if options.worker:
        be_worker(options)
        return
    logs, marks = options.run / "logs", options.run / "marks"
    for folder in (marks, logs):
        folder.mkdir(parents=True, exist_ok=True)
    for failed in marks.glob("*/*.failed"):
        failed.unlink()  # another start, another try
    command = [sys.executable, "-m", "photographs.study", *sys.argv[1:], "--worker"]
    with shared_gpu(options.mps, logs) as environment:
        supervise(command, options.processes, options.seconds, logs, environment)
    done, wrong = len(list(marks.glob("*/*.done"))), sorted(path.stem for path in marks.glob("*/*.failed"))
    print(f"{done} runs are done.{' Failed: ' + '; '.join(wrong) if wrong else ''}")


def be_worker(options: argparse.Namespace) -> None:
    """The study; or trials and ablations, then the test photographs with what is chosen by them."""
    from seewhen.runs.evaluate import directory_fingerprint

    run, names = options.run, options.methods.split(",")
    # A change of the model or of what is asked makes other runs: what was marked does not count for them.
    own = run / "marks" / fingerprint(run, options.limit)
    own.mkdir(exist_ok=True)
    if not options.tune:
        work(in_order(names, asks(run, options.limit, options.batch), options.greedy), run, own)
        return
    marks = run / "marks" / f"trials-{directory_fingerprint(run / 'model')}"
    marks.mkdir(exist_ok=True)
    tried = trials(run, names, options.limit, options.batch)
    tried += ablation_trials(run, options.limit, options.batch)
    work(tried, run, marks)
    while not all(over(wanted, marks) for wanted in tried):  # others are still at it
        time.sleep(0.5)
    write_chosen(tried, run, marks)
    work(tuned_runs(run, options.limit, options.batch), run, own)


def over(wanted: Wanted, marks: Path) -> bool:
    return any((marks / f"{wanted.file}.{end}").is_file() for end in ("done", "failed"))


def write_chosen(tried: list[Wanted], run: Path, marks: Path) -> None:
    """The first to come writes; once written it stays, with the runs that were made by it."""
    found = {}
    for wanted in tried:
        done = marks / f"{wanted.file}.done"
        if done.is_file() and "metrics" in (entry := json.loads(done.read_text("utf-8"))):
            found[wanted] = entry["metrics"]
    with locked(run / "tuned.lock", wait=True):
        if not (run / "tuned.json").is_file():
            with replacing(run / "tuned.json") as name:
                Path(name).write_text(json.dumps(choose(tried, found), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
