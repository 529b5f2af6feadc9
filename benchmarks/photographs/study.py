"""Every method on photographs: POPE and CHAIR, greedy and sampled, many processes on one GPU.

    python -m photographs.study RUN --processes 16 --seconds 500
    seewhen report RUN/runs --out report

RUN holds model/ and exam/ (`python -m photographs pack`, `exam`). There is one list of runs, the most telling
first; each process takes the first that nobody has. Runs resume: start it again to go on. Many small processes
share a GPU far better under NVIDIA's multi-process service: `--mps` starts one and stops it again.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seewhen.methods.base import Method
    from seewhen.runs.evaluate import Ask

MAIN = ("regular", "min-p", "cai", "cai-attention", "cai-contrast", "pai", "vcd")  # CAI, its parts, its rivals
NAMES = (
    *MAIN, "cai:paper", "cai:reference", "m3id", "icd", "sid", "only", "dola", "farsight", "memvr", "locore",
    "agla", "vti", "ict", "saliency", "opera",
)  # fmt: skip
BATCH = 150  # a third of the captions: three passes of the decoding loop instead of four


def make(name: str, run: Path) -> Method:
    """A row of the table; `RUN/tuned.json` may name other parameters, found on the validation photographs."""
    from seewhen.methods import method
    from seewhen.runs.controls import Part

    tuned = json.loads((run / "tuned.json").read_text("utf-8")) if (run / "tuned.json").is_file() else {}
    if name in ("cai-attention", "cai-contrast"):
        return Part("attention" if name == "cai-attention" else "contrast", make("cai", run))
    if name == "cai:reference":
        return method("cai:reference:llava-1.5/coco/adversarial")
    given: dict[str, Any] = {"contrast": 3.0} if name == "cai" else {}
    if name in ("vti", "ict"):
        given["directions"] = str(run / f"{name}.safetensors")
    return method(name, **(given | tuned.get(name, {})))


def asks(run: Path, limit: int | None = None, batch: int = BATCH, part: str = "test") -> list[Ask]:
    """What is asked: greedy, then sampled, the most telling first."""
    from seewhen.runs.evaluate import Ask

    exam = run / "exam" / part
    # Streams of noise for 49,152 words, drawn on the CPU, would take longer than the model.
    common: dict[str, Any] = {"data": str(exam), "model": str(run / "model"), "batch": batch, "noise": "hash"}
    told: dict[str, Any] = {"image_list": str(exam / "chair.txt"), "limit": limit}
    # `limit` counts samples: POPE has six for each photograph and kind.
    asked: dict[str, Any] = {"split": "coco", "limit": limit and 18 * limit}
    found = []
    for seeds in (None, 5):
        found += [
            Ask("chair", style="plain-64", seeds=seeds, **told, **common),
            Ask("pope", seeds=seeds, **asked, **common),
            Ask("chair", style="plain-128", seeds=seeds, **told, **common),
        ]
    return found


@dataclass(frozen=True)
class Wanted:
    """One run of the study."""

    method: str
    ask: Ask

    def __str__(self) -> str:
        how = f"{self.ask.seeds} seeds" if self.ask.seeds else "greedy"
        return f"{self.method} {self.ask.benchmark} {self.ask.style or ''} {how}".replace("  ", " ")

    @property
    def file(self) -> str:
        return str(self).replace(" ", "_").replace(":", "-")


def in_order(methods: list[str], asked: list[Ask], greedy: bool) -> list[Wanted]:
    """The main methods' greedy runs, their sampled ones, then the same of the others; if cut off, the end is
    missing, not something of everything."""
    found = []
    for names in ([m for m in methods if m in MAIN], [m for m in methods if m not in MAIN]):
        for sampled in (False, True)[: 1 if greedy else 2]:
            found += [Wanted(m, ask) for ask in asked if ask.sampled == sampled for m in names]
    return found


@contextmanager
def locked(path: Path, wait: bool) -> Iterator[bool]:
    """Whether the lock was got; it goes with the process, however that ends."""
    with path.open("ab") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


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


def answer(wanted: Wanted, run: Path) -> None:
    """One run, from where it was."""
    from seewhen.errors import UnsupportedMode
    from seewhen.runs.evaluate import Machine, evaluate

    start = time.perf_counter()
    if wanted.method in ("vti", "ict"):
        calibrate(wanted.method, run)
    try:
        evaluate(wanted.ask, make(wanted.method, run), run / "runs", Machine())
    except UnsupportedMode as error:
        print(f"{wanted}: {error}", flush=True)
        return
    print(f"{wanted}: {time.perf_counter() - start:.1f} s", flush=True)


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
                answer(wanted, run)
            except Interrupted:
                return
            except Exception:
                failed.write_text(traceback.format_exc(), encoding="utf-8")
                print(f"{wanted} failed:\n{traceback.format_exc()}", flush=True)
                sys.exit(1)
            done.touch()


def fingerprint(run: Path, limit: int | None) -> str:
    """Of the model and the tuned parameters that the runs are made with."""
    from seewhen.runs.evaluate import directory_fingerprint

    tuned = (run / "tuned.json").read_bytes() if (run / "tuned.json").is_file() else b""
    return hashlib.sha256(f"{directory_fingerprint(run / 'model')} {limit}".encode() + tuned).hexdigest()[:12]


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
    parser.add_argument("--greedy", action="store_true", help="no sampled runs")
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop then; start again to go on")
    parser.add_argument("--mps", action="store_true")
    parser.add_argument("--methods", default=",".join(NAMES))
    parser.add_argument("--worker", action="store_true", help="be one of the processes")
    options = parser.parse_args()
    asked = asks(options.run, options.limit, options.batch)
    todo = in_order(options.methods.split(","), asked, options.greedy)
    # A change of what is asked or of tuned parameters makes other runs: what was marked does not count for them.
    marks = options.run / "marks" / fingerprint(options.run, options.limit)
    logs = options.run / "logs"
    if options.worker:
        work(todo, options.run, marks)
        return
    for folder in (marks, logs):
        folder.mkdir(parents=True, exist_ok=True)
    for failed in marks.glob("*.failed"):
        failed.unlink()  # another start, another try
    command = [sys.executable, "-m", "photographs.study", *sys.argv[1:], "--worker"]
    with shared_gpu(options.mps, logs) as environment:
        supervise(command, min(options.processes, len(todo)), options.seconds, logs, environment)
    done = sum((marks / f"{wanted.file}.done").is_file() for wanted in todo)
    failed = [str(wanted) for wanted in todo if (marks / f"{wanted.file}.failed").is_file()]
    print(f"{done} of {len(todo)} runs are done.{' Failed: ' + '; '.join(failed) if failed else ''}")


if __name__ == "__main__":
    main()
