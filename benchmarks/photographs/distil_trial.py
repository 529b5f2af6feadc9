"""Does a teacher help the tower? A rehearsal of the tower stage on a CPU, with and without, from the same seed.

    python -m photographs.distil_trial learn --store STORE --out TRIAL --name plain --distil 0
    python -m photographs.distil_trial learn --store STORE --out TRIAL --name taught --distil 1
    python -m photographs.distil_trial compare --out TRIAL

The recipe's own stage and losses, but few photographs and few steps, and the tower sees every view at half the
size (64 patches), which makes a core four times as fast; the teacher sees it whole. Both trials draw the same
photographs in the same order. Precision is that of the stage's own scores on validation photographs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Dinov2Model

from photographs import dino, holdout, photos, probes, teachers, tower
from photographs.command import carry_out
from photographs.distil import Lessons
from photographs.loop import Log
from photographs.recipe import Recipe
from photographs.run import EXAMPLES, TABLE, TEACHER
from photographs.tower_features import chosen
from photographs.towers import labels
from seewhen.atomic import replacing
from seewhen.backbones.photo.dino import fill, stored
from seewhen.errors import InvalidInput


class Coarse(Dinov2Model):
    """Sees every picture at half its size."""

    def forward(self, pixel_values: Tensor, **options: Any) -> Any:
        return super().forward(F.avg_pool2d(pixel_values, 2), **options)


def learn(options: argparse.Namespace) -> None:
    """One trial; scores of the validation photographs go to TRIAL/NAME.safetensors."""
    names, objects = holdout.load_table(options.store / TABLE)
    groups = chosen(options.store, options.photographs, 0)
    content = {"training": list(groups["training"].items())}
    content["validation"] = list(groups["validation"].items())[: options.validation]
    pixels, truth = {}, {}
    for group, entries in content.items():
        pixels[group] = torch.from_numpy(photos.decode([picture for _, picture in entries], photos.SIDE))
        truth[group] = labels([number for number, _ in entries], objects, len(names))
    whole = dino.load_tower(options.store / "dinov2-small.int8.safetensors")
    student = Coarse(whole.config)
    fill(student, stored(whole))
    stage = dataclasses.replace(
        Recipe().tower, steps=options.steps, batch=options.batch, minutes=600.0, rate=options.rate,
        layer_decay=options.layer_decay, distil=options.distil,
    )  # fmt: skip
    torch.manual_seed(options.seed)
    scores = tower.Scores(whole.config.hidden_size, len(names))
    lessons = None
    if stage.distil:
        examples = pixels["training"][:EXAMPLES]
        lessons = Lessons(teachers.efficientnet(options.store / TEACHER), whole.config.hidden_size, examples)
    draw = torch.Generator().manual_seed(options.seed)
    passes = -(-stage.steps * stage.batch // len(pixels["training"]))
    order = torch.cat([torch.randperm(len(pixels["training"]), generator=draw) for _ in range(passes)])

    def batch_of(step: int) -> tuple[Tensor, Tensor]:
        torch.manual_seed(step)  # the same views with and without a teacher
        rows = order[step * stage.batch : (step + 1) * stage.batch]
        return pixels["training"][rows], truth["training"][rows]

    log = Log(options.out / f"{options.name}.jsonl")
    log(note="trial", photographs=len(pixels["training"]), seed=options.seed, **dataclasses.asdict(stage))
    exam = (pixels["validation"], truth["validation"])
    student.train()
    tower.train_tower(
        student, scores, lessons, stage, batch_of, exam, log,
        first=0, keep=lambda step: None, check_every=options.check_every,
    )  # fmt: skip
    found = {"scores": tower.score_all(student, scores, exam[0], stage.sharpness, 50), "truth": exam[1]}
    with replacing(options.out / f"{options.name}.safetensors") as part:
        save_file(found, part)


def compare(options: argparse.Namespace) -> None:
    """Mean average precision of every trial, and how much each differs from the one named `plain`."""
    files = sorted(options.out.glob("*.safetensors"))
    found = {file.stem: load_file(file) for file in files}
    if "plain" not in found:
        raise InvalidInput(f"{options.out} has no trial named plain.", "Make it first: --name plain --distil 0.")
    truth = found["plain"]["truth"]
    scores = {name: its["scores"] for name, its in found.items()}
    draws = probes.drawn_precision(scores, truth, 1000, 0)
    values = {name: probes.mean_precision(its, truth) for name, its in scores.items()}
    told = {name: {"precision": probes.around(value, draws[name])} for name, value in values.items()}
    for name, its in told.items():
        lines = [json.loads(line) for line in (options.out / f"{name}.jsonl").read_text("utf-8").splitlines()]
        its["trial"] = {key: value for key, value in lines[0].items() if key not in ("seconds", "note", "minutes")}
        its["curve"] = {line["step"]: line["validation_map"] for line in lines if "validation_map" in line}
        if name != "plain":
            its["minus plain"] = probes.around(values[name] - values["plain"], draws[name] - draws["plain"])
    print(json.dumps({"validation photographs": len(truth), "trials": told}, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("learn")
    command.set_defaults(work=learn)
    command.add_argument("--store", type=Path, required=True)
    command.add_argument("--out", type=Path, required=True)
    command.add_argument("--name", required=True)
    command.add_argument("--distil", type=float, required=True)
    command.add_argument("--rate", type=float, default=Recipe().tower.rate)
    command.add_argument("--layer-decay", type=float, default=Recipe().tower.layer_decay)
    command.add_argument("--photographs", type=int, default=1600)
    command.add_argument("--validation", type=int, default=500)
    command.add_argument("--steps", type=int, default=240)
    command.add_argument("--batch", type=int, default=20)
    command.add_argument("--check-every", type=int, default=80)
    command.add_argument("--seed", type=int, default=0)
    command = commands.add_parser("compare")
    command.set_defaults(work=compare)
    command.add_argument("--out", type=Path, required=True)
    carry_out(parser)


if __name__ == "__main__":
    main()
