"""schemathesis, all phases and checks, against the OpenAPI description of a running server.

    python benchmarks/server/openapi.py --examples 60

One check is left out: that every body which follows the schema is accepted. A schema cannot say that a data
URL holds an image, or that the last message is the user's; those get 400.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx2
from serving import about, serving, write

LIMITS = ("max_tokens=4", "default_tokens=2", "n=2", "batch_wait_ms=0")


def main() -> None:
    """Run and write results/openapi.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="packaged")
    parser.add_argument("--examples", type=int, default=100)
    options = parser.parse_args()
    result = about("openapi.py")
    with serving(options.model, "cai", *LIMITS) as server, tempfile.TemporaryDirectory() as folder:
        command = [str(Path(sys.executable).with_name("schemathesis")), "run", f"{server.url}/openapi.json"]
        command += [
            "--max-examples",
            str(options.examples),
            "--checks",
            "all",
            "--seed",
            "1",
            "--continue-on-failure",
        ]
        command += ["--exclude-checks", "positive_data_acceptance"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        ready = httpx2.get(f"{server.url}/readyz").status_code
    print(done.stdout[-3000:])
    cases = re.search(r"(\d+) generated, (\d+) passed", done.stdout)
    result |= {
        "exit_code": done.returncode,
        "cases": int(cases[1]) if cases else None,
        "passed": int(cases[2]) if cases else None,
        "ready_afterwards": ready == 200,
    }
    write("openapi", result)
    raise SystemExit(done.returncode)


if __name__ == "__main__":
    main()
