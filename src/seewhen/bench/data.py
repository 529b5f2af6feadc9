"""Which files each benchmark needs, under which names they are found, and whether they are the right ones.

Nothing is downloaded here: only `seewhen data get` does that, when asked. A file that is not there gives an
error that says what was looked for and how to get it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from seewhen.bench import mme, pope
from seewhen.bench.answers import read_records
from seewhen.bench.base import Sample
from seewhen.bench.lexicon import read_packaged
from seewhen.errors import InvalidInput, SeewhenError

BENCHMARKS = ("pope", "chair", "mme", "amber")
# ok: the published content; present: there, but no checksum is published; differs: another content.
State = Literal["ok", "present", "differs", "broken", "missing"]

_FROM_POPE = "the folder output/ of github.com/RUCAIBox/POPE"
_FROM_COCO = "annotations_trainval2014.zip of cocodataset.org"
_FROM_AMBER = "the folder data/ of github.com/junyangwang0410/AMBER"
_FROM_MME = "MME_Benchmark_release_version, see github.com/BradyFU/Awesome-Multimodal-Large-Language-Models"


@dataclass(frozen=True)
class Expected:
    """A file of a benchmark: the names it goes by, relative to the data folder, and where to get it."""

    key: str
    names: tuple[str, ...]
    source: str

    @property
    def benchmark(self) -> str:
        return self.key.split("/")[0]


@dataclass(frozen=True)
class Finding:
    """What is known about one expected file."""

    key: str
    state: State
    path: str  # where it is, or where it was expected first
    note: str
    source: str  # where to get it


def _under(prefixes: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    return tuple(prefix + name for prefix in prefixes for name in names)


def _pope_files() -> list[Expected]:
    files = []
    for split in pope.SPLITS:
        name, kind = split.split("-")
        own = (f"pope/{name}/", f"POPE/{name}/", f"output/seem/{name}/")
        stems = (f"{name}_pope_{kind}", f"{name}_pope_seem_{kind}", f"chat/{name}_pope_chat_{kind}")
        names = [f"{stem}.{end}" for stem in stems for end in ("json", "jsonl")]
        names = list(_under(("", "pope/", "POPE/", *own, "output/coco/", "pope_coco/"), names))
        files.append(Expected(f"pope/{split}", tuple(names), _FROM_POPE))
    return files


def _chair_files() -> list[Expected]:
    table = Expected("chair/objects", ("coco_objects.json.gz", "coco_objects.json"), "a table you made before")
    folders = ("", "annotations/", "coco/annotations/", "coco/")
    return [table] + [
        Expected(f"chair/{what}_{part}2014", _under(folders, (f"{what}_{part}2014.json",)), _FROM_COCO)
        for what in ("instances", "captions")
        for part in ("val", "train")
    ]


def _amber_files() -> list[Expected]:
    folders = ("", "amber/", "AMBER/", "data/", "AMBER/data/", "data/query/", "AMBER/data/query/", "query/")
    names = (
        "query_generative.json",
        "query_discriminative-attribute.json",
        "query_discriminative-existence.json",
        "query_discriminative-relation.json",
        "annotations.json",
        "relation.json",
        "safe_words.txt",
    )
    return [Expected(f"amber/{n.rsplit('.', 1)[0]}", _under(folders, (n,)), _FROM_AMBER) for n in names]


_MME_FOLDERS = ("", "mme/", "MME/", "MME_Benchmark_release_version/", "MME_Benchmark/", "Your_Results/")


def _mme_files() -> list[Expected]:
    return [
        Expected(f"mme/{task}", _under(_MME_FOLDERS, (task, f"{task}.txt")), _FROM_MME) for task in mme.SUBTASKS
    ]


EXPECTED: tuple[Expected, ...] = (*_pope_files(), *_chair_files(), *_mme_files(), *_amber_files())


def find(folder: Path, key: str) -> Path | None:
    """The first of an expected file's names that exists."""
    expected = next(e for e in EXPECTED if e.key == key)
    return next((folder / name for name in expected.names if (folder / name).exists()), None)


def locate(folder: Path, key: str) -> Path:
    """As `find`, but a missing file is an error that says what was looked for and how to get it."""
    path = find(folder, key)
    if path is None:
        expected = next(e for e in EXPECTED if e.key == key)
        raise InvalidInput(
            f"{key} is not in {folder}: looked for {', '.join(expected.names[:4])} and similar places.",
            f"`seewhen data get {expected.benchmark} --to {folder}` downloads it; by hand from {expected.source}. "
            f"`seewhen data check {folder}` lists everything.",
        )
    return path


def check(folder: Path, benchmarks: Sequence[str] = BENCHMARKS) -> list[Finding]:
    """Looks at every expected file of these benchmarks."""
    if not folder.is_dir():
        raise InvalidInput(f"There is no folder {folder}.", "Name the folder that holds the benchmarks' files.")
    findings = [_look(folder, expected) for expected in EXPECTED if expected.benchmark in benchmarks]
    # CHAIR needs COCO's four files or a table made from them, not both.
    lacking = {f.key for f in findings if f.state == "missing" and f.key.startswith("chair/")}
    if "chair/objects" not in lacking or lacking == {"chair/objects"}:
        findings = [finding for finding in findings if finding.key not in lacking]
    return findings


def _look(folder: Path, expected: Expected) -> Finding:
    path = find(folder, expected.key)
    if path is None:
        return Finding(expected.key, "missing", expected.names[0], "", expected.source)
    judge = {"pope": _judge_pope, "mme": _judge_mme}.get(expected.benchmark, _judge_file)
    try:
        state, note = judge(expected.key, path)
    except SeewhenError as error:
        state, note = "broken", str(error)
    return Finding(expected.key, state, str(path.relative_to(folder)), note, expected.source)


def _judge_file(key: str, path: Path) -> tuple[State, str]:
    known = read_packaged("checksums.json")["files"].get(key)
    if known is None:
        return "present", f"{path.stat().st_size / 1e6:.1f} MB, no published checksum"
    return ("ok", "") if file_checksum(path) == known else ("differs", "another content than the published file")


def _judge_pope(key: str, path: Path) -> tuple[State, str]:
    samples = pope.load_questions(path, key.split("/")[1])
    note = _describe_questions(samples)
    if content_checksum(samples) == read_packaged("checksums.json")["pope"][key]:
        return "ok", note
    misspelt = sum("imange" in sample.question for sample in samples)
    if misspelt:
        note += f"; {misspelt} questions ask for the 'imange'"
    if len(samples) == 2910:
        note += "; the old file with 90 fewer absent objects"
    return "differs", note


def _describe_questions(samples: Sequence[Sample]) -> str:
    yes = sum(sample.truth == "yes" for sample in samples)
    images = len({sample.image for sample in samples})
    return f"{len(samples)} questions, {images} images, {yes} yes"


def _judge_mme(key: str, path: Path) -> tuple[State, str]:
    subtask = key.split("/")[1]
    samples = mme.load_folder(path.parent, (subtask,))
    note = _describe_questions(samples)
    if len(samples) == mme.QUESTIONS[subtask]:
        return "present", note
    return "differs", f"{note}; {mme.QUESTIONS[subtask]} questions are published"


def file_checksum(path: Path) -> str:
    """SHA-256 of the file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def content_checksum(samples: Iterable[Sample]) -> str:
    """SHA-256 of what is asked, whatever the form of the file: image, question and label in order."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(f"{sample.image}\t{sample.question}\t{sample.truth}\n".encode())
    return digest.hexdigest()


def find_image(folder: Path, image: str) -> Path:
    """The picture of a sample: by its name, or by COCO's names for its number."""
    names: list[str] = [image]
    if image.isdigit():
        number = f"{int(image):012d}.jpg"
        names = [f"COCO_val2014_{number}", f"COCO_train2014_{number}", number]
    elif "/" in image:  # MME keeps some pictures in a folder "images" of the subtask
        names.append("/images/".join(image.rsplit("/", 1)))
    places = (
        "",
        "val2014",
        "train2014",
        "val2017",
        "train2017",
        "images",
        "image",
        "MME_Benchmark_release_version",
    )
    for place in places:
        for name in names:
            if (folder / place / name).is_file():
                return folder / place / name
    raise InvalidInput(
        f"The picture {image} is not in {folder}: looked for {', '.join(names)}.",
        f"Name the folder that holds the images, or the one above {', '.join(places[1:])}; "
        "`seewhen data get` downloads most.",
    )


def read_image_list(path: Path) -> tuple[str, ...]:
    """Image ids, one per line, or the `image_id` of JSON lines; in the order of the file."""
    text = path.read_text(encoding="utf-8") if path.is_file() else None
    if text is None:
        raise InvalidInput(f"There is no file {path}.", "Give a file with one image id per line.")
    if text.lstrip().startswith(("{", "[")):
        return tuple(str(record["image_id"]) for _, record in read_records(path) if "image_id" in record)
    return tuple(line.strip() for line in text.splitlines() if line.strip())
