"""Engines: the same bytes whoever computes, however often it is killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st

from seewhen.errors import InvalidInput
from seewhen.runs.engine import InProcess, Interrupted, Plan, Processes, WorkerFailed, run
from seewhen.runs.store import RESULT, SAMPLES, RunStore, read_run
from seewhen.runs.work import Careful, Job, Task, cut_jobs, image_order

TASKS = toy.questions(12, 3)


def go(path, pool, plan=None, config=None):
    with RunStore.open(path, config or {"toy": 1}, {}) as store:
        return run(store, plan or Plan(TASKS, (0, 1), batch=5), pool, toy.count)


def content(path: Path) -> tuple[bytes, bytes]:
    return (path / SAMPLES).read_bytes(), (path / RESULT).read_bytes()


def local(**options):
    return InProcess(toy.maker(**options), sampled=True)


# --- jobs -------------------------------------------------------------------------------------------


@settings(max_examples=80)
@given(
    st.lists(st.integers(0, 6), max_size=30),
    st.integers(1, 8),
    st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True),
)
def test_jobs_hold_every_task_once_in_order_and_keep_images_together(images, batch, seeds):
    tasks = image_order([Task(str(k), f"i{image}", "", "") for k, image in enumerate(images)])
    jobs = list(cut_jobs(tasks, seeds, batch))
    asked = [(task.id, job.seed) for job in jobs for task in job.tasks]
    assert asked == [(task.id, seed) for seed in seeds for task in tasks]
    assert [job.number for job in jobs] == list(range(len(jobs)))
    assert all(1 <= len(job.tasks) <= batch for job in jobs)
    sizes = Counter(task.image for task in tasks)
    for job in jobs:
        for image, here in Counter(task.image for task in job.tasks).items():
            # An image is split only if no single batch could have held it with what came before.
            assert here == sizes[image] or sizes[image] > batch or len(job.tasks) == batch


def test_a_batch_of_nothing_is_refused():
    with pytest.raises(InvalidInput, match="at least 1"):
        list(cut_jobs(TASKS, (0,), 0))


# --- trouble inside a batch -------------------------------------------------------------------------


def test_out_of_memory_halves_and_stays_small():
    answerer = toy.Toy(fits=3)
    careful = Careful(answerer, sampled=True)
    tasks = tuple(toy.questions(4, 4))
    want = [toy.Toy().one(task, 5) for task in tasks]
    assert careful(Job(0, 5, tasks)).answers == want
    assert answerer.sizes == [16, 8, 4, 2, 2, 2, 2, 2, 2, 2, 2]
    assert careful(Job(1, 5, tasks[:4])).answers == want[:4]
    assert answerer.sizes[-2:] == [2, 2]


def test_out_of_memory_for_one_sample_is_a_failure_not_the_end():
    careful = Careful(toy.Toy(fits=0), sampled=False)
    answers = careful(Job(0, 0, tuple(TASKS[:2]))).answers
    assert [answer.error for answer in answers] == ["out of memory", "out of memory"]


def test_other_errors_are_not_swallowed():
    class Broken:
        def answer(self, tasks, seed):
            raise RuntimeError("expected scalar type Half but found Float")

    with pytest.raises(RuntimeError, match="scalar type"):
        Careful(Broken(), sampled=False)(Job(0, 0, tuple(TASKS[:2])))


def test_a_broken_image_is_recorded_and_can_be_tried_again(tmp_path):
    bad = [replace(task, source="broken") if task.image == "image-4" else task for task in TASKS]
    outcome = go(tmp_path, local(), Plan(bad, (0,), batch=6))
    assert outcome["failures"] == 3
    assert {record.image for record in read_run(tmp_path).failures} == {"image-4"}
    with RunStore.open(tmp_path, {"toy": 1}, {}) as store:
        assert store.forget_failures() == 3
        run(store, Plan(TASKS, (0,), batch=6), local(), toy.count)
    go(tmp_path / "clean", local(), Plan(TASKS, (0,), batch=6))
    assert content(tmp_path) == content(tmp_path / "clean")


def test_greedy_runs_pass_no_seed():
    seeds = []

    class Watch(toy.Toy):
        def answer(self, tasks, seed):
            seeds.append(seed)
            return super().answer(tasks, seed)

    Careful(Watch(), sampled=False)(Job(0, 0, tuple(TASKS[:2])))
    Careful(Watch(), sampled=True)(Job(0, 3, tuple(TASKS[:2])))
    assert seeds == [None, 3]


# --- the same bytes ---------------------------------------------------------------------------------


def test_batch_size_memory_and_resume_do_not_change_the_bytes(tmp_path):
    go(tmp_path / "a", local())
    go(tmp_path / "b", local(fits=2), Plan(TASKS, (0, 1), batch=36))
    # In three steps: some samples, then the other seed as well, then everything.
    for tasks, seeds in ((TASKS[:10], (0,)), (TASKS[:17], (0, 1)), (TASKS, (0, 1))):
        go(tmp_path / "c", local(), Plan(tasks, seeds, batch=4))
    assert content(tmp_path / "a") == content(tmp_path / "b") == content(tmp_path / "c")


def test_a_finished_run_needs_no_answerer(tmp_path):
    go(tmp_path, local())
    before = content(tmp_path)
    go(tmp_path, InProcess(toy.maker(no_such_option=True), sampled=True))
    assert content(tmp_path) == before


class Shuffled:
    """A pool that returns jobs in another order, as many machines would."""

    def run(self, jobs, stop):
        careful = Careful(toy.Toy(), sampled=True)
        for job in random.Random(4).sample(list(jobs), len(jobs)):
            yield careful(job)


def test_any_order_of_jobs_leaves_the_same_bytes(tmp_path):
    go(tmp_path / "a", local())
    go(tmp_path / "b", Shuffled())
    assert content(tmp_path / "a") == content(tmp_path / "b")


def test_several_processes_one_of_which_is_killed(tmp_path):
    deadly = [replace(task, source=f"kill:{tmp_path / 'mark'}") if task.id == "q1.5" else task for task in TASKS]
    go(tmp_path / "a", local())
    go(
        tmp_path / "b",
        Processes(toy.maker(), sampled=True, devices=("cpu:0", "cpu:1")),
        Plan(deadly, (0, 1), batch=5),
    )
    assert (tmp_path / "mark").exists()
    assert content(tmp_path / "a") == content(tmp_path / "b")


class Suicidal:
    def __init__(self, device=None):
        pass

    def answer(self, tasks, seed):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_batch_that_always_kills_its_worker_ends_the_run_with_an_error(tmp_path):
    pool = Processes(toy.Maker("test_engine:Suicidal"), sampled=True, devices=("cpu",), tries=2)
    with pytest.raises(WorkerFailed, match="died 2 times"):
        go(tmp_path, pool)


def test_a_worker_that_cannot_start_says_why(tmp_path):
    pool = Processes(toy.maker(no_such_option=1), sampled=True, devices=("cpu",))
    with pytest.raises(WorkerFailed, match="no_such_option"):
        go(tmp_path, pool)


# --- killed -----------------------------------------------------------------------------------------


def start(path: Path, delay: float) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, toy.__file__, str(path), str(delay)], stderr=subprocess.PIPE, text=True
    )


def wait_for(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "the process did not get to work"
        time.sleep(0.005)


def test_ten_kills_at_random_moments_change_nothing(tmp_path):
    """SIGKILL, ten times, then to the end: same samples, same score, nothing asked twice in the file."""
    toy.main(str(tmp_path / "whole"), "0")
    random_ = random.Random(7)
    killed = tmp_path / "killed"
    for _ in range(10):
        seen = read_run(killed).records if (killed / "manifest.json").exists() else ()
        size = (killed / SAMPLES).stat().st_size if seen else 0
        process = start(killed, 0.05)
        # Wait until it works, then a random moment longer (a batch takes 50 ms).
        wait_for(lambda size=size: (killed / SAMPLES).exists() and (killed / SAMPLES).stat().st_size > size)
        time.sleep(random_.uniform(0, 0.12))
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        now = read_run(killed).records
        assert now[: len(seen)] == seen  # nothing is ever lost
        if random_.random() < 0.5 and now:  # and a disk that tore the last write
            with open(killed / SAMPLES, "ab") as file:
                file.write(now[-1].line().replace(now[-1].id, "torn").encode()[: random_.randint(1, 30)])
    toy.main(str(killed), "0")
    assert content(killed) == content(tmp_path / "whole")
    asked = Counter((killed / "asked.txt").read_text().split("\n"))
    again = sum(times - 1 for line, times in asked.items() if line)
    assert again <= 10 * 7  # at most the batch that was under way at each kill


def test_sigterm_finishes_the_batch_and_says_how_to_go_on(tmp_path):
    process = start(tmp_path, 0.1)
    wait_for(lambda: (tmp_path / SAMPLES).exists() and (tmp_path / SAMPLES).stat().st_size)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode != -signal.SIGTERM
    assert "Run the same command again" in errors
    done = read_run(tmp_path).records
    assert 0 < len(done) < 6 * toy.BIG
    assert len((tmp_path / "asked.txt").read_text().split("\n")) - 1 == len(done)  # the batch was kept
    assert not (tmp_path / RESULT).exists()


def test_stop_leaves_the_rest_undone(tmp_path):
    class Stopping(InProcess):
        def run(self, jobs, stop):
            for number, done in enumerate(super().run(jobs, stop)):
                yield done
                if number == 1:
                    stop.set()

    with pytest.raises(Interrupted, match="Stopped with 6 of 72"):
        go(tmp_path, Stopping(toy.maker(), True))
    assert len(read_run(tmp_path).records) == 6
