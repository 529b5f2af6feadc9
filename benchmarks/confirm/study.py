"""The whole study on one GPU: `python -m confirm.study --exam DIR --out RUNS --pack FILE.tar --seconds 360`.

Fits need captions and captions need fits: sentences made again, the verdict with attempts, captions at some
thresholds, the threshold, then everything else in the order of its worth, beside what needs no fit. What is made
is packed every few seconds, so that nothing is lost when the time is over; started again it goes on. The packaged
model's fits are made before, on any machine (README.md).
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from confirm.verdicts import DATA
from seewhen.atomic import replacing

UNFITTED = ("asking", "regular", "min-p.", "locore", "blind", "word-level", "no-attempt", ".cai.", "mark")
PAUSE, PACKED = 0.5, 20.0


class Stages:
    """What runs now and what comes after it."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.end, self.packed = given, time.monotonic() + given.seconds, 0.0
        self.brought = {path.name for path in given.out.glob("*.gz")}
        self.running: list[subprocess.Popen[bytes]] = []

    def captions(self, model: str, processes: int, only: Sequence[str]) -> subprocess.Popen[bytes]:
        """Some of the runs, in processes of their own."""
        batch = self.given.batch if model == "photo" else 200
        command = ["confirm.captions", "runs", "--out", self.given.out, "--models", model, "--batch", batch]
        command += ["--processes", processes, "--seconds", max(self.end - time.monotonic(), 1), "--only", *only]
        return self._start([*command, *(["--limit", self.given.limit] if self.given.limit else [])])

    def verdicts(self, stage: str) -> None:
        """Waits for a fit."""
        self._wait(self._start(["confirm.verdicts", stage, self.given.out, "--models", "photo"]))

    def _start(self, command: Sequence[object]) -> subprocess.Popen[bytes]:
        whole = [sys.executable, "-m", *command, "--exam", self.given.exam]
        memory = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}  # caches grow a column at a time
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **memory}
        process = subprocess.Popen([str(part) for part in whole], env=environment, start_new_session=True)
        self.running.append(process)
        return process

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        while process.poll() is None and time.monotonic() < self.end:
            self.pack()
            time.sleep(PAUSE)

    def pack(self, now: bool = False) -> None:
        """New runs and the fit in one file."""
        if not now and time.monotonic() < self.packed + PACKED:
            return
        self.packed = time.monotonic()
        new = [path for path in sorted(self.given.out.glob("*.gz")) if path.name not in self.brought]
        with replacing(self.given.pack) as name, tarfile.open(name, "w") as archive:
            for path in (*new, DATA / "verdict_photo.json"):
                archive.add(path, path.name)

    def all(self) -> None:
        """Everything, until the time is over."""
        half = max(self.given.processes // 2, 1)
        self.captions("scenes", self.given.scenes, ["scenes-test", "scenes-ablation"])
        beside = self.captions("photo", half, UNFITTED)
        self._start(["confirm.captions", "odds", "--out", self.given.out, "--models", "photo"])
        self._wait(self.captions("photo", min(half, 2), ["photo-validation.again"]))
        self.verdicts("attempts")
        self._wait(self.captions("photo", half, ["photo-validation.verdict"]))
        self.verdicts("threshold")
        rest = self.captions("photo", half, ["photo"])
        self._wait(beside)
        more = self.captions("photo", self.given.processes - half, ["photo"])
        for process in (rest, more, *self.running):
            self._wait(process)

    def close(self) -> None:
        """What still runs has had its time."""
        for process in self.running:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        self.pack(now=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m confirm.study", description=__doc__.splitlines()[0])
    parser.add_argument("--exam", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="runs that are there already are not made again")
    parser.add_argument("--pack", type=Path, required=True, help="the archive of what is new")
    parser.add_argument("--seconds", type=float, default=360)
    parser.add_argument("--processes", type=int, default=8, help="for photographs")
    parser.add_argument("--scenes", type=int, default=4, help="processes for drawn scenes")
    parser.add_argument("--batch", type=int, default=150)
    parser.add_argument("--limit", type=int)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("The time is over."))
    stages = Stages(given)
    try:
        stages.all()
    finally:
        stages.close()


if __name__ == "__main__":
    main()
