"""How far every method is from the numbers of its authors' own code: `python benchmarks/golden_differences.py`.

Runs the tests that compare with the golden files and prints, for each method, the largest absolute difference that
they met. Other checkouts can stand beside it (`before=PATH`); `--out FILE` writes the table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[1]
FOUND = "SEEWHEN_GOLDEN_DIFFERENCES"  # the file that a run of the tests leaves its differences in
TESTS = "golden or released_code or as_released"
FILES = ("golden", "pai", "vcd", "sid", "dola", "memvr", "only", "opera", "qwen_vl")

_largest: dict[str, float] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: Any) -> Iterator[None]:
    """Note the differences that `assert_close` sees in this test."""
    stock = torch.testing.assert_close
    name = item.path.stem.removeprefix("test_").replace("golden", "cai")
    name = "regular" if item.name == "test_unmodified_model" else name

    def noting(ours: Any, theirs: Any, **options: Any) -> None:
        stock(ours, theirs, **options)
        both = torch.isfinite(ours) & torch.isfinite(theirs)
        difference = (ours[both].double() - theirs[both].double()).abs()
        _largest[name] = max(_largest.get(name, 0.0), float(difference.max()) if len(difference) else 0.0)

    torch.testing.assert_close = noting
    try:
        yield
    finally:
        torch.testing.assert_close = stock


def pytest_sessionfinish() -> None:
    """Leave what was noted to whoever started the run."""
    if FOUND in os.environ:
        Path(os.environ[FOUND]).write_text(json.dumps(_largest))


def differences(checkout: Path) -> dict[str, float]:
    """The largest difference of each method in `checkout`."""
    files = [str(f) for name in FILES for f in sorted((checkout / "tests").rglob(f"test_{name}.py"))]
    paths = (checkout / "src", checkout / "tests", Path(__file__).parent)
    with tempfile.NamedTemporaryFile(suffix=".json") as found:
        environment = os.environ | {FOUND: found.name, "PYTHONPATH": os.pathsep.join(map(str, paths))}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "golden_differences", "-k", TESTS, *files]
        subprocess.run(command, cwd=checkout, env=environment, check=True, stdout=sys.stderr)
        return json.loads(Path(found.name).read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("others", nargs="*", metavar="NAME=CHECKOUT", help="other checkouts, before this one")
    parser.add_argument("--out", type=Path, help="write the table to this file")
    options = parser.parse_args()
    places = {name: Path(place).resolve() for name, place in (other.split("=", 1) for other in options.others)}
    columns = {name: differences(place) for name, place in (places | {"now": ROOT}).items()}
    lines = [f"| method | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    for method in sorted(set().union(*columns.values())):
        cells = (f"{column[method]:.1e}" if method in column else "-" for column in columns.values())
        lines.append(f"| {method} | {' | '.join(cells)} |")
    table = "\n".join(lines) + "\n"
    sys.stdout.write(table)
    if options.out is not None:
        command = " ".join(["python benchmarks/golden_differences.py", *(f"{name}=CHECKOUT" for name in places)])
        options.out.write_text(
            f"Largest absolute difference to the numbers of the authors' own code (`{command}`,\n"
            f"torch {torch.__version__}, float32 on a CPU; the tests allow 2e-4).\n\n{table}"
        )


if __name__ == "__main__":
    main()
