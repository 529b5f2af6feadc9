"""One picture, one question, one method: the answer with its trace, and what it cost."""

from __future__ import annotations

import dataclasses
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch
from PIL import Image

from seewhen.asking.asker import Asker, Question
from seewhen.asking.beside import can_fork, done_beside
from seewhen.asking.opening import collected_warnings, free_cores, plain_errors
from seewhen.asking.options import BEAMS, Decoding
from seewhen.asking.prefix import KeptPrefix
from seewhen.backbones.pictures import picture_file
from seewhen.backbones.wide import is_small
from seewhen.decoding.method import Method
from seewhen.decoding.session import Session
from seewhen.decoding.trace import Trace
from seewhen.methods import method as make_method
from seewhen.methods.grammar import label

_TIMED_ROUNDS = 3
_TIMED_SECONDS = 2.0  # no further round once a method has taken this long

# Gets a function that reads the newest entropy; gives a streamer.
MakeStreamer = Callable[[Callable[[], float | None]], Any]
# Gets a method and, in a process of its own, what to write to; gives a maker of streamers, or None.
Begin = Callable[[Method, TextIO | None], MakeStreamer | None]


@dataclass(frozen=True)
class Cost:
    """What a method cost beside regular decoding of the same prompt in the same run."""

    ms_per_token: float
    ratio: float
    extra_rows: int


@dataclass(frozen=True)
class Reply:
    """What one method said. `trace` is None where the decoding loop keeps none."""

    label: str
    method: Method
    text: str
    trace: Trace | None
    notes: tuple[str, ...] = ()
    told: Mapping[str, Any] | None = None  # by the method, where there is no trace to tell it


class PictureQuestion:
    """A loaded model with one question about one picture."""

    def __init__(self, loaded: Any, image: Image.Image, question: str, decoding: Decoding) -> None:
        self.asker = Asker(loaded)
        self.decoding, self._image = decoding, image
        self._question = Question(self.asker.prompt(question), (image,))
        self._kept = KeptPrefix()

    def check(self, method: Method) -> None:
        """Raises where the method cannot be used with this model."""
        Session(self.asker.backbone, method.prepare(self.asker.tokenizer))

    def answers(self, chosen: Sequence[Method], begin: Begin, say: Callable[[str], None]) -> Iterator[Reply]:
        """Each method's answer with its full trace, in order; a small model's on all cores that are free.

        What streamers write in processes of their own is given to `say`.
        """
        processes = self._processes(len(chosen))
        if processes < 2:
            yield from (self.answer(each, full=True, streamer=begin(each, None)) for each in chosen)
            return
        self._read()
        with tempfile.TemporaryDirectory() as folder:

            def work(method: Method, out: TextIO) -> dict[str, Any]:
                return _packed(self.answer(method, full=True, streamer=begin(method, out)), folder)

            for method, found in zip(chosen, done_beside(work, chosen, processes, say), strict=True):
                if found is None:  # it failed there; what is wrong is told where errors are told
                    yield self.answer(method, full=True, streamer=begin(method, None))
                else:
                    yield self._unpacked(method, **found)

    def _processes(self, most: int) -> int:
        return min(most, free_cores()) if can_fork() and is_small(self.asker.model) else 1

    def _read(self) -> None:
        """The prompt, for all methods that are asked after this."""
        with plain_errors(), collected_warnings():
            with self.asker.attached("regular", trace=True, kept=self._kept) as attached:
                attached.answer([self._question], {"max_new_tokens": 1, "do_sample": False})
            self._kept.course = None  # of one token

    def _unpacked(self, chosen: Method, text: str, notes: list[str], stored: str | None) -> Reply:
        trace = None if stored is None else dataclasses.replace(Trace.load(stored), completing=self._with_picture)
        return Reply(label(chosen), chosen.prepare(self.asker.tokenizer), text, trace, tuple(notes))

    def answer(self, chosen: Method, *, full: bool, streamer: MakeStreamer | None = None) -> Reply:
        """Generate once. `full` keeps the full trace."""
        options, notes = self._options(chosen)
        with (
            plain_errors(),
            self.asker.attached(chosen, trace=full, kept=self._kept if full else None) as attached,
        ):
            session = attached.handle.session
            streams = streamer is not None and options["num_beams"] == 1 and not session.parts.loop
            if streams and streamer is not None:
                options["streamer"] = streamer(lambda: _newest_entropy(session))
            elif streamer is not None:
                notes.append("not streamed: beams are only known at the end")
            torch.manual_seed(self.decoding.seed)
            with collected_warnings() as warned:
                (batch,) = attached.answer([self._question], options)
        trace = batch.trace
        if trace is not None:
            trace = self.asker.placed(trace, [[self._image.size]] * trace.rows)
            trace = dataclasses.replace(trace, completing=self._with_picture)
        return Reply(label(chosen), attached.method, batch.answers[0].text, trace, (*notes, *warned))

    def _with_picture(self, trace: Trace) -> Trace:
        return dataclasses.replace(trace, pictures=(picture_file(self._image),) * trace.rows)

    def _options(self, method: Method) -> tuple[dict[str, Any], list[str]]:
        """The decoding arguments, changed where a method has no other way to decode; and notes saying so."""
        options, notes = self.decoding.arguments(), []
        if method.beams_only and options["num_beams"] == 1:
            options["num_beams"] = BEAMS
            notes.append(f"{method.name} is a beam search: {BEAMS} beams")
        if method.samples_only and not options["do_sample"]:
            options |= dataclasses.replace(self.decoding, do_sample=True).arguments()
            notes.append(f"{method.name} rejects samples: sampled")
        return options | {"pad_token_id": self.asker.tokenizer.pad_token_id}, notes

    def costs(self, methods: Sequence[Method]) -> list[Cost]:
        """Milliseconds per token of the answer, prefill included, beside regular decoding: the fastest of rounds.

        Of whole answers: a method that takes sentences back does so at their end, and its steps for what was never
        said are part of the price. Without the full trace, which is for looking and costs time of its own.
        """
        regular = make_method("regular")
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
                    seconds, tokens, rows[number] = self._timed(method, self.decoding.max_new_tokens)
                    spent[number] += seconds
                    best[number] = min(best[number], 1000 * seconds / max(tokens, 1))
        found = [(ms, ms / best[0], extra) for ms, extra in zip(best, rows, strict=True)]
        return [Cost(*found[timed.index(method)]) for method in methods]

    def _timed(self, method: Method, most: int) -> tuple[float, int, int]:
        options, _ = self._options(method)
        options["max_new_tokens"] = most
        inputs = self.asker.inputs([self._question])
        with self.asker.attached(method) as attached, torch.inference_mode():
            rows = len(attached.handle.session.parts.branches)
            torch.manual_seed(self.decoding.seed)
            started = time.perf_counter()
            output = self.asker.model.generate(**inputs, **options)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seconds = time.perf_counter() - started
        return seconds, len(self.asker.new_tokens(output, inputs["input_ids"])[0]), rows


def _packed(reply: Reply, folder: str) -> dict[str, Any]:
    """A reply as another process can give it: in JSON, with its trace in a file."""
    stored = None
    if reply.trace is not None:
        place = Path(tempfile.mkdtemp(dir=folder)) / "trace"
        stored = str(dataclasses.replace(reply.trace, completing=None).save(place))
    return {"text": reply.text, "notes": reply.notes, "stored": stored}


def _newest_entropy(session: Any) -> float | None:
    """The entropy in nats of the output distribution of the step that just ran, if it is recorded."""
    sequence = session.last
    if sequence is None or "entropy" not in sequence.recorder.buffers:
        return None
    recorder = sequence.recorder
    values = recorder.buffers["entropy"][int(recorder.step), 0].tolist()
    known = next((value for value in reversed(values) if not math.isnan(value)), None)
    return None if known is None else known * math.log(session.entropy_base)
