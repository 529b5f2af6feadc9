"""Train the ladder and ask every rung, many processes on one GPU.

    python -m ladder DIR --seconds 560 --out $OUT

Goes on where it was: start it again. What there is is packed into OUT/ladder.tar.xz, now and then and in the end;
the stand-in's checkpoint beside it, in parts of at most 15 MB. DIR holds everything else and can stay where it is.
With `--before`, the archive of an earlier run, its choice stands, and what it holds is not asked or packed again;
its choice.json alone is enough where models have other seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from ladder.rungs import PACKAGED, SIZES, kind_of
from ladder.tasks import CHOICE, Task, all_tasks, needed_for_choice
from ladder.training import Bench
from photographs.study import shared_gpu
from seewhen.errors import InvalidInput

PART = 15_000_000
HOPELESS = 8  # failures without a success; of one group of tasks, half of that
PACKED_EVERY = 20.0  # seconds
# Caches of many rows grow by a token at a time. Without rounding each size is a block of memory of its own: a
# process that needs 3 GB held 55, and others had none.
ROUNDED = {"PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:4"}


@dataclass
class Worker:
    """A process and the task it has."""

    process: subprocess.Popen[str]
    log: IO[str]
    ready: bool = False
    task: Task | None = None
    said: list[str] = field(default_factory=list)

    @staticmethod
    def start(command: list[str], log: Path, environment: dict[str, str]) -> Worker:
        handle = log.open("a")
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=handle, text=True, env=environment
        )
        worker = Worker(process, handle)
        threading.Thread(target=worker._listen, daemon=True).start()
        return worker

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.strip())

    def give(self, task: Task) -> None:
        assert self.process.stdin is not None
        self.task = task
        self.process.stdin.write(task.name + "\n")
        self.process.stdin.flush()


class Run:
    """Gives tasks to workers until all are done or the time is over."""

    def __init__(self, bench: Bench, options: argparse.Namespace, environment: dict[str, str]) -> None:
        self.bench, self.options, self.environment = bench, options, environment
        self.began = time.monotonic()
        self.tasks = all_tasks(bench)
        self.failed: dict[str, int] = {}
        self.succeeded: set[str] = set()  # groups of which a task was done
        self.workers: list[Worker] = []
        self.packed = self.began
        self.packer: threading.Thread | None = None
        self.refused: tuple[str, ...] = ()  # the models of which none could be chosen
        self.command = [sys.executable, "-m", "ladder.worker", str(bench.folder), options.sizes]

    def log(self, line: str) -> None:
        text = f"{time.monotonic() - self.began:6.1f} s  {line}"
        print(text, flush=True)
        with (self.bench.folder / "logs" / "run.log").open("a", encoding="utf-8") as handle:
            handle.write(text + "\n")

    def over(self) -> bool:
        """The time is up, or nothing works at all."""
        hopeless = not self.succeeded and sum(self.failed.values()) >= HOPELESS
        return hopeless or time.monotonic() > self.began + self.options.seconds

    def go(self) -> None:
        """All workers at work; failed tasks are tried once more."""
        for _ in range(self.options.processes):
            self._start()
        while not self.over():
            for worker in list(self.workers):
                self._hear(worker)
            self._choose()
            self._keep()
            waiting = [task for task in self.tasks if not task.done and not self._given_up(task)]
            if not waiting or not self.workers:
                break
            for worker in self.workers:
                if worker.ready and worker.task is None and (task := self._next(waiting)) is not None:
                    worker.give(task)
            busy = any(worker.task is not None or not worker.ready for worker in self.workers)
            if not busy and not self._material_at_work() and not any(task.ready for task in waiting):
                self.log("nothing more can be done")
                break
            time.sleep(0.05)
        # All at once: under the multi-process service, those that are left after one was killed amid its work fail
        # with its error, "illegal memory access", which then looks like their own.
        for worker in self.workers:
            worker.process.kill()
        for worker in self.workers:
            worker.process.wait()
            worker.log.close()
        if self.packer is not None:
            self.packer.join()

    def _given_up(self, task: Task) -> bool:
        """It failed twice, or others of its group did and none succeeded: each failure costs a worker's start."""
        group = _group(task.name)
        alike = sum(count for name, count in self.failed.items() if _group(name) == group)
        return self.failed.get(task.name, 0) >= 2 or (group not in self.succeeded and alike >= HOPELESS // 2)

    def _keep(self) -> None:
        """Pack what there is, aside, now and then: a machine can be lost."""
        if time.monotonic() > self.packed + PACKED_EVERY and not (self.packer and self.packer.is_alive()):
            self.packed = time.monotonic()
            self.packer = threading.Thread(target=pack, args=(self.bench, self.options), daemon=True)
            self.packer.start()

    def _start(self) -> None:
        log = (
            self.bench.folder
            / "logs"
            / f"worker-{len(list((self.bench.folder / 'logs').glob('worker-*'))):02d}.log"
        )
        self.workers.append(Worker.start(self.command, log, self.environment))

    def _material_at_work(self) -> bool:
        return self.options.material is not None and self.options.material.poll() is None

    def _hear(self, worker: Worker) -> None:
        while worker.said:
            said, *rest = worker.said.pop(0).split("\t")
            if said == "ready":
                worker.ready = True
                continue
            name, seconds = rest
            self.log(f"{said} {name}: {seconds} s")
            if said == "failed":
                self.failed[name] = self.failed.get(name, 0) + 1
                worker.ready = False  # it ends now
            if said == "done":
                self.succeeded.add(_group(name))
            worker.task = None
        if worker.process.poll() is not None:
            if worker.task is not None:
                self.log(f"lost {worker.task.name}")
                self.failed[worker.task.name] = self.failed.get(worker.task.name, 0) + 1
            self.workers.remove(worker)
            if sum(self.failed.values()) < 40:
                self._start()

    def _next(self, waiting: list[Task]) -> Task | None:
        """The first that is ready and nobody has; not more at a time are trained than may be. Of CAI the chosen
        model's come first."""
        taken = {worker.task.name for worker in self.workers if worker.task is not None}
        training = sum(worker.task is not None and worker.task.trains for worker in self.workers)
        free = [task for task in waiting if task.name not in taken and task.ready]
        late = time.monotonic() > self.began + self.options.train_until
        if training >= self.options.training or late:
            free = [task for task in free if not task.trains]
        first = [task for task in free if self.bench.folder / CHOICE in task.needs and self._is_chosen(task)]
        return next(iter(first or free), None)

    def _is_chosen(self, task: Task) -> bool:
        chosen = json.loads((self.bench.folder / CHOICE).read_text("utf-8"))["chosen"]
        return kind_of(task.name.split(" ", 1)[1]) == chosen

    def _choose(self) -> None:
        """When all models that can be have been asked what the rule looks at, or it is time."""
        path = self.bench.folder / CHOICE
        if path.exists():
            return
        measured = {m: all(p.exists() for p in paths) for m, paths in needed_for_choice(self.bench).items()}
        late = time.monotonic() - self.began > self.options.choose_at
        given_up = {name.split(" ", 1)[1] for name, count in self.failed.items() if count >= 2}
        complete = all(done or model in given_up for model, done in measured.items())
        if not complete and not (late and any(measured.values())):
            return
        from ladder.measures import responses
        from ladder.stand_in import write

        models = tuple(model for model, done in measured.items() if done)
        if models == self.refused:
            return
        try:
            choice = write(responses(self.bench.folder, models), path)
        except InvalidInput as error:  # none is able: wait for others
            self.log(f"no choice: {error}")
            self.refused = models
            return
        self.log(
            f"chosen: {choice.chosen} of {len(choice.distances)}, distance {choice.distances[choice.chosen]:.2f}"
        )


def _group(name: str) -> str:
    return name.split(" ", 1)[0]


def facts(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    """Machine, versions and sizes."""
    import torch
    import transformers

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor()
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    return {"device": name, "versions": versions, "sizes": options.sizes, "recipe": asdict(bench.sizes)}


def unpack(before: Path | None, folder: Path) -> frozenset[str]:
    """What an earlier run found: its choice, answers, and fingerprints of the models that gave them. Models that
    it made and did not ask are gone, and can be made again."""
    if before is None:
        return frozenset()
    if before.name == CHOICE:
        (folder / CHOICE).write_bytes(before.read_bytes())
        return frozenset({CHOICE})
    with tarfile.open(before) as tar:
        files = [member for member in tar if member.isfile()]
        asked = {f"models/{m.name.split('/')[1]}.json" for m in files if m.name.startswith("results/")}
        found = [m for m in files if m.name.startswith("results/") or m.name in {CHOICE, *asked}]
        tar.extractall(folder, found, filter="data")
    return frozenset(member.name for member in found)


def pack(bench: Bench, options: argparse.Namespace) -> None:
    """What there is as one file."""
    options.out.mkdir(parents=True, exist_ok=True)
    part = options.out / "ladder.part"
    with tarfile.open(part, "w:xz", preset=1) as tar:
        for name in ("facts.json", CHOICE, "results", "where", "logs", "models"):
            for path in sorted((bench.folder / name).rglob("*")) or [bench.folder / name]:
                inside = path.relative_to(bench.folder)
                wanted = name != "models" or (len(inside.parts) == 2 and path.suffix == ".json")
                if wanted and path.is_file() and path.suffix != ".part" and str(inside) not in options.old:
                    tar.add(path, str(inside))
    part.replace(options.out / "ladder.tar.xz")


def export_chosen(bench: Bench, out: Path) -> None:
    """The stand-in's checkpoint, unless it is the packaged model."""
    if not (bench.folder / CHOICE).exists():
        return
    chosen = json.loads((bench.folder / CHOICE).read_text("utf-8"))["chosen"]
    made = sorted((bench.folder / "models").glob("*.json"))
    own = [path.with_suffix("") for path in made if kind_of(path.stem) == chosen]
    if chosen != PACKAGED and own:
        export(own[0], out)


def export(folder: Path, out: Path) -> None:
    """A checkpoint in parts that `cat` puts together again: `cat stand-in.tar.* | tar x`."""
    out.mkdir(parents=True, exist_ok=True)
    whole = out / "stand-in.part"
    with tarfile.open(whole, "w") as tar:
        tar.add(folder, folder.name)
    content = whole.read_bytes()
    for number, start in enumerate(range(0, len(content), PART)):
        (out / f"stand-in.tar.{number}").write_bytes(content[start : start + PART])
    whole.unlink()


@contextmanager
def environment(folder: Path) -> Iterator[dict[str, str]]:
    """With the multi-process service, if a process can be started under it."""
    check = [sys.executable, "-c", "import torch; torch.zeros(1, device='cuda')"]
    given = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

    def works(there: dict[str, str]) -> bool:
        return subprocess.run(check, env=there, capture_output=True).returncode == 0

    with ExitStack() as stack:
        try:
            shared = stack.enter_context(shared_gpu(True, folder))
            given = next((there for there in (shared | ROUNDED, shared) if works(there)), given)
        except (FileNotFoundError, subprocess.CalledProcessError):
            pass  # there is no such service here
        if "CUDA_MPS_PIPE_DIRECTORY" not in given:
            stack.close()
        yield given


def main() -> None:
    """Material, workers, and what they found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop then and pack; start again to go on")
    parser.add_argument("--choose-at", type=float, default=1e9, help="choose the stand-in then from what there is")
    parser.add_argument("--train-until", type=float, default=1e9, help="begin no training after so many seconds")
    parser.add_argument("--before", type=Path, help="the archive of an earlier run, or its choice.json")
    parser.add_argument("--sizes", choices=SIZES, default="full")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--training", type=int, default=6, help="of these, how many may train at a time")
    options = parser.parse_args()
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    bench = Bench(options.folder.resolve(), SIZES[options.sizes], device)
    (bench.folder / "logs").mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    options.old = unpack(options.before, bench.folder)
    (bench.folder / "facts.json").write_text(json.dumps(facts(bench, options), indent=1) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "ladder.material", str(bench.material), "--sizes", options.sizes]
    with (bench.folder / "logs" / "material.log").open("a") as log:
        options.material = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        with environment(bench.folder / "logs") as given:
            run = Run(bench, options, given)
            run.began = began
            run.log(f"{len(run.tasks)} tasks, {options.processes} processes")
            run.go()
    finally:
        options.material.kill()
        pack(bench, options)
        if options.before is None:
            export_chosen(bench, options.out)
    left = [task.name for task in run.tasks if not task.done]
    print(f"{len(run.tasks) - len(left)} of {len(run.tasks)} tasks are done; left: {', '.join(left[:20])}")


if __name__ == "__main__":
    main()
