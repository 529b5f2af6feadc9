"""A loaded model with all that is known of it, and a method on it that answers batches of questions.

Everybody who asks a model something asks here: prompts and inputs are prepared one way, what questions about one
picture share is computed once where that is exact, and a batch that does not fit into memory is halved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from seewhen.asking.attach import attach, end_ids, new_part
from seewhen.asking.features import looked_once, shared_features
from seewhen.asking.handle import Handle
from seewhen.asking.memory import Halving
from seewhen.asking.prefix import KeptPrefix, PrefixHook, can_share, kept_length, lay_out
from seewhen.asking.replay import replay
from seewhen.backbones.backbone import Backbone
from seewhen.backbones.loading import tokenizer_of
from seewhen.backbones.prompts import Picture, chat_prompt, model_inputs
from seewhen.decoding.altered_images import AlteredImage
from seewhen.decoding.fast import Fast
from seewhen.decoding.method import Method, Parts
from seewhen.decoding.similarity import image_features, with_similarity
from seewhen.decoding.stepping import Course
from seewhen.decoding.tilted_attention import Tilt
from seewhen.decoding.trace import Trace, answer_length
from seewhen.errors import SeewhenError
from seewhen.methods import method as make_method

_COURSE = {"return_dict_in_generate": True, "output_logits": True}
Box = tuple[float, float, float, float]
Options = Mapping[str, Any] | Callable[[Sequence["Question"]], Mapping[str, Any]]


@dataclass(frozen=True)
class Question:
    """A finished prompt with its pictures. `name` is for random streams and for whoever asks."""

    prompt: str
    pictures: tuple[Picture, ...] = ()
    name: str = ""


@dataclass(frozen=True)
class Answer:
    """What the model said to one prompt."""

    text: str
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Batch:
    """The answers to questions that went together. `trace` is None where the decoding loop keeps none."""

    answers: tuple[Answer, ...]
    trace: Trace | None


class Asker:
    """A model with its processor, and what does not change from question to question."""

    def __init__(self, loaded: tuple[Any, Any]) -> None:
        self.model, self.processor = loaded
        self.tokenizer = tokenizer_of(self.processor)
        self.backbone = Backbone.of(self.model)
        self.special = frozenset(self.tokenizer.all_special_ids)
        self.ends = end_ids(self.model.generation_config.eos_token_id)

    def prompt(self, text: str, pictures: int = 1, raw: bool = False) -> str:
        """`text` in the model's chat template; a `raw` one is complete but for the name of the image token."""
        if not raw:
            return chat_prompt(self.processor, text, pictures)
        return text.replace("<image>", str(getattr(self.processor, "image_token", "<image>")))

    def inputs(self, questions: Sequence[Question]) -> dict[str, Any]:
        """What `generate` takes."""
        pictures = [question.pictures for question in questions]
        return model_inputs(self.model, self.processor, pictures, [question.prompt for question in questions])

    def new_tokens(self, output: Any, prompt: Tensor, ends: frozenset[int] | None = None) -> list[list[int]]:
        """The answers' tokens up to and with the one that ends each, without padding. Most models return the
        prompt before them."""
        rows = new_part(output if isinstance(output, Tensor) else output.sequences, prompt).tolist()
        stop = self.ends if ends is None else ends
        return [row[: answer_length(row, stop, self.tokenizer.pad_token_id)] for row in rows]

    def answer(self, tokens: Sequence[int]) -> Answer:
        """Tokens with their text."""
        text = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return Answer(text.strip(), tuple(tokens))

    def placed(self, trace: Trace, sizes: Sequence[Sequence[tuple[int, int]]]) -> Trace:
        """The trace with texts, and grids with the part of each picture that the processor did not crop away."""
        grids = []
        for row, of_row in zip(trace.grids, sizes, strict=True):
            boxes = [seen_box(self.processor, size) for size in of_row]
            grids.append(tuple(replace(g, box=boxes[g.image]) if g.kind == "image" else g for g in row))
        return trace.with_grids(tuple(grids)).with_texts(self.tokenizer)

    def replayed(
        self, questions: Sequence[Question], answers: Sequence[Sequence[int]], method: Method, **looks: Any
    ) -> Trace:
        """The trace of given answers, which may differ in length, fed through `method` token by token."""
        longest = max(map(len, answers))
        padding = self.tokenizer.pad_token_id or 0
        tokens = torch.tensor([[*row, *[padding] * (longest - len(row))] for row in answers])
        inputs = self.inputs(questions)
        with torch.inference_mode(), image_features(self.backbone, inputs["input_ids"]) as features:
            whole = replay(self.model, inputs, tokens, method, backbone=self.backbone, **looks).trace
        # The pass after the last token chose nothing.
        cut = {name: tensor[:longest] for name, tensor in whole.tensors.items()}
        lengths = tuple(map(len, answers))
        trace = replace(whole, tokens=tokens.T.contiguous(), tensors=cut, lengths=lengths)
        return with_similarity(trace, self.backbone, features[: trace.rows]) if features else trace

    def sureness(self, question: Question, answer: Sequence[int]) -> tuple[list[float], list[float]]:
        """The log-probability of each token of an answer and the entropy (nats) it was chosen from: the bare
        model's, whatever wrote the answer, in one pass."""
        inputs = self.inputs([question])
        said = torch.tensor([list(answer)], device=inputs["input_ids"].device)
        more = {"input_ids": said, "attention_mask": torch.ones_like(said)}
        more |= dict.fromkeys(("token_type_ids", "mm_token_type_ids"), torch.zeros_like(said))
        inputs |= {n: torch.cat([inputs[n], more[n].to(inputs[n].dtype)], dim=1) for n in more if n in inputs}
        with torch.inference_mode():
            logits = self.model(**inputs).logits[0, -said.shape[1] - 1 : -1]
        log_probs = torch.log_softmax(logits.float(), dim=-1)
        entropy = torch.special.entr(log_probs.exp()).sum(dim=-1)
        return log_probs.gather(1, said[0, :, None])[:, 0].tolist(), entropy.tolist()

    def recorded(self, text: str, count: int, most: int) -> list[int]:
        """The tokens of an answer of which text and length are known; it ends unless it was cut at `most` tokens.

        The text has lost the space that many models begin with: the reading with the right length is taken.
        """
        end = sorted(self.ends)[:1] if count < most else []
        texts = [self.tokenizer(t, add_special_tokens=False)["input_ids"] for t in (text, f" {text}")]
        readings = [*([*ids, *end] for ids in texts), *texts]  # the last: a method ended it, with no such token
        return next((ids for ids in readings if len(ids) == count), readings[0])

    @contextmanager
    def attached(
        self,
        method: str | Method,
        *,
        trace: bool | str = False,
        fast: Fast = "auto",
        kept: KeptPrefix | None = None,
        **looks: Any,
    ) -> Iterator[AttachedMethod]:
        """A method on the model for as many batches as wanted. `looks` are further arguments of `attach`; what is
        `kept` of a prompt serves the next method that is asked the same."""
        prepared = make_method(method).prepare(self.tokenizer)
        with ExitStack() as stack:
            handle = stack.enter_context(
                attach(self.model, prepared, trace=trace, fast=fast, backbone=self.backbone, **looks)
            )
            parts = prepared.parts(self.backbone)
            shares = (not trace or kept is not None) and _may_share(parts)
            prefix = None
            if shares and can_share(self.backbone):
                # After the method's own hooks: these see the whole prompt, what follows reads only the rest.
                layers = [i.relevance.source_layer for i in parts.interventions if isinstance(i, Tilt)]
                # A full trace looks at the embeddings too, and the next method may.
                layers += [0, *looks.get("relevance_layers", ())] if kept is not None else []
                prefix = PrefixHook(self.backbone, layers, kept)
                stack.callback(prefix.remove)
            if shares and kept is not None:
                stack.enter_context(looked_once(self.model, kept.seen))
            if kept is not None and parts == Parts(judge=parts.judge, budget=parts.budget):
                handle.session.course = kept.course
            yield AttachedMethod(self, prepared, handle, shares, prefix)


class AttachedMethod:
    """A method on an asker's model."""

    def __init__(
        self, asker: Asker, method: Method, handle: Handle, shares: bool, prefix: PrefixHook | None
    ) -> None:
        self.asker, self.method, self.handle = asker, method, handle
        self.shares, self.prefix = shares, prefix
        self._halving = Halving()

    def answer(self, questions: Sequence[Question], options: Options, traced: bool = True) -> list[Batch]:
        """All answers, in order, in as few batches as method and memory allow.

        `options` are those of `generate`, or a function that gives them for the questions of a batch. A trace that
        nobody wants need not be brought from the device.
        """
        together = [questions] if self.method.batches else [[question] for question in questions]
        work = partial(self._batch, options=options, traced=traced)
        return [batch for part in together for batch in self._halving(part, work)]

    def _batch(self, questions: Sequence[Question], options: Options, traced: bool) -> Batch:
        asker = self.asker
        given = {"pad_token_id": asker.tokenizer.pad_token_id}
        given |= options(questions) if callable(options) else options
        inputs, rest = self._shared(asker.inputs(questions), questions)
        full = self.handle.session.level != "summary"
        with torch.inference_mode(), ExitStack() as stack:
            if self.prefix is not None and rest is not None:
                stack.enter_context(self.prefix.expected(rest))
            features: list[Tensor] = []
            if full:
                features = stack.enter_context(image_features(asker.backbone, inputs["input_ids"]))
            plain = self._keeps_course(given)
            output = asker.model.generate(**inputs, **given, **(_COURSE if plain else {}))
        ends = end_ids(given["eos_token_id"]) if "eos_token_id" in given else None
        tokens = asker.new_tokens(output, inputs["input_ids"], ends)
        if plain and self.prefix is not None and self.prefix.kept is not None:
            sequence = self.handle.session.last
            assert sequence is not None
            self.prefix.kept.course = Course(tokens[0], output.logits, output.past_key_values, sequence)
        trace = self._trace() if traced else None
        if trace is not None and features:
            trace = with_similarity(trace, asker.backbone, features[: trace.rows])
        return Batch(tuple(map(asker.answer, tokens)), trace)

    def _keeps_course(self, given: Mapping[str, Any]) -> bool:
        """Whether a judge that is asked the same afterwards may follow this answer: plain decoding on a CPU, where
        passes are what costs."""
        kept = self.prefix is not None and self.prefix.kept is not None
        plain = self.handle.session.parts == Parts() and given.get("num_beams", 1) == 1
        return kept and plain and self.asker.model.device.type == "cpu"

    def _trace(self) -> Trace | None:
        try:
            return replace(self.handle.trace, completing=None)  # whoever asked here knows words and pictures
        except SeewhenError:
            return None  # a decoding loop of its own keeps none

    def _shared(self, inputs: dict[str, Any], questions: Sequence[Question]) -> tuple[dict[str, Any], int | None]:
        """Inputs by which what questions about one picture have in common is computed only once, where that is
        exact; and how many of the last columns are then each question's own."""
        if not self.shares or any(len(question.pictures) != 1 for question in questions):
            return inputs, None
        if self.prefix is not None and self.prefix.kept is not None:
            return inputs, kept_length(self.asker.backbone, inputs)
        pictures = [str(id(question.pictures[0])) for question in questions]
        inputs = shared_features(self.asker.model, inputs, pictures) or inputs
        if self.prefix is None:
            return inputs, None
        found = lay_out(self.asker.backbone, inputs, pictures, self.asker.tokenizer.pad_token_id)
        return found or (inputs, None)


def _may_share(parts: Parts) -> bool:
    """Only where nothing looks at the pixels, acts inside the vision tower or on more than the newest row. A judge
    asks aside, on columns that are the same however they came there."""
    tilts = all(type(intervention) is Tilt for intervention in parts.interventions)  # a subclass may do more
    return tilts and parts.loop is None and not any(isinstance(b, AlteredImage) for b in parts.branches)


def seen_box(processor: Any, size: tuple[int, int]) -> Box:
    """The part of a picture that a processor with a centre crop gives to the model, as fractions."""
    images = getattr(processor, "image_processor", None)
    crop, resize = getattr(images, "crop_size", None), getattr(images, "size", None)
    shortest = _entry(resize, "shortest_edge")
    if not getattr(images, "do_center_crop", False) or not shortest or crop is None:
        return (0.0, 0.0, 1.0, 1.0)
    scale = shortest / min(size)
    sides = (_entry(crop, "width"), _entry(crop, "height"))
    shares = [min(1.0, kept / (side * scale)) for kept, side in zip(sides, size, strict=True)]
    left, top = ((1 - share) / 2 for share in shares)
    return (left, top, 1 - left, 1 - top)


def _entry(sizes: Any, name: str) -> float:
    """A size by name, from a dictionary or an object, depending on the release."""
    value = sizes.get(name) if hasattr(sizes, "get") else getattr(sizes, name, None)
    return float(value or 0)
