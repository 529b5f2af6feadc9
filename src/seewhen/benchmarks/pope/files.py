"""POPE's question files: their names, checksums and origin.

COCO's questions and pictures come from the hub (lmms-lab/POPE), questions on A-OKVQA and GQA from GitHub
(RUCAIBox/POPE), COCO's corrected labels too (YanNeu/RePOPE).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from seewhen.atomic import write
from seewhen.benchmarks.base import content_checksum
from seewhen.benchmarks.download import DownloadFailed, RemoteFile
from seewhen.benchmarks.files import Expected, State, under
from seewhen.benchmarks.pope import repope
from seewhen.benchmarks.pope.questions import KINDS, SPLITS, load_questions
from seewhen.benchmarks.sources import (
    COCO_TERMS,
    PICTURE_SIZE,
    SourcePart,
    coco_pictures,
    hub_part,
    plain_name,
)
from seewhen.benchmarks.yesno import describe_questions
from seewhen.errors import MissingDependency

_REPOSITORY = (
    "https://raw.githubusercontent.com/RUCAIBox/POPE/3df3ba1b110ecce25696989577fad583b67d4239/output/seem"
)
_REPOPE = "https://raw.githubusercontent.com/YanNeu/RePOPE/bcf22e5690d587cce34e1728af3efdcfaf747d29/annotations"
BY_HAND = "GQA's pictures are only in images.zip (20 GB) of cs.stanford.edu/people/dorarad/gqa."


def _expected(split: str) -> Expected:
    name, kind = split.split("-")
    own = (f"pope/{name}/", f"POPE/{name}/", f"output/seem/{name}/")
    stems = (f"{name}_pope_{kind}", f"{name}_pope_seem_{kind}", f"chat/{name}_pope_chat_{kind}")
    names = [f"{stem}.{end}" for stem in stems for end in ("json", "jsonl")]
    folders = ("", "pope/", "POPE/", *own, "output/coco/", "pope_coco/")
    return Expected(f"pope/{split}", under(folders, names), "the folder output/ of github.com/RUCAIBox/POPE")


FILES = {split: _expected(split) for split in SPLITS}


@cache
def checksums() -> dict[str, dict[str, str]]:
    """Of the questions, and of the files that are downloaded."""
    text = resources.files(__package__).joinpath("checksums.json").read_text(encoding="utf-8")
    found: dict[str, dict[str, str]] = json.loads(text)
    return found


def look(expected: Expected, path: Path) -> tuple[State, str]:
    """Whether the questions are the published ones, in whatever form."""
    split = expected.key.split("/")[1]
    samples = load_questions(path, split)
    note = describe_questions(samples)
    if content_checksum(samples) == checksums()["questions"][split]:
        return "ok", note
    misspelt = sum("imange" in sample.question for sample in samples)
    if misspelt:
        note += f"; {misspelt} questions ask for the 'imange'"
    if len(samples) == 2910:
        note += "; the old file with 90 fewer absent objects"
    return "differs", note


def downloads() -> list[SourcePart]:
    """Questions of all three sets, COCO's corrected labels; pictures of COCO and A-OKVQA."""
    _need_pyarrow()
    sums = checksums()["downloads"]
    asked = [
        RemoteFile(
            f"{_REPOSITORY}/{name}/{name}_pope_seem_{kind}.json",
            f"{name}_pope_{kind}.json",
            checksum=f"sha256:{sums[f'{name}-{kind}']}",
        )
        for name in ("aokvqa", "gqa")
        for kind in KINDS
    ]
    again = [
        RemoteFile(f"{_REPOPE}/{name}", f"repope/{name}", checksum=f"sha256:{sums[name]}") for name in repope.FILES
    ]
    return [
        hub_part("COCO questions, 500 pictures", "lmms-lab/POPE", "data/test-*.parquet", "MIT", _from_parquet),
        SourcePart(
            "A-OKVQA and GQA questions", "github.com/RUCAIBox/POPE", "MIT", 2_800_000, lambda folder: asked
        ),
        SourcePart("RePOPE's labels", "github.com/YanNeu/RePOPE", "none named", 1_002_905, lambda folder: again),
        SourcePart("A-OKVQA's 500 pictures", "cocodataset.org", COCO_TERMS, 500 * PICTURE_SIZE, _aokvqa_pictures),
    ]


def _need_pyarrow() -> None:
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise MissingDependency("pyarrow", "hub") from None


def _from_parquet(archives: Sequence[Path], folder: Path) -> None:
    """Question files in POPE's own form, pictures under their COCO names."""
    import pyarrow.parquet as parquet

    asked: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    written: set[str] = set()
    for archive in archives:
        try:
            for batch in parquet.ParquetFile(archive).iter_batches(batch_size=64):
                for row in batch.to_pylist():
                    name = str(row["image_source"])
                    name = name if name.endswith(".jpg") else f"{name}.jpg"
                    line = {"question_id": int(row["question_id"]), "image": plain_name(name)}
                    asked[row["category"]].append(line | {"text": row["question"], "label": row["answer"]})
                    if name not in written:
                        write(folder / "val2014" / plain_name(name), row["image"]["bytes"])
                        written.add(name)
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise DownloadFailed(
                f"{archive.name} is not laid out as it used to be ({type(error).__name__}: {error}).",
                "Take POPE's files from github.com/RUCAIBox/POPE, see docs/benchmarks.md.",
            ) from None
    for kind, lines in asked.items():
        lines.sort(key=lambda line: line["question_id"])
        write(folder / f"coco_pope_{kind}.json", "".join(json.dumps(line) + "\n" for line in lines))


def _aokvqa_pictures(folder: Path) -> list[RemoteFile]:
    asked = {q.image for kind in KINDS for q in load_questions(folder / f"aokvqa_pope_{kind}.json")}
    return coco_pictures(sorted(asked))
