"""The fast decoding loop: one captured step, replayed; the host only looks at tokens, a little later.

`generate` calls it through `custom_generate`, so prompts, stopping rules and samplers are prepared as
always. The prompt runs through the stock modules into a static cache; the next step runs once, which
also warms it up, and is then captured as a CUDA graph: embedding, decoder, gates, tilts, branches, rule,
sampling, all on the device. The host replays it and reads tokens back a few steps late, so the device
never waits. Captured steps are kept and used again for prompts of the same form.

Without a GPU the same loop runs the step as it is, which is how its logic is tested anywhere.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import StaticCache
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StopStringCriteria,
)

from seewhen.speed.adopt import Mismatch, adopt, adopt_cache, same_addresses
from seewhen.speed.tape import Tape

if TYPE_CHECKING:
    from seewhen.intervene import Session
    from seewhen.speed.cache_kernel import RowWriter

_ROUND = 128  # cache lengths are rounded up, so that captured steps can be used again
_KEPT = 4  # captured steps per session
# Processors that look at the scores alone, so that they can be captured.
_CAPTURABLE = (TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, MinPLogitsWarper)
_CRITERIA = (EosTokenCriteria, MaxLengthCriteria, MaxTimeCriteria, StopStringCriteria)
_LIVE = ("input_ids", "position_ids", "attention_mask", "past_key_values")
_PER_TOKEN = ("token_type_ids", "mm_token_type_ids")


@dataclass
class Buffers:
    """What a step reads and writes, at addresses that stay."""

    token: Tensor  # (rows, 1): the token to feed
    positions: Tensor | None  # (..., rows, 1)
    length: Tensor  # (1,): columns of the cache that are filled
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


class Chooser:
    """Logits processors, then the largest score or a sample."""

    def __init__(self, processors: Any, samples: bool) -> None:
        self.processors, self.samples = processors, samples
        self.capturable = all(isinstance(processor, _CAPTURABLE) for processor in processors)
        described = [(type(p).__name__, sorted((k, str(v)) for k, v in vars(p).items())) for p in processors]
        self.key = (samples, str(described))

    def __call__(self, ids: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens (rows,) and scores."""
        scores = self.processors(ids, logits)
        if not self.samples:
            return scores.argmax(dim=-1), scores
        # What torch.multinomial does for one draw, without its check that waits for the device.
        probabilities = torch.softmax(scores, dim=-1)
        return (probabilities / torch.empty_like(probabilities).exponential_(1)).argmax(dim=-1), scores


@dataclass
class FastLoop:
    """A decoding loop for one session."""

    session: Session
    streamer: Any = None
    kept: list[Captured] = field(default_factory=list)  # shared with the copies made for single calls

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        generation_config: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Decode, as transformers' own loop would."""
        steps = generation_config.max_length - input_ids.shape[1]
        embeds = kwargs.get("inputs_embeds")
        prompt = input_ids.shape[1] if embeds is None else embeds.shape[1]
        if self._leaves(model, stopping_criteria, generation_config, prompt + steps, kwargs):
            arguments = {"logits_processor": logits_processor, "stopping_criteria": stopping_criteria}
            arguments |= {"generation_config": generation_config, "streamer": self.streamer}
            if self.streamer is not None:
                self.streamer.put(input_ids.cpu())
            return model._sample(input_ids, **arguments, **kwargs)
        cache, earlier = self._cache(model, input_ids.shape[0], prompt + steps)
        kwargs["past_key_values"] = cache
        outputs = model._prefill(input_ids, generation_config, kwargs)
        kwargs = model._update_model_kwargs_for_generation(outputs, kwargs, is_encoder_decoder=False)
        logits = outputs.logits[:, -1].to(copy=True, dtype=torch.float32)
        del outputs
        choose = Chooser(logits_processor, generation_config.do_sample)
        tape = Tape(input_ids, steps, generation_config, stopping_criteria, self.streamer)
        first, scores = choose(input_ids, logits)
        tape.put(first, logits, scores)
        if steps > 1 and not tape.finished:
            self._decode(model, tape, kwargs, choose, earlier)
        return tape.result()

    def _leaves(self, model: Any, criteria: Any, config: Any, length: int, kwargs: dict[str, Any]) -> bool:
        """Whether this call is left to transformers' own loop."""
        window = getattr(model.config.get_text_config(decoder=True), "sliding_window", None)
        given = kwargs.get("past_key_values")
        return (
            any(not isinstance(criterion, _CRITERIA) for criterion in criteria)
            or bool(config.output_attentions or config.output_hidden_states)
            or (window is not None and window < _columns(length))  # the window would have to slide
            or (given is not None and (getattr(given, "is_compileable", True) or int(given.get_seq_length()) > 0))
            or model.config.is_encoder_decoder
        )

    def _cache(self, model: Any, rows: int, length: int) -> tuple[Any, Captured | None]:
        columns = _columns(length)
        cache = StaticCache(config=model.config.get_text_config(decoder=True), max_cache_len=columns)
        for captured in reversed(self.kept):
            if captured.signature[:2] == (rows, columns):
                adopt_cache(cache, captured.cache)
                return cache, captured
        return cache, None

    def _decode(
        self, model: Any, tape: Tape, kwargs: dict[str, Any], choose: Chooser, earlier: Captured | None
    ) -> None:
        cache = kwargs["past_key_values"]
        inputs, buffers = self._inputs(model, tape, kwargs)
        signature = _signature(tape, buffers, choose, inputs)
        step = self._reused(earlier, signature, buffers, cache)
        if step is None:
            run, output = self._prepared(model, inputs, buffers, cache, choose)
            step = Captured(run, buffers, output, cache, self.session.last, signature)
            step.run()  # the second token; from here on everything is warm
            self._put(step, tape, choose)
            if tape.ids.is_cuda:
                step.run, step.captured = _captured(step.run)
            self.kept.append(step)
            del self.kept[:-_KEPT]
        while tape.start + tape.queued < tape.ids.shape[1] and not tape.finished:
            step.run()
            self._put(step, tape, choose)

    def _put(self, step: Captured, tape: Tape, choose: Chooser) -> None:
        output = step.output
        assert output.logits is not None
        if output.tokens is None:
            tokens, scores = choose(tape.so_far, output.logits)
            step.buffers.token.copy_(tokens[:, None])
        else:
            tokens, scores = output.tokens, output.scores  # type: ignore[assignment]
        tape.put(tokens, output.logits, scores)

    def _inputs(self, model: Any, tape: Tape, kwargs: dict[str, Any]) -> tuple[dict[str, Any], Buffers]:
        """The arguments of the next forward call, and buffers that hold what changes in them."""
        cache, sequence = kwargs["past_key_values"], self.session.last
        columns = max(getattr(layer, "max_cache_len", 0) for layer in cache.layers)
        inputs = model.prepare_inputs_for_generation(tape.so_far, next_sequence_length=1, **kwargs)
        for name in _PER_TOKEN:  # some versions hand down the whole prompt's
            if isinstance(inputs.get(name), Tensor):
                inputs[name] = inputs[name][:, -1:].contiguous()
        rows = tape.ids.shape[0]
        visible = torch.ones((rows, columns), dtype=torch.bool, device=tape.ids.device)
        mask = kwargs.get("attention_mask")
        if mask is not None:
            visible[:, : mask.shape[1]] = mask.bool()
        embeds = kwargs.get("inputs_embeds")
        filled = tape.start if embeds is None else embeds.shape[1]
        length = torch.full((1,), filled, dtype=torch.long, device=tape.ids.device)
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
            self.kept.remove(earlier)
            return None
        return earlier

    def _prepared(
        self, model: Any, inputs: dict[str, Any], buffers: Buffers, cache: Any, choose: Chooser
    ) -> tuple[Callable[[], None], Output]:
        """A step that runs on these buffers, and where it leaves its results."""
        output = Output()
        writer = _row_writer(cache) if self.session.fast else None
        forward = _forward(model, inputs, buffers, cache)

        def run() -> None:
            output.logits = forward()
            if choose.capturable:
                output.tokens, output.scores = choose(buffers.token, output.logits)
                buffers.token.copy_(output.tokens[:, None])
            if writer is not None:
                writer.advance()
            if buffers.positions is not None:
                buffers.positions.add_(1)
            buffers.length.add_(1)

        return run, output


def _columns(length: int) -> int:
    """Columns of the cache for prompt and answer."""
    return -(-length // _ROUND) * _ROUND


def _row_writer(cache: Any) -> RowWriter:
    from seewhen.speed.cache_kernel import RowWriter

    return RowWriter(cache)


def _signature(tape: Tape, buffers: Buffers, choose: Chooser, inputs: dict[str, Any]) -> tuple[Any, ...]:
    """All that a captured step has fixed, apart from addresses."""
    constants = {
        name: tuple(value.shape) if isinstance(value, Tensor) else str(value)
        for name, value in inputs.items()
        if name not in _LIVE
    }
    return (tape.ids.shape[0], buffers.visible.shape[1], choose.key, str(sorted(constants.items())))


def _forward(model: Any, inputs: dict[str, Any], buffers: Buffers, cache: Any) -> Callable[[], Tensor]:
    """One forward call on the buffers: logits of the new token."""
    constants = {name: value for name, value in inputs.items() if name not in _LIVE}
    template = inputs.get("attention_mask")
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


def _captured(step: Callable[[], None]) -> tuple[Callable[[], None], bool]:
    """The step as a CUDA graph, and True. Capturing runs nothing. What cannot be captured stays as it is."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            step()
    except RuntimeError as error:  # a module waits for the device: experts chosen on the host, some quantisations
        reason = str(error).splitlines()[0]
        warnings.warn(f"The decoding step cannot be captured, so it runs uncaptured: {reason}", stacklevel=2)
        torch.cuda.synchronize()
        return step, False

    def replay() -> None:
        graph.replay()

    replay.step = step  # type: ignore[attr-defined]  # what the step holds must live as long as its graph
    return replay, True
