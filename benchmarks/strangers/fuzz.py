"""Twenty thousand spoiled files: each must be read or refused in a line, with bounded time and memory.

    python benchmarks/strangers/fuzz.py --count 20000 --out benchmarks/strangers/results/fuzz.json

A sound file of each kind is spoiled in one to three places (fixed seeds), read as a command does, and put back.
An exception that is not a SeewhenError is a failure; so is a file that takes more than ten seconds of a processor.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[1]))

from strangers.mutations import spoil
from strangers.subjects import SUBJECTS, Subject

SECONDS = 10.0


def fuzz(subject: Subject, count: int, seed: int, deadline: float = float("inf")) -> dict[str, Any]:
    """Counts of one subject; raw exceptions with the number of the file that made them."""
    chance = random.Random(f"{seed} {subject.name}")
    told: Counter[str] = Counter()
    raw: list[str] = []
    slowest = 0.0
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent, "files")
        folder.mkdir()
        subject.write(folder)
        subject.read(folder)  # the sound one must be read
        files = {
            path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size
        }
        for number in range(count):
            if time.monotonic() > deadline:
                break
            path = chance.choice([path for path, content in files.items() if content])
            path.write_bytes(spoil(files[path], chance))
            began = time.process_time()  # a busy machine is not the file's fault
            outcome = _outcome(subject, folder)
            slowest = max(slowest, time.process_time() - began)
            told[outcome[0]] += 1
            if outcome[0] == "raw":
                raw.append(f"{subject.name} {number} {path.name}: {outcome[1]}")
            path.write_bytes(files[path])
    return {
        "files": sum(told.values()),
        "read": told["read"],
        "refused": told["refused"],
        "raw_exceptions": len(raw),
        "examples": raw[:5],
        "slowest_seconds": round(slowest, 2),
    }


def _outcome(subject: Subject, folder: Path) -> tuple[str, str]:
    from seewhen.errors import SeewhenError

    try:
        subject.read(folder)
    except SeewhenError as error:
        said = str(error)
        in_a_line = said and "\n" not in said and len(said) < 3000
        return ("refused", "") if in_a_line else ("raw", f"said too much: {said[:100]}")
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return "raw", f"{type(error).__name__}: {error!s:.120} ({Path(last.filename).name}:{last.lineno})"
    return "read", ""


def run(
    count: int, seed: int, seconds: float = float("inf"), subjects: Sequence[Subject] = SUBJECTS
) -> dict[str, Any]:
    """All subjects, each with its share of the files and of the time."""
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    found: dict[str, Any] = {}
    began = time.monotonic()
    for subject in subjects:
        deadline = time.monotonic() + seconds * subject.share
        found[subject.name] = fuzz(subject, round(count * subject.share), seed, deadline)
    logging.disable(logging.NOTSET)
    total = {
        key: sum(each[key] for each in found.values()) for key in ("files", "read", "refused", "raw_exceptions")
    }
    return {
        "seed": seed,
        **total,
        "slowest_seconds": max(each["slowest_seconds"] for each in found.values()),
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "seconds": round(time.monotonic() - began, 1),
        "by_kind": found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this long")
    parser.add_argument("--only", help="one kind of file")
    parser.add_argument("--out", type=Path, help="where the result goes; printed only if not given")
    options = parser.parse_args()
    from seewhen.runs.versions import package_versions

    # A file that makes the program allocate what it merely claims ends here, not the machine.
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
    chosen = [s for s in SUBJECTS if options.only in (None, s.name)]
    result = {"versions": dict(package_versions()), **run(options.count, options.seed, options.seconds, chosen)}
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    if result["raw_exceptions"] or result["slowest_seconds"] > SECONDS:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
