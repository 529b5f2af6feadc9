"""Benchmarks by name: POPE, CHAIR, MME, AMBER, and those of other packages. Nothing here needs torch.

Each has a folder with its questions, prompt styles, metrics and files, and derives from `Benchmark` in `base.py`;
commands, runs and reports ask that class. Another package adds one by an entry
point in the group `seewhen.benchmarks`; see docs/add-a-benchmark.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seewhen.errors import InvalidInput
from seewhen.registry import Registry

if TYPE_CHECKING:
    from seewhen.benchmarks.base import Benchmark

BENCHMARKS = Registry(
    "benchmark",
    "seewhen.benchmarks",
    ("seewhen.benchmarks.base", "Benchmark"),
    {"pope": ("pope", "Pope"), "chair": ("chair", "Chair"), "mme": ("mme", "Mme"), "amber": ("amber", "Amber")},
)
SCENES = "scenes"  # the data "folder" that needs no files


def benchmark_names() -> tuple[str, ...]:
    """The names of all benchmarks that can be had, built-in first."""
    return BENCHMARKS.working


def benchmark_class(name: str) -> type[Benchmark]:
    """The class of the benchmark called `name`."""
    found: type[Benchmark] = BENCHMARKS.load(name)
    return found


def check(name: str, data: str | Path, split: str | None = None) -> None:
    """Refuse what `load` would refuse, without reading or making anything."""
    kind = benchmark_class(name)
    if str(data) == SCENES:
        _check_scenes(kind, split or "test")
        return
    folder = Path(data).expanduser()
    if not folder.is_dir():
        raise InvalidInput(
            f"There is no folder {folder}.",
            f"Name that of the benchmarks' files, or 'scenes'; `seewhen data get {name} --to {folder}` makes it.",
        )
    if kind.parts:
        choose(split, kind.parts, kind.part_groups)


def load(name: str, data: str | Path, *, scenes: int = 500, **options: Any) -> Benchmark:
    """The benchmark `name` from the folder `data`, or with `data="scenes"` from so many packaged scenes.

    `options` are the fields of `base.Options`; `split` chooses parts, separated by commas: "coco",
    "coco-random" (POPE), "hallucination" (MME), "generative" (AMBER), "test", "shifted-popular" (scenes).
    """
    from seewhen.benchmarks.base import Options

    chosen = Options(**options)
    check(name, data, chosen.split)
    kind = benchmark_class(name)
    if str(data) != SCENES:
        return kind.open(Path(data).expanduser(), chosen)
    part, _, of_kind = (chosen.split or "test").partition("-")
    return kind.of_scenes(part, of_kind, scenes, chosen)


def _check_scenes(kind: type[Benchmark], split: str) -> None:
    """Refuse a part of the scenes that a benchmark does not have."""
    from seewhen.scenes import SPLITS

    part, _, of_kind = split.partition("-")
    if part not in SPLITS:
        raise InvalidInput(f"There is no part {part!r} of the scenes.", f"Use one of {', '.join(SPLITS)}.")
    if kind.scene_kinds is None:
        raise InvalidInput(f"{kind.name} is not made from scenes.", "Name the folder of its files with --data.")
    if of_kind and of_kind not in kind.scene_kinds:
        parts = (part, *(f"{part}-{each}" for each in kind.scene_kinds))
        raise InvalidInput(f"{kind.name} has no split {split!r}.", f"Use one of {', '.join(parts)}.")


def choose(split: str | None, known: Sequence[str], groups: Mapping[str, Sequence[str]]) -> list[str]:
    """The parts a comma-separated list names, each once, in the benchmark's own order."""
    if split is None:
        return list(known)
    wanted: set[str] = set()
    for part in split.split(","):
        if part not in known and part not in groups:
            raise InvalidInput(f"There is no split {part!r}.", f"Use some of {', '.join([*groups, *known])}.")
        wanted.update(groups.get(part, [part]))
    return [part for part in known if part in wanted]
