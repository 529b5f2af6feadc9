"""Which rung is nearest to LLaVA-1.5-7B, by what is published of its responses to the rivals of CAI.

    python -m ladder.stand_in RESULTS [--out choice.json]

README.md has the rule. It was written before any rung was trained. Nothing of CAI is looked at, and a choice that
is written once stays.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from seewhen.errors import InvalidInput

_PAPER = "CAI paper as printed (seewhen.runs.published)"
_POPE = f"{_PAPER}, Table 2, LLaVA-1.5: mean over nine cells of accuracy less regular's"
_CHAIR = f"{_PAPER}, Table 1, LLaVA-1.5, 64 tokens, relative to regular's"
_ASKED = "reported for 7B models, first mentions: asking .89 to .94, word probability .69 to .72"
_OPERA = "captions published with OPERA, 500 of LLaVA-1.5, scored again: CHAIR_i 12.70 greedy, 12.70 OPERA"


@dataclass(frozen=True)
class Target:
    """A published response: its value, how far off counts as 1, and where it stands."""

    value: float
    tolerance: float
    source: str


# Points of accuracy on sampled POPE; relative changes of CHAIR in percent; areas under the curve.
TARGETS: Mapping[str, Target] = {
    "pope vcd": Target(0.90, 2.0, _POPE),
    "pope pai": Target(1.09, 2.0, _POPE),
    "pope only": Target(3.78, 2.0, _POPE),
    "chair_s vcd": Target(-8.5, 10.0, _CHAIR),
    "chair_i vcd": Target(-6.8, 10.0, _CHAIR),
    "chair_s pai": Target(0.0, 10.0, _CHAIR),
    "chair_i pai": Target(-1.1, 10.0, _CHAIR),
    "chair_s only": Target(-19.2, 10.0, _CHAIR),
    "chair_i only": Target(-17.0, 10.0, _CHAIR),
    "chair_i opera": Target(0.0, 10.0, _OPERA),
    "auroc asking": Target(0.89, 0.05, _ASKED),
    "auroc logprob": Target(0.705, 0.05, _ASKED),
}
LEAST_POPE, LEAST_RECALL = 60.0, 30.0  # a model that cannot answer or describe stands in for nothing


@dataclass(frozen=True)
class Response:
    """What was measured of a rung, seeds averaged: the quantities of `TARGETS` and its own level."""

    pope: float  # sampled accuracy of regular decoding, percent
    recall: float  # of greedy captions, percent
    quantities: Mapping[str, float]

    @property
    def able(self) -> bool:
        return self.pope >= LEAST_POPE and self.recall >= LEAST_RECALL


@dataclass(frozen=True)
class Choice:
    """The rung chosen, and the distance of each."""

    chosen: str
    used: tuple[str, ...]
    distances: Mapping[str, float]
    unable: tuple[str, ...]


def distance(response: Response, used: tuple[str, ...]) -> float:
    """The mean over quantities of how far it is from what is published, in tolerances."""
    off = [abs(response.quantities[name] - TARGETS[name].value) / TARGETS[name].tolerance for name in used]
    return sum(off) / len(off)


def choose(responses: Mapping[str, Response]) -> Choice:
    """The able rung with the smallest distance; a quantity counts where it was measured on all of these."""
    able = {name: response for name, response in responses.items() if response.able}
    if not able:
        raise InvalidInput("No rung answers and describes well enough to stand in.", "Train longer.")
    used = tuple(name for name in TARGETS if all(name in response.quantities for response in able.values()))
    if not used:
        raise InvalidInput("No published quantity was measured on every rung.", "Run the rivals first.")
    distances = {name: distance(response, used) for name, response in able.items()}
    chosen = min(sorted(distances), key=lambda name: distances[name])
    return Choice(chosen, used, distances, tuple(sorted(set(responses) - set(able))))


def write(responses: Mapping[str, Response], path: Path) -> Choice:
    """Choose and write it down; what was chosen before stays, with what it was chosen from."""
    if path.is_file():
        return read(path)
    choice = choose(responses)
    content = {
        "chosen": choice.chosen,
        "used": choice.used,
        "distances": dict(sorted(choice.distances.items(), key=lambda item: item[1])),
        "unable": choice.unable,
        "targets": {name: asdict(target) for name, target in TARGETS.items()},
        "responses": {name: asdict(response) for name, response in responses.items()},
    }
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    part.replace(path)
    return choice


def read(path: Path) -> Choice:
    """A choice as it was written."""
    content = json.loads(path.read_text("utf-8"))
    return Choice(content["chosen"], tuple(content["used"]), content["distances"], tuple(content["unable"]))


def main() -> None:
    """Choose from results on disk."""
    import argparse

    from ladder.measures import responses

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--out", type=Path, help="write it there, once")
    options = parser.parse_args()
    found = responses(options.results)
    choice = write(found, options.out) if options.out else choose(found)
    for name, value in sorted(choice.distances.items(), key=lambda item: item[1]):
        print(f"{value:6.2f}  {name}{'  <- the stand-in' if name == choice.chosen else ''}")
    print("used:", ", ".join(choice.used))


if __name__ == "__main__":
    main()
