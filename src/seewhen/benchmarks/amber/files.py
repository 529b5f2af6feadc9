"""AMBER's files: queries and annotations from GitHub, pictures from a copy on the hub (stzhao/amber)."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path, PurePosixPath

from typing_extensions import TypedDict

from seewhen.benchmarks.amber.related import Words
from seewhen.benchmarks.base import Sample
from seewhen.benchmarks.download import RemoteFile
from seewhen.benchmarks.files import Expected, under
from seewhen.benchmarks.records import pick, read_records
from seewhen.benchmarks.sources import SourcePart, hub_part, unzip
from seewhen.errors import InvalidInput
from seewhen.reading import check_form, read_json, read_text

_REPOSITORY = (
    "https://raw.githubusercontent.com/junyangwang0410/AMBER/534babf6bbfcce2e735c26289dedfb21cef3c939/data"
)
_SOURCE = "the folder data/ of github.com/junyangwang0410/AMBER"
_FOLDERS = ("", "amber/", "AMBER/", "data/", "AMBER/data/", "data/query/", "AMBER/data/query/", "query/")
_QUERIES = (
    "query_generative",
    "query_discriminative-attribute",
    "query_discriminative-existence",
    "query_discriminative-relation",
)
_TAKE = "Take AMBER's file."
GENERATIVE = "generative"
# The annotations' own names of the five kinds of question, and ours.
_KINDS = {
    "generative": GENERATIVE,
    "discriminative-hallucination": "existence",
    "discriminative-attribute-state": "state",
    "discriminative-attribute-number": "number",
    "discriminative-attribute-action": "action",
    "discriminative-relation": "relation",
    "relation": "relation",
}


class _Described(TypedDict):
    truth: list[str]
    hallu: list[str]


class _Asked(TypedDict):
    truth: str


def _expected() -> dict[str, Expected]:
    sums = json.loads(resources.files(__package__).joinpath("checksums.json").read_text(encoding="utf-8"))["files"]
    names = {stem: f"{stem}.json" for stem in (*_QUERIES, "annotations", "relation")}
    names["safe_words"] = "safe_words.txt"
    return {
        stem: Expected(f"amber/{stem}", under(_FOLDERS, (name,)), _SOURCE, sums[stem])
        for stem, name in names.items()
    }


FILES = _expected()


def downloads() -> list[SourcePart]:
    """Queries and annotations as published; pictures from a copy."""
    names = {file.names[0]: file.checksum for file in FILES.values()}
    files = [
        RemoteFile(
            f"{_REPOSITORY}/{'query/' if name.startswith('query_') else ''}{name}",
            name,
            checksum=f"sha256:{checksum}",
        )
        for name, checksum in names.items()
    ]
    return [
        SourcePart(
            "queries, annotations", "github.com/junyangwang0410/AMBER", "Apache-2.0", 4_200_000, lambda _: files
        ),
        hub_part(
            "1,004 pictures",
            "stzhao/amber",
            "AMBER.zip",
            "a copy, by others, of the authors' archive",
            lambda archives, folder: unzip(archives, folder, _place),
        ),
    ]


def _place(member: PurePosixPath) -> str | None:
    wanted = re.fullmatch(r"AMBER_\d+\.jpg", member.name) and "__MACOSX" not in member.parts
    return f"image/{member.name}" if wanted else None


def load_questions(folder: Path) -> tuple[tuple[Sample, ...], dict[str, tuple[str, ...]]]:
    """All questions, and for each description the objects that a model tends to invent there."""
    queries = _load_queries(folder)
    annotations = FILES["annotations"].locate(folder)
    samples: list[Sample] = []
    likely: dict[str, tuple[str, ...]] = {}
    for number, record in read_records(annotations):
        key = str(pick(annotations, number, record, ("id",)))
        kind = _KINDS.get(str(record.get("type")))
        where = f"{annotations}, element {number}"
        if kind is None or key not in queries:
            raise InvalidInput(f"{where}: unknown type or no query with id {key}.", _TAKE)
        check_form(_Described if kind == GENERATIVE else _Asked, record, where, _TAKE)
        image, question = queries[key]
        truth = record["truth"]
        if kind == GENERATIVE:
            likely[key] = tuple(record["hallu"])
            truth = tuple(truth)
        samples.append(Sample(key, image, question, truth, kind))
    return tuple(samples), likely


def _load_queries(folder: Path) -> dict[str, tuple[str, str]]:
    """Image and question by id."""
    queries: dict[str, tuple[str, str]] = {}
    for stem in _QUERIES:
        path = FILES[stem].locate(folder)
        for number, record in read_records(path):
            key, image, question = (str(pick(path, number, record, (name,))) for name in ("id", "image", "query"))
            queries[key] = image, question
    return queries


def load_words(folder: Path) -> Words:
    """The lists of related and of safe words."""
    relation = FILES["relation"].locate(folder)
    content = read_json(relation)
    check_form(dict[str, list[str]], content, relation, _TAKE)
    lines = read_text(FILES["safe_words"].locate(folder)).split("\n")
    safe = frozenset(line.removesuffix("\r") for line in lines) - {""}  # a checkout on Windows has both
    return Words({word: tuple(others) for word, others in content.items()}, safe)
