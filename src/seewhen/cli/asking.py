"""One image, one question, one method: the answer with its trace, and what it cost."""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seewhen.cli.options import DecodingFlags, ModelFlags
from seewhen.errors import InvalidInput, SeewhenError
from seewhen.viewer.payload import Cost

if TYPE_CHECKING:
    from PIL import Image

    from seewhen.cli.choosing import Chosen
    from seewhen.loading import Loaded
    from seewhen.methods.base import Method
    from seewhen.trace import Trace

DESCRIBE = "Please describe this image in detail."
_TIMED_TOKENS = 32
_TIMED_ROUNDS = 3
_TIMED_SECONDS = 2.0  # no further round once a method has taken this long
_BEAMS = 5


@dataclass(frozen=True)
class Told:
    """What one method said. `trace` is None where the decoding loop keeps none."""

    label: str
    method: Method
    text: str
    tokens: int
    trace: Trace | None
    notes: tuple[str, ...] = ()


class Asker:
    """A loaded model with one prepared question."""

    def __init__(self, loaded: Any, image: Image.Image, question: str, decoding: DecodingFlags) -> None:
        from seewhen.answering import chat_prompt, model_inputs
        from seewhen.backbone import Backbone

        self.model, self.processor = loaded
        self.tokenizer = getattr(self.processor, "tokenizer", self.processor)
        self.special = frozenset(self.tokenizer.all_special_ids)
        self.decoding, self.size = decoding, image.size
        self.backbone = Backbone.of(self.model)
        prompt = chat_prompt(self.processor, question, 1)
        with plain_errors():
            self.inputs = model_inputs(self.model, self.processor, [[image]], [prompt])

    def tell(
        self, chosen: Chosen, *, full: bool, streamer: Callable[[Callable[[], float | None]], Any] | None = None
    ) -> Told:
        """Generate once. `full` keeps the full trace; `streamer` gets a function that reads the newest entropy."""
        from seewhen.attaching import attach
        from seewhen.viewer.similarity import image_features, with_similarity

        method = chosen.method.prepare(self.tokenizer)
        arguments, notes = self._arguments(method)
        with (
            plain_errors(),
            image_features(self.backbone, self.inputs["input_ids"]) as features,
            attach(self.model, method, trace=full, backbone=self.backbone) as handle,
        ):
            streams = streamer is not None and arguments["num_beams"] == 1 and not handle.session.parts.loop
            if streams and streamer is not None:
                arguments["streamer"] = streamer(lambda: _newest_entropy(handle.session))
            with collected_warnings() as warned:
                output = self._generate(arguments)
            try:
                trace: Trace | None = handle.trace
            except SeewhenError:
                trace = None  # a decoding loop of its own keeps none
        ids = output[0, self.inputs["input_ids"].shape[1] :].tolist()
        if trace is not None:
            trace = self._placed(trace.with_texts(self.tokenizer))
            if full and features:
                trace = with_similarity(trace, self.backbone, features[: trace.rows])
            ids = trace.tokens[: trace.lengths[0], 0].tolist()
        text = self.tokenizer.decode(ids, skip_special_tokens=True).strip()
        if streamer is not None and not streams:
            notes.append("not streamed: beams are only known at the end")
        return Told(chosen.label, method, text, len(ids), trace, (*notes, *warned))

    def _arguments(self, method: Method) -> tuple[dict[str, Any], list[str]]:
        """The decoding arguments, changed where a method has no other way to decode; and notes saying so."""
        arguments, notes = self.decoding.arguments(), []
        if method.beams_only and arguments["num_beams"] == 1:
            arguments["num_beams"] = _BEAMS
            notes.append(f"{method.name} is a beam search: {_BEAMS} beams")
        if method.samples_only and not arguments["do_sample"]:
            arguments |= dataclasses.replace(self.decoding, do_sample=True).arguments()
            notes.append(f"{method.name} rejects samples: sampled")
        return arguments | {"pad_token_id": self.tokenizer.pad_token_id}, notes

    def _generate(self, arguments: dict[str, Any]) -> Any:
        import torch

        torch.manual_seed(self.decoding.seed)
        with torch.inference_mode():
            return self.model.generate(**self.inputs, **arguments)

    def _placed(self, trace: Trace) -> Trace:
        """The grids with the part of the picture that the processor did not crop away."""
        box = seen_box(self.processor, self.size)
        grids = tuple(
            tuple(dataclasses.replace(g, box=box) if g.kind == "image" else g for g in row) for row in trace.grids
        )
        return trace.with_grids(grids)

    def costs(self, methods: Sequence[Method]) -> list[Cost]:
        """Milliseconds per token, prefill included, beside regular decoding: the fastest of some rounds.

        Without the full trace, which is for looking and costs time of its own.
        """
        from seewhen.methods import method as make

        regular = make("regular")
        # Regular itself is timed once, so that it costs exactly what it costs.
        timed = [regular, *(m for m in methods if m != regular)]
        best: list[float] = [float("inf")] * len(timed)
        spent = [0.0] * len(timed)
        rows = [0] * len(timed)
        with plain_errors(), collected_warnings():
            self._timed(regular, 2)  # the first call of all pays for what is made once
            for _ in range(_TIMED_ROUNDS):
                for number, method in enumerate(timed):
                    if spent[number] > _TIMED_SECONDS:
                        continue
                    seconds, tokens, rows[number] = self._timed(method, _TIMED_TOKENS)
                    spent[number] += seconds
                    best[number] = min(best[number], 1000 * seconds / max(tokens, 1))
        found = [(ms, ms / best[0], extra) for ms, extra in zip(best, rows, strict=True)]
        return [Cost(*found[timed.index(method)]) for method in methods]

    def _timed(self, method: Method, most: int) -> tuple[float, int, int]:
        import torch

        from seewhen.attaching import attach

        arguments, _ = self._arguments(method)
        arguments["max_new_tokens"] = min(most, self.decoding.max_new_tokens)
        with attach(self.model, method, backbone=self.backbone) as handle:
            rows = len(handle.session.parts.branches)
            started = time.perf_counter()
            output = self._generate(arguments)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seconds = time.perf_counter() - started
        return seconds, int(output.shape[1] - self.inputs["input_ids"].shape[1]), rows


def _newest_entropy(session: Any) -> float | None:
    """The entropy in nats of the output distribution of the step that just ran, if it is recorded."""
    sequence = session.last
    if sequence is None or "entropy" not in sequence.recorder.buffers:
        return None
    recorder = sequence.recorder
    values = recorder.buffers["entropy"][int(recorder.step), 0].tolist()
    known = next((value for value in reversed(values) if not math.isnan(value)), None)
    return None if known is None else known * math.log(session.entropy_base)


def seen_box(processor: Any, size: tuple[int, int]) -> tuple[float, float, float, float]:
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


def open_model(flags: ModelFlags) -> Loaded:
    """Load the model that the flags name; errors in one line."""
    from seewhen import loading
    from seewhen.cli.photograph import is_packaged

    options = flags.loading()
    if is_packaged(flags.model) and not (loading.PACKAGED_PATH / "config.json").exists():
        raise InvalidInput(
            "The small model is missing from this installation.",
            "Install seewhen again, train it with `python -m seewhen.scenes.train`, or name another with --model.",
        )
    check_device(flags.device)
    if is_packaged(flags.model):
        # The small model's steps are too short to share: on a busy machine with two cores a second thread
        # made them ten times slower, waiting for the first.
        import torch

        torch.set_num_threads(1)
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    with plain_errors():
        return loading.load(flags.model, **options)


def check_device(device: str | None) -> None:
    """Refuse a device that is not there before anything is loaded for it."""
    import torch

    if device is None:
        return
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise InvalidInput(f"There is no device {device!r}.", "Use cpu, cuda, cuda:1 or mps.") from None
    usable = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not usable.get(kind, False):
        raise InvalidInput(f"This machine (or this torch) has no {kind} device.", "Use --device cpu.")


def open_picture(path: Path) -> Image.Image:
    """The image file, opened with the library's limits."""
    from seewhen.images import open_image

    return open_image(path)


@contextmanager
def plain_errors() -> Iterator[None]:
    """What torch and transformers raise for causes a user can do something about, as our own errors."""
    import torch

    try:
        yield
    except SeewhenError:
        raise
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise _out_of_memory() from error
    except RuntimeError as error:
        if "can't allocate memory" in str(error) or "out of memory" in str(error).lower():
            raise _out_of_memory() from error
        raise
    except ValueError as error:
        # transformers checks decoding arguments and says well what is wrong.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InvalidInput(f"The model refused: {reason}", "Check the flags; --debug shows where.") from error


def _out_of_memory() -> InvalidInput:
    return InvalidInput(
        "Out of memory.",
        "Use a smaller model or picture, --dtype bfloat16, fewer --max-new-tokens or --num-beams, a method "
        "without contrast, or --device cpu.",
    )


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Our own warnings as a list of lines; those of others are dropped."""
    lines: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield lines
        finally:
            ours = [str(w.message) for w in caught if issubclass(w.category, UserWarning) and _is_ours(w)]
            lines.extend(dict.fromkeys(ours))


def _is_ours(warning: warnings.WarningMessage) -> bool:
    return Path(__file__).parents[1] in Path(warning.filename).parents
