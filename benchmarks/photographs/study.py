"""Every method on photographs: POPE and CHAIR, greedy and sampled, one process per method.

    python -m photographs.study RUN --processes 16 --seconds 500
    seewhen report RUN/runs --out report

RUN holds model/ and exam/ (`python -m photographs pack`, `exam`). Runs resume: start it again to go on. Each
process does the greedy runs first, then CHAIR with five seeds, then POPE with five. Many small processes share a
GPU far better under NVIDIA's multi-process service: `--mps` starts one and stops it again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seewhen.methods.base import Method
    from seewhen.runs.evaluate import Ask

SLOW = {"opera": 60, "saliency": 60}  # photographs at most: several forward passes per token, row by row
NAMES = (  # noqa: SIM905
    "regular min-p cai cai-attention cai-contrast cai:paper cai:reference pai vcd icd m3id sid only dola "
    "farsight memvr locore agla vti ict saliency opera"
).split()


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


def asks(run: Path, limit: int | None = None, batch: int = 128, part: str = "test") -> list[Ask]:
    """What is asked, the most telling first."""
    from seewhen.runs.evaluate import Ask

    exam = run / "exam" / part
    common: dict[str, Any] = {"data": str(exam), "model": str(run / "model"), "batch": batch}
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
    return [*found[:4], found[5], found[4]]


def calibrate(name: str, run: Path) -> None:
    """VTI and ICT need directions: fitted on validation photographs."""
    out = run / f"{name}.safetensors"
    if out.is_file():
        return
    exam = run / "exam" / "validation"
    options = ["calibrate", name, "--model", str(run / "model"), "--images", str(exam), "--out", str(out)]
    options += ["--samples", str(exam / f"{name}.jsonl")]
    code = "import sys; from seewhen.cli import main; sys.argv = ['seewhen', *sys.argv[1:]]; main()"
    subprocess.run([sys.executable, "-c", code, *options], check=True)


def work(name: str, run: Path, batch: int, limit: int | None, greedy: bool) -> None:
    """All runs of one method."""
    from seewhen.errors import UnsupportedMode
    from seewhen.runs.evaluate import Machine, evaluate

    if name in ("vti", "ict"):
        calibrate(name, run)
    method = make(name, run)
    for ask in asks(run, SLOW.get(name, limit), batch)[: 3 if greedy else None]:
        start = time.perf_counter()
        told = f"{name} {ask.benchmark} {ask.style or ''} {f'{ask.seeds} seeds' if ask.seeds else 'greedy'}"
        try:
            evaluate(ask, method, run / "runs", Machine())
        except UnsupportedMode as error:
            print(f"{told}: {error}", flush=True)
            continue
        print(f"{told}: {time.perf_counter() - start:.1f} s", flush=True)


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


def main() -> None:
    """Start one process per method, a few at a time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--limit", type=int, help="photographs, for a quick look")
    parser.add_argument("--greedy", action="store_true", help="no sampled runs")
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop then; start again to go on")
    parser.add_argument("--mps", action="store_true")
    parser.add_argument("--methods", default=",".join(NAMES))
    parser.add_argument("--only", help="run this method in this process")
    options = parser.parse_args()
    if options.only:
        work(options.only, options.run, options.batch, options.limit, options.greedy)
        return
    deadline = time.monotonic() + options.seconds
    logs = options.run / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    waiting: list[str] = options.methods.split(",")
    running: dict[str, subprocess.Popen[bytes]] = {}
    command = [sys.executable, "-m", "photographs.study", str(options.run), "--batch", str(options.batch)]
    command += ["--limit", str(options.limit)] if options.limit else []
    command += ["--greedy"] if options.greedy else []
    with shared_gpu(options.mps, logs) as environment:
        while (waiting or running) and time.monotonic() < deadline:
            while waiting and len(running) < options.processes:
                name = waiting.pop(0)
                log = (logs / f"{name.replace(':', '_')}.log").open("a")
                running[name] = subprocess.Popen(
                    [*command, "--only", name], stdout=log, stderr=subprocess.STDOUT, env=environment
                )
            for name, process in list(running.items()):
                if process.poll() is not None:
                    print(f"{name} ended with {process.returncode}", flush=True)
                    del running[name]
            time.sleep(0.5)
        for name, process in running.items():
            print(f"{name} is cut off", flush=True)
            process.terminate()
        for process in running.values():
            process.wait(30)


if __name__ == "__main__":
    main()
