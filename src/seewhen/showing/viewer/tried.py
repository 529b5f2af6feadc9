"""The page of `seewhen try`: what every method said of every picture, the most telling first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from seewhen.benchmarks.chair.caption_reader import CaptionReader
from seewhen.runs.tried import FEWEST, JUDGED, AskedObject, Outcome, Said, Seen
from seewhen.runs.wording import counted
from seewhen.showing.viewer.page import TEMPLATES, image_payload, joined, policy, write_text
from seewhen.showing.viewer.word_risk import differing, level

_SIDE = 320  # of a thumbnail
_DOUBTFUL = 0.5  # a toss-up between two words
_PIECE = re.compile(r"\s+|[\w'’-]+|[^\w\s]+")


@dataclass(frozen=True)
class Piece:
    """A stretch of an answer that is shown in one way; `title` says more of it."""

    text: str
    marks: tuple[str, ...] = ()
    title: str = ""


def write_tried(
    path: Path, found: Outcome, sentences: Sequence[str], words: Mapping[str, str], reader: CaptionReader
) -> None:
    """Write the page; a reader never sees half of it. `words` are pages of single pictures, by name."""
    style, script = joined(("page.css", "tried.css")), joined(("tried.js",))
    pictures = [_picture(seen, words.get(seen.photo.name), reader) for seen in found.pictures]
    html = TEMPLATES.get_template("tried.html").render(
        policy=Markup(policy(style, script)),
        style=style,
        script=script,
        found=found,
        about=_about(found),
        sentences=[sentence.split("`") for sentence in sentences],
        judged=JUDGED if found.labelled else (),
        fewest=FEWEST,
        asked=found.tries.asking is not None,
        served=found.tries.trial.ask.server is not None,
        shows=_shows(found, pictures),
        pictures=pictures,
    )
    write_text(path, html)


def _about(found: Outcome) -> str:
    trial = found.tries.trial
    how = f"sampled at temperature {trial.ask.temperature:g}, seed {trial.seed}" if trial.ask.sampled else "greedy"
    return f"{trial.ask.model}, “{trial.prompt}”, {how}, at most {counted(trial.tokens, 'token')}."


def _shows(found: Outcome, pictures: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, int]]:
    """What pictures can be chosen by: a flag, its words, how many have it."""
    titles = {
        "differs": "named by some methods only",
        "denied": "denied when asked",
        "doubt": "said with doubt",
        "invented": "invented, by the labels",
    }
    unknown = {"invented"} if not found.labelled else set()
    unknown |= {"doubt"} if found.tries.trial.ask.server is not None else set()
    known = [name for name in titles if name not in unknown]
    return [(name, titles[name], sum(name in picture["flags"] for picture in pictures)) for name in known]


def _picture(seen: Seen, words: str | None, reader: CaptionReader) -> dict[str, Any]:
    marks = _Marks(seen, reader)
    doubtful = [each for each in seen.doubted if each.doubt >= _DOUBTFUL]
    invented = sorted({name for said in seen.said for name in marks.invented(said)})
    flags = {"differs": seen.split, "denied": seen.denied, "doubt": doubtful, "invented": invented}
    return {
        "name": seen.photo.name,
        "image": image_payload(seen.photo.path, seen.photo.name, thumbnail=_SIDE),
        "words": words,
        "flags": [name for name, found in flags.items() if found],
        "differs": seen.split,
        "denied": seen.denied,
        "doubtful": doubtful,
        "invented": invented,
        "truth": None if seen.truth is None else sorted(seen.truth),
        "groups": list(_groups(seen, marks)),
        "objects": [
            (each, [said.method for said in seen.said if each.object in said.objects])
            for each in sorted(seen.asked.values(), key=lambda each: (each.probability is None, each.probability))
        ],
    }


def _groups(seen: Seen, marks: _Marks) -> Iterator[tuple[list[str], list[Piece], list[dict[str, Any]]]]:
    """Answers with the methods that gave them, word for word, and what these took back."""
    together: dict[str, list[Said]] = {}
    for said in seen.said:
        together.setdefault(said.record.answer, []).append(said)
    for some in together.values():
        yield [said.method for said in some], list(marks.pieces(some[0])), _taken_back(some)


def _taken_back(some: Sequence[Said]) -> list[dict[str, Any]]:
    """The sentences that these methods took back; those that several took back alike once, with all who did."""
    found: list[dict[str, Any]] = []
    for said in some:
        for each in said.record.told.get("taken_back", ()):
            same = [one for one in found if one["text"] == each["text"] and said.method not in one["by"]]
            if same:
                same[0]["by"].append(said.method)
            else:
                found.append({**each, "by": [said.method]})
    return found


class _Marks:
    """How the words of answers about one picture are shown."""

    def __init__(self, seen: Seen, reader: CaptionReader) -> None:
        self._seen, self._reader = seen, reader
        self._regular = _PIECE.findall(seen.regular.record.answer)

    def invented(self, said: Said) -> Iterator[str]:
        """Objects that the labels do not have."""
        truth = self._seen.truth
        if truth is not None:
            named = (name for mention in said.mentions for name in self._reader.objects(mention.text))
            yield from (name for name in named if name not in truth)

    def pieces(self, said: Said) -> Iterator[Piece]:
        """The answer in stretches: objects with all that is known of them, words that regular decoding lacks."""
        found = list(_PIECE.finditer(said.record.answer))
        new = differing(self._regular, [match[0] for match in found])
        at = 0
        while at < len(found):
            start = found[at].start()
            mention = next((m for m in said.mentions if m.start <= start < m.end), None)
            last = at + 1
            while mention is not None and last < len(found) and found[last].start() < mention.end:
                last += 1
            text = "".join(match[0] for match in found[at:last])
            marks = [] if new.isdisjoint(range(at, last)) else ["differs"]
            title = ""
            if mention is not None:
                asked = self._seen.asked.get(mention.object)
                marks += self._of_object(said, asked, mention.text)
                title = _title(asked)
            yield Piece(text, tuple(marks), title)
            at = last

    def _of_object(self, said: Said, asked: AskedObject | None, text: str) -> Iterator[str]:
        if asked is not None:
            yield "object"
            if asked.verdict == "denied":
                yield "denied"
            if said is self._seen.regular and asked.entropy is not None and (risk := level(asked.doubt)):
                yield f"risk-{risk}"
        truth = self._seen.truth
        known = self._reader.objects(text) if truth is not None else ()
        if truth is not None and known:
            yield "there" if truth.issuperset(known) else "absent"


def _title(asked: AskedObject | None) -> str:
    if asked is None or asked.probability is None:
        return ""
    likely = f"{100 * asked.probability:.0f} % likely to be there"
    # A fitted verdict may deny what the model says yes to: the odds say which it was.
    said = "" if asked.odds is None else f"; asked, it said {'no' if asked.odds < 0 else 'yes'}, {asked.odds:+.1f}"
    return f"{asked.object}: {asked.verdict}, {likely}{said}"
