"""POPE: "Is there a {object} in the image?" (Li et al., EMNLP 2023; questions: RUCAIBox/POPE, MIT)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from seewhen.benchmarks import choose
from seewhen.benchmarks.base import Benchmark, Metric, Options, Row, Sample
from seewhen.benchmarks.chair.coco import image_key
from seewhen.benchmarks.files import Expected, State
from seewhen.benchmarks.pope import files as pope_files
from seewhen.benchmarks.pope.prompts import STYLES
from seewhen.benchmarks.pope.questions import KINDS, SETS, SPLITS, load_answers, load_questions, questions_from
from seewhen.benchmarks.pope.repope import Labels, labels_in, labels_named
from seewhen.benchmarks.sources import SourcePart
from seewhen.benchmarks.sums import Sum, Totals, percent
from seewhen.benchmarks.yesno import count_answer, matthews, parser_named, yes_no_metrics
from seewhen.errors import InvalidInput

_CORRECTED = "repope_"  # counts and metrics by RePOPE's labels


@dataclass(frozen=True)
class Pope(Benchmark):
    """POPE questions of one or several splits, and the parser that reads the answers."""

    name: ClassVar = "pope"
    metrics: ClassVar = (
        Metric("accuracy", "Accuracy", 1),
        Metric("f1", "F1", 1),
        Metric("precision", "Precision", 1),
        Metric("recall", "Recall", 1),
        Metric("yes_ratio", "Yes ratio", 0),
        Metric("other_rate", "Neither", -1),
        Metric("repope_accuracy", "RePOPE accuracy", 1),
        Metric("repope_f1", "RePOPE F1", 1),
        Metric("repope_mcc", "RePOPE MCC", 1),
    )
    by_part: ClassVar = ("accuracy", "f1", "repope_accuracy")
    styles: ClassVar = STYLES
    options: ClassVar = ("split", "parser", "labels")
    parts: ClassVar = SPLITS
    part_groups: ClassVar = {name: [s for s in SPLITS if s.startswith(name)] for name in SETS}
    scene_kinds: ClassVar = KINDS
    files: ClassVar = tuple(pope_files.FILES.values())
    by_hand: ClassVar = pope_files.BY_HAND

    questions: tuple[Sample, ...]
    parser: str = "C"
    corrected: Labels = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, str]:
        return {"parser": self.parser, "splits": ",".join(dict.fromkeys(q.split for q in self.questions))}

    def samples(self) -> Sequence[Sample]:
        return self.questions

    def rows(self, answers: Mapping[str, str]) -> list[Row]:
        parse = parser_named(self.parser)
        rows = []
        for sample in self.questions:
            if sample.id not in answers:
                continue
            label, answer = str(sample.truth), answers[sample.id]
            verdict = parse(answer, label)
            counts = count_answer(verdict, label, "yes", answer)
            detail = {"label": label, "parsed": verdict, "answer": answer}
            corrected = self.corrected.get((image_key(sample.image), sample.question))
            if corrected and not sample.split.startswith(SETS[1:]):  # only COCO's questions were looked at again
                again = count_answer(parse(answer, corrected), corrected, "yes", answer)
                counts |= {f"{_CORRECTED}{name}": count for name, count in again.items()}
                detail["corrected"] = corrected
            rows.append(Row(sample.id, sample.image, sample.split, counts["right"], counts, detail))
        return rows

    @classmethod
    def summarise(cls, totals: Totals) -> dict[str, Sum]:
        """Each split's metrics, and as headline the mean over splits, as the papers average."""
        by_split = {split: _of_split(sums) for split, sums in totals.items()}
        metrics: dict[str, Sum] = {}
        for name in dict.fromkeys(name for values in by_split.values() for name in values):
            having = [values[name] for values in by_split.values() if name in values]
            metrics[name] = sum(having) / len(having)
        if len(by_split) > 1:
            for split, values in by_split.items():
                metrics.update({f"{split}/{name}": value for name, value in values.items()})
        return metrics

    @classmethod
    def open(cls, folder: Path, options: Options) -> Pope:
        wanted = choose(options.split, cls.parts, cls.part_groups)
        if options.split is None:
            wanted = [split for split in wanted if pope_files.FILES[split].find(folder)] or wanted
        paths = [(split, pope_files.FILES[split].locate(folder)) for split in wanted]
        questions = tuple(question for split, path in paths for question in load_questions(path, split))
        return cls(questions, options.parser or cls.parser, labels_in(folder))

    @classmethod
    def of_scenes(cls, part: str, kind: str, count: int, options: Options) -> Pope:
        from seewhen.scenes import dataset, pope

        pictures = dataset(part, count)  # type: ignore[arg-type]
        questions: list[Sample] = []
        for each in (kind,) if kind else KINDS:
            records = pope(pictures, each)  # type: ignore[arg-type]
            questions += questions_from(enumerate(records, 1), f"{part}-{each}", Path("scenes"))
        return cls(tuple(questions), options.parser or cls.parser)

    @classmethod
    def read(cls, answers: Path, paths: Sequence[Path], options: Options) -> tuple[Pope, dict[str, str]]:
        """`paths` are question files in any published form."""
        if not paths:
            raise InvalidInput("The questions are not named.", "Give POPE's question files with --questions.")
        asked = tuple(question for path in paths for question in load_questions(path))
        corrected = labels_named(options.labels or "pope", paths)
        return cls(asked, options.parser or cls.parser, corrected), load_answers(answers, asked)

    @classmethod
    def look(cls, expected: Expected, path: Path) -> tuple[State, str]:
        return pope_files.look(expected, path)

    @classmethod
    def downloads(cls, image_list: str | None) -> list[SourcePart]:
        return pope_files.downloads()

    @classmethod
    def published(cls, metric: str, split: str, max_new_tokens: int) -> Mapping[str, Any]:
        group, _, inner = metric.rpartition("/")
        dataset, _, kind = (group or split).partition("-")
        return {"dataset": dataset, "split": kind, "metric": inner}


def _of_split(sums: Mapping[str, Sum]) -> dict[str, Sum]:
    metrics = {
        **yes_no_metrics(sums),
        "yes_ratio": percent(sums["said_positive"], sums["questions"]),
        "other_rate": percent(sums["other"], sums["questions"]),
    }
    again = {n.removeprefix(_CORRECTED): total for n, total in sums.items() if n.startswith(_CORRECTED)}
    if again:
        found = {**yes_no_metrics(again), "mcc": matthews(again)}
        metrics |= {f"{_CORRECTED}{name}": found[name] for name in ("accuracy", "f1", "mcc")}
    return metrics
