"""Every run of the study. Fits use validation material, ablations pictures of their own; test is asked once.

The headline is `confirm` as it comes: the shipped verdict at threshold 0. Nothing was chosen on test pictures; the
other thresholds are there to draw the curve.
"""

from __future__ import annotations

from dataclasses import dataclass

ONE, THREE, FIVE = (0,), (0, 1, 2), (0, 1, 2, 3, 4)
COOLER = (0.33, 0.5, 0.7)
PHRASINGS = {
    "see": "Do you see a {object} in the image?",
    "show": "Does this image show a {object}?",
    "present": "Is a {object} present in this picture?",
}
PARTS = ("photo-test", "photo-validation", "scenes-test", "scenes-validation", "scenes-ablation")
Seeds = tuple[int | None, ...]


@dataclass(frozen=True)
class Run:
    """Captions of one part of the material by one method."""

    part: str  # one of `PARTS`
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


MARK = confirm(on_denied="mark", verdict="asking")


def _runs(part: str, method: str, seeds: Seeds, note: str = "", **more: object) -> list[Run]:
    return [Run(part, method, seed, note=note, **more) for seed in seeds]  # type: ignore[arg-type]


def _asking(part: str, threshold: float, seeds: Seeds) -> list[Run]:
    return _runs(part, confirm(verdict="asking", threshold=threshold), seeds, f"asking{threshold:g}")


def _verdict(part: str, threshold: float, seeds: Seeds, before: str = "", **more: object) -> list[Run]:
    method = before + confirm(threshold=threshold)
    return _runs(part, method, seeds, f"{before}verdict{threshold:g}", **more)


def validation() -> list[Run]:
    """What the verdicts are fitted on: signals of captions that nothing was taken back from."""
    parts = ("photo-validation", "scenes-validation")
    return [run for part in parts for run in _runs(part, MARK, (None, 0, 1), "mark")]


def photographs() -> list[Run]:
    """On two cores a caption with questions takes two seconds, so: one seed."""
    part = "photo-test"
    runs = _runs(part, "regular", (None, *FIVE)) + _runs(part, MARK, (None, *FIVE), "mark")
    runs += _verdict(part, 0.0, ONE) + _verdict(part, -1.0, ONE) + _asking(part, 0.0, ONE)
    runs += [Run(part, "regular", 0, temperature=t) for t in COOLER]
    runs += _runs(part, "min-p", ONE)
    runs += _asking(part, 0.0, (None,)) + _verdict(part, 0.0, (None,))
    runs += _asking(part, 1.0, ONE) + _verdict(part, 1.0, ONE) + _asking(part, 1.0, (None,))
    runs += [Run(part, "locore:beta=0.6", None)]
    runs += _verdict(part, 0.0, ONE, before="min-p+")
    return runs


def scenes() -> list[Run]:
    """Drawn scenes are cheap."""
    part = "scenes-test"
    runs = _runs(part, "regular", (None, *FIVE)) + _runs(part, MARK, (None, *FIVE), "mark")
    runs += _verdict(part, 0.0, (None, *FIVE)) + _asking(part, 0.0, (None, *THREE))
    for threshold in (-1.0, 1.0, 2.0, 3.0):
        runs += _asking(part, threshold, (None, 0)) + _verdict(part, threshold, (None, 0))
    runs += _verdict(part, -1.0, (1, 2))
    runs += [Run(part, "regular", seed, temperature=t) for t in COOLER for seed in FIVE]
    runs += _runs(part, "min-p", FIVE) + _verdict(part, 0.0, ONE, before="min-p+")
    runs += _verdict(part, 0.0, ONE, temperature=0.5)
    runs += _verdict(part, 0.0, (None, 0), before="cai+") + _runs(part, "cai", (None, 0))
    runs += [Run(part, f"locore:beta={beta}", None) for beta in (0.3, 0.6, 0.9)]
    runs += _runs(part, "regular", (None, 0), tokens=128) + _verdict(part, 0.0, (None, 0), tokens=128)
    return runs


def ablations() -> list[Run]:
    """Sampled, the shipped verdict at threshold 0, on scenes that neither a fit nor a table has seen."""
    part = "scenes-ablation"
    runs = _runs(part, "regular", ONE) + _verdict(part, 0.0, ONE)
    for retries in (0, 1, 4):
        runs += _runs(part, confirm(retries=retries), ONE, f"retries{retries}")
    runs += _runs(part, confirm(on_denied="stop"), ONE, "stop")
    runs += _runs(part, "confirm", ONE, "open")
    for doubt, levels in (("entropy", (0.5, 1.0, 1.5, 2.0)), ("probability", (0.1, 0.3, 0.5, 0.7))):
        for level in levels:
            runs += _runs(part, confirm(doubt=doubt, when=level), ONE, f"{doubt}{level:g}")
    for name, question in PHRASINGS.items():
        runs += _runs(part, confirm(question=question), ONE, f"question-{name}")
    return runs


def everything() -> list[Run]:
    """In the order of their worth."""
    return [*photographs(), *scenes(), *ablations(), *validation()]
