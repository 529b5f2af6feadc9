"""Every method on the packaged scenes, one process per method: the runs behind benchmarks/embedded.md.

    python benchmarks/embedded/tables.py RUNS --scenes 150 --processes 16
    seewhen report RUNS --out benchmarks/embedded/report

The same runs, one after the other:

    seewhen eval pope,mme,chair --method all --split test,shifted --greedy --seeds 5 --scenes 150 --out RUNS

Runs resume: what was cut off goes on when the script is started again.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

SLOW = {"opera": 60, "saliency": 60}  # samples at most: several forward passes per token, row by row


def methods(runs: Path) -> dict:
    """The table's rows."""
    from seewhen.methods import method
    from seewhen.runs.controls import Part

    cai = method("cai", contrast=3.0)
    rows = {"cai": cai, "cai-attention": Part("attention", cai), "cai-contrast": Part("contrast", cai)}
    rows["cai:paper"] = method("cai:paper")
    rows["cai:reference"] = method("cai:reference:llava-1.5/coco/adversarial")
    for name in ("regular", "min-p", "pai", "vcd", "icd", "m3id", "sid", "only", "dola", "farsight", "memvr"):
        rows[name] = method(name)
    for name in ("locore", "agla", "opera", "saliency"):
        rows[name] = method(name)
    for name in ("vti", "ict"):
        rows[name] = method(name, directions=str(runs / f"{name}.safetensors"))
    return rows


NAMES = (  # noqa: SIM905
    "regular min-p cai cai-attention cai-contrast cai:paper cai:reference pai vcd icd m3id sid only dola farsight "
    "memvr locore agla vti ict saliency opera"
).split()


def work(name: str, runs: Path, scenes: int, batch: int) -> None:
    """All benchmarks, parts and ways of decoding of one method."""
    from seewhen.errors import UnsupportedMode
    from seewhen.runs.evaluate import Ask, Machine, evaluate

    if name in ("vti", "ict"):
        fit = f"from seewhen.cli import main; import sys; sys.argv = ['seewhen', 'calibrate', {name!r}, '--out', "
        subprocess.run([sys.executable, "-c", fit + f"{str(runs / name)!r} + '.safetensors']; main()"], check=True)
    method = methods(runs)[name]
    asks = [("chair", 64), ("pope", None), ("mme", None), ("chair", 128)]
    for bench, tokens in asks:
        for part in ("shifted", "test"):
            for seeds in (None, 5):
                if seeds and name in SLOW:
                    seeds = 2
                ask = Ask(
                    bench,
                    split=part,
                    scenes=scenes,
                    seeds=seeds,
                    max_new_tokens=tokens,
                    limit=SLOW.get(name),
                    dtype="float32",
                    batch=batch,
                )
                start = time.perf_counter()
                try:
                    evaluate(ask, method, runs, Machine())
                except UnsupportedMode as error:
                    print(f"{name} {bench} {part} {seeds or 'greedy'}: {error}", flush=True)
                    continue
                took = time.perf_counter() - start
                print(f"{name} {bench} {tokens or ''} {part} {seeds or 'greedy'}: {took:.1f} s", flush=True)


def main() -> None:
    """Start one process per method, a few at a time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--scenes", type=int, default=150)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop then; start again to go on")
    parser.add_argument("--only", help="run this method in this process")
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    if options.only:
        work(options.only, options.runs, options.scenes, options.batch)
        return
    deadline = time.monotonic() + options.seconds
    waiting, running = list(NAMES), {}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    while (waiting or running) and time.monotonic() < deadline:
        while waiting and len(running) < options.processes:
            name = waiting.pop(0)
            log = (options.runs / f"{name.replace(':', '_')}.log").open("w")
            command = [sys.executable, __file__, str(options.runs), "--only", name]
            command += ["--scenes", str(options.scenes), "--batch", str(options.batch)]
            running[name] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        for name, process in list(running.items()):
            if process.poll() is not None:
                print(f"{name} ended with {process.returncode}", flush=True)
                del running[name]
        time.sleep(0.5)
    for name, process in running.items():
        print(f"{name} is cut off", flush=True)
        process.terminate()


if __name__ == "__main__":
    main()
