"""Placing a method on a model and taking it off again.

A session puts forward hooks on the decoder, its layers and the model, and selects our attention function for
the text tower only. Leaving the context, also through an exception, removes all of it: the model is as it
was. What belongs to one `generate` call is not here but in `calls.py`.
"""

from __future__ import annotations

import copy
import math
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from seewhen.backbones.backbone import Backbone
from seewhen.decoding.branches import decode_arguments, prefill_arguments
from seewhen.decoding.calls import Calls, left_early
from seewhen.decoding.fork import forget
from seewhen.decoding.hosting import FAST, KEYWORD, PREFIX, hosted_name, leave_alone
from seewhen.decoding.kept import Kept
from seewhen.decoding.method import Logits, Method, Parts
from seewhen.decoding.prefill import ImageColumns, Prefill
from seewhen.decoding.recorder import Recorder
from seewhen.decoding.rule_scores import check_form, record
from seewhen.decoding.sequence import ATTRIBUTE, CachedSequence, CurrentStep, Intervention, Step, Tables
from seewhen.decoding.stepping import Course
from seewhen.decoding.wider_prompts import widen
from seewhen.errors import InvalidMethod, UnsupportedMode, UnsupportedModel

# Decoder arguments with rows or per-row content beside embeddings, mask and positions.
_EXTRAS = ("visual_pos_masks", "deepstack_visual_embeds")
_FIRST_CAPACITY = 64
_ATTACHED = "_seewhen_session"


class Session:
    """One attached method on one model. Made by `attach`."""

    def __init__(
        self,
        backbone: Backbone,
        method: Method,
        observers: tuple[Intervention, ...] = (),
        level: str = "summary",
        entropy_base: float = math.e,
        fast: bool = False,
    ) -> None:
        self.backbone, self.method, self.level, self.fast = backbone, method, level, fast
        self.entropy_base = entropy_base
        self.parts: Parts = method.parts(backbone)
        self.interventions = observers + self.parts.interventions
        self.tables = Tables.of(self.interventions, backbone)
        self.current = CurrentStep()
        self.calls = Calls()
        self.image_room = 0  # columns for image tokens that every prompt gets, real or not
        self.questions: Kept[Any] = Kept()  # captured passes of questions aside
        self.course: Course | None = None  # of plain decoding, for a judge that may follow it
        self.process = os.getpid()
        self.placement: object = None  # made anew at each placing: a call must end in the one it began in
        self._warned: set[str] = set()
        self.quiet = False
        self._handles: list[Any] = []
        self.finishes = self.parts.rule is not None or bool(self.parts.branches) or level != "summary"
        self.tracks = False
        self._check_layers()

    def _check_layers(self) -> None:
        for layer in self.tables.edits:
            if layer not in self.backbone.softmax_layers:
                kinds = getattr(self.backbone.text_config, "layer_types", None)
                kind = kinds[layer] if kinds and layer < len(kinds) else "missing"
                raise UnsupportedModel(
                    f"{self.method.name} edits attention in layer {layer}, which is {kind} in this model.",
                    f"Layers with full softmax attention: {list(self.backbone.softmax_layers)}.",
                )

    @property
    def last(self) -> CachedSequence | None:
        """The sequence of this thread's running call, or of the one that ended last."""
        return self.calls.current.sequence

    def warn(self, message: str) -> None:
        """A note in the running call; as a Python warning once per session, unless it is quiet."""
        self.calls.current.notes.append(message)
        if not self.quiet and message not in self._warned:
            self._warned.add(message)
            warnings.warn(message, stacklevel=2)

    # -- hooks -------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Place all hooks."""
        backbone = self.backbone
        place = self._handles.append
        if backbone.driver is not backbone.model:
            place(backbone.model.register_forward_pre_hook(self._before_model, with_kwargs=True))
        place(backbone.driver.register_forward_pre_hook(self._before_driver, with_kwargs=True))
        if self.finishes:
            place(backbone.driver.register_forward_hook(self._after_driver, with_kwargs=True))
        place(backbone.decoder.register_forward_pre_hook(self._before_decoder, with_kwargs=True))
        for layer in self.tables.sees:
            hook = _layer_hook(layer)
            place(backbone.layers[layer].register_forward_pre_hook(hook, with_kwargs=True))
        own = len(self._handles)
        for intervention in self.interventions:
            self._handles.extend(intervention.install(backbone, self.current))
        # Set last: once there are module hooks or a finishing hook, they need to know the running step.
        self.tracks = self.finishes or len(self._handles) > own

    def remove(self) -> None:
        """Remove all hooks. While calls of other threads still run, one stays that stops their next step."""
        while self._handles:
            self._handles.pop().remove()
        stop = self.backbone.decoder.register_forward_pre_hook(
            _stop(self.placement, self.method), with_kwargs=True
        )
        self.placement = None
        self.calls.when_all_ended(stop.remove)

    def _before_model(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        # A model around the driver gives it embeddings only: the token ids are seen here.
        self.calls.thread.outer_ids = kwargs.get("input_ids")

    def _before_driver(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        # The driver sees token ids, the decoder only embeddings: remember where the image tokens are.
        ids = args[0] if args else kwargs.get("input_ids")
        if isinstance(ids, Tensor) and ids.dim() == 2 and ids.shape[1] > 1:
            self.calls.thread.ids, self.calls.thread.kwargs = ids, kwargs
        elif ids is None:
            self.calls.thread.ids, self.calls.thread.kwargs = None, kwargs

    def _before_decoder(
        self, module: nn.Module, args: tuple, kwargs: dict[str, Any]
    ) -> tuple[tuple, dict[str, Any]]:
        if args:  # decoders are called with keywords; a positional call gives the token ids
            kwargs, args = {"input_ids": args[0], **kwargs}, args[1:]
        if kwargs.get("inputs_embeds") is None:
            kwargs["inputs_embeds"] = self.backbone.decoder.get_input_embeddings()(kwargs.pop("input_ids"))
        kwargs.pop("input_ids", None)
        forget()
        cache = kwargs.get("past_key_values")
        sequence: CachedSequence | None = getattr(cache, ATTRIBUTE, None)
        new_tokens = kwargs["inputs_embeds"].shape[1]
        if sequence is not None and sequence.placement is not self.placement:
            raise left_early(self.method.name)
        if sequence is not None and new_tokens == 1:
            step = Step(sequence, None)
            kwargs = self._continue(step, kwargs, cache)
        else:
            step, kwargs = self._begin(kwargs, cache, new_tokens)
        if self.interventions:
            step.before_forward(kwargs["inputs_embeds"])
            kwargs[KEYWORD] = step
        if self.tracks:
            self.current.step = step
        return args, kwargs

    def _continue(self, step: Step, kwargs: dict[str, Any], cache: Any) -> dict[str, Any]:
        sequence = step.sequence
        if not sequence.reached and (self.tables.edits or self.tables.masks):
            raise UnsupportedModel(
                f"The layers of {type(self.backbone.decoder).__name__} hand no keyword arguments to attention.",
                f"{self.method.name} changes attention; a method that only contrasts can be attached.",
            )
        # Static caches hold their length in a tensor; everything sized by it was sized at prefill.
        past = cache.get_seq_length()
        room = past - sequence.prompt_length + 2 if isinstance(past, int) else None
        step.recorder.advance(room)
        if sequence.branches:
            kwargs = decode_arguments(kwargs, sequence, past)
        return kwargs

    def _begin(self, kwargs: dict[str, Any], cache: Any, new_tokens: int) -> tuple[Step, dict[str, Any]]:
        past = 0 if cache is None else int(cache.get_seq_length())
        if past and new_tokens == 1 and not self.calls.thread.stack:
            raise UnsupportedMode(
                f"{self.method.name} was attached while the model was generating, in another thread or by hand.",
                "Enter `with seewhen.attach(...)` before the prompt is read, and when no other call runs.",
            )
        if past:
            raise UnsupportedMode(
                f"{new_tokens} new tokens arrived on a cache that already holds {past}: chunked prefill, "
                "assisted decoding or a continued conversation.",
                "Start from an empty cache, and leave prefill_chunk_size and assistant_model unset.",
            )
        if cache is None and kwargs.get("use_cache") is not False:
            cache = kwargs["past_key_values"] = DynamicCache(config=self.backbone.decoder.config)
        prefill = self._prefill(kwargs)
        built = [branch.rows(prefill) for branch in self.parts.branches]
        widened = widen(prefill, built, cache, self.backbone)
        sequence = self._sequence(prefill, cache)
        sequence.widened = widened
        if built:
            kwargs = prefill_arguments(kwargs, prefill, built, sequence)
        sequence.memories = [i.begin(sequence, prefill) for i in self.interventions]
        if cache is not None:
            sequence.follow(cache)
        self.calls.began(sequence)
        return Step(sequence, prefill), kwargs

    def _prefill(self, kwargs: dict[str, Any]) -> Prefill:
        embeds = kwargs["inputs_embeds"]
        rows, length = embeds.shape[:2]
        ids = self._token_ids(rows, length)
        if ids is None:
            image_mask = torch.zeros(rows, length, dtype=torch.bool, device=embeds.device)
        else:
            image_mask = self.backbone.image_mask(ids.to(embeds.device))
        foreign = bool(self.calls.thread.stack) and not self.calls.awaits_prompt
        if not foreign and not bool(image_mask.any()) and self.method.needs_image:
            why = " that can be seen in inputs_embeds alone, without input_ids" if ids is None else ""
            self.warn(f"No image in the prompt{why}: {self.method.name} passes it through unchanged.")
        positions = kwargs.get("position_ids")
        if positions is None:
            positions = torch.arange(length, device=embeds.device)[None].expand(rows, -1)
        elif positions.shape[-2] != rows:
            positions = positions.expand(*positions.shape[:-2], rows, -1)
        extras = {name: kwargs[name] for name in _EXTRAS if kwargs.get(name) is not None}
        inputs = self.calls.current.inputs if self.calls.awaits_prompt else self.calls.thread.kwargs
        padding = _padding(kwargs.get("attention_mask"), embeds, positions)
        return Prefill(embeds, image_mask, padding, positions, ids, inputs, extras)

    def _token_ids(self, rows: int, length: int) -> Tensor | None:
        """Token ids of the prompt: the driver's, else those given to `generate`, repeated for beams."""
        thread = self.calls.thread
        given = self.calls.current.inputs.get("input_ids") if thread.stack else None
        for ids in (thread.ids, given, thread.outer_ids):
            if isinstance(ids, Tensor) and ids.dim() == 2 and ids.shape[1] == length:
                return ids if ids.shape[0] == rows else ids.repeat_interleave(rows // ids.shape[0], dim=0)
        return None

    def _sequence(self, prefill: Prefill, cache: Any) -> CachedSequence:
        rows, length = prefill.embeds.shape[:2]
        limit = _static_limit(cache)
        capacity = _FIRST_CAPACITY if limit is None else _rounded(limit - length + 2)
        recorder = Recorder(self.level, rows, self.backbone.num_layers, capacity, prefill.embeds.device)
        return CachedSequence(
            backbone=self.backbone,
            interventions=self.interventions,
            rows=rows,
            branches=len(self.parts.branches),
            prompt_length=length,
            image=ImageColumns.of(prefill.image_mask, self.image_room),
            recorder=recorder,
            tables=self.tables,
            growing=limit is None,
            fast=self.fast,
            placement=self.placement,
            prefill=None if self.parts.judge is None else prefill,
        )

    def _after_driver(self, module: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> Any:
        step = self.current.step
        if step is None or getattr(output, "logits", None) is None:
            return output
        sequence, logits = step.sequence, output.logits
        rows = sequence.rows
        last = logits[:, -1].float()
        main, others = last[:rows], last[rows:].split(rows) if sequence.branches else ()
        scores = main
        if self.parts.rule is not None:
            scores = self.parts.rule(Logits(main, tuple(others), sequence, tuple(step.scratch)))
            check_form(self.method.name, scores, main)
            if self.method.needs_image:  # rows without an image pass through unchanged
                scores = torch.where(sequence.image.valid.any(1, True).to(main.device), scores, main)
            record(step.recorder, scores, main, first=step.prefill is not None)
        if step.recorder.full:
            step.recorder.write_logits(main, scores, self.entropy_base, first=step.prefill is not None)
        self.current.step = None
        if self.parts.rule is None and not sequence.branches:
            return output
        first = sequence.widened if logits.shape[1] == sequence.prompt_length else 0
        output["logits"] = torch.cat([logits[:rows, first:-1].to(scores.dtype), scores[:, None]], dim=1)
        # Whoever asks for these asks for those of the answers: no rows of branches, no columns made for them.
        read = slice(0 if step.prefill is None else sequence.widened, None)
        if (states := output.get("hidden_states")) is not None:
            output["hidden_states"] = tuple(each[:rows, read] for each in states)
        if (maps := output.get("attentions")) is not None:
            # Of a sliding window only the newest columns are left, so it is counted from the end.
            own = max((each.shape[-1] for each in maps if each is not None), default=0) - sequence.widened
            output["attentions"] = tuple(None if each is None else each[:rows, :, read, -own:] for each in maps)
        return output


def _stop(placement: object, method: Method) -> Any:
    def hook(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        sequence: CachedSequence | None = getattr(kwargs.get("past_key_values"), ATTRIBUTE, None)
        if sequence is not None and sequence.placement is placement:
            raise left_early(method.name)

    return hook


def _layer_hook(layer: int) -> Any:
    def hook(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
        step: Step | None = kwargs.get(KEYWORD)
        if step is None:
            return None
        step.before_layer(layer, args[0] if args else kwargs["hidden_states"])
        if step.fork is not None and layer in step.fork.forked.layers:
            return step.fork.grown(layer, args, kwargs)
        return None

    return hook


def _padding(mask: Any, embeds: Tensor, positions: Tensor) -> Tensor:
    """Left padding of the main rows, as booleans, from whatever kind of mask the decoder got."""
    rows, length = embeds.shape[:2]
    if isinstance(mask, dict):
        mask = mask.get("full_attention", next(iter(mask.values())))
    if mask is None:
        return torch.zeros(rows, length, dtype=torch.bool, device=embeds.device)
    if mask.dim() == 2:
        return ~mask[:, :length].bool()
    last = mask[:, 0, -1, :length]  # the last prompt token sees all that is not padding
    return ~last if last.dtype == torch.bool else last < 0


def _rounded(steps: int) -> int:
    """Up to a multiple, so that prompts of similar length have buffers of one shape."""
    return -(-max(steps, 1) // _FIRST_CAPACITY) * _FIRST_CAPACITY


def _static_limit(cache: Any) -> int | None:
    """Columns of a static cache; None for caches that grow."""
    limits = [getattr(layer, "max_cache_len", 0) for layer in getattr(cache, "layers", ())]
    return max(limits, default=0) or None


def _check_attachable(model: nn.Module) -> None:
    if getattr(model, _ATTACHED, None) is not None:
        attached = getattr(model, _ATTACHED).method.name
        raise UnsupportedMode(
            f"This model already has {attached!r} attached.",
            "Leave that context first, or combine methods with `+`: attach(model, cai + vcd).",
        )


@contextmanager
def attached_session(session: Session) -> Iterator[Session]:
    """Put `session` on its model for the time of the context."""
    backbone = session.backbone
    model, decoder = backbone.model, backbone.decoder
    if not isinstance(session.method, Method):
        raise InvalidMethod(f"{session.method!r} is not a method.", "Make one with seewhen.method('cai').")
    _check_attachable(model)
    stock = copy.copy(decoder.config)
    kernel = stock._attn_implementation
    session.placement = object()
    unasked: list[nn.Module] = []
    try:
        setattr(model, _ATTACHED, session)
        _forget_compiled(backbone)
        if session.fast or session.tables.edits or session.tables.masks:
            decoder.set_attn_implementation(hosted_name(FAST if session.fast else kernel))
            if not decoder.config._attn_implementation.startswith(PREFIX):
                raise UnsupportedModel(
                    f"{type(decoder).__name__} does not let its attention be chosen.",
                    "It must use transformers' attention interface.",
                )
            if not session.fast:
                acting = {*session.tables.edits, *session.tables.masks}
                idle = (layer for number, layer in enumerate(backbone.layers) if number not in acting)
                unasked = leave_alone(idle, decoder.config, stock)
        session.install()
        yield session
    finally:
        for module in unasked:
            module.config = decoder.config
        session.remove()
        if decoder.config._attn_implementation != kernel:
            decoder.set_attn_implementation(kernel)
        delattr(model, _ATTACHED)
        _forget_compiled(backbone)


def _forget_compiled(backbone: Backbone) -> None:
    """Drop the compiled call that transformers keeps on the model: it knows nothing of hooks placed later."""
    for module in (backbone.model, backbone.driver):
        module.__dict__.pop("_compiled_call", None)
