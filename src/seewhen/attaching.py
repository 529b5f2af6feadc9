"""`attach`: a method on your own model and your own `generate` call."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seewhen.backbone import Backbone
from seewhen.errors import UnsupportedMode
from seewhen.grids import image_grids
from seewhen.intervene import Session, attached_session
from seewhen.methods import method as make_method
from seewhen.methods.base import Method
from seewhen.observe import Observer
from seewhen.sequence import Sequence
from seewhen.speed import Fast, Way, may_replace_loop, quickened, resolve
from seewhen.speed.decode import FastLoop
from seewhen.tilting import Tilt
from seewhen.trace import Trace


class Handle:
    """What `attach` gives: the method, and the trace of the last `generate` call."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._trace: Callable[[], Trace] | None = None
        self._made: Trace | None = None

    @property
    def method(self) -> Method:
        """The attached method."""
        return self.session.method

    @property
    def trace(self) -> Trace:
        """What happened in the last `generate` call (of any thread)."""
        if self._trace is None:
            raise UnsupportedMode("There is no trace yet.", "Call model.generate(...) first.")
        if self._made is None:
            self._made = self._trace()
        return self._made

    def summary(self) -> str:
        """The trace's summary: how many tokens, in which layers, how often it fired."""
        return self.trace.summary()

    def _finished(self, trace: Callable[[], Trace]) -> None:
        self._trace, self._made = trace, None


def attach(
    model: Any,
    method: str | Method = "cai",
    *,
    trace: bool | str = False,
    relevance_layers: tuple[int, ...] = (),
    head_layers: tuple[int, ...] = (),
    fast: Fast = "auto",
    backbone: Backbone | None = None,
) -> AbstractContextManager[Handle]:
    """Make `model` decode with `method` inside the context; afterwards it is as it was.

    Call `model.generate(...)` inside just as you do without: greedy, sampling, beams, left-padded
    batches, several images, streamers, static caches. `trace=True` keeps the full trace (entropy after
    every layer, relevance and attention maps, runner-up tokens), otherwise a cheap summary;
    `relevance_layers` adds relevance read at other source layers and `head_layers` the attention of each
    head of some layers, for analysis.

    `fast` chooses how single tokens are decoded: "off" leaves transformers' own loop and kernels, "graph"
    captures the step as a CUDA graph with fused kernels (equal to rounding, not bit for bit), and "auto" is
    "graph" wherever it applies: on one GPU, without beams and without a full trace.

        with seewhen.attach(model, "cai") as handle:
            output = model.generate(**inputs, max_new_tokens=64)
        print(handle.summary())

    A `generate` call that the method cannot honour (assisted decoding, chunked prefill, no cache)
    raises `UnsupportedMode`; a prompt without an image is passed through with a warning.
    """
    # Checked here and not on entering, so that a mistake shows where it is made.
    return Attachment.of(model, method, trace, relevance_layers, head_layers, fast, backbone).placed()


@dataclass(frozen=True)
class Attachment:
    """A method made ready for a model. `placed` can be entered again: captured steps are kept meanwhile."""

    model: Any
    session: Session
    handle: Handle
    way: Way | None
    loop: FastLoop | None

    @classmethod
    def of(
        cls,
        model: Any,
        method: str | Method,
        trace: bool | str = False,
        relevance_layers: tuple[int, ...] = (),
        head_layers: tuple[int, ...] = (),
        fast: Fast = "auto",
        backbone: Backbone | None = None,
    ) -> Attachment:
        """Check and prepare; the model is not touched yet."""
        method = make_method(method)
        backbone = backbone or Backbone.of(model)
        level = trace if isinstance(trace, str) else ("full" if trace else "summary")
        if level not in ("summary", "full", "replay"):
            raise UnsupportedMode(f"trace={trace!r} is unknown.", "Use True, False or 'replay'.")
        tilts = [i for i in method.parts(backbone).interventions if isinstance(i, Tilt)]
        base = next((tilt.gate.base for tilt in tilts if tilt.gate is not None), math.e)
        observers: tuple[Observer, ...] = ()
        if level != "summary":
            observers = (Observer(relevance_layers, head_layers, own_relevance=not tilts, entropy_base=base),)
        # Whoever asks for a full trace looks closely, and wants the bits of the stock kernels.
        way = resolve("off" if fast == "auto" and level != "summary" else fast, backbone, method)
        session = Session(backbone, method, observers, level, base, fast=way is not None and way.kernels)
        loop = None if way is None else FastLoop(session)
        return cls(model, session, Handle(session), way, loop)

    @contextmanager
    def placed(self) -> Iterator[Handle]:
        """The method on its model for the time of the context."""
        with attached_session(self.session), quickened(self.session.backbone, self.way):
            self.model.generate = _watch_generate(self.model, self.session, self.handle, self.loop)
            try:
                yield self.handle
            finally:
                # An instance attribute hid the class's method; remove it and the method is back.
                self.model.__dict__.pop("generate", None)


def _watch_generate(model: Any, session: Session, handle: Handle, fast: FastLoop | None) -> Callable[..., Any]:
    stock = model.generate  # bound method of the class

    @functools.wraps(stock)
    def generate(*args: Any, **kwargs: Any) -> Any:
        _check_mode(session.method, model, kwargs)
        for name, value in session.method.generation_defaults().items():
            kwargs.setdefault(name, value)
        inputs = dict(kwargs)
        if args and isinstance(args[0], Tensor):
            inputs.setdefault("input_ids", args[0])
        elif "inputs" in kwargs:
            inputs.setdefault("input_ids", kwargs["inputs"])
        loop = session.parts.loop
        beams = loop is None and _option(model, kwargs, "num_beams", 1) > 1
        if beams:
            kwargs["return_dict_in_generate"] = True  # for the beam indices, which the trace needs
        if fast is not None and loop is None and not beams and may_replace_loop(kwargs):
            # transformers drops a streamer that comes with a loop of our own, so the loop gets it directly.
            kwargs["custom_generate"] = dataclasses.replace(fast, streamer=kwargs.pop("streamer", None))
        session.forget()
        with session.given(inputs):
            output = stock(*args, **kwargs) if loop is None else loop(session, stock, *args, **kwargs)
        if session.last is not None:
            _keep_trace(handle, session.last, output, inputs)
            _warn_if_silent(session, session.last)
        wanted = _option(model, inputs, "return_dict_in_generate", False)
        return output.sequences if beams and not wanted else output

    return generate


def _keep_trace(handle: Handle, sequence: Sequence, output: Any, inputs: dict[str, Any]) -> None:
    session = handle.session
    model, rows = session.backbone.model, sequence.rows
    ids = output if isinstance(output, Tensor) else output.sequences
    tokens = _new_tokens(ids, inputs.get("input_ids"))
    indices = getattr(output, "beam_indices", None)
    if indices is None and ids.shape[0] != rows:
        return
    facts = (sequence, session.method.to_json(), tokens, _eos_ids(model, inputs), session.entropy_base, indices)
    returned = ids.shape[0]

    def make() -> Trace:
        return Trace.of(*facts).with_grids(image_grids(session.backbone, inputs, returned))

    handle._finished(make)


def _option(model: Any, kwargs: dict[str, Any], name: str, default: Any) -> Any:
    """An option of `generate`, from its arguments or the generation config."""
    config = kwargs.get("generation_config") or model.generation_config
    value = kwargs[name] if name in kwargs else getattr(config, name, None)
    return default if value is None else value


def _check_mode(method: Method, model: Any, kwargs: dict[str, Any]) -> None:
    def option(name: str) -> Any:
        return _option(model, kwargs, name, None)

    def refuse(condition: Any, what: str, hint: str) -> None:
        if condition:
            raise UnsupportedMode(f"{method.name} cannot run with {what}.", hint)

    refuse(option("assistant_model"), "assisted decoding", "Leave assistant_model unset.")
    refuse(option("prompt_lookup_num_tokens"), "prompt lookup decoding", "Leave prompt_lookup_num_tokens unset.")
    refuse(option("prefill_chunk_size"), "chunked prefill", "Leave prefill_chunk_size unset.")
    refuse(option("use_cache") is False, "use_cache=False", "Leave the cache on.")
    refuse(option("cache_implementation") == "paged", "a paged cache", "Use a dynamic or static cache.")
    beams = (option("num_beams") or 1) > 1
    refuse(beams and not method.beams, "beam search", "Use num_beams=1.")
    refuse(not beams and method.beams_only, "num_beams=1", "It is a beam search: set num_beams=5, say.")
    refuse(
        method.samples_only and not option("do_sample"),
        "do_sample=False",
        "It rejects samples: set do_sample=True.",
    )


def _new_tokens(ids: Tensor, prompt: Tensor | None) -> Tensor:
    """The generated part of `ids`, (rows, steps): without the prompt, if `generate` returned it too."""
    if prompt is not None and ids.shape[1] >= prompt.shape[1] and ids.shape[0] % prompt.shape[0] == 0:
        start = prompt.repeat_interleave(ids.shape[0] // prompt.shape[0], dim=0)
        if torch.equal(ids[:, : prompt.shape[1]].cpu(), start.cpu()):
            return ids[:, prompt.shape[1] :]
    return ids


def _eos_ids(model: Any, kwargs: dict[str, Any]) -> frozenset[int]:
    eos = _option(model, kwargs, "eos_token_id", ())
    return frozenset([eos] if isinstance(eos, int) else (int(token) for token in eos))


def _warn_if_silent(session: Session, sequence: Sequence) -> None:
    gate = sequence.recorder.buffers.get("gate")
    if gate is not None and bool(sequence.image.valid.any()) and not bool(gate.any()):
        session.warn(
            f"{session.method.name} was attached but never fired: the gate stayed closed at every token. "
            "Lower the threshold or the start layer if you expected it to act."
        )
