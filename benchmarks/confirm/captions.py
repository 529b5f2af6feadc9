"""Makes the captions: `python -m confirm.captions runs --exam DIR --out DIR [--processes 8]`; resumes.

One gzip file of JSON lines per run: image, text, and what `confirm` tells (verdicts with all signals, sentences
taken back, steps). `odds` asks about all 80 objects of every picture, for the ceiling; `blind` without a picture.
Processes take the next run that nobody has begun, in the order of `settings.py`, until the seconds are over.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from confirm.grouped_attention import use_grouped
from confirm.kept_prompts import KeptPrompts
from confirm.material import QUESTION, Item, photographs, scenes
from confirm.settings import WORD_LEVEL, Run, everything, fit, needs
from confirm.variants import AllObjects, TellsAll, WordLevel
from seewhen.decoding.method import Method

PLAIN = ("regular", "min-p", "confirm", "min-p+confirm", WORD_LEVEL)  # change nothing before the first new token
# Where each part begins in its source, and how many pictures it has.
PLACES = {
    "photo-test": (0, 445),
    "photo-validation": (0, 300),
    "photo-ablation": (300, 300),
    "scenes-test": (0, 200),
    "scenes-validation": (2000, 200),
    "scenes-ablation": (3000, 200),
}
ASKED = ("scenes-test", "photo-test")  # about all 80 objects


def material(part: str, exam: Path, limit: int | None) -> tuple[Item, ...]:
    """The pictures of a part."""
    first, whole = PLACES[part]
    count = min(whole, limit or whole)
    if part.startswith("photo"):
        folder = "test" if part == "photo-test" else "validation"
        return photographs(str(exam / folder), first, count)
    return scenes("shifted", first, count)


class Writer:
    """One loaded model."""

    def __init__(self, model: str, batch: int, device: str | None) -> None:
        import seewhen
        from seewhen.backbones.prompts import chat_prompt

        name = "photo" if model == "photo" else "packaged"
        self.model, self.processor = seewhen.load(name, device=device, dtype="float32")
        if self.model.device.type == "cuda":
            use_grouped()
        self.batch, self.prompt = batch, chat_prompt(self.processor, QUESTION, 1)
        self.kept = KeptPrompts(self.model)

    def inputs(self, items: Sequence[Item]) -> dict[str, Any]:
        """The prompts of a batch, the tower's work done."""
        return self.kept.encoded(items, self.plain_inputs)

    def plain_inputs(self, items: Sequence[Item]) -> dict[str, Any]:
        """The prompts of a batch, with pixels."""
        from seewhen.backbones.prompts import model_inputs

        pictures = [[item.open()] for item in items]
        return model_inputs(self.model, self.processor, pictures, [self.prompt] * len(items))

    def write(self, run: Run, items: Sequence[Item], path: Path) -> None:
        """All captions of a run."""
        started = time.perf_counter()
        lines: list[dict[str, Any]] = []
        for start in range(0, len(items), self.batch):
            lines += self._batch(run, items[start : start + self.batch])
        head = {"run": run.name, "method": run.method, "seed": run.seed, "temperature": run.temperature}
        head |= {"tokens": run.tokens, "part": run.part, "seconds": round(time.perf_counter() - started, 2)}
        save(path, [head, *lines])

    def _batch(self, run: Run, items: Sequence[Item]) -> Iterator[dict[str, Any]]:
        import torch

        import seewhen

        tokenizer = self.processor.tokenizer
        inputs = self.inputs(items)
        options: dict[str, Any] = {"max_new_tokens": run.tokens, "do_sample": False}
        if run.seed is not None:
            options["logits_processor"] = noise(run, items)
        method = method_of(run, tokenizer)
        # A method that looks at the prompt's hidden states has to read it. On a GPU reading costs little.
        keeps = method.name in PLAIN and self.model.device.type == "cpu"
        reading = self.kept.reading(items) if keeps else nullcontext()
        torch.manual_seed(run.seed or 0)  # drafts draw by it; answers have each picture's own noise
        with seewhen.attach(self.model, method, fast="off") as handle, reading, torch.inference_mode():
            output = self.model.generate(**inputs, **options, pad_token_id=tokenizer.pad_token_id)
            told = handle.trace.told
        new = output[:, inputs["input_ids"].shape[1] :]
        for row, item in enumerate(items):
            text = tokenizer.decode(new[row], skip_special_tokens=True).strip()
            yield {"image": item.name, "text": text, **({"told": told[row]} if told else {})}

    def odds(self, items: Sequence[Item], path: Path) -> None:
        """Log-odds of all 80 objects for every picture."""
        import torch

        import seewhen
        from seewhen.verdicts.lexicon import chair_lexicon

        names, asks = chair_lexicon().objects, asking(self.processor.tokenizer)
        lines: list[dict[str, Any]] = [{"objects": names}]
        for start in range(0, len(items), 16):
            some = items[start : start + 16]
            inputs = self.inputs(some)
            method = AllObjects(tuple(names), asks)
            with seewhen.attach(self.model, method, fast="off") as handle, torch.inference_mode():
                self.model.generate(**inputs, max_new_tokens=1, do_sample=False, pad_token_id=0)
                told = handle.trace.told
            lines += [{"image": item.name, **row} for item, row in zip(some, told, strict=True)]
        save(path, lines)

    def blind(self) -> dict[str, float]:
        """Log-odds of all 80 objects when there is no picture: the question alone."""
        import torch

        from seewhen.verdicts.lexicon import chair_lexicon
        from seewhen.verdicts.questions import question

        tokenizer, found, words = self.processor.tokenizer, {}, asking(self.processor.tokenizer).words  # type: ignore[attr-defined]
        for name in chair_lexicon().objects:
            content = [{"type": "text", "text": question(name, words.lexicon, words.template)}]
            text = self.processor.apply_chat_template(
                [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
            )
            ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]], device=self.model.device)
            with torch.inference_mode():
                logits = self.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[:, -1]
            found[name] = round(float(words.answers.log_odds(logits)), 4)
        return found


def asking(tokenizer: Any) -> Method:
    """`confirm` that can put questions about the 80 objects."""
    import seewhen

    return seewhen.method("confirm:lexicon=coco,verdict=asking").prepare(tokenizer)


def method_of(run: Run, tokenizer: Any) -> Method:
    """What makes a run's captions."""
    import seewhen
    from seewhen.verdicts.lexicon import chair_lexicon

    if run.method == WORD_LEVEL:
        return WordLevel(tuple(chair_lexicon().objects), asking(tokenizer))
    method = seewhen.method(run.method).prepare(tokenizer)
    return TellsAll(method) if run.note == "again" else method


def save(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    """Gzip JSON lines, in place only when whole."""
    text = "\n".join(json.dumps(line) for line in lines) + "\n"
    temporary = path.with_suffix(".part")
    temporary.write_bytes(gzip.compress(text.encode(), mtime=0))
    temporary.rename(path)


def noise(run: Run, items: Sequence[Item]) -> Any:
    """Sampling whose draws are each picture's own."""
    from transformers import LogitsProcessorList
    from transformers.generation.logits_process import MinPLogitsWarper, TemperatureLogitsWarper

    from seewhen.runs.noise import HashedNoise, stream_seed

    seeds = [stream_seed(run.seed or 0, item.name) for item in items]
    if run.method.startswith("min-p"):  # its cut comes before the noise that makes the largest score a sample
        warpers = [TemperatureLogitsWarper(run.temperature), MinPLogitsWarper(0.1)]
        return LogitsProcessorList([*warpers, HashedNoise(seeds, 1.0)])
    return LogitsProcessorList([HashedNoise(seeds, run.temperature)])


def work(given: argparse.Namespace, model: str, todo: Sequence[Run | str]) -> None:
    """One process: one model, and always the first run that nobody has begun and that has what it needs."""
    import torch

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    writer, failed = Writer(model, given.batch, given.device), set[Run | str]()
    while time.time() < given.until:
        left = [run for run in todo if run not in failed and not _path(given.out, run).exists()]
        if not left:
            return
        try:
            if not any(_made(given, writer, run) for run in left if _ready(given, run)):
                time.sleep(0.5)  # others are at it
        except torch.OutOfMemoryError:
            writer.batch = max(writer.batch // 2, 1)
            torch.cuda.empty_cache()
        except Failed as error:  # the other runs are worth making all the same
            traceback.print_exception(error)
            failed.add(error.run)


class Failed(Exception):
    """A run that cannot be made."""

    def __init__(self, run: Run | str) -> None:
        super().__init__(str(run))
        self.run = run


def _path(out: Path, run: Run | str) -> Path:
    return out / f"{run}.odds.jsonl.gz" if isinstance(run, str) else out / f"{run.name}.jsonl.gz"


def _ready(given: argparse.Namespace, run: Run | str) -> bool:
    """Whether the fit that a run uses is there; only where fits are made meanwhile it may not be."""
    stage = None if isinstance(run, str) or not given.fits else needs(run)
    return stage is None or (given.fits / f"{run.part.partition('-')[0]}.{stage}").exists()  # type: ignore[union-attr]


def _made(given: argparse.Namespace, writer: Writer, run: Run | str) -> bool:
    """Whether it was made now, by us."""
    import torch

    path = _path(given.out, run)
    try:
        with FileLock(given.out / f".{path.name}.lock", blocking=False):
            if path.exists():
                return False
            items = material(run if isinstance(run, str) else run.part, given.exam, given.limit)
            if isinstance(run, str):
                writer.odds(items, path)
            else:
                writer.write(run, items, path)
    except Timeout:
        return False
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise Failed(run) from error
    print(path.name, flush=True)
    return True


def write_blind(given: argparse.Namespace, model: str) -> None:
    """Odds less those without a picture, as a fit of the study's own."""
    from seewhen.verdicts.verdict import Logistic, Verdict

    found = Writer(model, 1, given.device).blind()
    less = Logistic(0.0, {"odds": 1.0}, {name: -value for name, value in found.items()})
    about = {"what": "asking, less the odds of the same question without a picture"}
    Verdict(less, less, about=about).save(Path(fit("blind", model)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m confirm.captions", description=__doc__.splitlines()[0])
    parser.add_argument("stage", choices=["runs", "odds", "both", "blind"])
    parser.add_argument("--exam", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[""], help="runs whose name contains one of these")
    parser.add_argument("--models", nargs="*", default=["photo", "scenes"])
    parser.add_argument("--processes", type=int, default=1, help="of each model")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--device")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no run is begun after that")
    parser.add_argument("--fits", type=Path, help="where marks say which fits are made: runs wait for theirs")
    given = parser.parse_args()
    given.until = time.time() + given.seconds
    given.out.mkdir(parents=True, exist_ok=True)
    if given.stage == "blind":
        for model in given.models:
            write_blind(given, model)
        return
    planned: list[Run | str] = [] if given.stage == "odds" else list(everything())
    if given.stage != "runs":
        planned = [*planned[:2], *ASKED, *planned[2:]] if planned else list(ASKED)
    todo = [r for r in planned if any(text in (r if isinstance(r, str) else r.name) for text in given.only)]
    jobs = []
    for model in given.models:
        mine = [r for r in todo if (r if isinstance(r, str) else r.part).startswith(model)]
        jobs += [(given, model, mine)] * given.processes if mine else []
    if len(jobs) == 1:
        work(*jobs[0])
        return
    running = [get_context("spawn").Process(target=work, args=job) for job in jobs]
    for process in running:
        process.start()
    for process in running:
        process.join()


if __name__ == "__main__":
    main()
