"""What `seewhen demo` and `seewhen describe` cost on a CPU: processor seconds and wall, warm, in turns.

    python benchmarks/speed/demo.py --out benchmarks/speed/results/cpu-demo.json
    python benchmarks/speed/demo.py --what describe --busy 1 --out benchmarks/speed/results/cpu-threads.json
    python benchmarks/speed/demo.py --beside OTHER/src --out ...  # the program of another checkout, in turns

`--busy N` keeps N other processes busy meanwhile. Ways: `default` is the command as it is; `one` has one thread,
`all` as many as there are cores, `spinning` as many, whose waiting threads spin, which is torch's own default;
`quiet` takes all cores for free, as `default` does where nothing else is at work.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from seewhen.runs.versions import package_versions

ANY_NUMBER = (
    "import os, sys; {}import seewhen.asking.opening as o; "
    "o._limit_threads = lambda most: __import__('torch').set_num_threads(os.cpu_count()); "
    "from seewhen.cli import main; main()"
)
QUIET = (
    "import os, seewhen.asking.opening as o; o.free_cores = os.cpu_count; "
    "from seewhen.__main__ import main; main()"
)
WAYS: dict[str, tuple[list[str], dict[str, str]]] = {
    "default": (["-m", "seewhen"], {}),
    "one": (["-m", "seewhen"], {"OMP_NUM_THREADS": "1"}),
    "all": (["-c", ANY_NUMBER.format("")], {}),
    "spinning": (["-c", ANY_NUMBER.format("")], {"OMP_WAIT_POLICY": "active"}),
    "quiet": (["-c", QUIET], {}),
}


def commands(folder: Path) -> dict[str, list[str]]:
    """What is run."""
    from seewhen.scenes.photographs import photographs

    cat = next(each.path for each in photographs() if each.name == "cat")
    return {
        "demo": ["demo", "--out", str(folder / "demo")],
        "describe": ["describe", str(cat), "--method", "cai", "--max-new-tokens", "64"],
    }


def run(way: str, command: list[str]) -> dict[str, Any]:
    """One process: its processor seconds, wall, and what it said."""
    start, environment = WAYS[way]
    kept = {k: v for k, v in os.environ.items() if not k.startswith("OMP_")}
    began = time.perf_counter()
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            [sys.executable, *start, *command], env=kept | environment, stdout=said, stderr=said
        )
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        text = said.read().decode()
    if child.returncode:
        raise SystemExit(text)
    return {"wall": time.perf_counter() - began, "cpu": used.ru_utime + used.ru_stime}


SPLIT = """
import gc, json, time
gc.disable()  # as the command does while it loads
marks, last = {}, 0.0
def mark(name):
    global last
    marks[name], last = time.process_time() - last, time.process_time()
import torch, transformers.masking_utils
mark("torch and transformers")
from seewhen.asking.one_picture import PictureQuestion
from seewhen.asking.opening import open_model
from seewhen.asking.options import DESCRIBE
from seewhen.backbones.pictures import open_image
from seewhen.cli.demo import METHODS, SampledFlags
from seewhen.methods.grammar import choose
from seewhen.scenes.photographs import photographs
chosen = choose(METHODS)
mark("our modules")
loaded = open_model("photo", {})
mark("model")
gc.freeze()
gc.enable()
image = open_image(next(each.path for each in photographs() if each.name == "cat"))
asked = PictureQuestion(loaded, image, DESCRIBE, SampledFlags())
asked._read()
mark("picture and prompt")
for name, method in zip(METHODS, chosen):
    asked.answer(method, full=True)
    mark(name)
asked.answer(chosen[0], full=False)
mark("regular, without the full trace")
print(json.dumps(marks))
"""


def split() -> dict[str, float]:
    """Processor seconds of what the demonstration does, part by part, in a process of its own."""
    done = subprocess.run([sys.executable, "-c", SPLIT], check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--what", choices=("demo", "describe"), default="demo")
    parser.add_argument("--ways", default=None, help="comma-separated")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--beside", type=Path, help="`src` of another checkout")
    parser.add_argument("--split", action="store_true", help="also the parts of the demonstration")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    ways = (given.ways or ("default" if given.what == "demo" else ",".join(WAYS))).split(",")
    if given.beside is not None:
        WAYS["beside"] = (["-m", "seewhen"], {"PYTHONPATH": str(given.beside)})
        ways.append("beside")
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(given.busy)]
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    loads = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            command = commands(Path(folder))[given.what]
            run(ways[0], command)  # files into memory
            for _ in range(given.rounds):
                loads.append(os.getloadavg()[0])
                for way in ways:
                    found[way].append(run(way, command))
                    print(way, found[way][-1], flush=True)
    finally:
        for other in others:
            other.kill()
    middle = {
        w: {k: statistics.median(one[k] for one in each) for k in ("wall", "cpu")} for w, each in found.items()
    }
    least = {w: {k: min(one[k] for one in each) for k in ("wall", "cpu")} for w, each in found.items()}
    result = {"command": " ".join(sys.argv), "cores": os.cpu_count(), "busy": given.busy, "load": loads}
    result |= {"median": middle, "least": least, "runs": found, "versions": package_versions()}
    if given.split:
        result["split"] = split()
    print(json.dumps(result.get("split", middle), indent=1))
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
