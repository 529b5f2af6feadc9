"""Diagnostics and predictions in words, for the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from seewhen.runs.diagnostics import Diagnostics, TiltShape
from seewhen.runs.ladder import Prediction, Rung

_NAMES = {
    "divergence": "how far answers depend on the image",
    "usual_without": "how likely its words are without the image",
    "recoverable_greedy": "the recoverable share, greedy",
    "recoverable_sampled": "the recoverable share, sampled",
    "asked_auroc": "how well its answers to questions tell",
}


def told(found: Diagnostics) -> Iterator[str]:
    """What a model is like, a line each."""
    yield f"what the model is like ({found.pictures} pictures, {found.tokens} tokens of its own greedy answers)"
    yield f"  attention on the image, by layer  {_percents(found.image_attention)}"
    yield f"  tokens that are others without    {100 * found.tokens_changed:.1f} %"
    at_objects = found.divergence_at_objects
    where = "" if at_objects is None else f"; where an object is named {at_objects:.3f}"
    yield f"  divergence without the image      {found.divergence:.3f} nats of at most 0.693{where}"
    perplexity = found.perplexity_with, found.perplexity_without
    entropy = found.entropy_with, found.entropy_without
    yield "  perplexity of its own words       {:.2f} with the image, {:.2f} without".format(*perplexity)
    yield "  entropy                           {:.2f} nats with the image, {:.2f} without".format(*entropy)
    if found.pointing is not None and found.pointing_chance is not None:
        chance = f"(chance {100 * found.pointing_chance:.0f} %)"
        yield f"  points at what it names, by layer {_percents(found.pointing)} {chance}"
    if found.entropy_auroc is not None:
        yield f"  entropy tells inventions (AUROC)  {found.entropy_auroc:.3f}"
    if found.asked_auroc is not None and found.asked_accuracy is not None and found.calibration_error is not None:
        yield (
            f"  yes/no questions                  {100 * found.asked_accuracy:.1f} % right, AUROC "
            f"{found.asked_auroc:.3f}, calibration error {found.calibration_error:.3f}"
        )
    yield from _tilt(found.tilt)


def _tilt(shape: TiltShape) -> Iterator[str]:
    layers = f"layer{'s' * (len(shape.layers) > 1)} {_span(shape.layers)}"
    yield f"  the tilt of {shape.method} would, in {layers}:"
    yield f"    image scores below zero         {_range(shape.negative_scores, 100)} %"
    before, after = _range(shape.effective_before), _range(shape.effective_after)
    yield f"    spread over patches             {before} before, {after} after, of {shape.patches:.0f}"
    before, after = _range(shape.mass_before, 100), _range(shape.mass_after, 100)
    yield f"    attention on the image          {before} % before, {after} % after"
    regular, uniform = _range(shape.to_regular, 1, 2), _range(shape.to_uniform, 1, 2)
    yield f"    distance (total variation)      {regular} from none, {uniform} from a uniform tilt"
    if max(shape.to_uniform) < 0.5 * min(shape.to_regular):
        yield "    The place hardly matters to it: it is much nearer to a uniform tilt than to none."


def foretold(
    found: Sequence[Prediction], rungs: Sequence[Rung], model: Mapping[str, float], own: Rung | None = None
) -> Iterator[str]:
    """What methods would do, and how far that goes beyond what was measured. `own` are the effects that were
    measured on this very model, where it is one of the ladder's."""
    if not rungs:
        yield "No prediction: the ladder of small models, which it needs, does not come with this package."
        return
    if not found:
        yield "No prediction: too few rungs of the ladder were measured with a method."
        return
    inventing = [one for one in found if one.metric == "chair_i"]
    yield f"beside the ladder ({len(rungs)} rungs: small models of drawn scenes)"
    yield from _dependence(rungs, model)
    yield from _in_short(inventing, own)
    balanced = {(one.method, one.way): one for one in found if one.metric == "f1"}
    for way in dict.fromkeys(one.way for one in sorted(inventing, key=lambda one: one.way != "sampled")):
        measured = "" if own is None else "  measured on it"
        yield f"  {way}, points from regular decoding: CHAIR_i (fewer inventions: below 0), F1{measured}"
        for one in sorted((one for one in inventing if one.way == way), key=lambda one: one.value):
            f1 = balanced.get((one.method, one.way))
            yield _line(one, f1, _measured(own, one))
    yield "  * by its diagnostics; the others are the rungs' mean: its diagnostics tell no more"
    yield "  in brackets: twice the error of telling each rung from the others, more for a model unlike them"
    yield from _reach(inventing)


def _line(one: Prediction, f1: Prediction | None, measured: str | None) -> str:
    value = f"{_points(one)}{'*' * bool(one.by)}"
    whole = "" if f1 is None else f"F1 {f1.value:+.1f}"
    there = "" if measured is None else f"  {measured:<22}"
    return f"    {one.method:<18} {value:<24} {whole:<8}{there}  {_verdict(one)}"


def _measured(own: Rung | None, one: Prediction) -> str | None:
    found = None if own is None else own.effects.get(one.method, {}).get(one.way, {}).get(one.metric)
    return None if found is None else "{:+.1f} ({:+.1f} to {:+.1f})".format(*found)


def _points(one: Prediction) -> str:
    return f"{one.value:+.1f} ({one.low:+.1f} to {one.high:+.1f})"


def _verdict(one: Prediction) -> str:
    if one.high < 0:
        return "helps the rungs; this model is outside their range" if one.outside else "likely to help"
    if one.low > 0:
        return "harms the rungs; this model is outside their range" if one.outside else "likely to harm"
    return "no clear effect"


def _in_short(found: Sequence[Prediction], own: Rung | None) -> Iterator[str]:
    """The contrast, on which rungs differ most, and what else would help, as a sentence each."""
    by_way = {(one.method, one.way): one for one in found}
    for way in ("sampled", "greedy"):
        if one := by_way.get(("contrast", way)):
            there = "" if (known := _measured(own, one)) is None else f"; measured on it {known}"
            yield f"  The contrast, {way}: {_verdict(one)}; predicted CHAIR_i {_points(one)}{there}."
    helping = sorted(
        (one for one in found if one.high < 0 and one.method != "contrast"), key=lambda one: one.value
    )
    for way, verdict in dict.fromkeys((one.way, _verdict(one)) for one in helping):
        named = ", ".join(one.method for one in helping if (one.way, _verdict(one)) == (way, verdict))
        yield f"  Besides, {way}, {verdict}: {named}."


def _dependence(rungs: Sequence[Rung], model: Mapping[str, float]) -> Iterator[str]:
    """Where the model stands among the rungs in how far its answers depend on the image."""
    others = sorted(rung.diagnostics["tokens_changed"] for rung in rungs if "tokens_changed" in rung.diagnostics)
    if not others:
        return
    below = sum(value < model["tokens_changed"] for value in others)
    words = "Answers hardly change" if below <= len(others) // 4 else "Answers change"
    yield (
        f"  {words} without the image: {100 * model['tokens_changed']:.0f} % of the tokens, more than on "
        f"{below} of {len(others)} rungs ({100 * others[0]:.0f} to {100 * others[-1]:.0f} %)."
    )


def _reach(found: Sequence[Prediction]) -> Iterator[str]:
    """How far the model lies beyond what was measured. Some methods were measured on few of the rungs."""
    widest = sorted(found, key=lambda one: -one.rungs)
    told: set[str] = set()
    for one in widest:
        for each in (each for each in one.outside if each.name not in told):
            told.add(each.name)
            methods = dict.fromkeys(other.method for other in found if each in other.outside)
            some = f"the {one.rungs} rungs measured with {' and '.join(methods)}"
            whose = "the rungs" if one.rungs == widest[0].rungs else some
            yield (
                f"  Beyond {whose}: {_NAMES.get(each.name, each.name)} is {each.value:.3g}, "
                f"theirs {each.low:.3g} to {each.high:.3g}: what methods do to such a model was never measured."
            )
    yield (
        "  The rungs are small models of drawn scenes. For another kind of model this is a guess, and how wrong "
        "it may be is not in the interval."
    )


def _percents(values: Sequence[float | None]) -> str:
    return " ".join("-" if value is None else f"{100 * value:.0f}" for value in values) + " %"


def _range(values: Sequence[float], scale: float = 1.0, digits: int = 0) -> str:
    low, high = (f"{scale * value:.{digits}f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _span(layers: Sequence[int]) -> str:
    return str(layers[0]) if len(layers) == 1 else f"{layers[0]} to {layers[-1]}"
