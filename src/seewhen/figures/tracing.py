"""Cases by the dozen: from the packaged scenes, or from the captions of a finished run."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seewhen.answering import chat_prompt, model_inputs
from seewhen.attaching import attach
from seewhen.backbone import Backbone
from seewhen.errors import InvalidInput
from seewhen.figures.cases import Case, scene_case, scene_named
from seewhen.methods import method as make_method
from seewhen.methods.base import Method
from seewhen.replaying import replay
from seewhen.runs.noise import OwnNoise, stream_seed
from seewhen.runs.store import Record, read_run
from seewhen.scenes import Scene
from seewhen.trace import Trace

DESCRIBE = "Please describe this image in detail."
Tick = Callable[[int], None]


@dataclasses.dataclass(frozen=True)
class Looker:
    """A loaded model, and what its traces shall hold beside the usual: all source layers, some heads."""

    model: Any
    processor: Any
    backbone: Backbone
    head_layers: tuple[int, ...] = ()
    batch: int = 8

    @classmethod
    def of(cls, loaded: tuple[Any, Any], head_layers: Sequence[int] = (), batch: int = 8) -> Looker:
        model, processor = loaded
        return cls(model, processor, Backbone.of(model), tuple(head_layers), batch)

    @property
    def tokenizer(self) -> Any:
        return getattr(self.processor, "tokenizer", self.processor)

    @property
    def looks(self) -> dict[str, Any]:
        """Arguments of `attach` and `replay`."""
        layers = tuple(range(self.backbone.num_layers))
        return {"relevance_layers": layers, "head_layers": self.head_layers, "backbone": self.backbone}

    def inputs(self, cases: Sequence[Case]) -> dict[str, Any]:
        """What `generate` takes for the pictures and prompts of some cases."""
        if any(case.image is None or not case.prompt for case in cases):
            raise InvalidInput("An answer without its picture cannot be made again.", "Use --scenes or --run.")
        images: list[Any] = [[case.image] for case in cases]
        return model_inputs(self.model, self.processor, images, [case.prompt for case in cases])


def trace_scenes(
    looker: Looker,
    scenes: Sequence[Scene],
    method: str | Method = "cai",
    *,
    question: str = DESCRIBE,
    seed: int | None = None,
    max_new_tokens: int = 96,
    tick: Tick = lambda done: None,
) -> list[Case]:
    """Ask about every scene. Greedy, or sampled with a `seed` (each scene from a stream of its own)."""
    prompt = chat_prompt(looker.processor, question, 1)
    asked = [scene_case(scene, question, prompt) for scene in scenes]
    return answered(looker, asked, method, seed=seed, max_new_tokens=max_new_tokens, tick=tick)


def answered(
    looker: Looker,
    asked: Sequence[Case],
    method: str | Method,
    *,
    seed: int | None = None,
    max_new_tokens: int = 96,
    tick: Tick = lambda done: None,
) -> list[Case]:
    """The same questions about the same pictures, answered with `method`."""
    chosen = _traceable(make_method(method).prepare(looker.tokenizer))
    cases: list[Case] = []
    for start in range(0, len(asked), looker.batch):
        part = asked[start : start + looker.batch]
        inputs = looker.inputs(part)
        options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "do_sample": False}
        if seed is not None:
            options["logits_processor"] = [OwnNoise([stream_seed(seed, case.name) for case in part])]
        with _quiet(), attach(looker.model, chosen, trace="replay", **looker.looks) as handle:
            looker.model.generate(**inputs, **options, pad_token_id=looker.tokenizer.pad_token_id)
            trace = _finished(looker, handle.trace, part)
        cases += [dataclasses.replace(case, trace=trace, row=row) for row, case in enumerate(part)]
        tick(len(part))
    return cases


def replayed(looker: Looker, case: Case, method: str | Method) -> Case:
    """The same words, fed through another method: what it would have said at each, and how sure it was."""
    ids = case.trace.tokens[: case.length, case.row].tolist()
    trace = _forced(looker, [case], [ids], _traceable(make_method(method).prepare(looker.tokenizer)))
    return dataclasses.replace(case, trace=trace, row=0)


def _traceable(method: Method) -> Method:
    if method.beams_only or method.samples_only:
        raise InvalidInput(f"{method.name} has a decoding loop of its own, which keeps no trace.", "Use another.")
    return method


def trace_run(
    looker: Looker,
    path: Path,
    *,
    limit: int = 60,
    images: Path | None = None,
    truth: Mapping[str, Sequence[str]] | None = None,
    tick: Tick = lambda done: None,
) -> list[Case]:
    """The captions a run recorded (its first seed), fed through its model and method again.

    `images` is the folder of the pictures of a run that is not over scenes, `truth` maps its images to the
    objects they show.
    """
    from seewhen.bench.prompts import CHAIR_STYLES
    from seewhen.runs.controls import from_json

    run = read_run(path)
    asked = run.config["benchmark"]
    if asked["name"] != "chair":
        raise InvalidInput(f"{path} holds answers to {asked['name']}, not captions.", "Use a run of chair.")
    records = [r for r in run.records if not r.error and r.seed == 0][:limit]
    if not records:
        raise InvalidInput(f"{path} holds no caption.", "Let it finish first.")
    method = _traceable(from_json(dict(run.config["method"])).prepare(looker.tokenizer))
    most = int(run.config["decoding"]["max_new_tokens"])
    question = str(asked["first_prompt"])
    if CHAIR_STYLES[asked["style"]].wrapper is None:
        prompt = chat_prompt(looker.processor, question, 1)
    else:
        prompt = question.replace("<image>", str(getattr(looker.processor, "image_token", "<image>")))
    shown = [_picture(record, asked["data"] == "scenes", images, truth) for record in records]
    shown = [dataclasses.replace(case, question=question, prompt=prompt) for case in shown]
    # Captions of about the same length go together: a batch is as long as its longest.
    order = sorted(range(len(records)), key=lambda k: records[k].tokens)
    done: dict[int, Case] = {}
    for start in range(0, len(order), looker.batch):
        part = order[start : start + looker.batch]
        trace = _forced(looker, [shown[k] for k in part], [_ids(looker, records[k], most) for k in part], method)
        done |= {k: dataclasses.replace(shown[k], trace=trace, row=row) for row, k in enumerate(part)}
        tick(len(part))
    return [done[k] for k in range(len(records))]


def _picture(record: Record, scenes: bool, images: Path | None, truth: Any) -> Case:
    """What a recorded answer is about; the answer itself is still to come."""
    if scenes:
        return scene_case(scene_named(record.image))
    from seewhen.bench.coco import image_key
    from seewhen.bench.data import find_image
    from seewhen.images import open_image

    if images is None:
        raise InvalidInput("The run is over picture files.", "Say where they are with --images.")
    known = None if truth is None else tuple(sorted(truth.get(image_key(record.image), ())))
    unanswered: Any = None
    return Case(unanswered, 0, open_image(find_image(images, record.image)), record.image, truth=known)


def _ids(looker: Looker, record: Record, most: int) -> list[int]:
    """The tokens of a recorded answer, with the end token if it was not cut at `most` tokens.

    The record has lost the space that many models begin with. The number of tokens tells: of the two
    readings the one that has as many as were generated is taken.
    """
    eos = looker.model.generation_config.eos_token_id
    end = [] if eos is None or record.tokens >= most else [eos] if isinstance(eos, int) else [eos[0]]
    texts = (record.answer, f" {record.answer}")
    readings = [[*looker.tokenizer(text, add_special_tokens=False)["input_ids"], *end] for text in texts]
    return next((ids for ids in readings if len(ids) == record.tokens), readings[0])


def _forced(looker: Looker, cases: Sequence[Case], ids: Sequence[list[int]], method: Method) -> Trace:
    """The trace of given answers, which may differ in length."""
    longest = max(map(len, ids))
    padding = looker.tokenizer.pad_token_id or 0
    tokens = torch.tensor([row + [padding] * (longest - len(row)) for row in ids])
    with _quiet():
        trace = replay(looker.model, looker.inputs(cases), tokens, method, **looker.looks).trace
    cut = {name: tensor[:longest] for name, tensor in trace.tensors.items()}
    lengths = tuple(len(row) for row in ids)
    trace = dataclasses.replace(trace, tokens=tokens.T.contiguous(), tensors=cut, lengths=lengths)
    return _finished(looker, trace, cases)


def _finished(looker: Looker, trace: Trace, cases: Sequence[Case]) -> Trace:
    """With words and places, and with the chosen token's probability instead of the whole vocabulary's."""
    from seewhen.cli.asking import seen_box

    tensors = dict(trace.tensors)
    scores: Tensor = tensors.pop("scores")
    tensors.pop("logits", None)
    logs = torch.log_softmax(scores.float(), dim=-1)
    tensors["chosen_log_probs"] = logs.gather(-1, trace.tokens[: len(logs), :, None])[..., 0]
    grids = []
    for row, case in zip(trace.grids, cases, strict=True):
        box = seen_box(looker.processor, case.image.size if case.image else (1, 1))
        grids.append(tuple(dataclasses.replace(g, box=box) if g.kind == "image" else g for g in row))
    return dataclasses.replace(trace, tensors=tensors, grids=tuple(grids)).with_texts(looker.tokenizer)


@contextmanager
def _quiet() -> Iterator[None]:
    """A gate that stays closed for one batch is no news here: the figure shows it."""
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.filterwarnings("ignore", message=".*never fired", category=UserWarning)
        yield
