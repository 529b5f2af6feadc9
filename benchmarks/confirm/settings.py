"""Every run of the study. Fits and choices use validation material only; test material is asked once."""

from __future__ import annotations

from dataclasses import dataclass

FIVE = (0, 1, 2, 3, 4)
THRESHOLDS = (-1.0, 0.0, 1.0, 2.0, 3.0)  # log-odds
PHRASINGS = {
    "see": "Do you see a {object} in the image?",
    "show": "Does this image show a {object}?",
    "present": "Is a {object} present in this picture?",
}


@dataclass(frozen=True)
class Run:
    """Captions of one part of the material by one method."""

    part: str  # photo-test, photo-validation, scenes-test, scenes-validation
    method: str  # in the grammar of methods
    seed: int | None = None  # None: greedy
    temperature: float = 1.0
    tokens: int = 64
    note: str = ""

    @property
    def name(self) -> str:
        """For files and tables."""
        how = "greedy" if self.seed is None else f"t{self.temperature:g}-s{self.seed}"
        method = self.note or self.method.replace(":", "_").replace(",", "_").replace("/", "_").replace("=", "")
        return f"{self.part}.{method}.{how}.n{self.tokens}"


def confirm(**parameters: object) -> str:
    """`confirm` with CHAIR's words and these parameters."""
    given = ",".join(f"{name}={value}" for name, value in {"lexicon": "coco", **parameters}.items())
    return f"confirm:{given}"


def first() -> list[Run]:
    """What needs no fit: signals on validation material, regular decoding, asking alone, the controls."""
    runs: list[Run] = []
    mark = confirm(on_denied="mark", verdict="asking")
    for model in ("photo", "scenes"):
        validation, test = f"{model}-validation", f"{model}-test"
        for seed in (None, 0, 1):
            runs.append(Run(validation, mark, seed, note="mark"))
        for seed in (None, *FIVE):
            runs.append(Run(test, "regular", seed))
            runs.append(Run(test, mark, seed, note="mark"))
        runs += [Run(test, confirm(verdict="asking", threshold=t), None) for t in THRESHOLDS]
        runs += [Run(test, confirm(verdict="asking", threshold=t), s) for t in THRESHOLDS for s in FIVE]
        runs += [Run(test, "regular", s, temperature=t) for t in (0.33, 0.5, 0.7) for s in FIVE]
        runs += [Run(test, "min-p", s) for s in FIVE]
        runs.append(Run(test, "locore:beta=0.6", None))
        runs += [Run(test, "regular", s, tokens=128) for s in (None, 0, 1, 2)]
        runs += ablations(validation)
    return runs


def ablations(part: str) -> list[Run]:
    """On validation material, sampled, asking alone at threshold 0."""
    base = {"verdict": "asking", "threshold": 0.0}
    runs = [Run(part, "regular", 0), Run(part, confirm(**base), 0)]
    runs += [Run(part, confirm(**base, retries=n), 0) for n in (0, 1, 4)]
    runs.append(Run(part, confirm(**base, on_denied="stop"), 0))
    runs += [Run(part, confirm(**base, when=w), 0) for w in (0.5, 1.0, 1.5, 2.0, 2.5)]
    runs += [Run(part, confirm(**base, question=q), 0, note=f"question-{n}") for n, q in PHRASINGS.items()]
    runs.append(Run(part, "confirm:verdict=asking,threshold=0.0", 0, note="confirm-open"))
    return runs


def second(verdicts: dict[str, str]) -> list[Run]:
    """What uses the fits (files by model)."""
    runs: list[Run] = []
    for model, file in verdicts.items():
        test = f"{model}-test"
        for threshold in (-1.0, -0.5, 0.0, 0.5, 1.0, 2.0):
            with_fit = confirm(verdict=file, threshold=threshold)
            runs += [Run(test, with_fit, s, note=f"verdict{threshold:g}") for s in (None, *FIVE)]
        fit = confirm(verdict=file, threshold=0.0)
        runs += [Run(test, fit, s, temperature=0.5, note="verdict0") for s in FIVE]
        runs += [Run(test, f"min-p+{fit}", s, note="min-p+verdict0") for s in FIVE]
        runs += [Run(test, f"cai+{fit}", s, note="cai+verdict0") for s in (None, 0, 1)]
        runs += [Run(test, fit, s, tokens=128, note="verdict0") for s in (None, 0, 1, 2)]
    return runs
