"""Reading "yes" or "no" from what a model wrote, and what follows from it.

Five readers are in use in the literature and they disagree (A to E below, `docs/benchmarks.md` has
the table); `strict` is ours and is the only one that can say "I cannot tell".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np

from seewhen.benchmarks.base import Sample
from seewhen.benchmarks.sums import Sum, divide, harmonic_mean, percent
from seewhen.errors import InvalidMethod

Verdict = Literal["yes", "no", "other"]
# The label is an argument because reader D looks at it.
Parser = Callable[[str, str], Verdict]


def _parser_a(answer: str, label: str) -> Verdict:
    words = answer.split(".")[0].replace(",", "").split(" ")
    return "no" if {"No", "not", "no"} & set(words) else "yes"


def _negated(text: str) -> bool:
    words = text.replace(".", "").replace(",", "").split(" ")
    return any(word in {"No", "not", "no", "NO"} or word.endswith("n't") for word in words)


def _parser_b(answer: str, label: str) -> Verdict:
    return "no" if _negated(answer) else "yes"


def _parser_c(answer: str, label: str) -> Verdict:
    return "no" if _negated(answer.split("\n")[0]) else "yes"


def _parser_d(answer: str, label: str) -> Verdict:
    # Right means "the label occurs somewhere in the text"; wrong is booked as the opposite answer.
    if label in answer.lower():
        return "yes" if label == "yes" else "no"
    return "no" if label == "yes" else "yes"


def _exact(text: str) -> Verdict:
    if text == "yes":
        return "yes"
    return "no" if text == "no" else "other"


def _parser_e(answer: str, label: str) -> Verdict:
    return _exact(answer.lower().strip())


def _parser_strict(answer: str, label: str) -> Verdict:
    word = re.search(r"[^\W\d_]+", answer)
    return _exact(word.group().lower()) if word else "other"


PARSERS: Mapping[str, Parser] = {
    "A": _parser_a,  # POPE's own script
    "B": _parser_b,  # OPERA, PAI, SID
    "C": _parser_c,  # ONLY, CAI, DeGF
    "D": _parser_d,  # VCD, AGLA, ICT
    "E": _parser_e,  # lmms-eval
    "strict": _parser_strict,
}


def parser_named(name: str) -> Parser:
    """The parser of that name; an error lists the names."""
    try:
        return PARSERS[name]
    except KeyError:
        raise InvalidMethod(f"There is no parser {name!r}.", f"Use one of {', '.join(PARSERS)}.") from None


def count_answer(verdict: Verdict, label: str, positive: str, answer: str) -> dict[str, int]:
    """The counts one answered question adds; `positive` is the label whose precision is reported."""
    return {
        "questions": 1,
        "right": int(verdict == label),
        "positives": int(label == positive),
        "said_positive": int(verdict == positive),
        "true_positives": int(verdict == label == positive),
        # A diagnostic that does not depend on the parser: A to D call everything yes or no.
        "other": int(_parser_strict(answer, label) == "other"),
    }


def yes_no_metrics(sums: Mapping[str, Sum]) -> dict[str, Sum]:
    """Accuracy, precision, recall and F1 from summed counts."""
    precision = percent(sums["true_positives"], sums["said_positive"])
    recall = percent(sums["true_positives"], sums["positives"])
    return {
        "accuracy": percent(sums["right"], sums["questions"]),
        "precision": precision,
        "recall": recall,
        "f1": harmonic_mean(precision, recall),
    }


def matthews(sums: Mapping[str, Sum]) -> Sum:
    """Matthews' correlation of labels and answers, times 100; what is not yes counts as no."""
    n, yes, said = (np.asarray(sums[name], float) for name in ("questions", "positives", "said_positive"))
    # n tp - yes said is tp tn - fp fn, written with the sums that are there
    return 100 * divide(
        n * sums["true_positives"] - yes * said, np.sqrt(yes * (n - yes)) * np.sqrt(said * (n - said))
    )


def describe_questions(samples: Sequence[Sample]) -> str:
    """How many questions, images and yes there are, for `seewhen data check`."""
    yes = sum(sample.truth == "yes" for sample in samples)
    images = len({sample.image for sample in samples})
    return f"{len(samples)} questions, {images} images, {yes} yes"
