"""CAI factor by factor on captions of validation photographs, where no GPU is at hand; with one, `study --tune`.

    python -m photographs.ablate RUN --photographs 100
    seewhen report RUN/ablations --out ablations

Each setting changes one thing. Runs go on where they were.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from photographs.settings import ABLATIONS
from photographs.wanted import asks, make


def main() -> None:
    """Regular decoding first, then every setting."""
    from seewhen.runs.evaluate import Machine, evaluate

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--photographs", type=int, default=100)
    parser.add_argument("--batch", type=int, default=25)
    options = parser.parse_args()
    run: Path = options.run
    told = replace(asks(run, None, options.batch, "validation")[0], limit=options.photographs)
    for factor, setting in [("regular", None), *ABLATIONS]:
        method = make("regular" if setting is None else "cai", run, setting)
        _, result = evaluate(told, method, run / "ablations", Machine())
        metrics = {name: round(result["metrics"][name]["value"], 1) for name in ("chair_s", "chair_i", "recall")}
        print(factor, setting, metrics, result["facts"].get("fired"), flush=True)


if __name__ == "__main__":
    main()
