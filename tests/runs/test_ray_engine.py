"""A real Ray cluster of two workers on this machine, one of which is killed in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import toy
from typer.testing import CliRunner

from seewhen.cli import app
from seewhen.runs.engine import InProcess, Plan, WorkerFailed, run
from seewhen.runs.ray_engine import RayPool
from seewhen.runs.store import RESULT, SAMPLES, RunStore

ray = pytest.importorskip("ray", reason="Ray is not installed (pip install 'seewhen[ray]')")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # Ray's own warnings are its own
]


_NO_CLUSTER = """
import threading, toy
from seewhen.runs.work import cut_jobs
from seewhen.runs.ray_engine import RayPool, RayUnreachable
try:
    jobs = list(cut_jobs(toy.questions(1, 1), (0,), 1))
    list(RayPool(toy.maker(), True, address="127.0.0.1:1").run(jobs, threading.Event()))
except RayUnreachable as error:
    print(error)
"""


def test_no_cluster_is_one_clear_sentence():
    """In a process of its own, which can be ended: Ray was once seen to hang here."""
    said = subprocess.run(
        [sys.executable, "-c", _NO_CLUSTER],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert said.returncode == 0, said.stderr
    assert "No Ray cluster at 127.0.0.1:1" in said.stdout


@pytest.fixture(scope="module")
def cluster():
    here = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        address="local",  # not that of another worker's tests
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": here}},
    )
    yield
    ray.shutdown()


def go(path, pool, tasks):
    with RunStore.open(path, {"toy": 1}, {}) as store:
        return run(store, Plan(tasks, (0, 1), batch=5), pool, toy.count)


def test_two_workers_one_killed_leave_the_bytes_of_a_local_run(cluster, tmp_path):
    tasks = toy.questions(20, 3)
    mark = tmp_path / "mark"
    before = signal.getsignal(signal.SIGTERM)
    deadly = [replace(t, source=f"kill:{mark}") if t.id == "q1.13" else t for t in tasks]
    go(tmp_path / "local", InProcess(toy.maker(), sampled=True), tasks)
    go(tmp_path / "ray", RayPool(toy.maker(delay=0.02), sampled=True, workers=2), deadly)
    assert mark.exists()  # a worker did die
    assert signal.getsignal(signal.SIGTERM) is before
    for name in (SAMPLES, RESULT):
        assert (tmp_path / "ray" / name).read_bytes() == (tmp_path / "local" / name).read_bytes()


def test_confirm_says_what_it_says_here(cluster, checkpoint, tmp_path):
    """The real command: sentences are judged and taken back in the workers; the bytes are those of a local run."""
    command = [
        "eval",
        "chair",
        "--model",
        str(checkpoint),
        "--scenes",
        "4",
        "--method",
        "confirm:coco:threshold=0.5",
    ]
    command += ["--no-controls", "--max-new-tokens", "16", "--device", "cpu"]
    for engine in (["local"], ["ray", "--workers", "2"]):
        outcome = CliRunner().invoke(app, [*command, "--engine", *engine, "--out", str(tmp_path / engine[0])])
        assert outcome.exit_code == 0, outcome.output
    (local,), (spread,) = (list((tmp_path / name).rglob(SAMPLES)) for name in ("local", "ray"))
    assert local.read_bytes() == spread.read_bytes()
    facts = [json.loads(line)["facts"] for line in local.read_text().splitlines()]
    assert sum(each["asked"] for each in facts) > 0
    assert sum(each["taken_back"] for each in facts) > 0


def test_an_error_of_a_worker_is_the_error_of_the_run(cluster, tmp_path):
    with pytest.raises(WorkerFailed, match="no_such_option"):
        go(
            tmp_path,
            RayPool(toy.maker(no_such_option=1), sampled=True, workers=1, restarts=0),
            toy.questions(2, 1),
        )
