"""What a benchmark is: questions about images, how answers count, which metrics follow, where its files are.

A benchmark gives `Sample`s, turns each into a prompt, and scores answers. A score keeps, besides its
metrics, one `Row` of integer counts per sample: every metric is a function of *sums* of these counts
(`Benchmark.summarise`), so whoever resamples images only has to add up rows again.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from seewhen.benchmarks.files import Expected, State, find_image, look_at
from seewhen.benchmarks.prompts import Style, style_named
from seewhen.benchmarks.records import read_answers
from seewhen.benchmarks.sums import Sum, Totals
from seewhen.errors import InvalidInput

if TYPE_CHECKING:
    from seewhen.benchmarks.sources import SourcePart


@dataclass(frozen=True)
class Sample:
    """One question about one image."""

    id: str  # unique within the benchmark
    image: str  # file name or id, as the benchmark's own files give it; also the cluster of the bootstrap
    question: str  # as published, without any paper's wrapper or suffix
    truth: str | tuple[str, ...]  # "yes" / "no", or the objects of the image; "" where not published
    split: str  # "coco-random", "existence", "generative" ...: the group its counts are added up in


@dataclass(frozen=True)
class Row:
    """What one sample adds to the sums.

    `right` is 1 or 0 for the sample as a whole (a yes/no question answered correctly, a caption without
    a hallucination), for paired tests. `detail` explains the row to a reader; no metric depends on it.
    """

    id: str
    cluster: str
    group: str
    right: int
    counts: Mapping[str, int]
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Score:
    """Metrics in percent (or points, where the benchmark counts points) and the rows behind them.

    A metric of one group is named `group/metric`; a bare name is the benchmark's headline figure.
    """

    benchmark: str
    settings: Mapping[str, str]
    metrics: Mapping[str, float]
    rows: tuple[Row, ...]
    missing: int = 0  # samples without an answer; they are left out of the metrics

    def to_json(self, rows: bool = True) -> dict[str, Any]:
        """Plain data for `json.dumps`."""
        plain: dict[str, Any] = {
            "benchmark": self.benchmark,
            "settings": dict(self.settings),
            "metrics": dict(self.metrics),
            "samples": len(self.rows),
            "missing": self.missing,
        }
        if rows:
            plain["rows"] = [asdict(row) for row in self.rows]
        return plain


@dataclass(frozen=True)
class Metric:
    """How a metric is shown: `better` is +1 where more is better, -1 where less is, 0 where neither."""

    name: str
    title: str
    better: int
    unit: str = "points"
    price: bool = False  # what the first metric is paid with: a report names every real change of it


@dataclass(frozen=True)
class Options:
    """What can be chosen when a benchmark is opened; `Benchmark.options` names those it reads."""

    split: str | None = None  # parts, separated by commas
    parser: str | None = None
    lemmatizer: str | None = None
    similarity: str | None = None
    image_list: str | None = None
    labels: str | None = None


class Benchmark(ABC):
    """Everything that commands, runs and reports ask a benchmark. Subclasses are frozen dataclasses."""

    name: ClassVar[str]
    metrics: ClassVar[tuple[Metric, ...]]  # the headline figures; the first is the one it is judged by
    by_part: ClassVar[tuple[str, ...]] = ()  # metrics that a report also shows part by part
    styles: ClassVar[Mapping[str, Style]] = {"plain": Style(None)}
    default_style: ClassVar[str] = "plain"
    options: ClassVar[tuple[str, ...]] = ()  # fields of `Options` that it reads
    parts: ClassVar[tuple[str, ...]] = ()  # names for --split that are known before any file is read
    part_groups: ClassVar[Mapping[str, Sequence[str]]] = {}  # names for several of them
    scene_kinds: ClassVar[tuple[str, ...] | None] = None  # None: not made from scenes; () if without kinds
    files: ClassVar[tuple[Expected, ...]] = ()
    answers_are: ClassVar[str] = "answers"  # or captions
    length_counts: ClassVar[bool] = False  # whether its scores depend on how long an answer may be
    by_hand: ClassVar[str] = ""  # what `seewhen data get` cannot download

    @property
    def settings(self) -> Mapping[str, str]:
        """Whatever changes the score: parser, lemmatizer, data files. Goes into the run's manifest."""
        return {}

    @abstractmethod
    def samples(self) -> Sequence[Sample]:
        """All questions, in the published order."""

    @abstractmethod
    def rows(self, answers: Mapping[str, str]) -> Sequence[Row]:
        """What each answered sample counts for; `answers` are texts by sample id."""

    @classmethod
    @abstractmethod
    def summarise(cls, totals: Totals) -> dict[str, Sum]:
        """Metrics from sums of counts. Arrays of sums give arrays of metrics: a bootstrap calls it once."""

    @classmethod
    @abstractmethod
    def open(cls, folder: Path, options: Options) -> Self:
        """From the folder that holds its files."""

    @classmethod
    def of_scenes(cls, part: str, kind: str, count: int, options: Options) -> Self:
        """From `count` packaged scenes; needed where `scene_kinds` is not None."""
        raise NotImplementedError

    def prompt(self, sample: Sample, style: str | None = None) -> str:
        """The text shown to the model."""
        return style_named(self.styles, style or self.default_style).text(sample.question)

    def score(self, answers: Mapping[str, str]) -> Score:
        """Scores answers given by sample id; an id that is no sample's is an error."""
        samples = self.samples()
        refuse_unknown(answers, (sample.id for sample in samples), self.name)
        rows = self.rows(answers)
        return make_score(self, rows, missing=len(samples) - len(rows))

    @classmethod
    def read(cls, answers: Path, paths: Sequence[Path], options: Options) -> tuple[Benchmark, dict[str, str]]:
        """For `seewhen score`: the benchmark from the files named, and answers by sample id."""
        if len(paths) != 1:
            raise InvalidInput(f"{cls.name} is scored with one folder.", "Name it with --data.")
        return cls.open(paths[0], options), read_answers(answers, ("id", "question_id", "image_id"))

    def picture(self, sample: Sample, folder: Path) -> Path:
        """The sample's picture in a folder of pictures."""
        return find_image(folder, sample.image)

    def shown(self, image: str) -> tuple[str, ...] | None:
        """The objects in an image, where the benchmark knows all of them."""
        return None

    @classmethod
    def look(cls, expected: Expected, path: Path) -> tuple[State, str]:
        """Whether a file is the published one, and a note on it."""
        return look_at(expected, path)

    @classmethod
    def downloads(cls, image_list: str | None) -> list[SourcePart]:
        """What `seewhen data get` brings; may ask the hub."""
        raise InvalidInput(f"{cls.name} cannot be downloaded by this command.", "Get its files from its authors.")

    @classmethod
    def published(cls, metric: str, split: str, max_new_tokens: int) -> Mapping[str, Any] | None:
        """What names this metric's cell in the paper's tables, beside model and method."""
        return None

    @classmethod
    def metric(cls, name: str) -> Metric:
        """How a metric of this name, of the whole or of a part, is shown."""
        part, _, inner = name.rpartition("/")
        known = next((m for m in cls.metrics if m.name == inner), Metric(inner, inner, 1))
        return Metric(name, f"{part} {known.title}".strip(), known.better, known.unit, known.price and not part)


def add_up(rows: Iterable[Row]) -> dict[str, dict[str, Sum]]:
    """Sums of the rows' counts, group by group, in the order in which groups first occur."""
    totals: dict[str, dict[str, Sum]] = {}
    for row in rows:
        sums = totals.setdefault(row.group, {})
        for name, count in row.counts.items():
            sums[name] = sums.get(name, 0) + count
    return totals


def make_score(benchmark: Benchmark, rows: Iterable[Row], missing: int) -> Score:
    """The score of these rows."""
    rows = tuple(rows)
    _check_rows(benchmark.name, rows)
    metrics = {name: float(value) for name, value in benchmark.summarise(add_up(rows)).items()}
    return Score(benchmark.name, benchmark.settings, metrics, rows, missing)


def _check_rows(benchmark: str, rows: Sequence[Row]) -> None:
    """Refuse what would be lost later: counts are kept as whole numbers, and rows by their sample's id."""
    seen: set[str] = set()
    for row in rows:
        if row.id in seen:
            raise InvalidInput(f"{benchmark} counts the sample {row.id} twice.", "Give each sample one row.")
        seen.add(row.id)
        counts: Mapping[str, object] = row.counts  # whatever the type says
        for name, count in counts.items():
            if not isinstance(count, Integral):
                raise InvalidInput(
                    f"{benchmark} counts {name}={count!r:.40} for the sample {row.id}, which is no whole number.",
                    "Count in whole numbers and divide in summarise.",
                )


def check_samples(benchmark: str, samples: Sequence[Sample]) -> None:
    """Refuse questions that cannot be told apart, and none at all."""
    if not samples:
        raise InvalidInput(f"{benchmark} asks no questions.", "Look at its files.")
    seen: set[str] = set()
    for sample in samples:
        if not isinstance(sample.id, str) or not isinstance(sample.image, str):
            raise InvalidInput(
                f"{benchmark} has the sample {sample.id!r:.40} about {sample.image!r:.40}: one is no text.",
                "Write id and image as text: str(number).",
            )
        if sample.id in seen:
            raise InvalidInput(f"{benchmark} has the sample {sample.id} twice.", "Number the samples apart.")
        seen.add(sample.id)


def refuse_unknown(answers: Mapping[str, str], known: Iterable[str], benchmark: str) -> None:
    """Answers to questions that were never asked mean that two files do not belong together."""
    unknown = sorted(answers.keys() - set(known))
    if unknown:
        shown = ", ".join(unknown[:3]) + (" ..." if len(unknown) > 3 else "")
        raise InvalidInput(
            f"{len(unknown)} of {len(answers)} answers belong to no {benchmark} sample: {shown}.",
            "Check that answers and questions are of the same benchmark and split.",
        )


def content_checksum(samples: Iterable[Sample]) -> str:
    """SHA-256 of what is asked, whatever the form of the file: image, question and label in order."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(f"{sample.image}\t{sample.question}\t{sample.truth}\n".encode())
    return digest.hexdigest()
