"""Reading prompts without the host: the decoder's pass over a prompt and the vision tower, captured and replayed.

A GPU reads the prompt of a 7B model in some 15 ms; the host takes longer than that to launch its kernels one by
one. When a prompt of some form (rows, length, kinds of arguments) comes a second time, the pass is captured as a
CUDA graph, with what the method does in it; from then on prompts of this form are copied to where the graph
reads, and the graph is replayed. What it writes (keys and values, state of the method) lies where the captured
step reads it. Long prompts run as they are: they keep the device busy for longer than the host.

Without a GPU the same pass runs again on the copies, which is how the logic is tested anywhere.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from threading import RLock
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from seewhen.decoding.fast.adopt import Mismatch, put_state, state_of
from seewhen.decoding.fast.forms import form, own, rebuilt, tensors
from seewhen.decoding.hosting import KEYWORD
from seewhen.decoding.kernels.capturing import captured_graph, turn

if TYPE_CHECKING:
    from seewhen.decoding.prefill import Prefill
    from seewhen.decoding.sequence import Step
    from seewhen.decoding.session import Session

_CACHE = "past_key_values"
_MOST_POSITIONS = 4096  # of all rows together
_MOST_NUMBERS = 2**22  # in the pixels of one call: about twelve images of 336 x 336
_MOST_KEPT = 8
_MOST_COUNTED = 10_000  # forms of prompts: pictures of any size make ever new ones


class Passes:
    """Captured passes by the form of what they were given. One that cannot be captured is remembered as None."""

    def __init__(self) -> None:
        self.kept: dict[Hashable, Any] = {}
        self._counts: Counter[Hashable] = Counter()
        self._pool: Any = None

    def of(self, known: Hashable, make: Callable[[Any], Any]) -> Any:
        """The pass of this form, made in a pool of memory; None where it is not worth it or cannot be captured.

        A form that comes again is captured; when many forms are, only one that comes far more often than the
        rarest takes its place, so that ever new forms do not capture all the time.
        """
        if known not in self._counts and len(self._counts) >= _MOST_COUNTED:
            self._counts = Counter({each: self._counts[each] for each in self.kept})
        self._counts[known] += 1
        if known not in self.kept and self._counts[known] > 1 and self._makes_room(known):
            if self._pool is None and torch.cuda.is_available():
                self._pool = torch.cuda.graph_pool_handle()
            try:
                self.kept[known] = make(self._pool)
            except torch.OutOfMemoryError:  # for its copies; the pass itself may yet have room
                self.kept[known] = None
        return self.kept.get(known)

    def _makes_room(self, known: Hashable) -> bool:
        if len(self.kept) < _MOST_KEPT:
            return True
        rarest = min(self.kept, key=self._counts.__getitem__)
        if self._counts[known] <= 2 * self._counts[rarest]:
            return False
        del self.kept[rarest]
        return True


@contextlib.contextmanager
def replayed(session: Session, passes: Passes, cache: Any, fresh: Callable[[], Any]) -> Iterator[None]:
    """Inside, the pass that fills `cache` is replayed where it can be. `fresh` makes an empty cache that will hold
    its keys and values at the same addresses."""
    decoder = session.backbone.decoder
    if "forward" in decoder.__dict__:
        yield
        return
    stock = decoder.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if args or kwargs.get(_CACHE) is not cache:  # somebody else's
            return stock(*args, **kwargs)
        step: Step | None = kwargs.get(KEYWORD)
        try:
            known = _form_of_prompt(kwargs, step)
        except Mismatch:
            return stock(**kwargs)
        found = passes.of(known, lambda pool: _Reading.of(_known(session, stock), kwargs, step, fresh(), pool))
        return stock(**kwargs) if found is None else found.read(kwargs, step)

    decoder.__dict__["forward"] = forward
    try:
        yield
    finally:
        decoder.__dict__.pop("forward", None)


def _known(session: Session, stock: Callable[..., Any]) -> Callable[..., Any]:
    """The decoder's pass, in which hooks on modules too find the step that it is given."""

    def forward(**kwargs: Any) -> Any:
        outer = session.current.step
        if outer is not None and KEYWORD in kwargs:
            session.current.step = kwargs[KEYWORD]
        try:
            return stock(**kwargs)
        finally:
            session.current.step = outer

    return forward


def _form_of_prompt(kwargs: dict[str, Any], step: Step | None) -> Hashable:
    embeds: Tensor = kwargs["inputs_embeds"]
    if embeds.shape[0] * embeds.shape[1] > _MOST_POSITIONS or (step is not None and step.recorder.full):
        raise Mismatch
    state = None if step is None else (_prompt_of(step), step.sequence)
    return (torch.is_inference_mode_enabled(), form(_arguments(kwargs), embeds.device), form(state, embeds.device))


def _arguments(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name not in (_CACHE, KEYWORD)}


def _prompt_of(step: Step) -> dict[str, Any]:
    """What a method may look at while the prompt is read, beside the sequence."""
    prefill = step.prefill
    assert prefill is not None
    names = ("embeds", "image_mask", "padding", "position_ids", "input_ids", "extras")
    return {name: getattr(prefill, name) for name in names}


@dataclass
class _Reading:
    """A pass over a prompt, with everything whose addresses it holds."""

    stock: Callable[..., Any]
    kwargs: dict[str, Any]  # its own copies
    step: Step | None  # its own, on copies of prompt and sequence as they were before the pass
    targets: list[Tensor]  # where a new prompt's numbers go
    replay: Callable[[], None] | None = None  # None without a GPU
    output: Any = None
    layers: list[dict[str, Any]] = field(default_factory=list)  # of the cache, after the pass

    @classmethod
    def of(
        cls, stock: Callable[..., Any], kwargs: dict[str, Any], step: Step | None, cache: Any, pool: Any
    ) -> _Reading | None:
        """None where the pass cannot be captured."""
        kept, mine = rebuilt(_arguments(kwargs), own), None if step is None else _own_step(step)
        reading = cls(stock, kept, mine, tensors((kept, _state(mine))))
        if kwargs["inputs_embeds"].is_cuda:
            reading.replay, captured = captured_graph(lambda: reading.run(cache), "", pool)
            if not captured:
                return None
            reading.layers = [state_of(layer) for layer in cache.layers]
        return reading

    def run(self, cache: Any) -> None:
        """The pass itself, on the copies."""
        given = {} if self.step is None else {KEYWORD: self.step}
        self.output = self.stock(**self.kwargs, **given, **{_CACHE: cache})

    def read(self, kwargs: dict[str, Any], step: Step | None) -> Any:
        """What the decoder gives for these arguments; the cache and the step are then as after the pass."""
        torch._foreach_copy_(self.targets, tensors((_arguments(kwargs), _state(step))))
        cache = kwargs[_CACHE]
        if self.replay is None:
            if self.step is not None:
                self.step.scratch = [{} for _ in self.step.scratch]
            self.run(cache)
        else:
            self.replay()
            for layer, state in zip(cache.layers, self.layers, strict=True):
                put_state(layer, state)
        if step is not None and self.step is not None:
            vars(step.sequence).update(_outlined(self.step))
            step.recorder, step.scratch = step.sequence.recorder, self.step.scratch
        output = copy.copy(self.output)
        output[_CACHE] = cache
        return output


def _state(step: Step | None) -> Any:
    return None if step is None else (_prompt_of(step), step.sequence)


def _own_step(step: Step) -> Step:
    """The step before its pass, at addresses of its own."""
    mine = copy.copy(step)
    mine.sequence = rebuilt(step.sequence, own)
    mine.recorder, mine.scratch = mine.sequence.recorder, [{} for _ in step.scratch]
    prompt = rebuilt(_prompt_of(step), own)
    prefill: Prefill = copy.copy(step.prefill)  # type: ignore[assignment]
    vars(prefill).update(prompt)
    mine.prefill = prefill
    return mine


def _outlined(step: Step) -> dict[str, Any]:
    """The sequence's state after the pass: the very tensors, in containers of their own."""
    after = rebuilt(step.sequence)
    return {name: value for name, value in vars(after).items() if name not in ("placement", "prefill")}


@contextlib.contextmanager
def looking_with(model: Any, wrapped: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Inside, the model looks at images with its own function as it is `wrapped`, unless another already is."""
    host: Any = getattr(model, "base_model", None)
    stock = getattr(host, "get_image_features", None)
    if stock is None or "get_image_features" in vars(host):
        yield
        return
    host.get_image_features = functools.wraps(stock)(wrapped(stock))
    try:
        yield
    finally:
        vars(host).pop("get_image_features", None)


class Tower:
    """The images' features, captured and replayed while a method is on its model."""

    def __init__(self) -> None:
        self.passes = Passes()
        self._alone = RLock()  # threads share it, and without a GPU nobody takes turns

    def placed(self, model: Any) -> contextlib.AbstractContextManager[None]:
        """Replay `get_image_features` for the time of the context."""
        return looking_with(model, lambda stock: lambda *args, **kwargs: self._features(stock, args, kwargs))

    def _features(self, stock: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = (args, kwargs)
        try:
            pixels = max(tensors(given), key=torch.Tensor.numel, default=None)
            if pixels is None or pixels.numel() > _MOST_NUMBERS:
                return stock(*args, **kwargs)
            known = (torch.is_inference_mode_enabled(), form(given, pixels.device))
        except Mismatch:
            return stock(*args, **kwargs)
        with turn(pixels.device), self._alone:
            found = self.passes.of(known, lambda pool: _Looking.of(stock, given, pool))
            return stock(*args, **kwargs) if found is None else found.look(given)


@dataclass
class _Looking:
    """One captured look at images of one size."""

    given: tuple[tuple[Any, ...], dict[str, Any]]  # its own copies
    run: Callable[[], None]
    output: Any = None

    @classmethod
    def of(cls, stock: Callable[..., Any], given: Any, pool: Any) -> _Looking | None:
        """None where it cannot be captured."""
        kept = rebuilt(given, own)
        looking = cls(kept, lambda: None)

        def run() -> None:
            looking.output = stock(*kept[0], **kept[1])

        looking.run = run
        if any(tensor.is_cuda for tensor in tensors(kept)):
            looking.run, captured = captured_graph(run, "", pool)
            return looking if captured else None
        return looking

    def look(self, given: Any) -> Any:
        """The features of these images, at addresses of their own."""
        torch._foreach_copy_(tensors(self.given), tensors(given))
        self.run()
        found = tree_map_only(Tensor, torch.clone, self.output)
        # Older releases of transformers hang some models' features on an output that has no such field.
        for name, value in getattr(self.output, "__dict__", {}).items():
            if not hasattr(found, name):
                setattr(found, name, tree_map_only(Tensor, torch.clone, value))
        return found
