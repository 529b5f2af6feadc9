"""Regular sampling at a lower temperature: the control for methods that add logits instead of averaging them.

    python -m photographs.cooler RUN
    python -m photographs.gather RUN/cooler --exam RUN/exam/test --out cooler
    seewhen report cooler --out report-cooler

AGLA samples from `z + alpha z'`. If both rows agree this is `(1 + alpha) z`, regular sampling at the temperature
`1 / (1 + alpha)`: with the published alpha of 2, a third. How much of its effect is that, and its cut?
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from photographs.wanted import asks


def main() -> None:
    """Captions of at most 64 tokens, then the first questions of POPE, one seed."""
    from seewhen.methods import method
    from seewhen.runs.evaluate import Machine, evaluate

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--limit", type=int, help="photographs, for a quick look")
    parser.add_argument("--batch", type=int, default=25)
    options = parser.parse_args()
    run: Path = options.run
    agla = method("agla")
    cooler = 1 / (1 + agla.alpha)
    for ask in asks(run, options.limit, options.batch)[3:5]:
        for control in (method("regular"), method("min-p", min_p=agla.plausibility)):
            _, result = evaluate(replace(ask, seeds=1, temperature=cooler), control, run / "cooler", Machine())
            metrics = {name: round(entry["value"], 1) for name, entry in result["metrics"].items()}
            print(ask.benchmark, control.name, metrics, flush=True)


if __name__ == "__main__":
    main()
