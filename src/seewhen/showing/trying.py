"""`try_methods`: several methods on somebody's own pictures, and one page that shows what came of it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from seewhen.asking.default_model import warn_about_photograph
from seewhen.asking.opening import check_device, prepare_for
from seewhen.asking.options import DESCRIBE, TRIED, TRIED_SERVED
from seewhen.backbones.pictures import open_image
from seewhen.benchmarks.base import Row
from seewhen.benchmarks.chair import Chair
from seewhen.errors import InvalidInput
from seewhen.runs.evaluate import Ask, Machine
from seewhen.runs.folders import photos_of
from seewhen.runs.labels import labels_of, reader_for
from seewhen.runs.model_answerer import loaded_once
from seewhen.runs.progress import Progress
from seewhen.runs.tried import Outcome, Said, Seen, Tried, outcome
from seewhen.runs.tried_wording import summary
from seewhen.runs.trying import Judging, Trial, methods_of, try_all
from seewhen.runs.work import Task
from seewhen.served.remote import Remote
from seewhen.showing.viewer.page import write_page
from seewhen.showing.viewer.runs import RunPages, RunQuestions, ShownQuestion
from seewhen.showing.viewer.tried import write_tried

_FORM = 2  # of a page of words: an older one is made again
SCHEMA = "seewhen/tried/1"
PAGE = "index.html"


@dataclass(frozen=True, repr=False)
class Tryout:
    """What `try_methods` found, and the page about it."""

    outcome: Outcome
    page: Path

    @property
    def summary(self) -> list[str]:
        """In words."""
        return summary(self.outcome)

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; shares are in percent."""
        trial = self.outcome.tries.trial
        return {
            "schema": SCHEMA,
            "model": trial.ask.model,
            **({} if trial.ask.server is None else {"server": trial.ask.server}),
            "prompt": trial.prompt,
            "decoding": trial.config({}, {})["decoding"],
            "summary": self.summary,
            "skipped": dict(self.outcome.tries.failed),
            "methods": [_method(method) for method in self.outcome.methods],
            "pictures": [_picture(seen) for seen in self.outcome.pictures],
        }

    def __repr__(self) -> str:
        labels = ", ".join(method.label for method in self.outcome.methods)
        return f"Tryout({len(self.outcome.pictures)} pictures, {labels}; {self.page})"


def _method(method: Tried) -> dict[str, Any]:
    against = {**({"denied": method.denied} if method.denied else {}), **method.against}
    return {
        "method": method.label,
        "counts": dict(method.counts),
        "shares": {n: _interval(i) for n, i in (*method.shares.items(), *method.scores.items())},
        "against_regular": {
            name: {**_interval(c.difference), "p": round(c.p_holm, 6), "verdict": c.verdict}
            for name, c in against.items()
        },
        "cost": asdict(method.cost),
    }


def _interval(interval: Any) -> dict[str, float]:
    return {name: round(getattr(interval, name), 4) for name in ("value", "low", "high")}


def _picture(seen: Seen) -> dict[str, Any]:
    return {
        "name": seen.photo.name,
        "path": str(seen.photo.path).encode("utf-8", "replace").decode(),
        "answers": {said.method: said.record.answer for said in seen.said},
        "objects": [
            {**asdict(asked), "named_by": [said.method for said in seen.said if name in said.objects]}
            for name, asked in seen.asked.items()
        ],
        "denied": list(seen.denied),
        "named_by_some": list(seen.split),
        "truth": None if seen.truth is None else sorted(seen.truth),
    }


def try_methods(
    model: str | Remote,
    pictures: str | Path | Sequence[str | Path],
    methods: str | None = None,
    *,
    out: str | Path = "tried",
    objects: str | Path | None = None,
    question: str | None = None,
    settings: Sequence[str] = (),
    limit: int | None = None,
    max_new_tokens: int = 64,
    seed: int | None = None,
    temperature: float = 1.0,
    batch: int = 8,
    words: int = 3,
    lexicon: str = "open",
    verdict: str = "auto",
    threshold: float | None = None,
    device: str | None = None,
    **loading: Any,
) -> Tryout:
    """Answer about every picture with every method, ask the model about what it named, and write a page.

    `model`: a name, or a served one (`seewhen.remote`). `pictures`: folders, files, patterns, or lists of files.
    Greedy unless a `seed` is given. `objects` names a file that says what the pictures show. `words` is how many
    of the most telling pictures get a page of their own, word by word; of a served model nothing can be shown
    there. `lexicon`, `verdict` and `threshold` are those of `check`, `loading` those of `load`. What is in `out`
    already is not computed again.

        tried = seewhen.try_methods("photo", "photos/", "regular,cai,confirm")
        print(*tried.summary, sep="\\n")
    """
    given = [pictures] if isinstance(pictures, str | Path) else list(pictures)
    photos = photos_of(given, limit)
    served = model if isinstance(model, Remote) else None
    known = {name: value for name, value in loading.items() if value is not None}
    known |= {"model": model} if served is None else served.for_runs()
    ask = Ask(
        "try",
        seeds=None if seed is None else 1,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        batch=batch,
        **known,
    )
    trial = Trial(ask, question or DESCRIBE, seed or 0, Judging(lexicon, verdict, threshold))
    chosen = methods_of(methods or (TRIED if served is None else TRIED_SERVED), settings)
    reader = reader_for(lexicon)
    names = [photo.name for photo in photos]
    labels, unjudged = ({}, []) if objects is None else labels_of(Path(objects), names, reader)
    if isinstance(model, str):
        check_device(device)
        _prepare(model, photos[0].path)
    else:
        words = 0
    tries = try_all(trial, chosen, photos, Path(out), Machine(devices=[device] if device else ()))
    kept = {photo.name: labels[photo.name] for photo in tries.photos if photo.name in labels}
    found = outcome(tries, kept, reader, unjudged)
    page, views = Path(out) / PAGE, _Words(found, kept, Path(out), device)
    # The page is there before the slow part, and stays if that is stopped.
    write_tried(page, found, summary(found), views.written(words), reader)
    if views.write(words):
        write_tried(page, found, summary(found), views.written(words), reader)
    return Tryout(found, page)


def _prepare(model: str, first: Path) -> None:
    """Also one line where the packaged model is asked about a photograph."""
    prepare_for(model)
    with suppress(InvalidInput):  # told later, with all other pictures that cannot be read
        warn_about_photograph(model, open_image(first))


@dataclass(frozen=True)
class _Known(Chair):
    """The labels of pictures by name; of others nothing is known."""

    def shown(self, image: str) -> tuple[str, ...] | None:  # type: ignore[override]
        return tuple(sorted(self.truth[image])) if image in self.truth else None


@dataclass(frozen=True)
class _Words:
    """Pages on which the answers about one picture can be read word by word."""

    found: Outcome
    labels: Any
    out: Path
    device: str | None

    def _chosen(self, most: int) -> list[Seen]:
        whole = [seen for seen in self.found.pictures if len(seen.said) == len(self.found.methods)]
        return whole[:most]

    def written(self, most: int) -> dict[str, str]:
        """Picture -> its page, relative to the folder: those that are there."""
        links = {seen.photo.name: self._link(seen) for seen in self._chosen(most)}
        return {name: link for name, link in links.items() if (self.out / link).exists()}

    def write(self, most: int) -> bool:
        """Whether one was written; one that is there already is not made again."""
        chosen, there = self._chosen(most), self.written(most)
        missing = [seen for seen in chosen if seen.photo.name not in there]
        if missing:
            pages = self._pages()
            (self.out / "words").mkdir(exist_ok=True)
            with Progress("word by word", len(chosen), already=len(there)) as progress:
                for seen in missing:
                    records = tuple(said.record for said in seen.said)
                    rows = tuple(Row(seen.photo.id, seen.photo.id, "", 1, {}) for _ in records)
                    told = [_told(seen, said) for said in seen.said]
                    payload = pages.page(ShownQuestion(seen.photo.id, records, rows), told)
                    named = {"id": seen.photo.name, "title": seen.photo.name}
                    back = {"home": f"../{PAGE}", "home_title": "All pictures"}
                    write_page(self.out / self._link(seen), {**payload, **named, **back})
                    progress.advance(1)
        return bool(missing)

    def _pages(self) -> RunPages:
        tries = self.found.tries
        tasks = {p.id: Task(p.id, p.name, str(p.path), tries.trial.prompt) for p in tries.photos}
        questions = RunQuestions(_Known(self.labels, ()), tasks, raw=False)
        loading = tuple(sorted(tries.trial.ask.loading().items()))
        return RunPages(list(tries.runs.values()), questions, lambda name: loaded_once(name, self.device, loading))

    def _link(self, seen: Seen) -> str:
        said = [(each.method, each.record.answer) for each in seen.said]
        truth = None if seen.truth is None else sorted(seen.truth)
        told = [_told(seen, each) for each in seen.said]
        whole = json.dumps([_FORM, seen.photo.id, said, truth, told])
        short = re.sub(r"[^\w-]+", "_", seen.photo.name, flags=re.ASCII)[-60:]
        return f"words/{short}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}.html"


def _told(seen: Seen, said: Said) -> dict[str, Any]:
    """The verdicts that the page of all pictures shows, and beside them what the method itself judged."""
    own = said.record.told
    if not seen.asked:
        return dict(own)
    while_writing = {each["object"]: each for each in own.get("verdicts", ())}
    verdicts = []
    for mention in said.mentions:
        asked = seen.asked.get(mention.object)
        if asked is None or asked.probability is None or asked.odds is None:
            continue
        known = {"odds": asked.odds, "probability": asked.probability, "verdict": asked.verdict}
        judged = while_writing.get(mention.object, {})
        if "probability" in judged:
            known["own"] = {name: judged[name] for name in ("verdict", "probability")}
        verdicts.append({"object": mention.object, "start": mention.start, "end": mention.end, **known})
    later = {"asked": len({each["object"] for each in verdicts}), "steps": 0, "tokens": 0, "later": True}
    return {"taken_back": [], **later, **own, "verdicts": verdicts} | ({"later": False} if own else {})
