"""The whole study on one GPU: `python -m confirm.study --exam DIR --out RUNS --pack FILE.tar --seconds 360`.

Processes take the first run that nobody has begun, in the order of `settings.py`. Fits need captions and captions
need fits: when the sentences made again are there, the verdict with attempts is fitted; when its captions at some
thresholds are, one is chosen; then the same with drafts; meanwhile the others make what needs no fit. What is made
is packed every few seconds, so that nothing is lost when the time is over; started again it goes on. The fits
without drafts are made before (README.md).
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tarfile
import time
import traceback
from contextlib import suppress
from pathlib import Path

from confirm.captions import PLACES
from confirm.score import lines
from confirm.settings import validation
from confirm.verdicts import DATA, MODELS, carry_out
from photographs.study import shared_gpu
from seewhen.atomic import replacing

STAGES = {
    "attempts": ("mark", "again"),
    "threshold": ("try",),
    "drafts": ("mark", "again", "regular"),
    "threshold-drafts": ("drafts4try",),
}  # of `verdicts.py`, and the runs each is made of

SHIPPED = ("attempts", "threshold")  # made before, on runs that are in the archive

PAUSE, PACKED = 0.5, 15.0


class Study:
    """Workers, the fits between their runs, and the archive of what they make."""

    def __init__(self, given: argparse.Namespace, environment: dict[str, str]) -> None:
        self.given, self.end, self.packed = given, time.monotonic() + given.seconds, 0.0
        # Caches grow a column at a time.
        self.environment = environment | {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
        odds = given.out / "photo-test.odds.jsonl.gz"
        if (
            odds.exists() and len(list(lines(odds))) <= PLACES["photo-test"][1]
        ):  # with a head; of some pictures only
            odds.unlink()
        self.brought = {path.name for path in given.out.glob("*.gz")}
        self.fits = given.out / "fits"
        self.fits.mkdir(exist_ok=True)
        for stage in given.made:
            for model in MODELS:
                (self.fits / f"{model}.{stage}").touch()
        self.running = [self._workers("photo", given.processes), self._workers("scenes", given.scenes)]

    def _workers(self, model: str, processes: int) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "confirm.captions",
            "both",
            "--exam",
            self.given.exam,
            "--out",
            self.given.out,
        ]
        command += ["--models", model, "--batch", self.given.batch if model == "photo" else 200]
        command += ["--processes", processes, "--seconds", self.given.seconds, "--fits", self.fits, "--only"]
        command += ["photo"] if model == "photo" else ["scenes"]
        command += ["--limit", self.given.limit] if self.given.limit else []
        return subprocess.Popen([str(part) for part in command], env=self.environment, start_new_session=True)

    def all(self) -> None:
        """Until everything is made, or the time is over."""
        while time.monotonic() < self.end and any(process.poll() is None for process in self.running):
            self._fit()
            if time.monotonic() > self.packed + PACKED:
                self.pack()
            time.sleep(PAUSE)

    def _fit(self) -> None:
        """The next fit of each model, as soon as what it is made of is there."""
        for model in MODELS:
            left = [stage for stage in STAGES if not (self.fits / f"{model}.{stage}").exists()]
            if not left:
                continue
            wanted = [run for run in validation(model) if (run.note or run.method).startswith(STAGES[left[0]])]
            if all((self.given.out / f"{run.name}.jsonl.gz").exists() for run in wanted):
                fit_model(left[0], model, self.given.out, self.given.exam)
                (self.fits / f"{model}.{left[0]}").touch()

    def pack(self) -> None:
        """New runs and the fit in one file."""
        self.packed = time.monotonic()
        new = [path for path in sorted(self.given.out.glob("*.gz")) if path.name not in self.brought]
        with replacing(self.given.pack) as name, tarfile.open(name, "w") as archive:
            for path in (*new, *DATA.glob("verdict_*.json")):
                archive.add(path, path.name)

    def close(self) -> None:
        """What still runs has had its time."""
        for process in self.running:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        self.pack()


def fit_model(stage: str, model: str, runs: Path, exam: Path) -> None:
    """A fit that cannot be made leaves the one that is there."""
    try:
        carry_out(stage, model, runs, exam)
    except Exception:  # the captions that need no fit are worth making all the same
        traceback.print_exc()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m confirm.study", description=__doc__.splitlines()[0])
    parser.add_argument("--exam", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="runs that are there already are not made again")
    parser.add_argument("--pack", type=Path, required=True, help="the archive of what is new")
    parser.add_argument("--seconds", type=float, default=360)
    parser.add_argument("--processes", type=int, default=8, help="for photographs")
    parser.add_argument("--scenes", type=int, default=4, help="processes for drawn scenes")
    parser.add_argument("--batch", type=int, default=223)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--mps", action="store_true", help="share the GPU by NVIDIA's multi-process service")
    parser.add_argument(
        "--made", nargs="*", choices=STAGES, default=SHIPPED, help="stages whose fits are there: not made again"
    )
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("The time is over."))
    with shared_gpu(given.mps, given.out) as environment:
        study = Study(given, environment)
        try:
            study.all()
        finally:
            study.close()


if __name__ == "__main__":
    main()
