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
from seewhen.viewer.payload import Cost, Truth, answer_facts, answer_maps, attention_layers, page_payload

if TYPE_CHECKING:
    from PIL import Image
    from rich.text import Text

    from seewhen.cli.asking import Asker, Told

SCHEMA = "seewhen/answers/1"


class Shown:
    """The answers to one question about one picture, ready to be shown in any form."""

    def __init__(
        self,
        asker: Asker,
        told: Sequence[Told],
        costs: Sequence[Cost] | None = None,
        truth: Truth | None = None,
    ) -> None:
        self.told, self.truth = told, truth
        self.facts = [
            _facts(asker, each, costs[number] if costs else None, truth) for number, each in enumerate(told)
        ]

    def to_json(self, about: dict[str, Any]) -> dict[str, Any]:
        """What `--json` prints."""
        known = {"schema": SCHEMA, **about}
        if self.truth is not None:
            known["truth"] = list(self.truth.objects)
        return {**known, "answers": self.facts}

    def page(self, image: Image.Image, name: str, about: dict[str, Any]) -> dict[str, Any]:
        """The payload of the page."""
        from seewhen.viewer.page import image_payload

        layers = attention_layers([each.trace for each in self.told if each.trace is not None])
        answers = [
            {**facts, "maps": None if each.trace is None else answer_maps(each.trace, layers)}
            for facts, each in zip(self.facts, self.told, strict=True)
        ]
        about = dict(about)
        model, prompt = about.pop("model"), about.pop("prompt")
        about.pop("image", None)
        return page_payload(
            answers, [image_payload(image, name)], model=model, prompt=prompt, truth=self.truth, about=about
        )

    def notes(self) -> None:
        """Notes of all answers on stderr."""
        for each in self.told:
            for note in each.notes:
                name, _, rest = note.partition(" ")
                # Most notes begin with the method's name, and the label says it better.
                told = f"{each.label} {rest}" if name == each.method.name else f"{each.label}: {note}"
                sys.stderr.write(f"note: {told}\n")


def _facts(asker: Asker, told: Told, cost: Cost | None, truth: Truth | None) -> dict[str, Any]:
    if told.trace is not None:
        facts = answer_facts(
            told.trace, label=told.label, text=told.text, special=asker.special, cost=cost, truth=truth
        )
    else:
        facts = _facts_without_trace(asker, told, cost, truth)
    return {**facts, "notes": list(told.notes)}


def _facts_without_trace(asker: Asker, told: Told, cost: Cost | None, truth: Truth | None) -> dict[str, Any]:
    """Words alone: of a loop that keeps no trace only the text is known."""
    from dataclasses import asdict

    from seewhen.viewer.naming import named_objects

    pieces = re.findall(r"\s*[\w'’-]+|\s*[^\w\s]+|\s+", told.text)
    words: list[dict[str, Any]] = [
        {"text": piece, "start": at, "end": at + 1, "risk": None} for at, piece in enumerate(pieces)
    ]
    if truth is not None:
        for named in named_objects(pieces, truth.objects):
            for word in words[named.start : named.end]:
                word["object"], word["present"] = named.name, named.present
    nothing = {"id": -1, "special": False, "entropy": None, "risk": None, "probability": None}
    return {
        "label": told.label,
        "method": told.method.to_json(),
        "text": told.text,
        "words": words,
        "tokens": [{**nothing, "text": piece, "fired": [], "runners": []} for piece in pieces],
        "layers": asker.model.config.get_text_config(decoder=True).num_hidden_layers,
        "tilted_layers": [],
        "fired": None,
        "cost": None if cost is None else asdict(cost),
    }


def about(model: ModelFlags, decoding: DecodingFlags, asker: Asker, image: str, prompt: str) -> dict[str, Any]:
    """What was asked of whom and how."""
    from seewhen.cli.photograph import is_packaged

    return {
        "model": "the packaged model" if is_packaged(model.model) else model.model,
        "image": image,
        "prompt": prompt,
        "device": str(asker.model.device),
        "dtype": str(asker.model.dtype).removeprefix("torch."),
        **decoding.about(),
    }


def print_json(value: dict[str, Any]) -> None:
    """One JSON document on stdout."""
    typer.echo(json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2))


def write_page(path: Path, payload: dict[str, Any]) -> None:
    """The page in its file, and where it is on stderr."""
    from seewhen.viewer.page import write_page as write

    write(path, payload)
    sys.stderr.write(f"page: {path}\n")


def save_trace(path: Path, told: Told, about: dict[str, Any]) -> None:
    """The trace in its two files with what `seewhen view` wants to know, and where they are on stderr."""
    if told.trace is None:
        sys.stderr.write(f"note: {told.label}: no trace to save, its decoding loop keeps none\n")
        return
    from dataclasses import replace

    from seewhen.errors import InvalidInput

    meta = {**about, "image": str(Path(about["image"]).absolute()), "label": told.label}
    try:
        written = replace(told.trace, meta=meta).save(path)
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be written: {error.strerror or error}.", "Give a file in a folder you can write to."
        ) from None
    sys.stderr.write(f"trace: {written} and {written.with_suffix('.safetensors').name}\n")


def fired_line(facts: dict[str, Any]) -> str:
    """How often a method acted, in words."""
    if facts["fired"] is None:
        return "-"
    tokens, of = facts["fired"]["tokens"], facts["fired"]["of"]
    return f"{tokens} of {of} tokens ({100 * tokens / max(of, 1):.0f}%)"


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

    from seewhen.cli.words import STYLES
    from seewhen.viewer.words import level

    text = Text()
    for number, word in enumerate(facts["words"]):
        bare = word["text"].lstrip() if number else word["text"].strip()
        text.append(word["text"][: len(word["text"]) - len(bare)] if number else "")
        style = STYLES[level(word["risk"])]
        following = facts["words"][number + 1] if number + 1 < len(facts["words"]) else {}
        last = "object" in word and following.get("object") != word["object"]
        sign = "" if not last else "✓" if word["present"] else "✗"
        text.append(bare, f"{style} italic".strip() if number in marked else style)
        if sign:
            text.append(sign, "bold cyan" if word["present"] else "bold magenta")
    return text


def table(shown: Shown) -> Any:
    """One row per method: what it said, how often it fired, what it cost."""
    from rich.table import Table
    from rich.text import Text

    from seewhen.viewer.words import differing

    lines = Table(show_lines=True)
    lines.add_column("method", overflow="fold", max_width=24)
    lines.add_column("said", min_width=24)
    if shown.truth is not None:
        lines.add_column("named", no_wrap=True)
    lines.add_column("fired", max_width=12)
    lines.add_column("cost", max_width=14)
    first = [word["text"] for word in shown.facts[0]["words"]]
    for facts in shown.facts:
        marked = differing(first, [word["text"] for word in facts["words"]])
        cells = [Text(facts["label"]), coloured(facts, marked)]
        if shown.truth is not None:
            cells.append(named_cell(facts))
        lines.add_row(*cells, fired_line(facts), cost_line(facts["cost"]))
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
