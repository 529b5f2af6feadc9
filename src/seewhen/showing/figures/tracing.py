"""Cases by the dozen: from the packaged scenes, or from the captions of a finished run."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seewhen.asking.asker import Asker, Question
from seewhen.asking.options import DESCRIBE
from seewhen.decoding.method import Method
from seewhen.decoding.trace import Trace
from seewhen.errors import InvalidInput
from seewhen.methods import method as make_method
from seewhen.runs.noise import OwnNoise, stream_seed
from seewhen.runs.store import Record, check_run, read_run
from seewhen.scenes import Scene, scene_named
from seewhen.showing.figures.cases import Case, scene_case

Tick = Callable[[int], None]


@dataclasses.dataclass(frozen=True)
class Tracer:
    """A loaded model, and what its traces shall hold beside the usual: all source layers, some heads."""

    asker: Asker
    head_layers: tuple[int, ...] = ()
    batch: int = 8

    @classmethod
    def of(cls, loaded: tuple[Any, Any], head_layers: Sequence[int] = (), batch: int = 8) -> Tracer:
        return cls(Asker(loaded), tuple(head_layers), batch)

    @property
    def looks(self) -> dict[str, Any]:
        """Arguments of `attach` and `replay`."""
        layers = tuple(range(self.asker.backbone.num_layers))
        return {"relevance_layers": layers, "head_layers": self.head_layers}


def _questions(cases: Sequence[Case]) -> list[Question]:
    if any(case.image is None or not case.prompt for case in cases):
        raise InvalidInput("An answer without its picture cannot be made again.", "Use --scenes or --run.")
    return [Question(case.prompt, (case.image,), case.name) for case in cases if case.image is not None]


def trace_scenes(
    tracer: Tracer,
    scenes: Sequence[Scene],
    method: str | Method = "cai",
    *,
    seed: int | None = None,
    max_new_tokens: int = 96,
    tick: Tick = lambda done: None,
) -> list[Case]:
    """Every scene described. Greedy, or sampled with a `seed` (each scene from a stream of its own)."""
    prompt = tracer.asker.prompt(DESCRIBE)
    asked = [scene_case(scene, DESCRIBE, prompt) for scene in scenes]
    return answered(tracer, asked, method, seed=seed, max_new_tokens=max_new_tokens, tick=tick)


def answered(
    tracer: Tracer,
    asked: Sequence[Case],
    method: str | Method,
    *,
    seed: int | None = None,
    max_new_tokens: int = 96,
    tick: Tick = lambda done: None,
) -> list[Case]:
    """The same questions about the same pictures, answered with `method`."""
    chosen = _traceable(make_method(method))

    def options(part: Sequence[Question]) -> dict[str, Any]:
        seeds = [] if seed is None else [stream_seed(seed, question.name) for question in part]
        noise = {"logits_processor": [OwnNoise(seeds)]} if seeds else {}
        return {"max_new_tokens": max_new_tokens, "do_sample": False, **noise}

    cases: list[Case] = []
    with _quiet(), tracer.asker.attached(chosen, trace="replay", **tracer.looks) as attached:
        for start in range(0, len(asked), tracer.batch):
            rest = list(asked[start : start + tracer.batch])
            for batch in attached.answer(_questions(rest), options):
                part, rest = rest[: len(batch.answers)], rest[len(batch.answers) :]
                assert batch.trace is not None  # only a beam search keeps none, and is refused
                trace = _finished(tracer, batch.trace, part)
                cases += [dataclasses.replace(case, trace=trace, row=row) for row, case in enumerate(part)]
                tick(len(part))
    return cases


def replayed(tracer: Tracer, case: Case, method: str | Method) -> Case:
    """The same words, fed through another method: what it would have said at each, and how sure it was."""
    ids = case.trace.tokens[: case.length, case.row].tolist()
    trace = _forced(tracer, [case], [ids], _traceable(make_method(method).prepare(tracer.asker.tokenizer)))
    return dataclasses.replace(case, trace=trace, row=0)


def _traceable(method: Method) -> Method:
    if method.beams_only or method.samples_only:
        how = "searches over beams" if method.beams_only else "rejects samples"
        raise InvalidInput(f"{method.name} {how}, so given words cannot be fed through it.", "Use another.")
    return method


def trace_run(
    tracer: Tracer,
    path: Path,
    *,
    limit: int = 60,
    images: Path | None = None,
    truth: Callable[[str], tuple[str, ...] | None] | None = None,
    tick: Tick = lambda done: None,
) -> list[Case]:
    """The captions a run recorded (its first seed), fed through its model and method again.

    `images` is the folder of the pictures of a run that is not over scenes, `truth` gives the objects an
    image shows.
    """
    from seewhen.benchmarks import benchmark_class
    from seewhen.methods import method_from_json

    run = check_run(read_run(path))
    asked = run.config["benchmark"]
    benchmark = benchmark_class(asked["name"])
    if benchmark.answers_are != "captions":
        raise InvalidInput(f"{path} holds answers to {asked['name']}, not captions.", "Use a run of chair.")
    records = [r for r in run.records if not r.error and r.seed == 0][:limit]
    if not records:
        raise InvalidInput(f"{path} holds no caption.", "Let it finish first.")
    method = _traceable(method_from_json(dict(run.config["method"])).prepare(tracer.asker.tokenizer))
    most = int(run.config["decoding"]["max_new_tokens"])
    question = str(asked["first_prompt"])
    prompt = tracer.asker.prompt(question, raw=benchmark.styles[asked["style"]].wrapper is not None)
    shown = [_picture(record, asked["data"] == "scenes", images, truth) for record in records]
    shown = [dataclasses.replace(case, question=question, prompt=prompt) for case in shown]
    # Captions of about the same length go together: a batch is as long as its longest.
    order = sorted(range(len(records)), key=lambda k: records[k].tokens)
    done: dict[int, Case] = {}
    for start in range(0, len(order), tracer.batch):
        part = order[start : start + tracer.batch]
        trace = _forced(
            tracer, [shown[k] for k in part], [_tokens(tracer, records[k], most) for k in part], method
        )
        done |= {k: dataclasses.replace(shown[k], trace=trace, row=row) for row, k in enumerate(part)}
        tick(len(part))
    return [done[k] for k in range(len(records))]


def _picture(record: Record, scenes: bool, images: Path | None, truth: Any) -> Case:
    """What a recorded answer is about; the answer itself is still to come."""
    if scenes:
        return scene_case(scene_named(record.image))
    from seewhen.backbones.pictures import open_image
    from seewhen.benchmarks.files import find_image

    if images is None:
        raise InvalidInput("The run is over picture files.", "Say where they are with --images.")
    known = None if truth is None else truth(record.image)
    unanswered: Any = None
    return Case(unanswered, 0, open_image(find_image(images, record.image)), record.image, truth=known)


def _tokens(tracer: Tracer, record: Record, most: int) -> list[int]:
    return tracer.asker.recorded(record.answer, record.tokens, most)


def _forced(tracer: Tracer, cases: Sequence[Case], ids: Sequence[list[int]], method: Method) -> Trace:
    """The trace of given answers, which may differ in length."""
    with _quiet():
        trace = tracer.asker.replayed(_questions(cases), ids, method, **tracer.looks)
    return _finished(tracer, trace, cases)


def _finished(tracer: Tracer, trace: Trace, cases: Sequence[Case]) -> Trace:
    """With words and places, and with the chosen token's probability instead of the whole vocabulary's."""
    tensors = dict(trace.tensors)
    scores: Tensor = tensors.pop("scores")
    tensors.pop("logits", None)
    logs = torch.log_softmax(scores.float(), dim=-1)
    tensors["chosen_log_probs"] = logs.gather(-1, trace.tokens[: len(logs), :, None])[..., 0]
    sizes = [[case.image.size if case.image else (1, 1)] for case in cases]
    return tracer.asker.placed(dataclasses.replace(trace, tensors=tensors), sizes)


@contextmanager
def _quiet() -> Iterator[None]:
    """A gate that stays closed for one batch is no news here: the figure shows it."""
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.filterwarnings("ignore", message=".*never fired", category=UserWarning)
        yield
