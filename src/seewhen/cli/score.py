"""`seewhen score`: scores answers that any program wrote."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seewhen.atomic import write
from seewhen.benchmarks import benchmark_class
from seewhen.cli.options import BenchName, Lemmatizer, check_writable
from seewhen.errors import InvalidInput

if TYPE_CHECKING:
    from seewhen.benchmarks.base import Score


_AS_WIDE_AS_IT_IS = 1000  # in a pipe: programs read these figures


def score(
    benchmark: BenchName,
    answers: Annotated[
        Path, typer.Option("--answers", help="Answers as JSON lines or a JSON array; MME: its folder of results.")
    ],
    truth: Annotated[
        list[Path] | None,
        typer.Option(
            "--questions",
            "--objects",
            "--data",
            help="The benchmark's files, by any of these names, as often as needed. POPE: question files. CHAIR: "
            "COCO instances and captions, or a table of objects. MME, AMBER, others: their folder.",
        ),
    ] = None,
    parser: Annotated[
        str | None, typer.Option("--parser", help="How answers are read; see docs/benchmarks.md.")
    ] = None,
    lemmatizer: Lemmatizer = None,
    similarity: Annotated[
        str | None,
        typer.Option(
            "--similarity", help="AMBER: related (the default), spacy (its large English model) or spacy:MODEL."
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            "--labels",
            help="POPE: repope (beside the questions) or a folder: corrected labels as more columns.",
        ),
    ] = None,
    rows: Annotated[
        Path | None, typer.Option("--rows", help="Also write what each sample counts for, as JSON lines.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the score as JSON.")] = False,
) -> None:
    """Score answers written by any program.

    seewhen score pope --questions coco_pope_random.json --answers mine.jsonl --parser C

    seewhen score pope --questions coco_pope_random.json --questions coco_pope_popular.json --answers samples.jsonl

    seewhen score pope --questions coco_pope_random.json --answers mine.jsonl --labels repope

    seewhen score chair --objects instances.json --objects captions.json --answers captions.jsonl

    seewhen score mme --answers Your_Results

    seewhen score mme --questions MME_Benchmark_release_version --answers mine.jsonl

    seewhen score amber --data AMBER/data --answers mine.json --lemmatizer nltk --similarity spacy
    """
    from seewhen.benchmarks.base import Options

    given = {"parser": parser, "lemmatizer": lemmatizer, "similarity": similarity, "labels": labels}
    kind = benchmark_class(benchmark)
    for name, value in given.items():
        if value is not None and name not in kind.options:
            raise InvalidInput(f"{benchmark} has no --{name}.", "Leave it out.")
    check_writable(rows)
    asked, texts = kind.read(answers, truth or [], Options(**given))
    _show(asked.score(texts), rows, as_json)


def _show(score: Score, rows: Path | None, as_json: bool) -> None:
    if rows is not None:
        _write_rows(score, rows)
    if as_json:
        typer.echo(json.dumps(score.to_json(rows=False), indent=2))
    else:
        _print_table(score)
    if score.missing:
        from seewhen.runs.wording import unanswered

        sys.stderr.write(f"warning: {unanswered(score.missing)}; the score is of the other {len(score.rows)}.\n")


def _write_rows(score: Score, path: Path) -> None:
    lines = (json.dumps(row, ensure_ascii=False) for row in score.to_json()["rows"])
    write(path, "\n".join(lines) + "\n")


def _print_table(score: Score) -> None:
    """One line per group, one column per metric; the headline figures come first."""
    from rich.table import Table

    from seewhen.cli.tables import table_console

    lines: dict[str, dict[str, float]] = {}
    for name, value in score.metrics.items():
        group, _, metric = name.rpartition("/")
        lines.setdefault(group, {})[metric] = value
    settings = ", ".join(f"{name} {value}" for name, value in score.settings.items() if len(value) < 40)
    console = table_console(_AS_WIDE_AS_IT_IS)
    console.print(f"{score.benchmark}: {len(score.rows)} answers; {settings}")
    # The headline figures and those of groups have different columns, so they get tables of their own.
    for names in (tuple(g for g in lines if not g), tuple(g for g in lines if g)):
        if not names:
            continue
        metrics = list(dict.fromkeys(metric for name in names for metric in lines[name]))
        table = Table("", *metrics)
        for name in names:
            cells = [f"{lines[name][metric]:.2f}" if metric in lines[name] else "" for metric in metrics]
            table.add_row(name or "all", *cells)
        console.print(table)
