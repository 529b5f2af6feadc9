"""What a command prints and writes: JSON, the page, the trace, the table of methods."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from seewhen.cli.options import DecodingFlags, ModelFlags
from seewhen.showing.viewer.payload import (
    Truth,
    answer_facts,
    answer_maps,
    attention_layers,
    page_payload,
)

if TYPE_CHECKING:
    from PIL import Image
    from rich.text import Text

    from seewhen.asking.asker import Asker
    from seewhen.asking.one_picture import Cost, Reply

SCHEMA = "seewhen/answers/1"


class Shown:
    """The answers to one question about one picture, ready to be shown in any form."""

    def __init__(
        self,
        asker: Asker | None,
        replies: Sequence[Reply],
        costs: Sequence[Cost] | None = None,
        truth: Truth | None = None,
    ) -> None:
        self.replies, self.truth = replies, truth
        self.facts = [
            _facts(asker, each, costs[number] if costs else None, truth) for number, each in enumerate(replies)
        ]

    def to_json(self, about: dict[str, Any]) -> dict[str, Any]:
        """What `--json` prints."""
        known = {"schema": SCHEMA, **about}
        if self.truth is not None:
            known["truth"] = list(self.truth.objects)
        return {**known, "answers": self.facts}

    def page(self, image: Image.Image, name: str, about: dict[str, Any]) -> dict[str, Any]:
        """The payload of the page."""
        from seewhen.showing.viewer.page import image_payload

        layers = attention_layers([each.trace for each in self.replies if each.trace is not None])
        answers = [
            {**facts, "maps": None if each.trace is None else answer_maps(each.trace, layers)}
            for facts, each in zip(self.facts, self.replies, strict=True)
        ]
        about = dict(about)
        model, prompt = about.pop("model"), about.pop("prompt")
        about.pop("image", None)
        return page_payload(
            answers, [image_payload(image, name)], model=model, prompt=prompt, truth=self.truth, about=about
        )

    def notes(self) -> None:
        """Notes of all answers on stderr."""
        for each in self.replies:
            for note in each.notes:
                name, _, rest = note.partition(" ")
                # Most notes begin with the method's name, and the label says it better.
                told = f"{each.label} {rest}" if name == each.method.name else f"{each.label}: {note}"
                sys.stderr.write(f"note: {told}\n")


def _facts(asker: Asker | None, reply: Reply, cost: Cost | None, truth: Truth | None) -> dict[str, Any]:
    if reply.trace is not None:
        special = asker.special if asker else ()
        facts = answer_facts(
            reply.trace, label=reply.label, text=reply.text, special=special, cost=cost, truth=truth
        )
    else:
        facts = _facts_without_trace(asker, reply, cost, truth)
    return {**facts, "notes": list(reply.notes)}


def _facts_without_trace(
    asker: Asker | None, reply: Reply, cost: Cost | None, truth: Truth | None
) -> dict[str, Any]:
    """Words alone: of a loop that keeps no trace, and of a served model, only the text is known."""
    from dataclasses import asdict

    from seewhen.showing.viewer.object_words import marked

    pieces = re.findall(r"\s*[\w'’-]+|\s*[^\w\s]+|\s+", reply.text)
    words: list[dict[str, Any]] = [
        {"text": piece, "start": at, "end": at + 1, "risk": None} for at, piece in enumerate(pieces)
    ]
    nothing = {"id": -1, "special": False, "entropy": None, "risk": None, "probability": None}
    return {
        "label": reply.label,
        "method": reply.method.to_json(),
        "text": reply.text,
        "words": words,
        "tokens": [{**nothing, "text": piece, "fired": [], "runners": []} for piece in pieces],
        "layers": asker.model.config.get_text_config(decoder=True).num_hidden_layers if asker else 0,
        "tilted_layers": [],
        "fired": None,
        "cost": None if cost is None else asdict(cost),
        "asked": marked(words, None if truth is None else truth.objects, reply.told),
    }


def about(
    model: ModelFlags, decoding: DecodingFlags, asker: Asker | None, image: str, prompt: str
) -> dict[str, Any]:
    """What was asked of whom and how."""
    from seewhen.asking.default_model import is_packaged

    if asker is None:
        where = {"server": getattr(model, "server", None)}
        if getattr(model, "request", None):
            where["request"] = model.extras()  # type: ignore[attr-defined]
    else:
        where = {"device": str(asker.model.device), "dtype": str(asker.model.dtype).removeprefix("torch.")}
    packaged = asker is not None and is_packaged(model.model)
    name = "packaged" if packaged else model.model
    return {"model": name, "image": image, "prompt": prompt, **where, **decoding.about()}


def print_json(value: Any, indent: int | None = 2) -> None:
    """One JSON document on stdout. JSON is UTF-8: where stdout is not (a pipe on Windows), letters are escaped."""
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    typer.echo(json.dumps(value, ensure_ascii=not utf8, allow_nan=False, indent=indent))


def write_page(path: Path, payload: dict[str, Any]) -> None:
    """The page in its file, and where it is on stderr."""
    from seewhen.showing.viewer.page import write_page as write

    write(path, payload)
    sys.stderr.write(f"page: {path}\n")


def save_trace(path: Path, reply: Reply, about: dict[str, Any]) -> None:
    """The trace in its two files with what `seewhen view` wants to know, and where they are on stderr."""
    if reply.trace is None:
        sys.stderr.write(f"note: {reply.label}: no trace to save, its decoding loop keeps none\n")
        return
    from dataclasses import replace

    from seewhen.errors import InvalidInput

    meta = {**about, "image": str(Path(about["image"]).absolute()), "label": reply.label}
    try:
        written = replace(reply.trace, meta=meta).save(path)
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be written: {error.strerror or error}.", "Give a file in a folder you can write to."
        ) from None
    sys.stderr.write(f"trace: {written} and {written.with_suffix('.safetensors').name}\n")


def fired_line(facts: dict[str, Any]) -> str:
    """How often a method acted, in words."""
    parts = []
    if facts["fired"] is not None:
        tokens, of = facts["fired"]["tokens"], facts["fired"]["of"]
        parts.append(f"{tokens} of {of} tokens ({100 * tokens / max(of, 1):.0f}%)")
    if facts["asked"] is not None:
        parts.append(f"asked about {facts['asked']['asked']}, took back {len(facts['asked']['taken_back'])}")
    return "; ".join(parts) or "-"


def cost_line(cost: dict[str, Any] | None) -> str:
    """What a method cost, in words."""
    if cost is None:
        return "-"
    rows = cost["extra_rows"]
    more = f", +{rows} row{'s' * (rows > 1)}" if rows else ""
    return f"{cost['ms_per_token']:.1f} ms/token ({cost['ratio']:.2f}x){more}"


def coloured(facts: dict[str, Any], marked: frozenset[int] = frozenset()) -> Text:
    """The answer with words coloured by risk; `marked` words differ from the first answer's."""
    from rich.text import Text

    from seewhen.cli.streaming import STYLES
    from seewhen.showing.viewer.word_risk import level

    text = Text()
    for number, word in enumerate(facts["words"]):
        bare = word["text"].lstrip() if number else word["text"].strip()
        text.append(word["text"][: len(word["text"]) - len(bare)] if number else "")
        style = STYLES[level(word["risk"])]
        if word.get("asked", {}).get("verdict") == "denied":
            style = f"{style} strike".strip()
        following = facts["words"][number + 1] if number + 1 < len(facts["words"]) else {}
        last = "object" in word and following.get("object") != word["object"]
        sign = "" if not last else "✓" if word["present"] else "✗"
        text.append(bare, f"{style} italic".strip() if number in marked else style)
        if sign:
            text.append(sign, "bold cyan" if word["present"] else "bold magenta")
    return text


def table(shown: Shown, width: int = 120) -> Any:
    """One row per method: what it said, how often it fired, what it cost; whole on a terminal of that width."""
    from rich.table import Table
    from rich.text import Text

    from seewhen.showing.viewer.word_risk import differing

    lines = Table(show_lines=True)
    lines.add_column("method", overflow="fold", max_width=24)
    narrow = width < 72  # less than the other columns leave: then those have their longest word's width
    lines.add_column("said", min_width=8 if narrow else 24)
    if shown.truth is not None:
        lines.add_column("named", no_wrap=True)
    lines.add_column("fired", max_width=9 if narrow else 12)
    timed = any(facts["cost"] is not None for facts in shown.facts)
    if timed:
        lines.add_column("cost", max_width=8 if narrow else 14)
    first = [word["text"] for word in shown.facts[0]["words"]]
    for facts in shown.facts:
        marked = differing(first, [word["text"] for word in facts["words"]])
        cells = [Text(facts["label"]), coloured(facts, marked)]
        if shown.truth is not None:
            cells.append(named_cell(facts))
        lines.add_row(*cells, fired_line(facts), *([cost_line(facts["cost"])] if timed else []))
    return lines


def named_cell(facts: dict[str, Any]) -> Text:
    """The objects an answer names: those really there, then those not."""
    from rich.text import Text

    named = {word["object"]: word["present"] for word in facts["words"] if "object" in word}
    text = Text()
    for sign, present, style in (("✓", True, "cyan"), ("✗", False, "bold magenta")):
        for name in (name for name, there in named.items() if there is present):
            text.append(("\n" if text else "") + f"{sign} {name}", style)
    return text or Text("none", style="dim")
