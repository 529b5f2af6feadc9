"""A run on the packaged model, killed with SIGKILL ten times at random moments, against an undisturbed one.

    python benchmarks/runs/kills.py --out benchmarks/runs/kills.json

Samples and result must be the same to the byte. Kills come once the run has begun to write, so that each
hits it at work; the seed of the moments is fixed.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def command(folder: Path, scenes: int) -> list[str]:
    """The run: captions, small batches, so that there are many moments to be hit."""
    program = "from seewhen.cli import main; main()"
    arguments = ["eval", "chair", "--split", "val", "--scenes", str(scenes), "--batch", "2", "--method", "regular"]
    arguments += ["--no-controls", "--device", "cpu", "--max-new-tokens", "24", "--run", str(folder)]
    return [sys.executable, "-c", program, *arguments]


def main() -> None:
    """Run both and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scenes", type=int, default=60)
    parser.add_argument("--kills", type=int, default=10)
    options = parser.parse_args()
    moments = random.Random(0)
    with tempfile.TemporaryDirectory() as parent:
        calm, killed = Path(parent, "calm"), Path(parent, "killed")
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run(command(calm, options.scenes), check=True, **quiet)
        hits = []
        while len(hits) < options.kills:
            process = subprocess.Popen(command(killed, options.scenes), **quiet)
            samples, before = killed / "samples.jsonl", _size(killed)
            while process.poll() is None and _size(killed) == before:
                time.sleep(0.005)
            time.sleep(moments.uniform(0.0, 0.4))
            if process.poll() is not None:
                break  # it was finished before ten kills
            process.send_signal(signal.SIGKILL)
            process.wait()
            hits.append(len(samples.read_text().splitlines()))
        subprocess.run(command(killed, options.scenes), check=True, **quiet)
        same = {
            name: (calm / name).read_bytes() == (killed / name).read_bytes()
            for name in ("samples.jsonl", "result.json", "counts.json")
        }
    result = {
        "kills": len(hits),
        "samples_written_at_each_kill": hits,
        "scenes": options.scenes,
        "same_bytes": same,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


def _size(folder: Path) -> int:
    path = folder / "samples.jsonl"
    return path.stat().st_size if path.exists() else 0


if __name__ == "__main__":
    main()
