"""What a script gets to see: one page of traces side by side, and the words of an answer in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from seewhen.asking.answers import Answers
from seewhen.asking.check import Checked
from seewhen.asking.handle import Handle
from seewhen.backbones.pictures import open_image
from seewhen.decoding.trace import Trace
from seewhen.errors import InvalidInput
from seewhen.showing.viewer.checked import pieces
from seewhen.showing.viewer.page import TEMPLATES, image_payload, write_page
from seewhen.showing.viewer.payload import FORMAT
from seewhen.showing.viewer.traces import count_pictures, own_pictures, prompt_of, trace_facts, traces_page
from seewhen.showing.viewer.word_risk import LEVELS, level

_PREVIEW = 256  # pixels, of the longer side of a picture in a notebook


def page(path: str | Path, *shown: Answers | Handle | Trace, image: Any = None) -> Path:
    """Write one self-contained HTML page: each word, how sure the model was, and where it looked.

    Several answers to the same question stand side by side.

    Args:
        path: The file to write.
        *shown: What `generate` and `attach` gave, or traces.
        image: The picture, or a list with those of all rows, where it is not known.

    Returns:
        The path.

    Examples:
        >>> regular, cai = (
        ...     seewhen.generate(model, processor, "photo.jpg", "What is there?", name, trace=True)
        ...     for name in ("regular", "cai")
        ... )
        >>> seewhen.page("both.html", regular, cai)
    """
    if not shown:
        raise InvalidInput("There is nothing to show.", "Give what `generate` or `attach` gave.")
    columns = [[trace.whole() for trace in _traces(each)] for each in shown]
    if len({len(column) for column in columns}) > 1:
        raise InvalidInput("These answers came in batches of different sizes.", "Show them one by one.")
    given = image if isinstance(image, list | tuple) else [] if image is None else [image]
    opened = [open_image(each) for each in given]
    pages = []
    for traces in zip(*columns, strict=True):
        pictures, opened = _pictures(traces[0], opened)
        pages.append(traces_page(traces, _labels(traces), pictures, [""] * len(pictures)))
    target = Path(path)
    if len(pages) == 1:
        return write_page(target, pages[0])
    samples = [sample for each in pages for sample in each.get("samples", [each])]
    named = [{**sample, "id": f"row {number}"} for number, sample in enumerate(samples)]
    noted = [{"note": each["answers"][0]["text"][:80], "wrong": None, **each} for each in named]
    return write_page(target, {"format": FORMAT, "samples": noted, "rest": ""})


def _traces(shown: Answers | Handle | Trace) -> Sequence[Trace]:
    if isinstance(shown, Trace):
        return (shown,)
    if isinstance(shown, Handle):
        return (shown.trace,)
    if not shown.traces:
        shown.trace  # noqa: B018  says why there is none
    return shown.traces


def _pictures(trace: Trace, given: list[Image.Image]) -> tuple[list[Image.Image], list[Image.Image]]:
    """The pictures of a trace, and those that are left for the next."""
    if not given:
        return own_pictures(trace), []
    wanted = count_pictures(trace)
    if len(given) < wanted:
        raise InvalidInput(f"There are {wanted} pictures, not {len(given)}.", "Give one for each, in order.")
    return given[:wanted], given[wanted:]


def _labels(traces: Sequence[Trace]) -> list[str]:
    from seewhen.methods.grammar import label_of

    labels = [label_of(trace.method) for trace in traces]
    twice = len(set(labels)) < len(labels)
    return [f"{name} ({number})" for number, name in enumerate(labels, 1)] if twice else labels


def notebook_html(shown: Answers | Trace | Checked) -> str:
    """The words in colours, without script and style sheet: what notebooks show anywhere, saved ones too."""
    return TEMPLATES.get_template("notebook.html").render(answers=_shown(shown), levels=LEVELS)


def _shown(shown: Answers | Trace | Checked) -> list[dict[str, Any]]:
    if isinstance(shown, Checked):
        told = pieces(shown.to_json())
        words = [(text, 0, "" if mention is None else mention["verdict"]) for text, mention in told]
        return [{"title": f"denied: {', '.join(shown.denied) or 'nothing'}", "words": words, "notes": shown.notes}]
    if isinstance(shown, Answers) and not shown.traces:  # a loop that keeps none: the text alone
        return [{"title": "", "words": [(text, 0, "")], "notes": ()} for text in shown.texts]
    traces = [trace.whole() for trace in _traces(shown)]
    return [_row(trace, row) for trace in traces for row in range(trace.rows)]


def _apart(text: str, risk: int, verdict: str) -> list[tuple[str, int, str]]:
    """The space before a word is not part of its mark."""
    word = text.lstrip()
    return [(text[: len(text) - len(word)], 0, ""), (word, risk, verdict)]


def _row(trace: Trace, row: int) -> dict[str, Any]:
    label = _labels([trace])[0]
    told = trace_facts(trace, label, row)["words"] if trace.texts else []
    words = [
        piece
        for word in told
        for piece in _apart(word["text"], level(word["risk"]), word.get("asked", {}).get("verdict", ""))
    ]
    found: dict[str, Any] = {
        "title": ", ".join(part for part in (label, str(trace.meta.get("model", trace.model))) if part),
        "question": prompt_of(trace, row),
        "words": words,
        "notes": (*trace.does, f"{trace.lengths[row]} tokens"),
    }
    pictures = own_pictures(trace)
    if len(pictures) == trace.rows:  # one each; of several it is not told which row has which
        pictures[row].thumbnail((_PREVIEW, _PREVIEW))
        found["image"] = image_payload(pictures[row], "")
    return found
