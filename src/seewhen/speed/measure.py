"""What decoding costs: prefill, milliseconds per token, memory, and how far from the memory's own speed.

The steps themselves are timed: from the choice of the first token to the last, by events on the device. Nothing
that was measured apart is subtracted. Prefill is what the same `generate` call took until then, the host's work
included; placing the method on the model comes before. All methods of one batch size are warmed up first, until
nothing is captured any more, then run in turns, so that a drift of the machine falls on all alike; medians count,
and ratios are taken within each round. The floor is the time to read the decoder's weights and the cache once, at
the bandwidth that a plain sum over a large tensor reaches on the same device in the same run.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation.logits_process import TemperatureLogitsWarper

from seewhen.asking.attach import Attachment
from seewhen.asking.memory import free_memory, is_out_of_memory
from seewhen.asking.options import needed
from seewhen.backbones.backbone import Backbone
from seewhen.decoding.fast import Fast
from seewhen.decoding.fast.lanes import bytes_per_column
from seewhen.decoding.method import Method
from seewhen.errors import SeewhenError

_AGAIN = "give more --repeats or --tokens, or a quieter machine."
_NOISY = 1.25  # an interval whose ends are further apart than this says little
_WARM_TURNS = 3  # a prompt is captured when it comes the second time, and replayed the third


@dataclass(frozen=True)
class Cost:
    """One method at one batch size."""

    method: str
    way: str  # off, graph, or uncaptured where the step could not be captured (on a CPU, say)
    batch: int
    prompt_tokens: int
    image_tokens: int
    new_tokens: int
    extra_rows: int
    prefill_ms: float
    ms_per_token: float
    rounds: tuple[float, ...]  # ms per token, round by round
    tokens_per_second: float
    peak_bytes: int | None  # on a GPU
    first_call_s: float  # with capture
    floor_ms: float
    ratio: float | None = None  # to regular decoding: median of the ratios of each round
    ratio_low: float | None = None  # its interval, see `interval`
    ratio_high: float | None = None
    memory_ratio: float | None = None
    prefills: tuple[float, ...] = ()  # ms, round by round
    prefill_ratio: float | None = None  # to regular decoding's, as above
    prefill_low: float | None = None
    prefill_high: float | None = None
    compared_way: str = ""  # the way of the regular decoding that it is compared with
    notes: tuple[str, ...] = ()  # why it was not captured, say

    @property
    def floor_share(self) -> float:
        """Share of the time per token that reading weights and cache once would take."""
        return self.floor_ms / self.ms_per_token

    @property
    def suspicions(self) -> list[str]:
        """Why this row should not be believed, or not be taken for what it seems."""
        found = []
        if self.ratio is not None and self.ratio_high is not None:
            if self.extra_rows > 0 and self.ratio < 1:
                found.append("faster than regular decoding, with more rows. Do not believe this row: " + _AGAIN)
            elif self.method != "regular" and self.ratio_high < 1:
                found.append("faster than regular decoding, all of whose work it does: " + _AGAIN)
            if self.ratio_low is not None and self.ratio_high > _NOISY * self.ratio_low:
                between = f"its ratio lies between {self.ratio_low:.2f} and {self.ratio_high:.2f}"
                found.append(f"too noisy to compare, {between}: {_AGAIN}")
        if self.compared_way not in ("", self.way):
            found.append(
                f"it ran {self.way}, regular decoding {self.compared_way}: its ratio is not the method's alone."
            )
        return found

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self) | {"floor_share": self.floor_share}


@dataclass
class _Runner:
    """One method, ready to be run again and again."""

    name: str
    attachment: Attachment
    inputs: Mapping[str, Any]
    tokens: int
    first_call_s: float = 0.0
    prefills: list[float] = field(default_factory=list)
    decodes: list[float] = field(default_factory=list)
    peak: int | None = None
    notes: tuple[str, ...] = ()

    def turn(self) -> None:
        """One `generate` call: milliseconds up to the first token's choice, and of all steps after it."""
        model, watch = self.attachment.model, FirstChoice()
        options = needed(self.attachment.session.method)
        # No end token: every run has the same length.
        options |= {"max_new_tokens": self.tokens, "eos_token_id": None, "pad_token_id": 0}
        with self.attachment.placed():
            settle()
            begin = Mark()
            model.generate(**self.inputs, **options, logits_processor=LogitsProcessorList([watch]))
            end = Mark()
            settle()
        assert watch.mark is not None
        self.prefills.append(begin.until(watch.mark))
        self.decodes.append(watch.mark.until(end))


class Mark:
    """A moment: on a GPU the device's own, when its work so far is done."""

    def __init__(self) -> None:
        self.event = torch.cuda.Event(enable_timing=True) if torch.cuda.is_available() else None
        if self.event is not None:
            self.event.record()
        self.host = time.perf_counter()

    def until(self, later: Mark) -> float:
        """Milliseconds."""
        if self.event is not None and later.event is not None:
            return float(self.event.elapsed_time(later.event))
        return 1000 * (later.host - self.host)


class FirstChoice(TemperatureLogitsWarper):
    """Marks when the first token is chosen and changes nothing. One that looks at scores alone may be captured."""

    __slots__ = ("mark",)  # not among `vars`, which tell captured steps apart

    def __init__(self) -> None:
        super().__init__(1.0)
        self.mark: Mark | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """The scores as they are."""
        if self.mark is None:
            self.mark = Mark()
        return scores


def settle() -> None:
    """Wait for the device."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def costs(
    model: Any,
    make_inputs: Callable[[int], Mapping[str, Any]],
    methods: Mapping[str, Method],
    *,
    batches: Iterable[int] = (1,),
    tokens: int = 128,
    repeats: int = 5,
    fast: Fast = "auto",
    progress: Callable[[str], None] = lambda text: None,
) -> tuple[list[Cost], dict[str, str]]:
    """The cost of each method at each batch size, and why some could not run. `regular` is the yardstick."""
    backbone = Backbone.of(model)
    bandwidth = read_bandwidth(next(backbone.decoder.parameters()).device)
    found: list[Cost] = []
    failures: dict[str, str] = {}
    for batch in batches:
        inputs = make_inputs(batch)
        alone = _allocated()  # the model and its inputs
        runners: list[_Runner] = []
        for name, method in methods.items():
            progress(f"batch {batch}: warming up {name}")
            try:
                runners.append(_ready(model, name, method, inputs, tokens, fast, alone))
            except SeewhenError as error:
                failures[f"{name}, batch {batch}"] = str(error)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                failures[f"{name}, batch {batch}"] = "out of memory"
                free_memory()
        for repeat in range(repeats):
            for runner in runners:
                progress(f"batch {batch}: round {repeat + 1} of {repeats}, {runner.name}")
                runner.turn()
        found += _compared([_cost(runner, batch, backbone, bandwidth) for runner in runners])
        runners.clear()  # captured steps hold memory
    return found, failures


def _ready(
    model: Any, name: str, method: Method, inputs: Mapping[str, Any], tokens: int, fast: Fast, alone: int
) -> _Runner:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        runner = _Runner(name, Attachment.of(model, method, fast=fast), inputs, tokens)
        held = _allocated()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        runner.turn()
        runner.first_call_s = time.perf_counter() - begin
        if runner.attachment.loop is not None:
            for _ in range(_WARM_TURNS - 1):
                runner.turn()
        runner.prefills.clear()
        runner.decodes.clear()
        if torch.cuda.is_available():
            # Without what the methods before it have captured and keep for their rounds.
            runner.peak = torch.cuda.max_memory_allocated() - held + alone
    # Random weights fire always or never, which is no news here; what could not be captured is.
    runner.notes = tuple(dict.fromkeys(str(w.message) for w in told if "captured" in str(w.message)))
    return runner


def _allocated() -> int:
    if not torch.cuda.is_available():
        return 0
    gc.collect()
    return torch.cuda.memory_allocated()


def _cost(runner: _Runner, batch: int, backbone: Backbone, bandwidth: float) -> Cost:
    attachment, steps = runner.attachment, runner.tokens - 1
    each = [decode / steps for decode in runner.decodes]
    ms = statistics.median(each)
    ids = runner.inputs["input_ids"]
    images = int(backbone.image_mask(ids[:1]).sum())
    columns = ids.shape[1] + runner.tokens // 2
    return Cost(
        method=runner.name,
        way=_way(attachment),
        batch=batch,
        prompt_tokens=ids.shape[1],
        image_tokens=images,
        new_tokens=runner.tokens,
        extra_rows=len(attachment.session.parts.branches),
        prefill_ms=statistics.median(runner.prefills),
        ms_per_token=ms,
        rounds=tuple(each),
        tokens_per_second=1000 * batch / ms,
        peak_bytes=runner.peak,
        first_call_s=runner.first_call_s,
        floor_ms=1000 * bytes_per_step(backbone, batch, columns) / bandwidth,
        prefills=tuple(runner.prefills),
        notes=runner.notes,
    )


def _way(attachment: Attachment) -> str:
    if attachment.loop is None:
        return "off"
    return "graph" if any(step.captured for step in attachment.loop.kept.all) else "uncaptured"


def _compared(found: list[Cost]) -> list[Cost]:
    regular = next((cost for cost in found if cost.method == "regular"), None)
    if regular is None:
        return found
    compared = []
    for cost in found:
        memory = cost.peak_bytes / regular.peak_bytes if cost.peak_bytes and regular.peak_bytes else None
        middle, low, high = _against(cost.rounds, regular.rounds)
        prefill, prefill_low, prefill_high = _against(cost.prefills, regular.prefills)
        compared.append(
            replace(
                cost,
                ratio=middle,
                ratio_low=low,
                ratio_high=high,
                memory_ratio=memory,
                prefill_ratio=prefill,
                prefill_low=prefill_low,
                prefill_high=prefill_high,
                compared_way=regular.way,
            )
        )
    return compared


def _against(mine: tuple[float, ...], theirs: tuple[float, ...]) -> tuple[float, float, float]:
    """The ratio within each round: median, and its interval."""
    ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
    low, high, _ = interval(ratios)
    return statistics.median(ratios), low, high


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """An interval for the median that supposes no distribution, and how surely it holds it.

    The median lies outside of the k-th smallest and the k-th largest value when fewer than k of the n fell on one
    side of it, which a fair coin tells. The narrowest with at least 95 %; with fewer than six values the widest.
    """
    ordered, count = sorted(values), len(values)
    trimmed, outside = 0, 2 * 0.5**count
    while 2 * (trimmed + 2) <= count:
        more = outside + 2 * math.comb(count, trimmed + 1) * 0.5**count
        if more > 0.05:
            break
        trimmed, outside = trimmed + 1, more
    return ordered[trimmed], ordered[-1 - trimmed], 1 - min(outside, 1.0)


def bytes_per_step(backbone: Backbone, rows: int, columns: int) -> int:
    """What one regular step must read: every weight of decoder and head once, and the cache of all rows."""
    embedding = backbone.decoder.get_input_embeddings().weight
    weights = _sizes(backbone.decoder)
    weights.pop(embedding.data_ptr(), None)  # one row of it is read
    weights |= _sizes(backbone.head)
    return sum(weights.values()) + rows * columns * bytes_per_column(backbone)


def _sizes(module: torch.nn.Module) -> dict[int, int]:
    """Bytes of what a module keeps, by its place in memory."""
    parts = [part for weight in module.parameters() for part in _parts(weight)]
    return {part.data_ptr(): part.numel() * part.element_size() for part in parts}


def _parts(weight: Any) -> list[Tensor]:
    """The weight itself; of a packed one, which has no memory of its own, what it is made of."""
    names = getattr(weight, "__tensor_flatten__", None)
    return [weight] if names is None else [part for name in names()[0] for part in _parts(getattr(weight, name))]


def read_bandwidth(device: torch.device) -> float:
    """Bytes per second that a sum over a large tensor reads on `device`."""
    size = 2**29 if device.type == "cuda" else 2**26
    data = torch.ones(size, dtype=torch.float32, device=device)
    times = []
    for _ in range(8):
        settle()
        begin = time.perf_counter()
        data.sum()
        settle()
        times.append(time.perf_counter() - begin)
    return data.numel() * data.element_size() / min(times)
