"""The same run over a Ray cluster: actors answer, the driver stays the only writer.

Jobs are whole images cut in advance (`cut_jobs`), so it does not matter which actor gets which; a dead
actor is restarted by Ray, possibly on another machine, and its job is asked again. Workers need the
package, the same versions and the images under the same paths.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from seewhen.errors import MissingDependency, SeewhenError
from seewhen.runs.engine import WorkerFailed
from seewhen.runs.versions import package_versions
from seewhen.runs.work import Careful, Done, Job, Maker

_AHEAD = 2  # jobs in flight per actor: one at work, one waiting, so that none idles


class RayUnreachable(SeewhenError):
    """No Ray cluster answers at the address given."""


def connect(address: str | None) -> Any:
    """Joins the cluster at `address`, or starts one on this machine. Returns the ray module."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere unasked
    try:
        import ray
    except ImportError:
        raise MissingDependency("ray", "ray") from None
    if ray.is_initialized():
        return ray
    _probe(address)
    # Ray puts its own handler on SIGTERM, which would end the driver in the middle of a batch.
    ours = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, include_dashboard=None if address else False, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise _unreachable(address, str(error).splitlines()[0]) from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, ours)
    return ray


def _probe(address: str | None) -> None:
    """Ray itself tries for minutes before it says that nobody is there."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return  # "auto", "local" or nothing: Ray finds out at once
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        raise _unreachable(address, str(error)) from None


def _unreachable(address: str | None, why: str) -> RayUnreachable:
    return RayUnreachable(
        f"No Ray cluster at {address or 'this machine'}: {why}.",
        "Start one with `ray start --head` and pass its address with --ray-address.",
    )


class _Actor:
    """Lives in a Ray worker process; makes its answerer at the first job, then keeps it."""

    def __init__(self, maker: Maker, sampled: bool, versions: dict[str, str]) -> None:
        self._maker, self._sampled, self._versions = maker, sampled, versions
        self._careful: Careful | None = None

    def answer(self, job: Job) -> Done:
        # Not in the constructor: an error there reaches the driver as a dead actor without its cause.
        if self._careful is None:
            here = package_versions()
            if here != self._versions:  # two versions in one run are two configurations under one name
                raise WorkerFailed(f"A worker has versions {here}, the driver {self._versions}.")
            self._careful = Careful(self._maker.make(), self._sampled)
        return self._careful(job)


@dataclass(frozen=True)
class RayPool:
    """Actors on a Ray cluster, one per GPU (or per `cpus` cores where the cluster has none)."""

    maker: Maker
    sampled: bool
    address: str | None = None
    workers: int | None = None
    cpus: int = 1
    restarts: int = 4

    def run(self, jobs: Sequence[Job], stop: threading.Event) -> Iterator[Done]:
        if not jobs:
            return
        ray = connect(self.address)
        total = ray.cluster_resources()
        gpus = int(total.get("GPU", 0))
        fitting = gpus or max(1, int(total.get("CPU", 1)) // self.cpus)
        count = min(self.workers or fitting, len(jobs))
        actor = ray.remote(_Actor).options(
            num_cpus=self.cpus,
            num_gpus=1 if gpus else 0,
            max_restarts=self.restarts,
            max_task_retries=self.restarts,
        )
        actors = [actor.remote(self.maker, self.sampled, package_versions()) for _ in range(count)]
        queue = deque(jobs)
        flying: dict[Any, Any] = {}
        load = [0] * count
        try:
            while True:
                while queue and not stop.is_set() and min(load) < _AHEAD:
                    idlest = load.index(min(load))
                    flying[actors[idlest].answer.remote(queue.popleft())] = idlest
                    load[idlest] += 1
                if not flying:
                    return
                ready, _ = ray.wait(list(flying), num_returns=1, timeout=0.5)
                for reference in ready:
                    load[flying.pop(reference)] -= 1
                    yield self._get(ray, reference)
        finally:
            for worker in actors:
                ray.kill(worker)

    def _get(self, ray: Any, reference: Any) -> Done:
        try:
            done: Done = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            raise (
                cause if isinstance(cause, SeewhenError) else WorkerFailed(f"A worker failed: {cause!r}")
            ) from None
        except ray.exceptions.RayActorError as error:
            raise WorkerFailed(
                f"A worker died more than {self.restarts} times: {str(error).splitlines()[0]}",
                "Look at the workers' logs; the run goes on with the same command once that is solved.",
            ) from None
        return done
