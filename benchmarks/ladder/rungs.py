"""The rungs: how each model is made. Stages are shared where they are alike: language, projector, fine-tune."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from embedded.train.data import Dials
from embedded.train.recipe import Stage

Language = Literal["none", "few", "many", "packaged"]  # the last: begins as the packaged model, which sees
Skew = Literal["mild", "strong"]
Vision = Literal["projector", "brief", "medium", "long"]
Noise = Literal["clean", "noisy", "embellished"]

PACKAGED = "packaged"  # the model as shipped: a rung too, not trained here
SKEWS: dict[Skew, float] = {"mild": 0.6, "strong": 2.5}  # expected but absent things in a caption of the text
NOTES = 0.3  # share of the texts that come with written notes to read from, as in the packaged recipe
# What captions and answers about pictures say beyond them. The noisy ones are the packaged model's; embellished
# captions mention as much that is absent as the skewed text does, and answers beside them are true.
DIALS: dict[Noise, Dials] = {
    "clean": Dials(0.0, 0.0, 0.3, 0.0),
    "noisy": Dials(0.35, 0.35, 0.3, 0.06),
    "embellished": Dials(SKEWS["strong"], 0.0, 0.3, 0.0),
}


@dataclass(frozen=True)
class Rung:
    """One way to make a model, with one seed."""

    language: Language
    skew: Skew
    vision: Vision
    aligned: bool = True
    texts: bool = False
    noise: Noise = "clean"
    seed: int = 0

    @property
    def kind(self) -> str:
        """The rung without its seed."""
        words = [self._language, self.vision]
        words += [] if self.aligned else ["unaligned"]
        words += ["texts"] if self.texts else []
        words += [] if self.noise == "clean" else [self.noise]
        return "-".join(words)

    @property
    def name(self) -> str:
        return f"{self.kind}.{self.seed}"

    @property
    def spoken(self) -> str:
        """The name of its language stage, which rungs share."""
        return f"{self._language}{'' if self.aligned else '-unaligned'}.{self.seed}"

    @property
    def _language(self) -> str:
        return f"{self.language}-{self.skew}" if self.language in ("few", "many") else self.language


def kind_of(name: str) -> str:
    """The rung of a model: its name without the seed."""
    return name.rpartition(".")[0] or name


_TEXTS = {
    "many-strong": "skewed text", "many-mild": "mild text", "few-mild": "little text",
    "few-strong": "little skewed text", "none": "no text",
}  # fmt: skip
_SAID = {
    "projector": "projector alone", "unaligned": "not aligned", "texts": "text kept", "noisy": "untrue captions",
    "embellished": "embellished captions",
}  # fmt: skip


def described(kind: str) -> str:
    """A rung's name in words: what it read, how long it was trained on pictures, and what else is special."""
    if kind == PACKAGED:
        return "the packaged model"
    begun = next((read for read in _TEXTS if kind.startswith(f"{read}-")), PACKAGED)
    words = kind.removeprefix(f"{begun}-").split("-")
    return ", ".join([_TEXTS.get(begun, "from the packaged model"), *(_SAID.get(word, word) for word in words)])


def family(kind: str) -> str:
    """Rungs that are alike in what decides most: whether they see, and what captions taught them."""
    if kind == PACKAGED:
        return "As shipped"
    if kind.endswith("embellished"):
        return "Taught to embellish"
    return "Long enough to see" if {"medium", "long"} & set(kind.split("-")) else "Hardly trained on pictures"


def _rungs() -> tuple[Rung, ...]:
    """The most telling first: what a cut-off leaves out is at the end."""
    four = [Rung("many", skew, vision) for vision in ("brief", "long") for skew in ("strong", "mild")]
    singles = [
        Rung("many", "strong", "projector"),
        Rung("many", "strong", "brief", texts=True),
        Rung("none", "mild", "long"),
        Rung("many", "strong", "brief", aligned=False),
        Rung("many", "strong", "medium"),
        Rung("many", "mild", "long", noise="noisy"),
        Rung("few", "mild", "brief"),
        Rung("many", "mild", "medium"),
        Rung("many", "strong", "long", texts=True),
        Rung("many", "strong", "brief", noise="noisy"),
        Rung("many", "mild", "projector"),
        Rung("few", "mild", "long"),
        Rung("none", "mild", "brief"),
        Rung("many", "strong", "long", aligned=False),
    ]
    seeds = [Rung(r.language, r.skew, r.vision, seed=seed) for seed in (1, 2) for r in four]
    return (*four, *singles[:8], *seeds[:4], *singles[8:], *seeds[4:])


def _again() -> tuple[Rung, ...]:
    """Further seeds, for what the first run left open. Weights of the first run were not kept, and seeds are told
    apart by their number: what it found stays beside. Long fine-tunes first, they take the time."""
    long = [Rung("many", "mild", "long", seed=1), Rung("many", "strong", "long", seed=1)]
    long += [Rung("many", "mild", "long", noise="noisy", seed=1), Rung("none", "mild", "long", seed=1)]
    long += [Rung("many", "mild", "long", seed=2)]
    short = [Rung("many", skew, "brief", seed=2) for skew in ("strong", "mild")]
    short += [Rung("many", skew, "projector", seed=1) for skew in ("strong", "mild")]
    short += [
        Rung("many", "strong", "brief", texts=True, seed=1),
        Rung("many", "strong", "medium", seed=1),
        Rung("many", "strong", "brief", aligned=False, seed=1),
        Rung("many", "strong", "brief", noise="noisy", seed=1),
        Rung("many", "mild", "medium", seed=1),
        Rung("few", "mild", "brief", seed=1),
        Rung("none", "mild", "brief", seed=1),
        Rung("many", "strong", "brief", texts=True, seed=2),
    ]
    late = [Rung("many", "strong", "long", seed=2), Rung("many", "strong", "long", texts=True, seed=1)]
    return (*long, *short, *late)


def _third() -> tuple[Rung, ...]:
    """For what two runs left open: rungs that may know better than they say, those that were not asked with CAI,
    and third seeds. Language stages are few: they take the time. Long fine-tunes first among the trained."""
    told = [Rung("packaged", "mild", "brief", noise="embellished", seed=seed) for seed in (1, 2)]
    long = [Rung("many", "strong", "long", seed=1), Rung("many", "mild", "long", noise="embellished", seed=1)]
    medium = [Rung("many", "mild", "medium", seed=seed) for seed in (1, 2)]
    medium += [Rung("many", "mild", "medium", noise="embellished", seed=seed) for seed in (1, 2)]
    late = [
        Rung("many", "strong", "brief", noise="noisy", seed=1),
        Rung("many", "strong", "medium", texts=True, seed=1),
        Rung("packaged", "mild", "brief", noise="embellished", seed=3),
        Rung("many", "strong", "medium", seed=2),
    ]
    return (*told, *long, *medium, *late)


def _fourth() -> tuple[Rung, ...]:
    """For what three runs left open: rungs that were not asked with the rivals, and drafts where there is
    something to recover. Three language stages serve all."""
    long = [Rung("many", "mild", "long", noise="embellished", seed=seed) for seed in (2, 3)]
    long += [Rung("many", "mild", "long", noise="noisy", seed=2), Rung("many", "strong", "long", seed=2)]
    short = [
        Rung("packaged", "mild", "brief", noise="embellished", seed=4),
        Rung("many", "mild", "medium", noise="embellished", seed=3),
        Rung("many", "strong", "medium", texts=True, seed=2),
        Rung("many", "mild", "medium", seed=3),
        Rung("many", "strong", "brief", noise="noisy", seed=2),
    ]
    return (*long, *short)


RUNGS = _rungs()
AGAIN = _again()
THIRD = _third()
FOURTH = _fourth()
# What models are asked, in this order, each group of one model at a time: what is slow comes last.
ORDER = ("base", "parts", "cai", "more", "rule", "opera", "confirm")
JUDGED = ("drafts-4", "drafts-2", "drafts-0")  # `confirm` with a threshold chosen on other scenes


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    scenes: int
    texts: int
    steps: dict[str, Stage]  # of each language, of the alignment, the projector, and each vision
    tested: int  # scenes for CHAIR and POPE
    fitted: int  # other scenes, for the verdict of `confirm`
    probed: int  # other scenes, for the diagnostics
    beamed: int  # of the tested scenes, for OPERA
    pointed: int  # still other scenes, for tilts to known places
    tokens: int  # the longest caption
    draws: int  # further captions of regular decoding: what is said again is believed more
    judged: tuple[int, int] = (240, 120)  # other scenes, for verdicts: to fit, and to choose a threshold on
    rungs: tuple[Rung, ...] = field(default=RUNGS)
    groups: tuple[str, ...] = ORDER
    packaged: tuple[str, ...] = ORDER  # what the packaged model is asked
    beams: int = 4  # rungs that OPERA, which is slow, is run on, one seed of each, beside the packaged model
    places: int = 7  # rungs whose attention is tilted to known places, beside the packaged model: the first


FULL = Sizes(
    scenes=32_768,
    texts=98_304,
    steps={
        "few": Stage(250, 256, 1e-3),
        "many": Stage(1000, 256, 1e-3),
        "alignment": Stage(400, 256, 1e-3),
        "projector": Stage(150, 64, 1e-3),
        "brief": Stage(250, 80, 1e-3),
        "medium": Stage(700, 80, 1e-3),
        "long": Stage(1500, 80, 1e-3),
    },
    tested=160,
    fitted=100,
    probed=64,
    beamed=64,
    pointed=400,
    tokens=64,
    draws=4,
)
TINY = Sizes(
    scenes=64,
    texts=64,
    steps={
        "few": Stage(2, 8, 1e-3),
        "many": Stage(4, 8, 1e-3),
        "alignment": Stage(3, 4, 1e-3),
        "projector": Stage(2, 4, 1e-3),
        "brief": Stage(2, 4, 1e-3),
        "medium": Stage(2, 4, 1e-3),
        "long": Stage(3, 4, 1e-3),
    },
    tested=2,
    fitted=2,
    probed=2,
    beamed=1,
    pointed=1,
    tokens=20,
    draws=1,
    judged=(2, 1),
    rungs=(Rung("few", "strong", "brief", aligned=False, texts=True),),
    groups=(*ORDER, *JUDGED),
    packaged=(*ORDER, *JUDGED),
)
_RIVALS_TOO = ("base", "drafts-4", "rule", "more", "opera", "drafts-0", "parts", "cai", "confirm")
_FIRST, _REST = ("base", "drafts-4", "parts", "cai"), ("drafts-0", "drafts-2", "opera", "more", "rule", "confirm")
SIZES = {
    "full": FULL,
    "again": replace(FULL, rungs=AGAIN),
    "third": replace(FULL, rungs=THIRD, groups=(*_FIRST, *_REST), packaged=JUDGED, beams=len(THIRD), places=0),
    "fourth": replace(FULL, rungs=FOURTH, groups=_RIVALS_TOO, packaged=(), beams=len(FOURTH), places=0),
    "tiny": TINY,
    # The third run on a CPU: one rung, next to no training, verdicts that can be fitted.
    "rehearsal": replace(
        TINY, rungs=THIRD[:1], groups=(*_FIRST, *_REST), packaged=JUDGED, places=0, tokens=64, judged=(20, 3)
    ),
}
