"""One batch: prompts in, events out. Every row has its own length, stop strings, seed and end."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList, StoppingCriteriaList

from seewhen.asking.asker import Asker, Question
from seewhen.asking.attach import attach
from seewhen.asking.handle import Handle
from seewhen.asking.memory import is_out_of_memory
from seewhen.backbones.grids import image_grids
from seewhen.backbones.loading import Loaded
from seewhen.decoding.method import Method
from seewhen.decoding.similarity import evidence, image_features, with_similarity
from seewhen.errors import SeewhenError
from seewhen.runs.noise import stream_seed
from seewhen.server import facts, sharing
from seewhen.server.choosing import public
from seewhen.server.failures import ApiError
from seewhen.server.jobs import Delta, Done, Failed, Finished, Job, LogProb, Started
from seewhen.server.limits import Limits
from seewhen.server.metrics import Metrics
from seewhen.server.sampling import Choosers, RowChooser
from seewhen.server.watching import Over, Settled, Steps, Watch
from seewhen.server.writing import TextWriter
from seewhen.showing.viewer.payload import packed

_MOST_REMEMBERED = 1000  # clients can make up any number of parameters


class Row:
    """One answer while it is being decoded."""

    def __init__(self, job: Job, index: int, tokenizer: Any) -> None:
        self.job, self.index = job, index
        self.stream = stream_seed(job.sampling.seed, str(index))  # the seed of its random numbers
        self.chooser = RowChooser(job.sampling, self.stream, None if job.alone else job.runners)
        before = tokenizer(job.begun, add_special_tokens=False)["input_ids"] if job.begun else ()
        self.writer = TextWriter(tokenizer, job.stops, before, job.keeps_stop)
        self.limit = job.max_tokens
        self.tokens: list[int] = []
        self.log_probs: list[LogProb] = []
        self.reason: str | None = None
        self.stopped: str | None = None
        self._told = 0
        self._spelled = ""

    @property
    def finished(self) -> bool:
        """Whether its last token is there."""
        return self.reason is not None

    def take(self, token: int, ends: frozenset[int]) -> str:
        """The next token; returns the text that became certain."""
        self.tokens.append(token)
        if token in ends:
            self.reason = "stop"
            return self.writer.end()
        likeliest = self.chooser.likeliest
        if likeliest is not None:
            spelled = self.writer.spelled
            best = tuple((spelled(other), likeliest.of(other)) for other in likeliest.ids)
            self.log_probs.append(LogProb(spelled(token), likeliest.of(token), best))
        text = self.writer.add(token)
        if self.writer.stopped is not None:
            self.reason = "stop"
        elif len(self.tokens) >= self.limit:
            self.reason = "length"
        return text + self.writer.end() if self.finished else text

    def give_up(self, why: str) -> str:
        """No more tokens, for a reason of ours: `time` or `cancelled`."""
        self.reason, self.stopped = "length", why
        return self.writer.end()

    def rest(self) -> str:
        """The answer ends with what is there."""
        self.reason = "stop"
        return self.writer.end()

    def spelled(self, tokenizer: Any) -> str:
        """The newest token as it stands in the text. Alone, many a tokenizer would leave out its space."""
        before, self._spelled = self._spelled, str(tokenizer.decode(self.tokens))
        return self._spelled[len(before) :]

    def new_log_probs(self) -> tuple[LogProb, ...]:
        """Those not told yet."""
        fresh, self._told = tuple(self.log_probs[self._told :]), len(self.log_probs)
        return fresh


class Decoder:
    """A model with its processor, and what does not change from batch to batch."""

    def __init__(self, loaded: Loaded, limits: Limits, metrics: Metrics) -> None:
        self.asker = Asker(loaded)
        self.model, self.processor, self.tokenizer = loaded[0], loaded[1], self.asker.tokenizer
        self.pad, self.backbone = self.tokenizer.pad_token_id, self.asker.backbone
        self.limits, self.metrics = limits, metrics
        context = getattr(self.backbone.text_config, "max_position_embeddings", None)
        self.context = min(context or limits.context_tokens, limits.context_tokens)
        self._hosts: dict[str, bool] = {}

    def hosts(self, job: Job) -> bool:
        """Whether rows of `regular` may share a batch with this job."""
        if job.fingerprint not in self._hosts:
            try:
                self._hosts[job.fingerprint] = sharing.hosts(job.method, self.backbone)
            except SeewhenError:  # it does not fit this model; its own batch will say so
                return False
            if len(self._hosts) > _MOST_REMEMBERED:
                self._hosts.pop(next(iter(self._hosts)))
        return self._hosts.get(job.fingerprint, False)

    def run(self, jobs: Sequence[Job]) -> None:
        """Answer all of `jobs`, which may share a batch; raises what the model raises."""
        rows = [Row(job, index, self.tokenizer) for job in jobs for index in range(job.n)]
        inputs = self._inputs(rows)
        lengths = [int(n) for n in inputs["attention_mask"].sum(dim=1)]
        refused = {r.job: self._too_long(n) for r, n in zip(rows, lengths, strict=True) if n >= self.context}
        refused |= {job: _unlogged() for job in jobs if job.runners is not None and self._judges(job)}
        if refused:
            for job, error in refused.items():
                job.post(Failed(error))
            rest = [job for job in jobs if job not in refused]
            return self.run(rest) if rest else None
        for row, length in zip(rows, lengths, strict=True):
            row.limit = min(row.limit, self.context - length)
        method: Method = sharing.together([row.job.method for row in rows])
        with torch.inference_mode(), ExitStack() as stack:
            features: list[Tensor] = []
            if jobs[0].trace:
                features = stack.enter_context(image_features(self.backbone, inputs["input_ids"]))
            # Batches differ in rows and length, and rows leave early: nothing to capture and use again.
            attached = attach(self.model, method, trace=jobs[0].trace, fast="off", backbone=self.backbone)
            handle = stack.enter_context(attached)
            Run(self, handle, jobs, rows, lengths, features).decode(inputs)
        return None

    def _inputs(self, rows: Sequence[Row]) -> dict[str, Any]:
        try:
            return self.asker.inputs([Question(row.job.prompt, row.job.images) for row in rows])
        except SeewhenError:
            raise
        except Exception as error:  # processors refuse in their own ways, a StopIteration among them
            if is_out_of_memory(error):
                raise
            raise Unprocessable(
                "The model's processor refused the prompt.", "Check the number and shape of the images."
            ) from error

    def _judges(self, job: Job) -> bool:
        return not job.alone and job.method.parts(self.backbone).judge is not None

    def _too_long(self, length: int) -> ApiError:
        return ApiError(
            400,
            "context_length_exceeded",
            f"The prompt has {length} tokens with its images.",
            f"It must have fewer than {self.context}.",
            param="messages",
        )


def _unlogged() -> ApiError:
    return ApiError(
        400,
        "unsupported_combination",
        "logprobs does not go with a method that takes tokens back.",
        "Leave it out.",
        param="logprobs",
    )


class Unprocessable(SeewhenError):
    """A prompt that the model's processor cannot take."""


class Run:
    """The decoding of one batch."""

    def __init__(
        self,
        decoder: Decoder,
        handle: Handle,
        jobs: Sequence[Job],
        rows: Sequence[Row],
        lengths: Sequence[int],
        features: list[Tensor],
    ) -> None:
        self.decoder, self.handle, self.jobs, self.rows = decoder, handle, jobs, rows
        self.features = features  # of the images of each row, for traces; filled by the prefill
        self._inputs: dict[str, Any] = {}
        self.lengths = dict(zip(rows, lengths, strict=True))
        self.judged = handle.session.parts.judge is not None
        handle.session.quiet = True  # what it has to say is a note in the answer

    def decode(self, inputs: dict[str, Any]) -> None:
        """Run the model to the end of the last answer."""
        job = self.jobs[0]
        self._inputs = inputs
        options: dict[str, Any] = {
            "max_new_tokens": max(row.limit for row in self.rows),
            "repetition_penalty": 1.0,
            "num_beams": job.num_beams,
            "do_sample": False,
            "pad_token_id": self.decoder.pad,
        }
        if job.num_beams > 1:
            self._decode_beams(inputs, options)
        else:
            if job.method.samples_only:
                options |= {"do_sample": True, "top_k": 0, "top_p": job.sampling.top_p}
                options["temperature"] = job.sampling.temperature
                # Of their own: torch's is shared by the threads of all models.
                options["generators"] = [torch.Generator().manual_seed(row.stream) for row in self.rows]
            else:
                options["logits_processor"] = LogitsProcessorList([Choosers(self.rows)])
            if self.judged:
                options |= {
                    "streamer": Settled(self),
                    "stopping_criteria": StoppingCriteriaList([Over(self.rows)]),
                }
            else:
                options["stopping_criteria"] = StoppingCriteriaList([Steps(self)])
            self.decoder.model.generate(**inputs, **options)
        self._close()

    def _close(self) -> None:
        """Finish what waits for the end of the batch."""
        now = time.monotonic()
        for place, row in enumerate(self.rows):
            if not row.finished:  # a judge ended it
                late = now > row.job.deadline
                text = row.give_up("time") if late else row.rest()
                self._end(place, row, text)
        for waiting in self.jobs:
            if waiting.trace or self.judged:
                self._finish_job(waiting)

    def _decode_beams(self, inputs: dict[str, Any], options: dict[str, Any]) -> None:
        """The best beam is known at the end; its tokens are then taken like any others."""
        row = self.rows[0]
        options["stopping_criteria"] = StoppingCriteriaList([Watch(row.job)])
        output = self.decoder.model.generate(**inputs, **options)
        for token in self.decoder.asker.new_tokens(output, inputs["input_ids"])[0]:
            if not row.finished:
                self.step([token])
        if not row.finished:
            self._end(0, row, row.give_up("time"))

    def step(self, tokens: Sequence[int]) -> list[bool]:
        """The tokens that all rows got in this step; returns which rows are finished."""
        now = time.monotonic()
        active = [place for place, row in enumerate(self.rows) if not row.finished]
        for place in active:
            row, token = self.rows[place], tokens[place]
            self._start(row)
            if self.judged and token == self.decoder.pad and token not in self.decoder.asker.ends:
                continue  # of a row that a judge ended
            text = row.take(token, self.decoder.asker.ends)
            if not row.finished and row.job.cancelled:
                text += row.give_up("cancelled")
            elif not row.finished and now > row.job.deadline:
                text += row.give_up("time")
            if row.finished:
                self._end(place, row, text, token)
            elif row.job.stream:
                self._tell(place, row, text, token)
        return [row.finished for row in self.rows]

    def _start(self, row: Row) -> None:
        if not row.job.started:
            row.job.started = True
            row.job.post(Started(self.lengths[row], len(self.rows)))

    def _tell(self, place: int, row: Row, text: str, token: int | None = None) -> None:
        live: dict[str, Any] = {}
        if row.job.trace and token is not None:
            spelled = row.spelled(self.decoder.tokenizer)
            # Settled tokens come sentence by sentence: what the session knows is of the newest step.
            told = {"id": token, "text": spelled}
            if not self.judged:
                told = facts.live(self.handle.session, place, token, spelled)
            if place < len(self.features) and len(self.features[place]):
                chosen = evidence(self.decoder.backbone, torch.tensor([token]), self.features[place])
                told["similarity"] = packed(chosen[0])
            live["tokens"] = [told | {"special": token in self.decoder.asker.ends}]
            if len(row.tokens) == 1:
                live |= self._about(place, row)
        log_probs = row.new_log_probs()
        if text or log_probs or live:
            row.job.post(Delta(row.index, text, log_probs, live))

    def _about(self, place: int, row: Row) -> dict[str, Any]:
        """What a picture of the tokens to come needs to know: where the image tokens lie, how many layers."""
        backbone = self.decoder.backbone
        grids = image_grids(backbone, self._inputs, len(self.rows))[place]
        placed = facts.placed(grids, row.job, self.decoder.processor)
        return {"grids": [asdict(grid) for grid in placed], "layers": backbone.num_layers}

    def _end(self, place: int, row: Row, text: str, token: int | None = None) -> None:
        self._start(row)
        if row.job.stream:
            self._tell(place, row, text, token)
        waits = row.job.trace or self.judged
        if not waits and all(other.finished for other in self.rows if other.job is row.job):
            self._finish_job(row.job)

    def _finish_job(self, job: Job) -> None:
        """Post the answers of a job. Traces and verdicts wait for the end of the batch, anything else does not."""
        trace = self._trace() if job.trace else None
        call = self.handle.session.calls.current
        for place, row in enumerate(self.rows):
            if row.job is not job:
                continue
            gated = not job.alone and not sharing.rides(job.method)
            fired = facts.fired(self.handle.session.last, place, len(row.tokens), call.steps) if gated else None
            text = row.writer.text
            shown = None
            if trace is not None:
                shown = facts.full(trace, place, job, text, self.decoder.asker, public(job.method))
            self.decoder.metrics.answered(type(job.method).name, len(row.tokens), fired)
            job.post(
                Finished(
                    row.index,
                    text,
                    len(row.tokens),
                    row.reason or "length",
                    tuple(row.log_probs),
                    fired,
                    row.stopped,
                    shown,
                    facts.told(call.told[place], text) if call.told else None,
                    row.writer.stopped,
                )
            )
        guest = sharing.rides(job.method) and job.method != self.handle.method
        job.post(Done(() if guest else tuple(dict.fromkeys(call.notes))))

    def _trace(self) -> Any:
        lengths = tuple(len(row.tokens) for row in self.rows)
        trace = dataclasses.replace(self.handle.trace, lengths=lengths).with_texts(self.decoder.tokenizer)
        return with_similarity(trace, self.decoder.backbone, self.features) if self.features else trace
