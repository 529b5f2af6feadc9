"""Every run of the study. Fits use validation material, ablations pictures of their own; test is asked once.

The headline is `confirm` as it comes: the shipped verdict, its threshold chosen on validation pictures.
Nothing was chosen on test pictures; the other thresholds are there to draw the curve.
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
PARTS = tuple(f"{model}-{part}" for model in ("photo", "scenes") for part in ("validation", "test", "ablation"))
TRIED = (-2.0, -1.5, -1.0, -0.5, 0.0)  # thresholds that one is chosen of, on validation pictures
# The same with drafts: a first look at halves, then tenths between the one that came out of it and the next.
TRIED_DRAFTS = {
    "photo": (-1.0, -0.9, -0.8, -0.7, -0.6, -0.5, 0.0, 0.5, 1.0),
    "scenes": (-1.0, -0.5, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0),
}
DRAWN = (10, 11, 12, 13)  # seeds of further captions, from which the verdict with drafts is fitted
# Fits that are not shipped: without the number of the attempt; odds less those without an image.
FITS = "benchmarks/confirm/fits"
WORD_LEVEL = "word-level"  # no method of the package
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


def fit(kind: str, part: str) -> str:
    """The file of a fit of the study's own."""
    return f"{FITS}/{kind}_{'photo' if part.startswith('photo') else 'packaged'}.json"


def shipped(part: str) -> str:
    """The file of the fit without drafts that comes with the package."""
    return f"src/seewhen/verdicts/data/verdict_{'photo' if part.startswith('photo') else 'packaged'}.json"


MARK = confirm(on_denied="mark", verdict="asking")


def _runs(part: str, method: str, seeds: Seeds, note: str = "", **more: object) -> list[Run]:
    return [Run(part, method, seed, note=note, **more) for seed in seeds]  # type: ignore[arg-type]


def _asking(part: str, threshold: float, seeds: Seeds) -> list[Run]:
    return _runs(part, confirm(verdict="asking", threshold=threshold), seeds, f"asking{threshold:g}")


def _verdict(part: str, threshold: float, seeds: Seeds, before: str = "", **more: object) -> list[Run]:
    """The first fit, which does not know the attempt."""
    method = before + confirm(verdict=fit("first", part), threshold=threshold)
    return _runs(part, method, seeds, f"{before}verdict{threshold:g}", **more)


def _comes(part: str, seeds: Seeds, before: str = "", **more: object) -> list[Run]:
    """The fit and the threshold that come with the package."""
    return _runs(part, before + confirm(), seeds, f"{before}comes", **more)


def _drafts(part: str, seeds: Seeds, count: int = 4, before: str = "", **more: object) -> list[Run]:
    """The fit and the threshold that come with the package for drafts, chosen with four of them."""
    note = f"{before}drafts{count}" + (f"t{more['threshold']:g}" if "threshold" in more else "")
    return _runs(part, before + confirm(drafts=count, **more), seeds, note)


def validation(model: str) -> list[Run]:
    """What the verdict is fitted on: captions that nothing was taken back from, and further attempts by a first
    fit; and what its threshold is chosen by."""
    part = f"{model}-validation"
    runs = _runs(part, MARK, (None, 0, 1), "mark")
    runs += _runs(part, confirm(verdict=fit("first", part), threshold=0.0), (0, 1), "again")
    for threshold in TRIED:
        runs += _runs(part, confirm(threshold=threshold), (0, 1), f"try{threshold:g}")
    runs += _runs(part, "regular", DRAWN)
    for threshold in TRIED_DRAFTS[model]:
        runs += _runs(part, confirm(drafts=4, threshold=threshold), (0, 1), f"drafts4try{threshold:g}")
    return runs


def test(model: str) -> list[Run]:
    """In the order of their worth: one seed of everything, then the others."""
    part, more = f"{model}-test", (1, 2, 3, 4)
    runs = _runs(part, "regular", (None, *FIVE)) + _runs(part, MARK, (None, *FIVE), "mark")
    runs += _comes(part, (None, *FIVE))
    for threshold in (0.0, -1.0, 1.0):
        runs += _verdict(part, threshold, (None, 0))
    runs += _asking(part, 0.0, (None, 0)) + _runs(part, "min-p", ONE) + _verdict(part, 0.0, ONE, before="min-p+")
    runs += _verdict(part, 0.0, ONE, temperature=0.5) + [Run(part, "regular", 0, temperature=t) for t in COOLER]
    runs += _verdict(part, 0.0, (None, 0), tokens=128) + _runs(part, "regular", (None, 0), tokens=128)
    runs += [Run(part, "regular", 0, temperature=t, tokens=128) for t in COOLER]
    for threshold in (2.0, 3.0):
        runs += _verdict(part, threshold, (None, 0))
    runs += _asking(part, 1.0, (None, 0))
    runs += [Run(part, "regular", seed, temperature=t) for t in COOLER for seed in more] + _runs(
        part, "min-p", more
    )
    runs += _comes(part, ONE, before="min-p+") + _comes(part, ONE, temperature=0.5)
    runs += _comes(part, (None, 0), tokens=128)
    for threshold in (-1.0, 2.0, 3.0):
        runs += _asking(part, threshold, (None, 0))
    runs += _verdict(part, 0.0, more) + _verdict(part, -1.0, (1, 2)) + _asking(part, 0.0, (1, 2))
    runs += [Run(part, f"locore:beta={beta}", None) for beta in (0.3, 0.6, 0.9)]
    runs += _runs(part, "cai", (None, 0)) + _verdict(part, 0.0, (None, 0), before="cai+")
    runs += _comes(part, more, before="min-p+") + _comes(part, more, temperature=0.5)
    return runs + drafts(model)


def drafts(model: str) -> list[Run]:
    """`confirm` with drafts, and what was missing beside other methods."""
    part = f"{model}-test"
    runs = _drafts(part, (None, *FIVE)) + _comes(part, (None, *FIVE), before="cai+")
    for threshold in (-1.0, 0.0, 1.0):
        runs += _drafts(part, (None, 0), threshold=threshold)
    runs += _drafts(part, (None, 0, 1, 2), count=2) + _drafts(part, THREE, before="min-p+")
    return runs + _drafts(part, (None, 0), before="cai+")


def ablations(model: str) -> list[Run]:
    """Sampled, the first fit at threshold 0, on pictures that neither a fit nor a table has seen."""
    part = f"{model}-ablation"
    first = fit("first", part)
    runs = _runs(part, "regular", ONE) + _verdict(part, 0.0, ONE)
    runs += _runs(part, confirm(verdict=fit("blind", part), threshold=0.0), ONE, "blind")
    runs += _runs(part, WORD_LEVEL, ONE, WORD_LEVEL) + _asking(part, 0.0, ONE)
    runs += _runs(part, confirm(threshold=0.0), ONE, "attempt") + _comes(part, ONE)
    runs += [Run(part, "regular", 0, temperature=t) for t in COOLER]
    runs += _runs(part, confirm(verdict=first, on_denied="stop"), ONE, "stop")
    for retries in (1, 4, 0):
        runs += _runs(part, confirm(verdict=first, retries=retries), ONE, f"retries{retries}")
    for level in (0.3, 0.5, 0.7, 0.1):
        runs += _runs(part, confirm(verdict=first, doubt="probability", when=level), ONE, f"probability{level:g}")
    for name, question in PHRASINGS.items():
        runs += _runs(part, confirm(verdict=first, question=question), ONE, f"question-{name}")
    runs += _runs(part, f"confirm:verdict={first}", ONE, "open")
    for level in (0.5, 1.0, 1.5, 2.0):
        runs += _runs(part, confirm(verdict=first, doubt="entropy", when=level), ONE, f"entropy{level:g}")
    runs += _runs(part, "regular", (None,)) + _comes(part, (None,)) + _asking(part, 0.0, (None,))
    runs += _runs(part, confirm(verdict=fit("blind", part), threshold=0.0), (None,), "blind")
    runs += _runs(part, WORD_LEVEL, (None,), WORD_LEVEL)
    return runs + _drafts(part, ONE) + _runs(part, confirm(drafts=4, verdict=shipped(part)), ONE, "spares")


def everything() -> list[Run]:
    """In the order of their worth: what others are fitted on, then tests and ablations by turns."""
    runs = []
    for model in ("photo", "scenes"):
        runs += validation(model)
        tests, others = test(model), ablations(model)
        while tests or others:
            runs += [*tests[:2], *others[:1]]
            tests, others = tests[2:], others[1:]
    return runs


def needs(run: Run) -> str | None:
    """The stage of `verdicts.py` that must be over before a run can be made."""
    if not run.method.partition("+")[2].startswith("confirm") and not run.method.startswith("confirm"):
        return None
    if "verdict=" in run.method:
        return None
    with_drafts = "drafts=" in run.method
    if "threshold=" in run.method:
        return "drafts" if with_drafts else "attempts"
    return "threshold-drafts" if with_drafts else "threshold"
