"""Where each benchmark can be had, and how what comes is laid out as `seewhen data check` expects it.

| benchmark | questions and annotations | pictures |
|---|---|---|
| POPE | hub lmms-lab/POPE (COCO), GitHub RUCAIBox/POPE (A-OKVQA, GQA) | the same hub files; COCO |
| CHAIR | COCO annotations | COCO, one by one |
| MME | hub darkyarding/MME, the release itself | in it |
| AMBER | GitHub junyangwang0410/AMBER | hub stzhao/amber, a copy of the authors' archive |
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from seewhen.atomic import replacing
from seewhen.bench import mme, pope
from seewhen.bench.data import read_image_list
from seewhen.bench.download import DownloadFailed, Remote, hub_files
from seewhen.bench.lexicon import chair_image_lists, read_packaged
from seewhen.errors import MissingDependency

_COCO = "https://s3.amazonaws.com/images.cocodataset.org"
_POPE = "https://raw.githubusercontent.com/RUCAIBox/POPE/3df3ba1b110ecce25696989577fad583b67d4239/output/seem"
_AMBER = "https://raw.githubusercontent.com/junyangwang0410/AMBER/534babf6bbfcce2e735c26289dedfb21cef3c939/data"
_PICTURE = 165_000  # bytes of a COCO picture, about
_LARGEST = 8 << 30  # of what an archive may unpack to
_COCO_TERMS = "COCO: annotations CC BY 4.0, pictures by their Flickr licences"


@dataclass(frozen=True)
class Part:
    """Files from one place. Those with a place in the folder are kept, the others handed to `unpack`."""

    what: str
    origin: str
    licence: str
    size: int  # of the download; what it is about where nobody says
    files: Callable[[Path], Sequence[Remote]]  # asked when its turn comes: some depend on what came before
    unpack: Callable[[Sequence[Path], Path], None] | None = None
    revision: str = ""


def parts_of(benchmark: str, image_list: str | None = None, mirror: str | None = None) -> list[Part]:
    """What `seewhen data get` brings; asks the hub where it is involved.

    `mirror` holds copies of what is not on the hub; a mirror of the hub is named by HF_ENDPOINT.
    """
    parts = {"pope": _pope, "chair": lambda: _chair(image_list), "mme": _mme, "amber": _amber}[benchmark]()
    return [part if part.revision or mirror is None else _mirrored(part, mirror) for part in parts]


def _mirrored(part: Part, mirror: str) -> Part:
    return replace(part, files=lambda folder: [file.on(mirror) for file in part.files(folder)])


def by_hand(benchmark: str) -> str:
    """What has no address that a program could use."""
    return {"pope": "GQA's pictures are only in images.zip (20 GB) of cs.stanford.edu/people/dorarad/gqa."}.get(
        benchmark, ""
    )


def _hub_part(
    what: str,
    repository: str,
    pattern: str,
    licence: str,
    unpack: Callable[[Sequence[Path], Path], None],
) -> Part:
    found = hub_files(repository, pattern)
    return Part(
        what,
        f"hub dataset {repository}",
        f"{licence}; the hub: {found.licence}",
        sum(file.size or 0 for file in found.files),
        lambda folder: found.files,
        unpack,
        found.revision,
    )


def _known(url: str, keep: str, sha256: str) -> Remote:
    return Remote(url, keep, checksum=f"sha256:{sha256}")


# -- POPE ---------------------------------------------------------------------------------------------------


def _pope() -> list[Part]:
    _need_pyarrow()
    sums = read_packaged("checksums.json")["downloads"]
    asked = tuple(
        _known(f"{_POPE}/{name}/{name}_pope_seem_{kind}.json", f"{name}_pope_{kind}.json", sums[f"{name}-{kind}"])
        for name in ("aokvqa", "gqa")
        for kind in pope.KINDS
    )
    return [
        _hub_part("COCO questions, 500 pictures", "lmms-lab/POPE", "data/test-*.parquet", "MIT", _from_parquet),
        Part("A-OKVQA and GQA questions", "github.com/RUCAIBox/POPE", "MIT", 2_800_000, lambda folder: asked),
        Part("A-OKVQA's 500 pictures", "cocodataset.org", _COCO_TERMS, 500 * _PICTURE, _aokvqa_pictures),
    ]


def _need_pyarrow() -> None:
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise MissingDependency("pyarrow", "hub") from None


def _from_parquet(archives: Sequence[Path], folder: Path) -> None:
    """Question files in POPE's own form, pictures under their COCO names."""
    import pyarrow.parquet as parquet

    asked: dict[str, list[dict[str, Any]]] = {kind: [] for kind in pope.KINDS}
    written: set[str] = set()
    for archive in archives:
        try:
            for batch in parquet.ParquetFile(archive).iter_batches(batch_size=64):
                for row in batch.to_pylist():
                    name = str(row["image_source"])
                    name = name if name.endswith(".jpg") else f"{name}.jpg"
                    line = {"question_id": int(row["question_id"]), "image": _plain(name)}
                    asked[row["category"]].append(line | {"text": row["question"], "label": row["answer"]})
                    if name not in written:
                        _write(folder / "val2014" / _plain(name), row["image"]["bytes"])
                        written.add(name)
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise DownloadFailed(
                f"{archive.name} is not laid out as it used to be ({type(error).__name__}: {error}).",
                "Take POPE's files from github.com/RUCAIBox/POPE, see docs/benchmarks.md.",
            ) from None
    for kind, lines in asked.items():
        lines.sort(key=lambda line: line["question_id"])
        _write(folder / f"coco_pope_{kind}.json", "".join(json.dumps(line) + "\n" for line in lines).encode())


def _plain(name: str) -> str:
    """A file's name and nothing else, whatever a data set says."""
    if not re.fullmatch(r"[\w.-]+", name) or name.startswith("."):
        raise ValueError(f"{name!r} is not the name of a picture")
    return name


def _aokvqa_pictures(folder: Path) -> list[Remote]:
    asked = {q.image for kind in pope.KINDS for q in pope.load_questions(folder / f"aokvqa_pope_{kind}.json")}
    return _coco_pictures(sorted(asked))


def _coco_pictures(names: Iterable[str]) -> list[Remote]:
    return [Remote(f"{_COCO}/val2014/{_plain(name)}", f"val2014/{_plain(name)}") for name in names]


# -- CHAIR --------------------------------------------------------------------------------------------------


def _chair(image_list: str | None) -> list[Part]:
    lists = chair_image_lists()
    name = image_list or next(iter(lists))
    ids = lists[name] if name in lists else read_image_list(Path(name))
    pictures = _coco_pictures(f"COCO_val2014_{int(number):012d}.jpg" for number in ids)
    annotations = Remote(
        f"{_COCO}/annotations/annotations_trainval2014.zip",
        size=252_872_794,
        checksum="md5:0a379cfc70b0e71301e0f377548639bd",
    )
    return [
        Part(
            "instances and captions, train and val 2014",
            "cocodataset.org",
            _COCO_TERMS,
            annotations.size or 0,
            lambda folder: [annotations],
            lambda archives, folder: _unzip(archives, folder, _annotation_file),
        ),
        Part(
            f"{len(pictures)} pictures of {name}",
            "cocodataset.org",
            _COCO_TERMS,
            len(pictures) * _PICTURE,
            lambda folder: pictures,
        ),
    ]


def _annotation_file(member: PurePosixPath) -> str | None:
    wanted = re.fullmatch(r"(instances|captions)_(train|val)2014\.json", member.name)
    return f"annotations/{member.name}" if wanted else None


# -- MME ----------------------------------------------------------------------------------------------------


def _mme() -> list[Part]:
    licence = "MME: for research, ask its authors before passing it on"
    archive = "MME_Benchmark_release_version.zip"
    return [
        _hub_part(
            "the release: questions, pictures, 14 subtasks",
            "darkyarding/MME",
            archive,
            licence,
            lambda archives, folder: _unzip(archives, folder, _mme_file),
        )
    ]


def _mme_file(member: PurePosixPath) -> str | None:
    """A subtask's files, however deep the archive has them."""
    inside = next((member.parts[i:] for i, part in enumerate(member.parts) if part in mme.SUBTASKS), ())
    good = member.suffix.lower() in (".txt", ".jpg", ".jpeg", ".png") and "__MACOSX" not in member.parts
    return "/".join(("MME_Benchmark_release_version", *inside)) if good and len(inside) > 1 else None


# -- AMBER --------------------------------------------------------------------------------------------------


def _amber() -> list[Part]:
    sums = read_packaged("checksums.json")["files"]
    files = []
    for key in (key for key in sums if key.startswith("amber/")):
        name = key.removeprefix("amber/") + (".txt" if key == "amber/safe_words" else ".json")
        inside = f"query/{name}" if name.startswith("query_") else name
        files.append(_known(f"{_AMBER}/{inside}", name, sums[key]))
    return [
        Part("queries, annotations", "github.com/junyangwang0410/AMBER", "Apache-2.0", 4_200_000, lambda _: files),
        _hub_part(
            "1,004 pictures",
            "stzhao/amber",
            "AMBER.zip",
            "a copy, by others, of the authors' archive",
            lambda archives, folder: _unzip(archives, folder, _amber_picture),
        ),
    ]


def _amber_picture(member: PurePosixPath) -> str | None:
    wanted = re.fullmatch(r"AMBER_\d+\.jpg", member.name) and "__MACOSX" not in member.parts
    return f"image/{member.name}" if wanted else None


# -- unpacking ----------------------------------------------------------------------------------------------


def _unzip(archives: Sequence[Path], folder: Path, place: Callable[[PurePosixPath], str | None]) -> None:
    """Members go where `place` says, never where the archive says."""
    for archive in archives:
        try:
            with zipfile.ZipFile(archive) as opened:
                members = [info for info in opened.infolist() if not info.is_dir()]
                chosen = [(info, place(PurePosixPath(info.filename))) for info in members]
                kept = [(info, target) for info, target in chosen if target and ".." not in target.split("/")]
                if sum(info.file_size for info, _ in kept) > _LARGEST:
                    raise DownloadFailed(f"{archive.name} would unpack to over 8 GiB.", "That cannot be right.")
                for info, target in kept:
                    _write(folder / target, opened.read(info))
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
            raise DownloadFailed(f"{archive.name} cannot be unpacked: {error}.", "Try once more.") from None
        if not kept:
            raise DownloadFailed(f"{archive.name} holds nothing of this benchmark.", "Unpack it by hand and look.")


def _write(path: Path, content: bytes) -> None:
    with replacing(path) as partial:
        Path(partial).write_bytes(content)
