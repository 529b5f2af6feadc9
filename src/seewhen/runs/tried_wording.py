"""The outcome of `seewhen try` in words, with what may be chance called so."""

from __future__ import annotations

from collections.abc import Iterator

from seewhen.runs.report import Comparison
from seewhen.runs.stats import Interval
from seewhen.runs.tried import FEWEST, Outcome, Tried
from seewhen.runs.trying import REGULAR
from seewhen.runs.wording import counted

CHANCE = "may be chance"


def summary(found: Outcome) -> list[str]:
    """The sentences a reader should take home, the answer to "which helps?" first."""
    return [_headline(found), *_regular(found), *_others(found), *_caution(found)]


def _headline(found: Outcome) -> str:
    count = len(found.pictures)
    pictures = "this picture" if count == 1 else f"these {count} pictures"
    others = [method for method in found.methods if method.label != REGULAR]
    if not others:
        return f"Only regular decoding was tried on {pictures}: name a method to hold against it."
    if not found.labelled:
        moved = [method for method in others if method.counts["changed"]]
        if not moved:
            return f"No method changes a word that matters on {pictures}."
        names = _named([method.label for method in moved])
        told = f"{names} change{'s' * (len(moved) == 1)} answers on {pictures}"
        return f"{told}; whether for the better, only labels can tell."
    labelled = counted(found.labelled, "labelled picture")
    if found.labelled < FEWEST:
        return f"Only {labelled}: too few to tell methods apart; {FEWEST} or more are needed."
    helped = [m.label for m in others if _is(m, "chair_i", 1)]
    harmed = [m.label for m in others if _is(m, "chair_i", -1)]
    told = f"On these {labelled} "
    told += (
        f"{_named(helped)} really invent{'s' * (len(helped) == 1)} less than regular"
        if helped
        else ("no method really invents less than regular")
    )
    priced = [name for name in helped if any(m.label == name and _is(m, "recall", -1) for m in others)]
    told += f" ({_named(priced)} at the price of objects not named)" if priced else ""
    return told + (f"; {_named(harmed)} invent{'s' * (len(harmed) == 1)} more." if harmed else ".")


def _is(method: Tried, metric: str, gain: int) -> bool:
    comparison = method.against.get(metric)
    return comparison is not None and comparison.verdict == "real" and comparison.gain == gain


def _regular(found: Outcome) -> Iterator[str]:
    """What regular decoding invents by the labels, and what the model denies of it."""
    regular = found.methods[0]
    if regular.scores:
        invented, reached = regular.scores["chair_i"], regular.scores["recall"]
        yield (
            f"By the labels {invented.value:.1f} % of what regular decoding names is invented"
            f"{_interval(invented)}; it finds {reached.value:.1f} % of what is there{_interval(reached)}."
        )
    named, denied = regular.counts["named"], regular.counts["denied"]
    if found.tries.asking is None or not named:
        yield f"Regular decoding names {counted(named, 'object')}."
        return
    yield (
        f"Asked, the model denies {denied} of the {counted(named, 'object')} that regular decoding names"
        f"{_known(regular, 'denied')}: about what asking could take back."
    )


def _others(found: Outcome) -> Iterator[str]:
    for method in found.methods[1:]:
        if "chair_i" in method.against:
            yield judged(method)
        else:
            yield told(method, asked=found.tries.asking is not None)


def told(method: Tried, asked: bool) -> str:
    """What a method changed."""
    c, name = method.counts, f"`{method.label}`"
    if not c["changed"]:
        return f"{name} says the same as regular on every picture, small words aside."
    text = f"{name} changes {c['changed']} of {counted(c['pictures'], 'answer')}{_known(method, 'changed')}"
    if c["gone"]:
        text += f" and leaves out {c['gone']} of {counted(c['regular'], 'named object')}{_known(method, 'gone')}"
        text += f", {c['gone_denied']} of them denied when asked" if asked else ""
    text += (
        f"; it names {counted(c['new'], 'object')} that regular does not."
        if c["new"]
        else "; it names nothing new."
    )
    return text + (f" {_denied(method)}" if method.denied is not None else "")


def _known(method: Tried, share: str) -> str:
    """The share in percent with its interval, where there is one that says something."""
    found = method.shares.get(share)
    return f" ({found.value:.0f} %, {found.low:.0f} to {found.high:.0f})" if found and not found.flat else ""


def _denied(method: Tried) -> str:
    assert method.denied is not None
    if method.denied.verdict == "same":
        return "The model denies the same share of it."
    share = 100 * method.counts["denied"] / max(method.counts["named"], 1)
    known = f"Of all it names the model denies {share:.0f} %, {_points(method.denied)} against regular"
    if method.asks:
        return f"{known}; fewer is by construction, for it asks while it writes."
    return f"{known}: {_verdict(method.denied)}."


def judged(method: Tried) -> str:
    """What labels say of it."""
    invented, recall = method.against["chair_i"], method.against["recall"]
    changed = f"it changes {method.counts['changed']} of {counted(method.counts['pictures'], 'answer')}"
    if invented.verdict == recall.verdict == "same":
        return f"`{method.label}` invents and finds exactly what regular does; {changed}."
    share, reached = method.scores["chair_i"].value, method.scores["recall"].value
    return (
        f"`{method.label}`: {share:.1f} % of what it names is invented, {_held(invented)}. "
        f"It finds {reached:.1f} % of what is there, {_held(recall)}; {changed}."
    )


def _held(comparison: Comparison) -> str:
    if comparison.verdict == "same":
        return "the same as regular"
    return f"{_points(comparison)} against regular: {_verdict(comparison)}"


def _verdict(comparison: Comparison) -> str:
    d = comparison.difference
    apart = comparison.verdict == "open" and (d.low > 0 or d.high < 0)
    return {
        "real": "a real difference",
        "unclear": "a hint, not a finding (interval and corrected test do not agree)",
        "open": f"{CHANCE}, too few pictures differ for the test" if apart else CHANCE,
        "same": "no difference at all",
    }[comparison.verdict]


def _caution(found: Outcome) -> Iterator[str]:
    served = found.tries.trial.ask.server is not None
    if not found.labelled:
        no_truth = "The model's own answers are no truth: it may deny what is there and confirm what is not."
        measured = "; `seewhen diagnose` measures what asking is worth for this model"
        yield f"{no_truth} Labels (--objects FILE) decide{'' if served else measured}."
    if served:
        yield "The model is served elsewhere: how much it doubted a word, and what it looked at, is not known."
    if len(found.pictures) < FEWEST:
        yield f"With fewer than {FEWEST} pictures no interval is given: any difference may be chance."
    if found.unjudged:
        some = ", ".join(found.unjudged[:5]) + (", ..." if len(found.unjudged) > 5 else "")
        yield f"{counted(len(found.unjudged), 'label')} outside the words that are judged: {some}."
    failed = found.tries.failed
    if failed:
        yield f"Skipped: {'; '.join(f'{name} ({why})' for name, why in failed.items())}."
    yield from found.tries.notes


def _interval(interval: Interval) -> str:
    says = interval.images >= FEWEST and not interval.flat
    return f" ({interval.low:.1f} to {interval.high:.1f})" if says else ""


def _points(comparison: Comparison) -> str:
    d = comparison.difference
    low, high = (f"{round(each, 1) + 0.0:.1f}" for each in (d.low, d.high))
    return f"{d.value:+.1f} points ({low} to {high})".replace("-", "−")


def _named(labels: list[str]) -> str:
    quoted = [f"`{name}`" for name in labels]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"
