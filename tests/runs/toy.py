"""A deterministic answerer that needs no model, and a small yes/no benchmark of tasks."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from seewhen.errors import InvalidInput
from seewhen.runs.work import Maker, Task, TaskAnswer, image_order

BIG = 120  # images of a run that is killed: it must not be done before


class Toy:
    """Says yes or no by a hash of task and seed; can be slow, short of memory, or meet bad images."""

    def __init__(self, delay: float = 0.0, fits: int | None = None, skill: float = 0.5, log: str | None = None):
        self.delay, self.fits, self.skill, self.log = delay, fits, skill, log
        self.sizes: list[int] = []

    def answer(self, tasks: Sequence[Task], seed: int | None) -> list[TaskAnswer]:
        self.sizes.append(len(tasks))
        if self.log:
            with open(self.log, "a") as file:
                file.write("".join(f"{task.id} {seed}\n" for task in tasks))
        time.sleep(self.delay)
        for task in tasks:
            if task.source == "broken" and len(tasks) > 1:
                raise InvalidInput("A broken image in the batch.")
            if task.source.startswith("kill:"):
                self.die_once(Path(task.source.removeprefix("kill:")))
        if self.fits is not None and len(tasks) > self.fits:
            raise RuntimeError("CUDA out of memory. Tried to allocate a lot.")
        return [self.one(task, seed) for task in tasks]

    def one(self, task: Task, seed: int | None) -> TaskAnswer:
        if task.source == "broken":
            return TaskAnswer("", error="cannot identify image file")
        digest = hashlib.sha256(f"{task.id} {seed} {task.prompt}".encode()).digest()
        right = digest[0] / 256 < self.skill
        text = task.prompt if right else {"yes": "no", "no": "yes"}[task.prompt]
        return TaskAnswer(f"{text}\n“{digest.hex()[:8]}”", tokens=3, facts={"gate": digest[1] / 256})

    def close(self) -> None:
        pass

    @staticmethod
    def die_once(mark: Path) -> None:
        """Ends this very process the hard way, the first time only."""
        try:
            mark.touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


def build(device: str | None = None, **options: object) -> Toy:
    return Toy(**options)  # type: ignore[arg-type]


def maker(**options: object) -> Maker:
    return Maker("toy:build", options)


def questions(images: int = 10, each: int = 3) -> list[Task]:
    """Interleaved over images, as POPE's files of three splits are."""
    tasks = [
        Task(f"q{k}.{i}", f"image-{i}", "fine", "yes" if (i + k) % 2 else "no")
        for k in range(each)
        for i in range(images)
    ]
    return image_order(tasks)


def main(path: str, delay: str) -> None:
    """A run in a process of its own, to be killed: `python toy.py DIRECTORY DELAY`."""
    from seewhen.runs.engine import InProcess, Plan, run
    from seewhen.runs.store import RunStore

    plan = Plan(questions(BIG, 3), (0, 1), batch=7)
    with RunStore.open(Path(path), {"toy": 1}, {}) as store:
        pool = InProcess(maker(delay=float(delay), log=str(Path(path) / "asked.txt")), sampled=True)
        run(store, plan, pool, count)


def count(records) -> dict[str, object]:
    """The score of the toy benchmark."""
    return {
        "yes": sum(record.answer.startswith("yes") for record in records),
        "failures": sum(bool(record.error) for record in records),
        "samples": len(records),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
