"""One step of fast decoding: its buffers at addresses that stay, its capture as a CUDA graph, its use again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from seewhen.decoding.fast.adopt import Mismatch, adopt, same_addresses
from seewhen.decoding.fast.prompts import Passes
from seewhen.decoding.kernels.capturing import captured_graph, turn

if TYPE_CHECKING:
    from seewhen.decoding.kernels.cache_kernel import RowWriter
    from seewhen.decoding.session import Session

LIVE = ("input_ids", "position_ids", "attention_mask", "past_key_values")  # what changes from step to step
_PER_TOKEN = ("token_type_ids", "mm_token_type_ids")  # some versions hand down the whole prompt's


class Choose(Protocol):
    """Chooses tokens inside the step, where it can be captured."""

    key: tuple[Any, ...]
    capturable: bool
    samples: bool  # from torch's generator

    def __call__(self, ids: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens (rows,) and scores."""


@dataclass
class Buffers:
    """What a step reads and writes, at addresses that stay."""

    token: Tensor  # (rows, 1): the token to feed
    positions: Tensor | None  # (..., rows, 1)
    length: Tensor  # (1,), or (rows, 1) where rows differ: columns of the cache that are filled
    visible: Tensor  # (rows, columns), bool: columns that are not left padding


@dataclass
class Output:
    """Where a step leaves its results."""

    logits: Tensor | None = None  # (rows, vocabulary), float32
    scores: Tensor | None = None
    tokens: Tensor | None = None  # (rows,); None where the host chooses


@dataclass
class Captured:
    """A step ready to run, with everything whose addresses it holds."""

    run: Callable[[], None]
    buffers: Buffers
    output: Output
    cache: Any
    sequence: Any
    signature: tuple[Any, ...]
    captured: bool = False  # as a CUDA graph; without a GPU, and where that fails, the step runs as it is
    prompts: Passes = field(default_factory=Passes)  # that fill its cache

    @property
    def key(self) -> tuple[Any, ...]:
        """What a cache must be like for the step to be tried on it: rows and columns."""
        return self.signature[:2]


@dataclass(frozen=True)
class StepMaker:
    """Makes the steps of one session."""

    session: Session

    def step(
        self, model: Any, ids: Tensor, kwargs: dict[str, Any], choose: Choose | None, earlier: Captured | None
    ) -> tuple[Captured, bool]:
        """The step after `ids`, and whether it was used before; a new one must run once before it is captured."""
        cache = kwargs["past_key_values"]
        inputs, buffers = self._inputs(model, ids, kwargs)
        signature = _signature(buffers, choose, inputs)
        step = self._reused(earlier, signature, buffers, cache)
        if step is not None:
            return step, True
        run, output = self._prepared(model, inputs, buffers, cache, choose)
        return Captured(run, buffers, output, cache, self.session.last, signature), False

    def _inputs(self, model: Any, ids: Tensor, kwargs: dict[str, Any]) -> tuple[dict[str, Any], Buffers]:
        """The arguments of the forward call after `ids`, and buffers that hold what changes in them."""
        cache, sequence = kwargs["past_key_values"], self.session.last
        columns = max(getattr(layer, "max_cache_len", 0) for layer in cache.layers)
        inputs = model.prepare_inputs_for_generation(ids, next_sequence_length=1, **kwargs)
        inputs = one_token(inputs)
        visible = torch.ones((len(ids), columns), dtype=torch.bool, device=ids.device)
        mask = kwargs.get("attention_mask")
        if mask is not None:
            visible[:, : mask.shape[1]] = mask.bool()
        embeds = kwargs.get("inputs_embeds")
        filled = ids.shape[1] - 1 if embeds is None else embeds.shape[1]
        length = torch.full((1,), filled, dtype=torch.long, device=ids.device)
        positions = inputs.get("position_ids")
        buffers = Buffers(
            inputs["input_ids"].clone(), None if positions is None else positions.clone(), length, visible
        )
        if sequence is not None and sequence.hidden is not None:
            missing = columns - sequence.hidden.shape[1]
            sequence.hidden = torch.nn.functional.pad(sequence.hidden, (0, missing))
        return inputs, buffers

    def _reused(
        self, earlier: Captured | None, signature: tuple[Any, ...], buffers: Buffers, cache: Any
    ) -> Captured | None:
        """The earlier step, if the new prompt's state fits it."""
        if earlier is None:
            return None
        try:
            if earlier.signature != signature or not same_addresses(cache, earlier.cache):
                raise Mismatch
            adopt(buffers, earlier.buffers)
            adopt(self.session.last, earlier.sequence)
        except Mismatch:
            return None
        earlier.sequence.placement = self.session.placement
        return earlier

    def _prepared(
        self, model: Any, inputs: dict[str, Any], buffers: Buffers, cache: Any, choose: Choose | None
    ) -> tuple[Callable[[], None], Output]:
        """A step that runs on these buffers, and where it leaves its results."""
        output = Output()
        writer = _row_writer(cache) if self.session.fast else None
        if writer is not None and self.session.last is not None:
            from seewhen.decoding.fast.forking import forked  # needs Triton, as the kernels do

            self.session.last.forked = forked(self.session.last, cache)
        constants = {name: value for name, value in inputs.items() if name not in LIVE}
        forward = forward_on(model, constants, inputs.get("attention_mask"), buffers, cache)

        def run() -> None:
            output.logits = forward()
            if choose is not None and choose.capturable:
                output.tokens, output.scores = choose(buffers.token, output.logits)
                buffers.token.copy_(output.tokens[:, None])
            if writer is not None:
                writer.advance()
            if buffers.positions is not None:
                buffers.positions.add_(1)
            buffers.length.add_(1)

        return run, output


def one_token(inputs: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a forward call with one token of what belongs to tokens."""
    return {
        name: value[:, -1:].contiguous() if name in _PER_TOKEN and isinstance(value, Tensor) else value
        for name, value in inputs.items()
    }


def _row_writer(cache: Any) -> RowWriter:
    from seewhen.decoding.kernels.cache_kernel import RowWriter

    return RowWriter(cache)


def _signature(buffers: Buffers, choose: Choose | None, inputs: dict[str, Any]) -> tuple[Any, ...]:
    """All that a captured step has fixed, apart from addresses."""
    constants = {
        name: tuple(value.shape) if isinstance(value, Tensor) else str(value)
        for name, value in inputs.items()
        if name not in LIVE
    }
    key = None if choose is None else choose.key
    return (*buffers.visible.shape, key, str(sorted(constants.items())))


def forward_on(
    model: Any, constants: dict[str, Any], template: Any, buffers: Buffers, cache: Any
) -> Callable[[], Tensor]:
    """One forward call on the buffers: logits of the new token. `template` shows which kind of mask is wanted."""
    columns = torch.arange(buffers.visible.shape[1], device=buffers.visible.device)

    def forward() -> Tensor:
        live = ((columns <= buffers.length) & buffers.visible)[:, None, None]
        arguments = {**constants, "attention_mask": _masks(template, live)}
        if buffers.positions is not None:
            arguments["position_ids"] = buffers.positions
        output = model(input_ids=buffers.token, past_key_values=cache, return_dict=True, **arguments)
        return output.logits[:, -1].float()

    return forward


def _masks(template: Any, live: Tensor) -> Any:
    """Masks in the form the model wants: one, or one for each kind of layer (none for recurrent ones)."""
    if isinstance(template, dict):
        return {kind: _masks(part, live) for kind, part in template.items()}
    if template is None or template.dim() != 4:
        return template
    if template.dtype == torch.bool:
        return live
    return torch.zeros_like(live, dtype=template.dtype).masked_fill(~live, torch.finfo(template.dtype).min)


def capture(step: Captured) -> None:
    """Capture a step that has run once, on a GPU."""
    if step.buffers.token.is_cuda:
        with turn(step.buffers.token.device):
            step.run, step.captured = captured_graph(step.run)
