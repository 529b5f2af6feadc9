"""A threshold that keeps a promised share of true objects on new images of the same kind (split conformal)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from random import Random

import numpy as np

from seewhen.errors import InvalidInput
from seewhen.verdicts.fitting import fit_verdict
from seewhen.verdicts.verdict import Signals, Verdict


def check_keep(keep: float) -> None:
    """Refuses what is no share, before anything is spent on it."""
    if not 0 < keep < 1:
        raise InvalidInput(f"The share to keep is {keep}.", "Give a number between 0 and 1, such as 0.97.")


def keeping_threshold(scores: Sequence[float], keep: float) -> float:
    """The highest threshold that a new true object reaches with probability `keep` at least.

    `scores` are those of true objects that the verdict was not fitted on. With n of them the k-th smallest,
    k = floor((n + 1)(1 - keep)), is exceeded or met by a new one with probability 1 - k/(n + 1) >= keep.
    """
    check_keep(keep)
    rank = math.floor((len(scores) + 1) * (1 - keep) + 1e-9)
    if rank < 1:
        needed = math.ceil(1 / (1 - keep) - 1 - 1e-9)
        raise InvalidInput(
            f"{len(scores)} true objects cannot promise that {100 * keep:g}% are kept: it takes {needed}.",
            "Give more labelled images, or keep a smaller share.",
        )
    return float(np.partition(np.asarray(scores, dtype=np.float64), rank - 1)[rank - 1])


def calibrated_verdict(
    signals: Sequence[Signals],
    words: Sequence[str],
    there: Sequence[bool],
    images: Sequence[Hashable],
    *,
    keep: float,
    seed: int = 0,
    offsets: bool = True,
) -> Verdict:
    """Fitted on half of the images; the thresholds are taken on the other half."""
    fit = half_of(images, seed)
    chosen = [i for i, image in enumerate(images) if image in fit]
    verdict = fit_verdict(
        [signals[i] for i in chosen], [words[i] for i in chosen], [there[i] for i in chosen], offsets=offsets
    )
    others = [i for i, image in enumerate(images) if image not in fit and there[i]]
    written = [verdict.probability(signals[i], words[i]) for i in others]
    asked = [verdict.probability(Signals(signals[i].odds), words[i]) for i in others]
    about = {**verdict.about, "keep": keep, "true_objects_kept_on": len(others), "seed": seed}
    return replace(
        verdict,
        threshold=keeping_threshold(written, keep),
        asked_threshold=keeping_threshold(asked, keep),
        about=about,
    )


def half_of(images: Sequence[Hashable], seed: int) -> frozenset[Hashable]:
    """Half of the distinct images, drawn at random."""
    distinct = list(dict.fromkeys(images))
    return frozenset(Random(seed).sample(distinct, len(distinct) // 2))
