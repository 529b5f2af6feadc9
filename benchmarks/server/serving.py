"""A server process of the benchmarks' own on a free port of this machine, and what its result files say of it."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx2
import psutil

KEY = "a-key-for-benchmarks"
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Served:
    """A running server."""

    url: str
    pid: int

    def resident(self) -> int:
        """Bytes of memory in use."""
        return int(psutil.Process(self.pid).memory_info().rss)


@contextmanager
def serving(model: str, method: str, *limits: str, log: Path | None = None) -> Iterator[Served]:
    """Run `seewhen serve` until the end of the context. With `log` its log goes there and it wants `KEY`."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-c", "from seewhen.cli import main; main()", "serve", "--port", str(port)]
    command += ["--model", model, "--method", method, "--log-level", "warning"]
    command += [part for limit in limits for part in ("--limit", limit)]
    if log is None:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    else:
        with log.open("wb") as output:
            environment = os.environ | {"SEEWHEN_API_KEY": KEY}
            process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    url = f"http://127.0.0.1:{port}"
    try:
        while True:
            if process.poll() is not None:
                raise SystemExit("the server did not start")
            try:
                if httpx2.get(f"{url}/readyz", timeout=60).status_code == 200:
                    break
            except httpx2.HTTPError:
                time.sleep(0.2)
        yield Served(url, process.pid)
    finally:
        process.terminate()
        process.wait(60)


def about(script: str) -> dict[str, Any]:
    """The command, the machine and the versions."""
    packages = ("seewhen", "torch", "transformers", "fastapi", "uvicorn", "pillow", "openai", "schemathesis")
    return {
        "command": " ".join(["python", f"benchmarks/server/{script}", *sys.argv[1:]]),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_average_before": [round(value, 2) for value in os.getloadavg()],
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {name: version(name) for name in packages},
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def write(name: str, result: dict[str, Any]) -> None:
    """Write a result file."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    print(f"wrote {path.name}")
