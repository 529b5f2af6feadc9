"""MME: 14 subtasks, two yes/no questions per image (Fu et al., 2023).

Rules of the official evaluation tool, distributed with BradyFU/Awesome-Multimodal-Large-Language-Models.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from seewhen.benchmarks import choose
from seewhen.benchmarks.base import Benchmark, Metric, Options, Row, Sample
from seewhen.benchmarks.files import Expected, State, find_image
from seewhen.benchmarks.mme import files as mme_files
from seewhen.benchmarks.mme.prompts import STYLES
from seewhen.benchmarks.mme.questions import (
    COGNITION,
    HALLUCINATION,
    PERCEPTION,
    SUBTASKS,
    bare_question,
    load_folder,
    load_llava_answers,
    load_results,
    questions_from,
)
from seewhen.benchmarks.sources import SourcePart
from seewhen.benchmarks.sums import Sum, Totals, percent
from seewhen.benchmarks.yesno import Verdict
from seewhen.errors import InvalidInput, InvalidMethod

PARSERS = ("official", "lmms-eval")


def parse(answer: str, parser: str = "official") -> Verdict:
    """The tool's reading: exactly yes or no, else whatever the first four characters contain."""
    text = answer.lower()
    if parser == "lmms-eval":
        text = text.strip().replace(".", "")
        text = {"y": "yes", "n": "no"}.get(text, text)
    elif parser != "official":
        raise InvalidMethod(f"There is no MME parser {parser!r}.", f"Use one of {', '.join(PARSERS)}.")
    if "yes" in text[:4]:
        return "yes"
    return "no" if "no" in text[:4] else "other"


@dataclass(frozen=True)
class Mme(Benchmark):
    """MME questions of some or all subtasks."""

    name: ClassVar = "mme"
    metrics: ClassVar = (
        Metric("hallucination", "Hallucination (800)", 1),
        Metric("perception", "Perception (2000)", 1),
        Metric("cognition", "Cognition (800)", 1),
    )
    by_part: ClassVar = ("score",)
    styles: ClassVar = STYLES
    options: ClassVar = ("split", "parser")
    parts: ClassVar = SUBTASKS
    part_groups: ClassVar = {"hallucination": HALLUCINATION, "perception": PERCEPTION, "cognition": COGNITION}
    scene_kinds: ClassVar = ()
    files: ClassVar = tuple(mme_files.FILES.values())

    questions: tuple[Sample, ...]
    parser: str = "official"

    @property
    def settings(self) -> dict[str, str]:
        return {"parser": self.parser, "subtasks": ",".join(dict.fromkeys(q.split for q in self.questions))}

    def samples(self) -> Sequence[Sample]:
        return self.questions

    def prompt(self, sample: Sample, style: str | None = None) -> str:
        return super().prompt(replace(sample, question=bare_question(sample.question)), style)

    def rows(self, answers: Mapping[str, str]) -> list[Row]:
        answered: dict[tuple[str, str], list[Sample]] = {}
        for sample in self.questions:
            if sample.id in answers:
                answered.setdefault((sample.split, sample.image), []).append(sample)
        return [row for samples in answered.values() for row in self._of_image(samples, answers)]

    def _of_image(self, samples: Sequence[Sample], answers: Mapping[str, str]) -> Iterable[Row]:
        """The questions of one image. What holds for the image as a whole is booked on its first row:
        images are resampled whole, so the sums stay right."""
        verdicts = [parse(answers[sample.id], self.parser) for sample in samples]
        if not all(sample.truth for sample in samples):
            raise InvalidInput(
                f"The right answers of MME subtask {samples[0].split} are not known.",
                "Question files in LLaVA's form hold none: give MME's own folder.",
            )
        both = all(verdict == sample.truth for verdict, sample in zip(verdicts, samples, strict=True))
        for place, (sample, verdict) in enumerate(zip(samples, verdicts, strict=True)):
            first = int(place == 0)
            counts = {
                "questions": 1,
                "right": int(verdict == sample.truth),
                "images": first,
                "images_right": first * int(both and len(samples) == 2),
                "other": int(verdict == "other"),
            }
            detail = {"label": sample.truth, "parsed": verdict, "answer": answers[sample.id]}
            yield Row(sample.id, sample.image, sample.split, counts["right"], counts, detail)

    @classmethod
    def summarise(cls, totals: Totals) -> dict[str, Sum]:
        """Points of each subtask (accuracy + accuracy+, at most 200) and of the groups that are complete."""
        metrics: dict[str, Sum] = {}
        points: dict[str, Sum] = {}
        for subtask, sums in totals.items():
            accuracy = percent(sums["right"], sums["questions"])
            accuracy_plus = percent(sums["images_right"], sums["images"])
            points[subtask] = accuracy + accuracy_plus
            metrics[f"{subtask}/score"] = points[subtask]
            metrics[f"{subtask}/acc"] = accuracy
            metrics[f"{subtask}/acc+"] = accuracy_plus
            metrics[f"{subtask}/other_rate"] = percent(sums["other"], sums["questions"])
        headline: dict[str, Sum] = {
            name: sum(points[subtask] for subtask in subtasks)
            for name, subtasks in cls.part_groups.items()
            if points.keys() >= set(subtasks)  # a partial sum would look like a bad score
        }
        return headline | metrics

    @classmethod
    def open(cls, folder: Path, options: Options) -> Mme:
        wanted = choose(options.split, cls.parts, cls.part_groups)
        if options.split is None:
            wanted = [task for task in wanted if mme_files.FILES[task].find(folder)] or wanted
        places = [(task, mme_files.FILES[task].locate(folder).parent) for task in wanted]
        questions = tuple(question for task, place in places for question in load_folder(place, (task,)))
        return cls(questions, options.parser or cls.parser)

    @classmethod
    def of_scenes(cls, part: str, kind: str, count: int, options: Options) -> Mme:
        from seewhen.scenes import dataset, mme
        from seewhen.scenes.questions import SUBTASKS as ASKED

        pictures = dataset(part, count)  # type: ignore[arg-type]
        asked = [(subtask, dict(record)) for subtask in ASKED for record in mme(pictures, subtask)]
        return cls(questions_from(asked), options.parser or cls.parser)

    @classmethod
    def read(cls, answers: Path, paths: Sequence[Path], options: Options) -> tuple[Mme, dict[str, str]]:
        """The tool's folder of result files, or LLaVA's JSON lines with MME's own folder in `paths`."""
        parser = options.parser or cls.parser
        if answers.is_dir():
            questions, given = load_results(answers)
            return cls(questions, parser), given
        if len(paths) != 1:
            raise InvalidInput(
                "JSON lines hold no right answers.",
                "Name MME's folder with --questions, or give its result files.",
            )
        questions = load_folder(paths[0])
        return cls(questions, parser), load_llava_answers(answers, questions)

    def picture(self, sample: Sample, folder: Path) -> Path:
        """By its path below MME's folder; some subtasks keep pictures in a folder `images`."""
        names = (sample.image, "/images/".join(sample.image.rsplit("/", 1)))
        for place in ("", "mme", "MME", mme_files.RELEASE):
            for inner in ("", sample.split):
                for name in names:
                    if (folder / place / inner / name).is_file():
                        return folder / place / inner / name
        return find_image(folder, sample.image)

    @classmethod
    def look(cls, expected: Expected, path: Path) -> tuple[State, str]:
        return mme_files.look(expected, path)

    @classmethod
    def downloads(cls, image_list: str | None) -> list[SourcePart]:
        return mme_files.downloads()

    @classmethod
    def published(cls, metric: str, split: str, max_new_tokens: int) -> Mapping[str, Any]:
        return {"metric": "score" if metric == "hallucination" else metric.rpartition("/")[0]}
