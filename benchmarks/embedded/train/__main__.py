"""`python -m embedded.train RECIPE.json --out DIR`: run the stages that DIR does not hold yet."""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from embedded.train import data, measure, stages, words
from embedded.train.recipe import FineTune, Recipe, Stage, describe, load
from seewhen.errors import InvalidInput, SeewhenError
from seewhen.scenes.scene import dataset
from seewhen.scenes.world import HELD_OUT

STAGES = ("tower", "language", "projector")


class Run:
    """One run in a directory: what is done, what is logged, and the model as it stands."""

    def __init__(self, recipe: Recipe, out: Path, device: str, minutes: float) -> None:
        import torch

        self.recipe, self.out, self.device = recipe, out, device
        self.began = time.monotonic()
        self.until = self.began + 60 * minutes
        out.mkdir(parents=True, exist_ok=True)
        if device == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = True
        tokenizer_folder = out / "words"
        if not tokenizer_folder.is_dir():
            words.build_processor(words.build_tokenizer(recipe.shape)).save_pretrained(tokenizer_folder)
        from transformers import AutoProcessor

        self.processor = AutoProcessor.from_pretrained(tokenizer_folder, trust_remote_code=False)
        self.tokenizer = self.processor.tokenizer
        self.known = stages.words(self.tokenizer)
        self.model = words.build_model(self.tokenizer, recipe.shape, recipe.seed).to(device)
        size = sum(p.numel() for p in self.model.parameters())
        self.log(f"{size / 1e6:.2f} M parameters, vocabulary {len(self.tokenizer)}, {device}")

    def log(self, line: str) -> None:
        text = f"{time.monotonic() - self.began:7.1f} s  {line}"
        print(text, flush=True)
        with (self.out / "log.txt").open("a", encoding="utf-8") as handle:
            handle.write(text + "\n")

    def finished(self, name: str) -> bool:
        """Whether this stage, or one after it, left its weights."""
        later = STAGES[STAGES.index(name) :]
        return any((self.out / f"{other}.safetensors").is_file() for other in later)

    def stage(self, name: str, train: Callable[[], None]) -> None:
        """Train, or load what an earlier run left."""
        import torch
        from safetensors.torch import load_file, save_file

        file = self.out / f"{name}.safetensors"
        if self.finished(name):
            if file.is_file():
                self.model.load_state_dict(load_file(file, device=self.device))
            self.log(f"{name}: done before")
            return
        self.log(f"{name}:")
        torch.manual_seed(self.recipe.seed)
        train()
        part = file.with_suffix(".part")
        save_file({k: v.contiguous() for k, v in self.model.state_dict().items()}, part)
        part.replace(file)


def run(recipe: Recipe, out: Path, device: str, minutes: float = math.inf) -> dict[str, Any]:
    """All stages; then every fine-tune variant, measured; the best one is saved to `out/model`."""
    job = Run(recipe, out, device, minutes)
    prior = data.Dials(recipe.text_unseen, 0.2, 0.4, 0.0)
    with data.pool(recipe.workers, out / "words" / "tokenizer.json") as executor:
        pictures = data.draw(executor, recipe.scenes)
        job.log(f"{recipe.scenes} pictures")

        def tower() -> None:
            stages.train_tower(job.model, pictures, job.known, recipe.tower, job.log, device)

        def language() -> None:
            told = data.texts(executor, recipe.texts, prior, recipe.notes, recipe.seed)
            job.log(f"  {recipe.texts} texts")
            stages.train_language(job.model, stages.Dialogues(told, device), recipe.language, job.log, device)

        def projector() -> None:
            told = data.captions(executor, recipe.scenes, prior, recipe.seed)
            seen = stages.tower_features(job.model, pictures.pixels, device)
            rows = stages.Dialogues(told, device)
            stages.train_projector(job.model, seen, rows, job.known, recipe.projector, job.log, device)

        for name, train in zip(STAGES, (tower, language, projector), strict=True):
            job.stage(name, train)
        seen = stages.tower_features(job.model, pictures.pixels, device)
        return _finetunes(job, executor, seen)


def _finetunes(job: Run, executor: Any, seen: Any) -> dict[str, Any]:
    """Try all on a tuning draw of shifted scenes, keep the nearest to the targets, report on another."""
    import torch

    base = copy.deepcopy(job.model.state_dict())
    tried: dict[str, Any] = {"recipe": describe(job.recipe), "tried": []}
    tuning = measure.prepare(job.model, dataset("shifted", job.recipe.measured_scenes, seed=1), job.device)
    best: tuple[float, str, Any] | None = None

    def keep(name: str, step: int) -> None:
        nonlocal best
        figures = measure.measure(job.model, job.tokenizer, job.known, tuning, job.device)
        tried["tried"].append({"name": name, "step": step, **figures})
        _write(job.out / "tried.json", tried)
        job.log(f"  {name}@{step}: {summary(figures)}")
        if step and (best is None or figures["distance"] < best[0]):
            best = (figures["distance"], f"{name}@{step}", copy.deepcopy(job.model.state_dict()))
            words.save(job.model, job.processor, job.out / "model")

    def watch(variant: FineTune) -> Callable[[int], None]:
        wanted = {*variant.measure_at, variant.steps}

        def at(step: int) -> None:
            if step in wanted:
                with stages.sharpened(job.model, variant.sharpen):
                    keep(variant.name, step)

        return at

    keep("before", 0)
    for variant in job.recipe.finetunes:
        if time.monotonic() > job.until:
            break
        job.model.load_state_dict(base)
        torch.manual_seed(job.recipe.seed)
        dials = data.Dials(variant.unseen, variant.doubt, variant.hard, variant.slip)
        n = job.recipe.scenes
        captions = stages.Dialogues(data.captions(executor, n, dials, job.recipe.seed + 1), job.device)
        asked = stages.Dialogues(data.questions(executor, n, dials, job.recipe.seed + 1), job.device)
        job.log(f"fine-tune {variant.name}:")
        stage = Stage(variant.steps, variant.batch, variant.rate)
        stages.finetune(job.model, seen, captions, asked, job.known, stage, job.log, job.device,
                        watch(variant), job.until)  # fmt: skip
    if best is None:
        raise InvalidInput("No fine-tune was measured.", "Add one to the recipe, or give it more --minutes.")
    job.model.load_state_dict(best[2])
    tried["chosen"] = best[1]
    tried["final"] = final(job)
    _write(job.out / "tried.json", tried)
    job.log(f"chosen {best[1]}; on the reported draw: {summary(tried['final']['shifted'])}")
    return tried


def final(job: Run) -> dict[str, Any]:
    """The chosen model on the draws that were not used for choosing."""
    n = job.recipe.measured_scenes
    parts = {
        "shifted": dataset("shifted", n),
        "test": dataset("test", n),
        "test, held-out artwork": dataset("test", n, artwork=HELD_OUT),
    }
    exams = {name: measure.prepare(job.model, scenes, job.device) for name, scenes in parts.items()}
    return {
        name: measure.measure(job.model, job.tokenizer, job.known, exam, job.device)
        for name, exam in exams.items()
    }


def summary(figures: dict[str, Any]) -> str:
    """One line."""
    asked = " / ".join(f"{v['sampled']:.1f} ({v['greedy']:.1f})" for v in figures["pope"].values())
    told, firm = figures["sampled"], figures["greedy"]
    rates = figures["pope"]
    return (
        f"POPE {asked}  TPR {rates['random']['yes_if_true']:.0f} "
        f"FPR {' '.join(format(v['yes_if_false'], '.0f') for v in rates.values())}  "
        f"CHAIR {told['chair_s']:.1f}/{told['chair_i']:.1f} ({firm['chair_s']:.1f}/{firm['chair_i']:.1f})  "
        f"recall {told['recall']:.1f}  tokens {told['tokens']:.0f}  AUROC {told['auroc'][0]:.2f}"
        f"..{' '.join(format(a, '.2f') for a in told['auroc'][-4:])}  "
        f"where {figures['relevance']['name']:.0f}/{figures['relevance']['last_token']:.0f}  "
        f"MME {' '.join(format(v['sampled'], '.0f') for v in figures['mme'].values() if v)}  "
        f"distance {figures['distance']:.2f}"
    )


def _write(path: Path, content: Any) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m embedded.train", description=__doc__)
    parser.add_argument("recipe", type=Path)
    parser.add_argument(
        "--out", type=Path, required=True, help="directory of the run; stages found there are kept"
    )
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop fine-tuning after that long")
    parser.add_argument("--device", default=None, help="cuda or cpu; by default what there is")
    options = parser.parse_args()
    import torch

    try:
        device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
        run(load(options.recipe), options.out, device, options.minutes)
    except SeewhenError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
