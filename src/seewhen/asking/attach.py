"""`attach`: a method on your own model and your own `generate` call."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import os
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationMixin

from seewhen.asking.handle import Handle
from seewhen.asking.recalled import recalled
from seewhen.backbones.backbone import Backbone
from seewhen.backbones.grids import image_grids
from seewhen.decoding.calls import Call, left_early, option
from seewhen.decoding.fast import Fast, FastDecoding, may_replace_loop, quickened, resolve
from seewhen.decoding.fast.loop import FastLoop
from seewhen.decoding.judging import JudgedLoop
from seewhen.decoding.method import Method
from seewhen.decoding.observer import Observer
from seewhen.decoding.rule_scores import refuse_lost
from seewhen.decoding.sequence import CachedSequence
from seewhen.decoding.session import Session, attached_session
from seewhen.decoding.telling import placed
from seewhen.decoding.tilted_attention import Tilt
from seewhen.decoding.trace import Trace
from seewhen.errors import SeewhenError, UnsupportedMode
from seewhen.methods import method as make_method


def attach(
    model: Any,
    method: str | Method = "cai",
    *,
    trace: bool | str = False,
    relevance_layers: tuple[int, ...] = (),
    head_layers: tuple[int, ...] = (),
    fast: Fast = "auto",
    backbone: Backbone | None = None,
) -> Attached:
    """Make `model` decode with `method` inside the context; afterwards it is as it was.

    While the context is open the model object is changed: `generate` is wrapped, hooks stand on its modules,
    and its attention implementation is ours. Where steps are captured (`fast`, by default on a GPU) `forward`
    of its decoder, linear layers, norms, feed-forward and recurrent parts is replaced too, as are
    `get_image_features` and the rotary function in the model's file of transformers, which other models of
    that file then use as well. Threads may share one attached model; do not leave the context before their
    calls have ended, and do not enter it while the model is generating.

    Call `model.generate(...)` inside just as you do without: greedy, sampling, beams, left-padded batches, several
    images, streamers, static caches. A prompt without an image is passed through with a warning.

    Args:
        model: A vision-language model of transformers, loaded in any way.
        method: A method, or text such as `"cai:paper"` or `"cai+vcd"` (see `seewhen.method`).
        trace: True keeps the full trace (entropy after every layer, relevance and attention maps, runner-up
            tokens), False a cheap summary, `"replay"` the logits too.
        relevance_layers: For analysis: relevance read at these source layers too.
        head_layers: For analysis: the attention of each head of these layers.
        fast: How single tokens are decoded. `"off"` leaves transformers' own loop and kernels, `"graph"` captures
            the step as a CUDA graph with fused kernels (equal to rounding, not bit for bit), and `"auto"` is
            `"graph"` wherever it applies: on one GPU, without beams and without a full trace.
        backbone: How the model is built, where that cannot be told from the model (`seewhen.Backbone`).

    Returns:
        A context; entered, it gives a `Handle`.

    Raises:
        SeewhenError: Here, if method and model do not go together; in `generate`, if the method cannot honour the
            call (assisted decoding, chunked prefill, no cache).

    Examples:
        >>> with seewhen.attach(model, "cai") as handle:
        ...     output = model.generate(**inputs, max_new_tokens=64)
        >>> print(handle.summary())
    """
    # Checked here and not on entering, so that a mistake shows where it is made.
    return Attached(Attachment.of(model, method, trace, relevance_layers, head_layers, fast, backbone))


class Attached(AbstractContextManager["Handle"]):
    """A context that is entered once. Before that, the method is not on the model, and `generate` says so."""

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment
        self._entered: AbstractContextManager[Handle] | None = None
        # An instance attribute hides the class's method; another context's own is left alone.
        attachment.model.__dict__.setdefault("generate", _Waiting(self))

    def __enter__(self) -> Handle:
        if self._entered is not None:
            raise UnsupportedMode("This context was entered before.", "Call seewhen.attach(...) for each `with`.")
        self._entered = self._attachment.placed()
        return self._entered.__enter__()

    def __exit__(self, *raised: Any) -> bool | None:
        if self._entered is None:
            raise _not_entered("This context is left, but was not entered.")
        return self._entered.__exit__(*raised)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _not_entered(
            f"attach(...) has no {name!r}: it is a context, and nothing happens until it is entered."
        )

    def __del__(self) -> None:
        if self.__dict__.get("_entered", self) is None:
            model = self._attachment.model
            waiting = model.__dict__.get("generate")
            if isinstance(waiting, _Waiting) and waiting.context() in (self, None):  # a weak reference may be gone
                del model.generate
            warnings.warn(
                "seewhen.attach(...) was called but never entered, so it changed nothing. "
                "Write `with seewhen.attach(model, method) as handle:`.",
                stacklevel=2,
            )


class _Waiting:
    """Stands for `generate` while a context that somebody holds has not been entered."""

    def __init__(self, context: Attached) -> None:
        self.context = weakref.ref(context)

    @property
    def entered(self) -> bool:
        """Whether nobody needs to be told any more."""
        context = self.context()
        return context is None or context._entered is not None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise _not_entered("seewhen.attach(...) was called but not entered, so its method would not act.")


def _not_entered(problem: str) -> UnsupportedMode:
    return UnsupportedMode(problem, "Write `with seewhen.attach(model, method) as handle:` and use `handle`.")


@dataclass(frozen=True)
class Attachment:
    """A method made ready for a model. `placed` can be entered again: captured steps are kept meanwhile."""

    model: Any
    session: Session
    handle: Handle
    fast: FastDecoding | None
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
        check_not_compiled(model, backbone)
        level = trace if isinstance(trace, str) else ("full" if trace else "summary")
        if level not in ("summary", "full", "replay"):
            raise UnsupportedMode(f"trace={trace!r} is unknown.", "Use True, False or 'replay'.")
        tilts = [i for i in method.parts(backbone).interventions if isinstance(i, Tilt)]
        base = next((tilt.gate.base for tilt in tilts if tilt.gate is not None), math.e)
        observers: tuple[Observer, ...] = ()
        if level != "summary":
            gated = frozenset(layer - 1 for tilt in tilts if tilt.gate is not None for layer in tilt.layers)
            observers = (Observer(relevance_layers, head_layers, not tilts, gated, base),)
        # Whoever asks for a full trace looks closely, and wants the bits of the stock kernels.
        resolved = resolve("off" if fast == "auto" and level != "summary" else fast, backbone, method)
        session = Session(backbone, method, observers, level, base, fast=resolved is not None and resolved.kernels)
        loop = None if resolved is None else FastLoop(session)
        return cls(backbone.model, session, Handle(session), resolved, loop)

    @contextmanager
    def placed(self) -> Iterator[Handle]:
        """The method on its model for the time of the context."""
        tower = nullcontext() if self.loop is None else self.loop.tower.placed(self.model)
        with (
            attached_session(self.session),
            quickened(self.session.backbone, self.fast),
            tower,
            _stock(self.model),
        ):
            self.model.generate = _watch_generate(self.model, self.session, self.handle, self.loop)
            yield self.handle


@contextmanager
def _stock(model: Any) -> Iterator[None]:
    """Inside, `generate` may be anything; afterwards it is the class's method again, or the caller's own."""
    own = model.__dict__.get("generate")
    if isinstance(own, _Waiting):
        del model.generate
    try:
        yield
    finally:
        # An instance attribute hides the class's method; remove it and the method is back.
        model.__dict__.pop("generate", None)
        if own is not None and not (isinstance(own, _Waiting) and own.entered):
            model.generate = own


def check_not_compiled(model: Any, backbone: Backbone) -> None:
    """Refuse a model whose forward was compiled before: that code knows nothing of hooks placed later."""
    for part in (model, backbone.driver, backbone.decoder, *backbone.layers):
        if getattr(part, "_compiled_call_impl", None) is not None or hasattr(
            getattr(part, "forward", None), "_torchdynamo_orig_callable"
        ):
            raise UnsupportedMode(
                f"The forward of this {type(part).__name__} is compiled, and would ignore the method.",
                "Attach to the model as it was loaded; fast='graph' or cache_implementation='static' inside the "
                "context are the compiled ways to decode.",
            )


def _watch_generate(model: Any, session: Session, handle: Handle, fast: FastLoop | None) -> Callable[..., Any]:
    stock = model.generate  # bound method of the class

    @functools.wraps(stock)
    def generate(*args: Any, **kwargs: Any) -> Any:
        kwargs = _by_name(model, args, kwargs)
        _check_mode(session.method, model, kwargs)
        _check_process(session)
        for name, value in session.method.generation_defaults().items():
            if getattr(kwargs.get("generation_config"), name, None) is None:
                kwargs.setdefault(name, value)
        own = {name: kwargs.pop(name) for name in session.method.options if name in kwargs}
        inputs = dict(kwargs)
        if "inputs" in kwargs:
            inputs.setdefault("input_ids", kwargs["inputs"])
        loop = session.parts.loop
        beams = loop is None and option(model, kwargs, "num_beams", 1) > 1
        if beams:
            kwargs["return_dict_in_generate"] = True  # for the beam indices, which the trace needs
        judged = session.parts.judge is not None
        if judged:
            _check_judged(session.method, model, kwargs)
        # transformers drops a streamer that comes with a loop of our own, so the loop gets it directly.
        cache = option(model, kwargs, "cache_implementation", None)
        if fast is not None and loop is None and not beams and may_replace_loop(kwargs, cache):
            kwargs["custom_generate"] = dataclasses.replace(fast, streamer=kwargs.pop("streamer", None))
        elif judged:
            kwargs["custom_generate"] = JudgedLoop(session, kwargs.pop("streamer", None))
        with session.calls.running(Call(inputs, session.placement, own)) as call:
            try:
                output = stock(**kwargs) if loop is None else loop(session, stock, **kwargs)
            except Exception as error:
                if session.placement is not call.placement and not isinstance(error, SeewhenError):
                    raise left_early(session.method.name) from error
                raise
            if call.placement is None or session.placement is not call.placement:
                raise left_early(session.method.name)
            if call.sequence is not None:
                _keep_trace(handle, call, output)
                refuse_lost(session.method.name, call.sequence.recorder)
                _warn_if_silent(session, call.sequence)
            else:
                handle._finished(None)
        wanted = option(model, inputs, "return_dict_in_generate", False)
        return output.sequences if beams and not wanted else output

    return generate


def _check_process(session: Session) -> None:
    if session.process != os.getpid() and next(session.backbone.decoder.parameters()).is_cuda:
        raise UnsupportedMode(
            "This process was forked from the one that attached, and CUDA does not survive a fork.",
            "Start processes with the method 'spawn', and load and attach in each.",
        )


def _keep_trace(handle: Handle, call: Call, output: Any) -> None:
    session, sequence, inputs = handle.session, call.sequence, call.inputs
    assert sequence is not None
    model, rows = session.backbone.model, sequence.rows
    ids = output if isinstance(output, Tensor) else output.sequences
    tokens = new_part(ids, inputs.get("input_ids"))
    indices = getattr(output, "beam_indices", None)
    if indices is None and ids.shape[0] != rows:
        handle._finished(None)
        return
    sequence.complete(call.steps)
    ends = end_ids(option(model, inputs, "eos_token_id", None))
    facts = (sequence, session.method.to_json(), tokens, ends, session.entropy_base, indices)
    padding = option(model, inputs, "pad_token_id", None)
    returned = ids.shape[0]
    complete = functools.partial(recalled, backbone=session.backbone, inputs=inputs)

    def make() -> Trace:
        trace = Trace.of(*facts, passes=call.steps, padding=padding).with_grids(
            image_grids(session.backbone, inputs, returned)
        )
        does = placed(session.method, session.parts, sequence)
        return dataclasses.replace(trace, told=tuple(call.told), does=does, completing=complete)

    handle._finished(make)


def _by_name(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `generate` by their names: what is read here may come by its place, as the first two do."""
    if not args:
        return kwargs
    signature = inspect.signature(type(model).generate)
    if any(each.kind is each.VAR_POSITIONAL for each in signature.parameters.values()):
        signature = inspect.signature(GenerationMixin.generate)
    signature.bind_partial(model, *args, **kwargs)  # raises what the call would
    return dict(zip([*signature.parameters][1:], args, strict=False)) | kwargs


# Arguments that ask for another loop than one token after the other; our own loops would not know them.
_OTHER_WAYS = {
    "assistant_model": "assisted decoding",
    "assistant_early_exit": "assisted decoding",
    "use_mtp": "multi-token prediction",
    "prompt_lookup_num_tokens": "prompt lookup decoding",
    "prefill_chunk_size": "chunked prefill",
    "dola_layers": "transformers' own DoLa",
}


def _check_mode(method: Method, model: Any, kwargs: dict[str, Any]) -> None:
    def given(name: str) -> Any:
        return option(model, kwargs, name, None)

    def refuse(condition: Any, what: str, hint: str) -> None:
        if condition:
            raise UnsupportedMode(f"{method.name} cannot run with {what}.", hint)

    for name, what in _OTHER_WAYS.items():
        refuse(given(name), what, f"Leave {name} unset.")
    refuse(given("penalty_alpha") and not given("do_sample"), "contrastive search", "Leave penalty_alpha unset.")
    refuse(given("use_cache") is False, "use_cache=False", "Leave the cache on.")
    # Without a word the layers leave the cache out then, and every token is read without those before it.
    checkpointing = model.training and getattr(model, "is_gradient_checkpointing", False)
    refuse(checkpointing, "gradient checkpointing in training mode", "Call model.eval() first.")
    refuse(given("cache_implementation") == "paged", "a paged cache", "Use a dynamic or static cache.")
    beams = (given("num_beams") or 1) > 1
    refuse(beams and not method.beams, "beam search", "Use num_beams=1.")
    refuse(not beams and method.beams_only, "num_beams=1", "It is a beam search: set num_beams=5, say.")
    refuse(
        method.samples_only and not given("do_sample"),
        "do_sample=False",
        "It rejects samples: set do_sample=True.",
    )


def _check_judged(method: Method, model: Any, kwargs: dict[str, Any]) -> None:
    """Taking tokens back needs a loop of our own, and rows that are answers."""
    for name in ("custom_generate", "num_return_sequences"):
        if option(model, kwargs, name, 1) not in (1, None):
            raise UnsupportedMode(
                f"{method.name} cannot run with {name}.", "Leave it out; give a prompt per answer."
            )
    if option(model, kwargs, "num_beams", 1) > 1:
        raise UnsupportedMode(f"{method.name} cannot run with beam search.", "Use num_beams=1.")


def new_part(ids: Tensor, prompt: Tensor | None) -> Tensor:
    """The generated part of `ids`, (rows, steps): without the prompt, if `generate` returned it too."""
    if prompt is not None and ids.shape[1] >= prompt.shape[1] and ids.shape[0] % prompt.shape[0] == 0:
        start = prompt.repeat_interleave(ids.shape[0] // prompt.shape[0], dim=0)
        if torch.equal(ids[:, : prompt.shape[1]].cpu(), start.cpu()):
            return ids[:, prompt.shape[1] :]
    return ids


def end_ids(eos: Any) -> frozenset[int]:
    """The tokens that end an answer, in whatever form a configuration or a call has them."""
    return frozenset([eos] if isinstance(eos, int) else map(int, () if eos is None else eos))


def _warn_if_silent(session: Session, sequence: CachedSequence) -> None:
    gate = sequence.recorder.buffers.get("gate")
    if gate is not None and bool(sequence.image.valid.any()) and not bool(gate.any()):
        session.warn(
            f"{session.method.name} was attached but never fired: the gate stayed closed at every token. "
            "Lower the threshold or the start layer if you expected it to act."
        )
