"""The stages in order, in one directory: what is done is kept, what is cut off goes on."""

from __future__ import annotations

import dataclasses
import json
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from photographs import (
    checks,
    dino,
    holdout,
    instructions,
    lora,
    rows,
    speaking,
    teachers,
    texts,
    tower,
)
from photographs.distil import Lessons
from photographs.growing import Growing
from photographs.loop import Log, load_weights, save_weights
from photographs.photos import Photos, decoders, load_photos
from photographs.recipe import Recipe
from photographs.tower import Scores
from seewhen.backbones.photo import language, llava
from seewhen.backbones.photo.dino import fill, stored
from seewhen.errors import InvalidInput

STAGES = ("tower", "projector", "finetune")
TABLE = "coco_objects.json.gz"
TEACHER = "efficientnet-lite0.safetensors"
ANSWERS = "instructions.jsonl"
EXAMPLES = 512  # photographs that tell how widely the teacher's features spread


@dataclass(frozen=True)
class Place:
    """Where a run reads and writes, and on what it computes."""

    store: Path  # what `prepare` made
    out: Path
    device: str
    workers: int

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.device == "cuda" else torch.float32


class Run:
    """One run: the parts that several stages need, made when first asked for."""

    def __init__(self, place: Place, recipe: Recipe) -> None:
        self.place, self.recipe = place, recipe
        # Before anything touches the GPU: processes split off later would carry its threads' locks along.
        self.pool = decoders(place.workers)
        place.out.mkdir(parents=True, exist_ok=True)
        self.log = Log(place.out / "log.jsonl")
        self.categories, self.objects = holdout.load_table(place.store / TABLE)
        if place.device == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = True
        self.log(note="recipe", **dataclasses.asdict(recipe))

    # Photographs

    def labels(self, numbers: Tensor) -> Tensor:
        """(n, objects)"""
        found = torch.zeros(len(numbers), len(self.categories), dtype=torch.bool)
        for row, number in enumerate(numbers.tolist()):
            found[row, list(self.objects.get(number, ()))] = True
        return found.to(self.place.device)

    def load(self, shards: list[Path]) -> Photos:
        return load_photos(shards, self.place.device, self.pool, self.tower.config.image_size)

    @cached_property
    def validation(self) -> Photos:
        held_out = self.load(sorted(self.place.store.glob("heldout-*.safetensors")))
        wanted = holdout.read()["validation"]
        keep = torch.tensor([n in wanted for n in held_out.numbers.tolist()])
        if not keep.any():
            raise InvalidInput("No photograph of the validation list is among the held-out shards.")
        return Photos(held_out.numbers[keep], held_out.pixels[keep.to(self.place.device)])

    @cached_property
    def training(self) -> Growing:
        return Growing(self.place.store, self.load, self.labels, self.log)

    # Parts of the model

    @cached_property
    def tower(self) -> Any:
        return dino.load_tower(self.place.store / "dinov2-small.int8.safetensors").to(self.place.device)

    @cached_property
    def scores(self) -> Scores:
        width = self.tower.config.hidden_size
        return Scores(width, len(self.categories)).to(self.place.device)

    @cached_property
    def lessons(self) -> Lessons | None:
        """What the teacher has to say, if the recipe wants it."""
        if not self.recipe.tower.distil:
            return None
        teacher = teachers.efficientnet(self.place.store / TEACHER, self.place.device, self.place.dtype)
        return Lessons(teacher, self.tower.config.hidden_size, self.training.photos.pixels[:EXAMPLES])

    @cached_property
    def spoken(self) -> tuple[Any, Any]:
        """The language model (float32, on the CPU) and its tokenizer."""
        return language.load(self.place.store / "smollm2.gguf")

    # Files

    def file(self, name: str) -> Path:
        return self.place.out / f"{name}.safetensors"

    def done(self, stage: str) -> bool:
        return self.file(stage).is_file()

    def partial(self, stage: str) -> tuple[dict[str, Tensor], int] | None:
        """What a cut-off stage left."""
        path = self.file(f"{stage}.part")
        return load_weights(path) if path.is_file() else None

    def finish(self, stage: str, weights: dict[str, Tensor]) -> None:
        save_weights(weights, self.file(stage))
        self.file(f"{stage}.part").unlink(missing_ok=True)
        self.log(stage=stage, note="done")


def train_tower(run: Run) -> None:
    """Stage one."""
    stage = run.recipe.tower
    torch.manual_seed(run.recipe.seed)
    first = 0
    left = run.partial("tower")
    if left is not None:
        _fill_tower(run, left[0])
        if run.lessons is not None:
            run.lessons.guess.load_state_dict(under("guess.", left[0]))
        first = left[1]
    growing = run.training
    exam = (run.validation.pixels, run.labels(run.validation.numbers))

    def batch_of(step: int) -> tuple[Tensor, Tensor]:
        if step % 50 == 0:
            growing.look()
        return growing.batch(stage.batch)

    def keep(step: int) -> None:
        save_weights(_tower_weights(run), run.file("tower.part"), step)

    run.tower.train()
    tower.train_tower(
        run.tower, run.scores, run.lessons, stage, batch_of, exam, run.log,
        first=first, keep=keep, check_every=run.recipe.check_every,
    )  # fmt: skip
    run.finish("tower", _tower_weights(run))


def _tower_weights(run: Run) -> dict[str, Tensor]:
    whole = {f"tower.{n}": t for n, t in stored(run.tower).items()}
    whole |= {f"scores.{n}": t.detach() for n, t in run.scores.state_dict().items()}
    guess = {} if run.lessons is None else run.lessons.guess.state_dict()
    return whole | {f"guess.{n}": t.detach() for n, t in guess.items()}


def under(start: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Those whose names start so, without that start."""
    return {name.removeprefix(start): t for name, t in weights.items() if name.startswith(start)}


def _fill_tower(run: Run, weights: dict[str, Tensor]) -> None:
    fill(run.tower, under("tower.", weights))
    run.scores.load_state_dict(under("scores.", weights))


@torch.inference_mode()
def see(run: Run, pixels: Tensor, mirrored: bool, batch: int = 512) -> tuple[Tensor, Tensor]:
    """Patch features, and image scores."""
    found, scored = [], []
    for part in pixels.split(batch):
        part = part.flip(2) if mirrored else part
        with tower.half(run.place.device):
            features = tower.features(run.tower, tower.normalised(part))
            scored.append(tower.pooled(run.scores(features), run.recipe.tower.sharpness))
        found.append(features.to(run.place.dtype))
    return torch.cat(found), torch.cat(scored)


@dataclass(frozen=True)
class Talk:
    """What stages two and three share."""

    speaker: speaking.Speaker
    alignment: speaking.Alignment
    photos: list[rows.Photo]
    known: texts.Statistics
    exam: checks.Exam


def prepare_talk(run: Run) -> Talk:
    """The assembled model on features of the finished tower."""
    weights, _ = load_weights(run.file("tower"))
    _fill_tower(run, weights)
    run.tower.eval()
    growing = run.training
    growing.grow()
    plain, scored = see(run, growing.photos.pixels, mirrored=False)
    mirror, _ = see(run, growing.photos.pixels, mirrored=True)
    seen = speaking.Seen(torch.stack([plain, mirror]), growing.labels)
    del plain, mirror
    marks = scored.float().cpu()
    photos = []
    for place, number in enumerate(growing.photos.numbers.tolist()):
        things = run.objects.get(number, ())
        if things:
            photos.append(rows.Photo(place, things, tuple(marks[place, list(things)].tolist())))
    spoken, tokenizer = run.spoken
    model = llava.assemble(run.tower, spoken, tokenizer).to(run.place.device, run.place.dtype)
    model.model.multi_modal_projector.float()
    speaker = speaking.Speaker(model, tokenizer, seen)
    names = speaking.name_vectors(model, tokenizer, run.categories)
    known = texts.statistics(run.categories, (photo.things for photo in photos))
    asked = run.validation.numbers[: run.recipe.checked].tolist()
    exam_features, _ = see(run, run.validation.pixels[: len(asked)], mirrored=False)
    shown = {str(n): frozenset(run.categories[i] for i in run.objects[n]) for n in asked}
    run.log(note="features", photographs=len(photos))
    talk = Talk(
        speaker, speaking.Alignment(names).to(run.place.device), photos, known, checks.Exam(exam_features, shown)
    )
    file = run.file("projector") if run.done("projector") else None
    if file is None:
        flat = seen.features[0, : min(2000, len(photos))].float()
        typical = float(model.get_input_embeddings().weight.detach().float().pow(2).mean().sqrt())
        projector = model.model.multi_modal_projector
        speaking.begin_projector(projector, flat.mean((0, 1)), flat.std((0, 1)), typical)
    else:
        fill_talk(talk, load_weights(file)[0])
    return talk


def talk_weights(talk: Talk) -> dict[str, Tensor]:
    model = talk.speaker.model.model
    found = {f"projector.{n}": t for n, t in model.multi_modal_projector.state_dict().items()}
    found |= {f"alignment.{n}": t for n, t in talk.alignment.state_dict().items()}
    return found | {f"lora.{n}": t for n, t in lora.updates(model.language_model.layers).items()}


def fill_talk(talk: Talk, weights: dict[str, Tensor]) -> None:
    model = talk.speaker.model.model
    model.multi_modal_projector.load_state_dict(under("projector.", weights))
    talk.alignment.load_state_dict(under("alignment.", weights))
    if under("lora.", weights):
        lora.set_updates(model.language_model.layers, under("lora.", weights))


def look(run: Run, talk: Talk, stage: str) -> Any:
    """A check that logs how the model does on the validation photographs."""
    tokenizer = run.spoken[1]

    def check(step: int) -> None:
        asked = checks.pope(talk.speaker, tokenizer, talk.exam)
        told, example = checks.chair(talk.speaker, tokenizer, talk.exam)
        run.log(stage=stage, step=step, pope=asked, chair=told, example=example)

    return check


def _tokenizer_file(run: Run) -> Path:
    path = run.place.out / "tokenizer.json"
    if not path.is_file():
        run.spoken[1].backend_tokenizer.save(str(path))
    return path


def train_projector(run: Run, talk: Talk) -> None:
    """Stage two."""
    torch.manual_seed(run.recipe.seed + 1)
    with rows.workers(run.place.workers, _tokenizer_file(run)) as mapped:
        told = rows.descriptions(mapped, talk.photos, run.categories, run.recipe.seed + 1)
    told = told.to(run.place.device)
    speaking.train_projector(talk.speaker, talk.alignment, told, run.recipe.projector, run.log)
    run.finish("projector", talk_weights(talk))


def self_answers(run: Run) -> list[texts.Turn]:
    """The language model's own words: from the store, if they were made before, or made now."""
    stage = run.recipe.finetune
    ready, made = run.place.store / ANSWERS, run.place.out / ANSWERS
    if ready.is_file() and not made.is_file():
        shutil.copyfile(ready, made)
    spoken, tokenizer = run.spoken
    if made.is_file():
        return instructions.read(made)
    own = spoken.to(run.place.device, run.place.dtype)
    instructions.make(made, own, tokenizer, stage.texts, stage.text_tokens)
    spoken.to("cpu")
    return instructions.read(made)


def train_finetune(run: Run, talk: Talk) -> None:
    """Stage three."""
    stage = run.recipe.finetune
    torch.manual_seed(run.recipe.seed + 2)
    turns = self_answers(run)
    with rows.workers(run.place.workers, _tokenizer_file(run)) as mapped:
        made = {
            "describe": rows.descriptions(mapped, talk.photos, run.categories, run.recipe.seed + 2),
            "ask": rows.conversations(mapped, talk.photos, talk.known, stage.questions, run.recipe.seed + 2),
            "text": _chats(run, turns),
        }
    run.log(note="rows", **{kind: len(part) for kind, part in made.items()})
    made = {kind: part.to(run.place.device) for kind, part in made.items()}
    lora.add(talk.speaker.model.model.language_model.layers, stage.rank)
    left = run.partial("finetune")
    if left is not None:
        fill_talk(talk, left[0])

    def keep(step: int) -> None:
        save_weights(talk_weights(talk), run.file("finetune.part"), step)

    speaking.finetune(
        talk.speaker, talk.alignment, made, stage, run.log,
        first=left[1] if left else 0, keep=keep,
        check=look(run, talk, "finetune"), check_every=run.recipe.check_every,
    )  # fmt: skip
    run.finish("finetune", talk_weights(talk))


def _chats(run: Run, turns: list[texts.Turn]) -> rows.Rows:
    with rows.workers(1, _tokenizer_file(run)):
        return rows.chats(turns)


def train(place: Place, recipe: Recipe, until: str = "finetune") -> None:
    """All stages that are not done, up to `until`."""
    if until not in STAGES:
        raise InvalidInput(f"There is no stage {until!r}.", f"Use one of {', '.join(STAGES)}.")
    run = Run(place, recipe)
    (place.out / "recipe.json").write_text(json.dumps(dataclasses.asdict(recipe), indent=1) + "\n", "utf-8")
    if not run.done("tower"):
        train_tower(run)
    wanted = [stage for stage in STAGES[1 : STAGES.index(until) + 1] if not run.done(stage)]
    if not wanted:
        return
    talk = prepare_talk(run)
    if "projector" in wanted:
        train_projector(run, talk)
    if "finetune" in wanted:
        train_finetune(run, talk)
