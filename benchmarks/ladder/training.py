"""The stages of a rung, each from the files of the one before."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from embedded.train import stages, words
from embedded.train.recipe import Shape
from ladder.material import FEATURES, PICTURES, dialogues, save, texts_file, told_file
from ladder.rungs import PACKAGED, Rung, Sizes
from seewhen.backbones.loading import load
from seewhen.runs.evaluate import directory_fingerprint

ALIGNED = "aligned.safetensors"


class Bench:
    """The folder of the ladder, and where it is trained."""

    def __init__(self, folder: Path, sizes: Sizes, device: str) -> None:
        self.folder, self.sizes, self.device = folder, sizes, device
        if device == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = True

    @property
    def material(self) -> Path:
        return self.folder / "material"

    def stage(self, name: str) -> Path:
        return self.folder / "stages" / f"{name}.safetensors"

    def model(self, rung: Rung) -> Path:
        return self.folder / "models" / rung.name

    def made(self, rung: Rung) -> Path:
        """Written last: where it stands, the model is whole."""
        return self.folder / "models" / f"{rung.name}.json"

    def log(self, name: str) -> stages.Log:
        """Lines of a stage, with the seconds since it began."""
        file = self.folder / "logs" / f"{name}.log"
        file.parent.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()

        def log(line: str) -> None:
            with file.open("a", encoding="utf-8") as handle:
                handle.write(f"{time.monotonic() - began:7.1f} s  {line}\n")

        return log


def fresh(bench: Bench, seed: int) -> tuple[Any, Any, stages.Words]:
    """The packaged model's tower and words, with a decoder and a projector that know nothing."""
    packaged, processor = load("packaged", device="cpu", dtype=torch.float32)
    model = words.build_model(processor.tokenizer, Shape(), seed)
    model.model.vision_tower.load_state_dict(packaged.model.vision_tower.state_dict())
    table = model.model.language_model.embed_tokens
    table.load_state_dict(packaged.model.language_model.embed_tokens.state_dict())
    return model.to(bench.device), processor, stages.words(processor.tokenizer)


def resumed(bench: Bench, path: Path | None, seed: int) -> tuple[Any, Any, stages.Words]:
    """A model with the weights of a stage; without one, the packaged model's."""
    model, processor, known = fresh(bench, seed)
    if path is None:
        model.load_state_dict(load(PACKAGED, device="cpu", dtype=torch.float32)[0].state_dict())
    else:
        model.load_state_dict(load_file(path, device=bench.device))
    torch.manual_seed(seed)
    return model, processor, known


def keep(model: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, path)


def align(bench: Bench) -> None:
    """A projector that takes patches to the words for what they show: it has never met a decoder."""
    model, _, known = fresh(bench, 0)
    seen = load_file(bench.material / FEATURES, device=bench.device)["seen"]
    shown = load_file(bench.material / PICTURES, device=bench.device)
    labels, colors = shown["labels"].long(), shown["colors"].long()
    projector, table = model.model.multi_modal_projector, model.model.language_model.embed_tokens
    table.weight.requires_grad_(False)
    scale = nn.Parameter(torch.tensor([2.3, 2.3], device=bench.device))

    def loss_of(rows: torch.Tensor) -> torch.Tensor:
        return stages.alignment(projector(seen[rows]), table, labels[rows], colors[rows], known, scale)

    stage = bench.sizes.steps["alignment"]
    stages.Trainer((projector, scale), stage, bench.device).run(loss_of, len(seen), bench.log("aligned"))
    path = bench.folder / "stages" / ALIGNED
    path.parent.mkdir(parents=True, exist_ok=True)
    save({name: tensor.contiguous() for name, tensor in projector.state_dict().items()}, path)


def speak(bench: Bench, rung: Rung) -> None:
    """The decoder on text alone; without alignment the words' vectors are learned here too."""
    model, _, _ = fresh(bench, rung.seed)
    table = model.model.language_model.embed_tokens
    if not rung.aligned:
        nn.init.normal_(table.weight, std=0.02)
    torch.manual_seed(rung.seed)
    if rung.language != "none":
        rows = dialogues(bench.material / texts_file(rung.skew), "noted", bench.device)
        table.weight.requires_grad_(not rung.aligned)
        trained = (*stages.decoder(model), *(() if rung.aligned else (table,)))
        trainer = stages.Trainer(trained, bench.sizes.steps[rung.language], bench.device)
        trainer.run(lambda chosen: rows.loss(model, chosen), len(rows), bench.log(f"language {rung.spoken}"))
    keep(model, bench.stage(f"language-{rung.spoken}"))


def connect(bench: Bench, rung: Rung) -> None:
    """The projector alone, on true captions."""
    model, _, known = resumed(bench, bench.stage(f"language-{rung.spoken}"), rung.seed)
    if rung.aligned:
        aligned = load_file(bench.folder / "stages" / ALIGNED, device=bench.device)
        model.model.multi_modal_projector.load_state_dict(aligned)
    seen = load_file(bench.material / FEATURES, device=bench.device)["seen"]
    captions = dialogues(bench.material / told_file("clean"), "captions", bench.device)
    log = bench.log(f"projector {rung.spoken}")
    stages.train_projector(model, seen, captions, known, bench.sizes.steps["projector"], log, bench.device)
    keep(model, bench.stage(f"projector-{rung.spoken}"))


def finish(bench: Bench, rung: Rung) -> None:
    """The fine-tune of projector and decoder, and the checkpoint in the shipped form with its fingerprint."""
    began = time.monotonic()
    begun = bench.stage(f"projector-{rung.spoken}") if rung.language != PACKAGED else None
    model, processor, known = resumed(bench, begun, rung.seed)
    if rung.vision != "projector":
        told = bench.material / told_file(rung.noise)
        captions, asked = (dialogues(told, name, bench.device) for name in ("captions", "questions"))
        texts = dialogues(bench.material / texts_file(rung.skew), "plain", bench.device) if rung.texts else None
        seen = load_file(bench.material / FEATURES, device=bench.device)["seen"]
        stage, log = bench.sizes.steps[rung.vision], bench.log(rung.name)
        stages.finetune(model, seen, captions, asked, known, stage, log, bench.device, texts=texts)
    folder = bench.model(rung)
    words.save(model, processor, folder)
    made = {"weights": directory_fingerprint(folder), "seconds": round(time.monotonic() - began, 1)}
    part = bench.made(rung).with_suffix(".part")
    part.write_text(json.dumps(made) + "\n", encoding="utf-8")
    part.replace(bench.made(rung))
