"""`seewhen score`: scores answers that any program wrote."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seewhen.atomic import replacing

if TYPE_CHECKING:
    from seewhen.bench.base import Score

AnswersFile = Annotated[Path, typer.Option("--answers", help="Answers as JSON lines (or a JSON array).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the score as JSON.")]
RowsFile = Annotated[
    Path | None, typer.Option("--rows", help="Also write what each sample counts for, as JSON lines.")
]
LemmatizerName = Annotated[str, typer.Option("--lemmatizer", help="offline (needs nothing) or nltk.")]


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    score = typer.Typer(
        help="Score answers written by any program: POPE, CHAIR, MME, AMBER.", no_args_is_help=True
    )
    for command in (pope, chair, mme, amber):
        score.command()(command)
    app.add_typer(score, name="score")


def pope(
    answers: AnswersFile,
    questions: Annotated[
        list[Path],
        typer.Option(
            "--questions", help="POPE's question file, in any published form; several for the answers of a run."
        ),
    ],
    parser: Annotated[
        str, typer.Option("--parser", help="A, B, C, D, E or strict; see docs/benchmarks.md.")
    ] = "C",
    rows: RowsFile = None,
    as_json: AsJson = False,
) -> None:
    """POPE: lines with question_id and text (or answer, response).

    seewhen score pope --questions coco_pope_random.json --answers mine.jsonl --parser C

    seewhen score pope --questions coco_pope_random.json --questions coco_pope_popular.json --answers samples.jsonl
    """
    from seewhen.bench.pope import Pope, load_answers, load_questions

    asked = tuple(question for path in questions for question in load_questions(path))
    _show(Pope(asked, parser).score(load_answers(answers, asked)), rows, as_json)


def chair(
    answers: AnswersFile,
    objects: Annotated[
        list[Path],
        typer.Option(
            "--objects",
            help="COCO instances and captions files (give the option several times), or a table of objects.",
        ),
    ],
    lemmatizer: LemmatizerName = "offline",
    rows: RowsFile = None,
    as_json: AsJson = False,
) -> None:
    """CHAIR: lines with image_id and caption.

    seewhen score chair --answers captions.jsonl --objects instances.json --objects captions.json
    """
    from seewhen.bench.chair import CaptionReader, Chair, load_captions
    from seewhen.bench.coco import load_objects

    reader = CaptionReader(lemmatizer)
    captions = load_captions(answers)
    truth = load_objects(objects, reader.lexicon, reader.objects)
    _show(Chair(truth, tuple(captions), reader).score(captions), rows, as_json)


def mme(
    answers: Annotated[
        Path, typer.Option("--answers", help="Folder of MME result files, or LLaVA-style JSON lines.")
    ],
    questions: Annotated[
        Path | None, typer.Option("--questions", help="MME's folder; needed for JSON lines.")
    ] = None,
    parser: Annotated[str, typer.Option("--parser", help="official or lmms-eval.")] = "official",
    rows: RowsFile = None,
    as_json: AsJson = False,
) -> None:
    """MME: a folder with one tab-separated file per subtask (image, question, Yes or No, response).

    seewhen score mme --answers Your_Results

    seewhen score mme --answers mine.jsonl --questions MME_Benchmark_release_version
    """
    from dataclasses import replace

    from seewhen.bench.mme import Mme, load_folder, load_llava_answers, load_results
    from seewhen.errors import InvalidInput

    if answers.is_dir():
        benchmark, given = load_results(answers)
        benchmark = replace(benchmark, parser=parser)
    elif questions is None:
        raise InvalidInput(
            "JSON lines hold no right answers.",
            "Name MME's folder with --questions, or give its result files.",
        )
    else:
        benchmark = Mme(load_folder(questions), parser)
        given = load_llava_answers(answers, benchmark.questions)
    _show(benchmark.score(given), rows, as_json)


def amber(
    answers: AnswersFile,
    data: Annotated[Path, typer.Option("--data", help="Folder with AMBER's queries and annotations.")],
    parser: Annotated[str, typer.Option("--parser", help="literal (as published) or strict.")] = "literal",
    lemmatizer: LemmatizerName = "offline",
    similarity: Annotated[
        str,
        typer.Option(
            "--similarity", help="related (AMBER's list), spacy (its large English model) or spacy:MODEL."
        ),
    ] = "related",
    rows: RowsFile = None,
    as_json: AsJson = False,
) -> None:
    """AMBER: records with id and response, of the generative task, the discriminative one, or both.

    seewhen score amber --data AMBER/data --answers mine.json

    seewhen score amber --data AMBER/data --answers mine.json --lemmatizer nltk --similarity spacy
    """
    from seewhen.bench.amber import load_amber, load_answers

    benchmark = load_amber(data, lemmatizer, parser, similarity)
    _show(benchmark.score(load_answers(answers)), rows, as_json)


def _show(score: Score, rows: Path | None, as_json: bool) -> None:
    if rows is not None:
        _write_rows(score, rows)
    if as_json:
        typer.echo(json.dumps(score.to_json(rows=False), indent=2))
    else:
        _print_table(score)
    if score.missing:
        sys.stderr.write(
            f"warning: {score.missing} samples have no answer; the score is of the other {len(score.rows)}.\n"
        )


def _write_rows(score: Score, path: Path) -> None:
    lines = (json.dumps(row, ensure_ascii=False) for row in score.to_json()["rows"])
    with replacing(path) as partial:
        Path(partial).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _print_table(score: Score) -> None:
    """One line per group, one column per metric; the headline figures come first."""
    from rich.console import Console
    from rich.table import Table

    lines: dict[str, dict[str, float]] = {}
    for name, value in score.metrics.items():
        group, _, metric = name.rpartition("/")
        lines.setdefault(group, {})[metric] = value
    settings = ", ".join(f"{name} {value}" for name, value in score.settings.items() if len(value) < 40)
    console = Console()
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
