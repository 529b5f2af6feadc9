"""`transformers serve` beside `seewhen serve`: one card, one checkpoint folder, the same clients, one run.

    python benchmarks/server/peer.py --seconds 170 --out peer.json
    python benchmarks/server/peer.py --tiny --dtype float32 --clients 1,3 --tokens 12 --window 4 --out peer.json

The model has random weights in a published shape; it is saved once, and every server is started on that folder by
its own command. All load at the same time; each is asked while the others have nothing to do. Clients are those of
`lanes.py`: streamed answers to a picture and a text of their own, asked again as soon as they are answered.
`generate` is the captured loop on a whole batch, without a server. Of the peer with many clients only a span is
seen, in which all ask for whole answers: it gives one after the other, so most hang up `unheard`. `--compiled`
asks the peer with its own `--compile`, too, whose first answer takes a minute or two.
Each part is written to the result when it is done, in the order of its worth; `--seconds` ends it.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lanes import Bench, Window, _name, _version
from shaped import Asking, asked, processor

_LOADING = 120.0  # seconds for a server to be ready


@dataclass(frozen=True)
class Served:
    """A server in a process of its own."""

    name: str
    url: str
    model: str
    log: Path
    process: subprocess.Popen[bytes]
    health: str
    began: float

    def ready(self, until: float) -> float:
        """Wait until it answers; the seconds since it was started."""
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}{self.health}", timeout=2):
                    return time.monotonic() - self.began
            except (urllib.error.URLError, OSError):
                if self.process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"{self.name} is not ready: {self.told()}") from None
            time.sleep(0.1)

    def told(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-1500:]


@contextmanager
def serving(name: str, command: list[str], model: str, health: str, logs: Path) -> Iterator[Served]:
    """The command with `--port` for the time of the context."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = logs / f"{name.replace(' ', '-')}.log"
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    with log.open("wb") as told:
        process = subprocess.Popen(
            [sys.executable, "-m", *command, "--host", "127.0.0.1", "--port", str(port)],
            stdout=told, stderr=subprocess.STDOUT, env={**os.environ, **quiet},
        )  # fmt: skip
    try:
        yield Served(name, f"http://127.0.0.1:{port}", model, log, process, health, time.monotonic())
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def room(gigabytes: float) -> Path:
    """A folder with room for a checkpoint: in memory if there is any."""
    for place in ("/dev/shm", tempfile.gettempdir(), "."):
        if Path(place).is_dir() and shutil.disk_usage(place).free > gigabytes * 1e9:
            return Path(tempfile.mkdtemp(prefix="seewhen-", dir=place))
    raise OSError(f"no room for {gigabytes:.0f} GB")


class Peers(Bench):
    """The bench of `lanes.py` with servers that are started by their own commands."""

    def saved(self, folder: Path) -> Path:
        """The model and a processor as a checkpoint; the model is let go."""
        began = time.perf_counter()
        self.side = self.model.config.vision_config.image_size
        self.words = self._words
        self.model.generation_config.eos_token_id = None  # every answer has the same length
        self.model.save_pretrained(folder)
        processor(self.model.config).save_pretrained(folder)
        size = sum(file.stat().st_size for file in folder.iterdir())
        self.note(what="checkpoint", gigabytes=size / 1e9, seconds=time.perf_counter() - began)
        del self.model, self.backbone
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return folder

    @property
    def patience(self) -> float:
        """Seconds for a part that has begun."""
        return max(self.end - time.monotonic(), 10.0)

    def ask(self, server: Served, clients: int, warm: float, seconds: float, **told: Any) -> None:
        """Clients of a server for a span of time."""
        if server.process.poll() is not None:
            raise RuntimeError(f"{server.name} has ended: {server.told()}")
        asking = Asking(clients, self.options.tokens, self.words, self.side, warm, seconds, **told)
        found = asked(server.url, asking, server.model, self.patience)
        window = Window(0.0, seconds, found["tokens"], found["first"], found["each"])
        waited = found["unheard"]
        self.note(
            what="http", server=server.name, method=told.get("method") or "regular", clients=clients,
            **window.told(), unheard=len(waited), unheard_waited_s=max(waited, default=None),
        )  # fmt: skip

    def warmed(self, server: Served, clients: int, tokens: int, seconds: float, **told: Any) -> None:
        """Requests before any is counted: compiled, captured, and what the first takes."""
        began = time.perf_counter()
        asking = Asking(clients, tokens, self.words, self.side, 0.0, seconds, **told)
        asked(server.url, asking, server.model, self.patience)
        self.note(what="warmed", server=server.name, clients=clients, seconds=time.perf_counter() - began, **told)

    def start(self, stack: ExitStack, folder: Path, logs: Path) -> dict[str, Served]:
        """All servers."""
        peer, path = ["transformers.cli.transformers", "serve", str(folder)], str(folder)
        device = ["--device", "cuda:0" if torch.cuda.is_available() else "cpu"]
        limits = ["--limit", f"slots={max(self.options.clients)}"]
        commands = {
            "seewhen": (["seewhen", "serve", "--model", path, *limits], folder.name, "/readyz"),
            "transformers": ([*peer, "--continuous-batching", *device], path, "/health"),
        }
        if self.options.compiled:
            commands["transformers compiled"] = ([*peer, "--compile", *device], path, "/health")
        self.result["commands"] = {
            name: " ".join(command).replace(path, "FOLDER").replace("transformers.cli.", "")
            for name, (command, _, _) in commands.items()
        }
        return {
            name: stack.enter_context(serving(name, command, model, health, logs))
            for name, (command, model, health) in commands.items()
        }


def measure(bench: Peers, servers: dict[str, Served]) -> list[tuple[str, float, Callable[[], None]]]:
    """Name, seconds that must be left, and work, in the order of their worth."""
    ours, peer = servers["seewhen"], servers["transformers"]
    most, window, whole = max(bench.options.clients), bench.options.window, bench.options.tokens

    def ready(server: Served) -> None:
        bench.note(what="ready", server=server.name, within_seconds=server.ready(server.began + _LOADING))

    def lanes(method: str) -> None:
        ready(ours)
        for clients, warm, seconds in ((1, 1.5, window), (most, window / 2, window)):
            bench.warmed(ours, clients, whole // 2, 1.0, method=method)
            bench.ask(ours, clients, warm, seconds, method=method)

    def turns() -> None:
        ready(peer)
        bench.warmed(peer, 1, 4, 0.1)
        bench.ask(peer, 1, 0.0, 2 * window, hang_up=1)
        bench.ask(peer, most, 2.0, 2 * window, staggered=0, hang_up=1)

    def compiled() -> None:
        server = servers["transformers compiled"]
        ready(server)
        bench.warmed(server, 1, whole, 0.1)
        bench.ask(server, 1, 0.0, window, hang_up=1)
        bench.ask(server, most, 1.0, window, staggered=0, hang_up=1)

    parts = [
        ("seewhen, regular", 30.0, lambda: lanes("regular")), ("transformers", 25.0, turns),
        ("seewhen, cai", 25.0, lambda: lanes("cai")),
    ]  # fmt: skip
    return [*parts, ("transformers, compiled", 40.0, compiled)] if bench.options.compiled else parts


def main() -> None:
    """Run all that fits."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="llava-1.5-7b")
    parser.add_argument("--tiny", action="store_true", help="The family with tiny sizes, to rehearse.")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--clients", type=lambda text: [int(n) for n in text.split(",")], default=[1, 32])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument(
        "--window", type=float, default=6, help="Seconds that are counted; of the peer twice as many."
    )
    parser.add_argument("--compiled", action="store_true", help="The peer with --compile, too.")
    parser.add_argument("--seconds", type=float, default=170)
    parser.add_argument("--out", type=Path, default=Path("peer.json"))
    options = parser.parse_args()
    bench = Peers(options)
    bench.result["command"] = " ".join(["python", "benchmarks/server/peer.py", *map(_name, sys.argv[1:])])
    named = ("torch", "transformers", "triton", "fastapi", "starlette", "uvicorn", "openai", "pydantic")
    bench.result["versions"] = {name: _version(name) for name in named}
    fast = "graph" if torch.cuda.is_available() else "off"
    for rows, repeats in ((1, 3), (max(options.clients), 2)):
        bench.bare("regular", rows, fast, repeats)
    place = room(0.1 if options.tiny else 20)
    try:
        with ExitStack() as stack:
            servers = bench.start(stack, bench.saved(place / "shape"), options.out.parent)
            for name, wanted, work in measure(bench, servers):
                left = bench.end - time.monotonic()
                if left < wanted:
                    bench.note(what="left out", part=name, seconds_left=left)
                    continue
                try:
                    work()
                except Exception as error:  # the other parts are worth something without it
                    bench.note(what="failed", part=name, error=repr(error)[-3000:])
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
