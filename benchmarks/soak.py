"""Twenty minutes of everything that may not break: spoiled files, killed runs, spoiled requests, load, strangers.

    python benchmarks/soak.py --minutes 20 --out benchmarks/soak.json

Each part is a script of its own with its own counts; here they get shares of the time, and their results are put
together with versions. Exit code 1 if a part fails. `--minutes 2` for a short look; `--only files,kills` runs some
again and keeps the others of the result.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Part:
    """A script, its share of the time, its arguments for so many seconds, and what must hold of its result."""

    script: str
    share: float
    arguments: Callable[[float, Path], list[str]]
    holds: Callable[[Any], bool]


def _files(seconds: float, out: Path) -> list[str]:
    # Another seed than the committed run's; the clock ends it.
    return [
        "--count",
        "1000000",
        "--seconds",
        f"{seconds:.0f}",
        "--seed",
        str(int(time.time())),
        "--out",
        str(out),
    ]


def _kills(seconds: float, out: Path) -> list[str]:
    # A kill costs a start of some ten seconds.
    return ["--kills", str(max(1, round(seconds / 12))), "--scenes", "40", "--out", str(out)]


def _requests(seconds: float, out: Path) -> list[str]:
    return ["--count", str(max(50, round(8 * seconds))), "--seed", str(int(time.time())), "--name", ""]


def _strangers(seconds: float, out: Path) -> list[str]:
    # Half of the time goes into starting it and into measuring without strangers.
    return ["--seconds", f"{seconds / 2:.0f}", "--connections", "2000", "--clients", "16", "--name", ""]


PARTS = {
    "files": Part("strangers/fuzz.py", 0.4, _files, lambda r: r["raw_exceptions"] == 0),
    "kills": Part("runs/kills.py", 0.2, _kills, lambda r: all(r["same_bytes"].values())),
    "requests": Part("server/fuzz.py", 0.2, _requests, lambda r: r["answers_of_a_wrong_kind"] == 0),
    "strangers": Part("server/strangers.py", 0.2, _strangers, lambda r: not r["broken"]),
}


def run(name: str, seconds: float) -> dict[str, Any]:
    """One part; its result is the file it writes, or the JSON that it prints."""
    part = PARTS[name]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "result.json")
        began = time.monotonic()
        command = [sys.executable, str(HERE / part.script), *part.arguments(seconds, out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        told = out.read_text() if out.exists() else done.stdout[done.stdout.find("{") :]
    try:
        result = json.loads(told)
        held = done.returncode == 0 and part.holds(result)
    except (ValueError, KeyError):
        result, held = {"output": (done.stdout + done.stderr)[-2000:]}, False
    return {"held": held, "seconds": round(time.monotonic() - began, 1), "result": result}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    from seewhen.runs.versions import package_versions

    names = options.only.split(",")
    whole = sum(PARTS[name].share for name in names)
    # `--only` keeps what the file says of the others.
    partly = options.out is not None and options.out.exists() and set(names) < set(PARTS)
    found = json.loads(options.out.read_text())["parts"] if partly else {}
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        found[name] = run(name, 60 * options.minutes * PARTS[name].share / whole)
        print(f"{name}: {'held' if found[name]['held'] else 'DID NOT HOLD'}", file=sys.stderr, flush=True)
        if not found[name]["held"]:
            print(json.dumps(found[name]["result"])[:4000], file=sys.stderr, flush=True)
    about = {
        "python": platform.python_version(),
        "system": platform.system(),
        "versions": dict(package_versions()),
    }
    minutes = round(sum(each["seconds"] for each in found.values()) / 60, 1)
    text = json.dumps({**about, "minutes": minutes, "parts": found}, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    if not all(each["held"] for each in found.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
