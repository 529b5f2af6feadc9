"""Benchmarks by name, from a folder of published files or from the packaged scenes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from seewhen.bench import amber, mme, pope
from seewhen.bench.base import Benchmark
from seewhen.bench.chair import CaptionReader, Chair
from seewhen.bench.coco import load_objects
from seewhen.bench.data import BENCHMARKS, EXPECTED, find, locate, read_image_list
from seewhen.bench.lexicon import chair_image_lists
from seewhen.errors import InvalidInput, InvalidMethod

NAMES = BENCHMARKS
SCENES = "scenes"  # the data "folder" that needs no files
# Parts that are known before any file is read, and names for several of them. AMBER's are in its files.
_PARTS: dict[str, tuple[Sequence[str], dict[str, Sequence[str]]]] = {
    "pope": (pope.SPLITS, {name: [s for s in pope.SPLITS if s.startswith(name)] for name in pope.SETS}),
    "mme": (
        mme.SUBTASKS,
        {"hallucination": mme.HALLUCINATION, "perception": mme.PERCEPTION, "cognition": mme.COGNITION},
    ),
}


def check(name: str, data: str | Path, split: str | None = None) -> None:
    """Refuse what `load` would refuse, without reading or making anything."""
    if name not in NAMES:
        raise InvalidMethod(f"There is no benchmark {name!r}.", f"Use one of {', '.join(NAMES)}.")
    if str(data) == SCENES:
        from seewhen.bench.scenes import check_part

        check_part(name, split or "test")
        return
    folder = Path(data).expanduser()
    if not folder.is_dir():
        raise InvalidInput(
            f"There is no folder {folder}.",
            f"Name that of the benchmarks' files, or 'scenes'; `seewhen data get {name} --to {folder}` makes it.",
        )
    if name in _PARTS:
        choose(split, *_PARTS[name])


def load(
    name: str,
    data: str | Path,
    *,
    split: str | None = None,
    parser: str | None = None,
    lemmatizer: str = "offline",
    similarity: str = "related",
    images: str | None = None,
    scenes: int = 500,
) -> Benchmark:
    """The benchmark `name` from the folder `data`; `data="scenes"` makes it from the packaged scenes.

    `split` chooses parts, separated by commas: "coco", "coco-random" (POPE), "existence",
    "hallucination" (MME), "generative", "existence" (AMBER), "test", "shifted-popular" (scenes).
    `images` is a packaged list (`chair_image_lists`) or a file of ids, for CHAIR. `scenes` is their number.
    """
    check(name, data, split)
    if str(data) == SCENES:
        from seewhen.bench.scenes import scene_benchmark

        return scene_benchmark(name, split or "test", scenes, parser=parser, lemmatizer=lemmatizer)
    folder = Path(data).expanduser()
    if name == "pope":
        return _pope(folder, split, parser)
    if name == "chair":
        return _chair(folder, lemmatizer, images)
    if name == "mme":
        return mme.Mme(_mme_questions(folder, split), parser or "official")
    return _amber(folder, split, lemmatizer, parser, similarity)


def _pope(folder: Path, split: str | None, parser: str | None) -> pope.Pope:
    wanted = choose(split, *_PARTS["pope"])
    if split is None:
        found = [s for s in wanted if find(folder, f"pope/{s}")]
        wanted = found or wanted
    paths = [(s, locate(folder, f"pope/{s}")) for s in wanted]
    questions = tuple(q for s, path in paths for q in pope.load_questions(path, s))
    return pope.Pope(questions, parser or "C")


def _chair(folder: Path, lemmatizer: str, images: str | None) -> Chair:
    reader = CaptionReader(lemmatizer)
    table = find(folder, "chair/objects")
    keys = [e.key for e in EXPECTED if e.benchmark == "chair" and e.key != "chair/objects"]
    paths = [table] if table else [locate(folder, key) for key in keys]
    truth = load_objects(paths, reader.lexicon, reader.objects)
    lists = chair_image_lists()
    name = images or next(iter(lists))
    chosen = lists[name] if name in lists else read_image_list(Path(name))
    return Chair(truth, chosen, reader)


def _mme_questions(folder: Path, split: str | None) -> tuple:
    wanted = choose(split, *_PARTS["mme"])
    if split is None:
        wanted = [task for task in wanted if find(folder, f"mme/{task}")] or wanted
    return tuple(q for task in wanted for q in mme.load_folder(locate(folder, f"mme/{task}").parent, (task,)))


def _amber(folder: Path, split: str | None, lemmatizer: str, parser: str | None, similarity: str) -> amber.Amber:
    from dataclasses import replace

    whole = amber.load_amber(folder, lemmatizer, parser or "literal", similarity)
    kinds = list(dict.fromkeys(q.split for q in whole.questions))
    groups = {"attribute": amber.ATTRIBUTE, "discriminative": [k for k in kinds if k != amber.GENERATIVE]}
    wanted = set(choose(split, kinds, groups))
    return replace(whole, questions=tuple(q for q in whole.questions if q.split in wanted))


def choose(split: str | None, known: Sequence[str], groups: dict) -> list[str]:
    """The parts a comma-separated list names, each once, in the benchmark's own order."""
    if split is None:
        return list(known)
    wanted: set[str] = set()
    for part in split.split(","):
        if part not in known and part not in groups:
            raise InvalidInput(f"There is no split {part!r}.", f"Use some of {', '.join([*groups, *known])}.")
        wanted.update(cast(Sequence[str], groups.get(part, [part])))
    return [part for part in known if part in wanted]
