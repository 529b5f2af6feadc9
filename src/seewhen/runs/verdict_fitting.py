"""The verdict of `confirm` for a model, from captions of labelled pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from seewhen.runs.captioning import Captions
from seewhen.runs.labelled import Labelled
from seewhen.runs.progress import Progress
from seewhen.verdicts.conformal import calibrated_verdict
from seewhen.verdicts.lexicon import lexicon_named
from seewhen.verdicts.verdict import Verdict


def fitted(
    captions: Captions,
    images: Sequence[Labelled],
    *,
    keep: float,
    offsets: bool = True,
    greedy: bool = False,
    seed: int = 0,
    drafts: int = 0,
) -> Verdict:
    """The verdict whose thresholds keep the share `keep` of true objects on new pictures of the kind."""
    words = lexicon_named(captions.lexicon)
    images = [image.named_by(words) for image in images]
    with Progress("captions", len(images)) as progress:
        said = captions.said(images, None if greedy else seed, progress.advance, drafts)
    verdict = calibrated_verdict(
        [each.signals for each in said],
        [each.object for each in said],
        [each.there for each in said],
        [each.image for each in said],
        keep=keep,
        seed=seed,
        offsets=offsets,
    )
    how: dict[str, Any] = {"captions": "greedy" if greedy else "sampled, temperature 1", "tokens": captions.tokens}
    how |= {"drafts": drafts} if drafts else {}
    return replace(verdict, about={"images": len(images), "lexicon": captions.lexicon, **how, **verdict.about})
