"""Everything that is to be done, in the order of its worth, each with the files it needs and makes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from ladder.material import FEATURES, texts_file, told_file
from ladder.methods import CAI, GROUPS, REGULAR, RIVALS, Named
from ladder.rungs import PACKAGED, Sizes, kind_of
from ladder.training import ALIGNED, Bench, align, connect, finish, speak
from seewhen.backbones.loading import load
from seewhen.errors import InvalidInput
from where.study import STRENGTHS, Study, file_of, scenes, settings

CHOICE = "choice.json"
SHOWN_FROM = 5300  # the first scene of `where`, of others than on the CPU


@dataclass(frozen=True)
class Task:
    """Ready when all it needs is there; done when all it makes is."""

    name: str
    needs: tuple[Path, ...]
    makes: tuple[Path, ...]
    run: Callable[[], None]
    trains: bool = False

    @property
    def done(self) -> bool:
        return all(path.exists() for path in self.makes)

    @property
    def ready(self) -> bool:
        return all(path.exists() for path in self.needs)


def all_tasks(bench: Bench) -> list[Task]:
    """Training in the order of the rungs; then what they are asked: group after group, so that whatever is cut
    off, the rungs are measured alike. CAI waits for the choice; the chosen model comes first."""
    return [*training(bench), *examination(bench)]


def training(bench: Bench) -> list[Task]:
    """The tree of stages; each once."""
    material, stages = bench.material, bench.folder / "stages"
    aligned = Task("align", (material / FEATURES,), (stages / ALIGNED,), partial(align, bench), True)
    found = {aligned.name: aligned}
    for rung in bench.sizes.rungs:
        language, projector = (bench.stage(f"{kind}-{rung.spoken}") for kind in ("language", "projector"))
        told, texts = material / told_file(rung.noise), material / texts_file(rung.skew)
        seen = (material / told_file("clean"), material / FEATURES)
        own = (stages / ALIGNED,) if rung.aligned else ()
        begun = (projector,)
        each: list[Task] = []
        if rung.language == PACKAGED:
            begun = (material / FEATURES,)
        else:
            speaking, connecting = partial(speak, bench, rung), partial(connect, bench, rung)
            each.append(Task(f"language {rung.spoken}", (texts,), (language,), speaking, True))
            each.append(Task(f"projector {rung.spoken}", (language, *seen, *own), (projector,), connecting, True))
        each.append(
            Task(f"train {rung.name}", (*begun, told), (bench.made(rung),), partial(finish, bench, rung), True)
        )
        found |= {task.name: task for task in each}
    # Language stages first: everything stands on them.
    return sorted(found.values(), key=lambda task: not task.name.startswith("language"))


def examination(bench: Bench) -> list[Task]:
    """What each model is asked, group by group."""
    models: list[tuple[str, tuple[Path, ...]]] = [(PACKAGED, ())]
    models += [(rung.name, (bench.made(rung),)) for rung in bench.sizes.rungs]
    choice, key = bench.folder / CHOICE, _searched(bench.sizes)
    found = []
    for group in bench.sizes.groups:
        for model, needs in models:
            if (group == "opera" and model not in key) or (
                model == PACKAGED and group not in bench.sizes.packaged
            ):
                continue
            waits = (choice,) if group in CAI else ()
            made = tuple(result(bench, model, named.name) for named in GROUPS[group])
            if group == "base":
                found.append(Task(f"look {model}", needs, _looks(bench, model), partial(look, bench, model)))
            run = partial(sit, bench, model, GROUPS[group])
            found.append(Task(f"{group} {model}", (*needs, *waits), made, run))
        if group == "base" and bench.sizes.places:
            found += [places(bench, PACKAGED, strength) for strength in STRENGTHS]
        if group == "more":
            shown = models[1 : 1 + bench.sizes.places]
            found += [places(bench, model, STRENGTHS[0], needs) for model, needs in shown]
    return found


def _searched(sizes: Sizes) -> set[str]:
    """The models that OPERA is run on: the packaged one, and the first of each of the first rungs."""
    first = {kind_of(rung.name): rung.name for rung in reversed(sizes.rungs)}
    kinds = list(dict.fromkeys(rung.kind for rung in sizes.rungs))
    return {PACKAGED, *(first[kind] for kind in kinds[: sizes.beams])}


def needed_for_choice(bench: Bench) -> dict[str, tuple[Path, ...]]:
    """What each model must have been asked before one is chosen."""
    names = [named.name for group in ("base", "rule") for named in RIVALS[group]]
    models = [PACKAGED, *(rung.name for rung in bench.sizes.rungs)]
    return {m: (*(result(bench, m, name) for name in names), _looks(bench, m)[0]) for m in models}


def result(bench: Bench, model: str, name: str) -> Path:
    return bench.folder / "results" / model / f"{name}.npz"


def _looks(bench: Bench, model: str) -> tuple[Path, Path]:
    return result(bench, model, "asked"), bench.folder / "results" / model / "diagnostics.json"


@lru_cache(maxsize=1)
def exam_of(bench: Bench, model: str) -> Any:
    """A model with what it is asked; the last one stays."""
    import torch

    from ladder.exam import Exam

    where = PACKAGED if model == PACKAGED else bench.folder / "models" / model
    loaded = load(where, device=bench.device, dtype=torch.float32)
    return Exam(loaded, bench.sizes, bench.folder / "results" / model / "verdict.json")


def sit(bench: Bench, model: str, group: Sequence[Named]) -> None:
    """A model with a group of methods; those that are done are left as they are."""
    for named in group:
        path = result(bench, model, named.name)
        if path.exists():
            continue
        try:
            _save(exam_of(bench, model).sit(named), path)
        except InvalidInput as error:  # a verdict that nothing can be fitted for, of a model that names nothing
            _save({"refused": np.array(str(error))}, path)


def look(bench: Bench, model: str) -> None:
    """What a model is like: its answers about every object, and the diagnostics of the package."""
    from seewhen.runs.diagnostics import diagnostics

    asked, other = _looks(bench, model)
    exam = exam_of(bench, model)
    if not asked.exists():
        _save({"odds": exam.odds(REGULAR)}, asked)
    if not other.exists():
        count = bench.sizes.probed
        found = diagnostics(exam.model, exam.asker.processor, count, batch=count, asked=min(count, 24))
        _replace(other, lambda part: part.write_text(json.dumps(found.to_json()) + "\n", encoding="utf-8"))


def places(bench: Bench, model: str, strength: float, needs: tuple[Path, ...] = ()) -> Task:
    """Captions with tilts to known places: the study of `where`, of the packaged model with all its settings."""
    out, shown = bench.folder / "where" / model, bench.sizes.pointed

    wanted = settings("scenes", (strength,), few=model != PACKAGED)
    first = strength == STRENGTHS[0]

    def run() -> None:
        out.mkdir(parents=True, exist_ok=True)
        weights = None if model == PACKAGED else str(bench.folder / "models" / model)
        study = Study("scenes", scenes(shown, SHOWN_FROM), out, min(shown, 200), weights)
        if first:
            study.sign(f"ladder ({model}): scenes {SHOWN_FROM} to {SHOWN_FROM + shown - 1}")
            study.questions()
        study.captions(wanted)

    names = [file_of("scenes", name) for name in wanted] + (["scenes.questions.jsonl.gz"] if first else [])
    return Task(f"where-{strength:g} {model}", needs, tuple(out / name for name in names), run)


def _save(arrays: dict[str, Any], path: Path) -> None:
    def write(part: Path) -> None:
        with part.open("wb") as handle:
            np.savez(handle, **arrays)

    _replace(path, write)


def _replace(path: Path, write: Callable[[Path], Any]) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    write(part)
    part.replace(path)
