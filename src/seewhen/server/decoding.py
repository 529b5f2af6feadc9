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
from seewhen.backbones.grids import image_grids
from seewhen.backbones.loading import Loaded
from seewhen.decoding.method import Method
from seewhen.decoding.similarity import evidence, image_features, with_similarity
from seewhen.errors import SeewhenError
from seewhen.server import facts, sharing
from seewhen.server.answering import AnswerRow, Known, RunningAnswers, gated
from seewhen.server.choosing import public
from seewhen.server.failures import ApiError
from seewhen.server.jobs import Failed, Job
from seewhen.server.limits import Limits
from seewhen.server.metrics import Metrics
from seewhen.server.preparing import processing
from seewhen.server.sampling import Choosers
from seewhen.server.watching import Over, Settled, Steps, Watch
from seewhen.showing.viewer.payload import packed

_MOST_REMEMBERED = 1000  # clients can make up any number of parameters


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
        rows = [AnswerRow(job, index, self.tokenizer) for job in jobs for index in range(job.n)]
        inputs = self.inputs([row.job for row in rows])
        lengths = [int(n) for n in inputs["attention_mask"].sum(dim=1)]
        refused = {r.job: self.too_long(n) for r, n in zip(rows, lengths, strict=True) if n >= self.context}
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
            BatchDecoding(self, handle, jobs, rows, lengths, features).decode(inputs)
        return None

    def inputs(self, jobs: Sequence[Job]) -> dict[str, Any]:
        """What `generate` takes, a row for each job."""
        with processing():
            return self.asker.inputs([Question(job.prompt, job.images) for job in jobs])

    def _judges(self, job: Job) -> bool:
        return not job.alone and job.method.parts(self.backbone).judge is not None

    def too_long(self, length: int) -> ApiError:
        """Of a prompt that leaves no room for an answer."""
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


class BatchDecoding(RunningAnswers):
    """The decoding of one batch."""

    def __init__(
        self,
        decoder: Decoder,
        handle: Handle,
        jobs: Sequence[Job],
        rows: Sequence[AnswerRow],
        lengths: Sequence[int],
        features: list[Tensor],
    ) -> None:
        super().__init__(decoder.asker.ends, decoder.metrics, rows)
        self.decoder, self.handle, self.jobs = decoder, handle, jobs
        self.features = features  # of the images of each row, for traces; filled by the prefill
        self._inputs: dict[str, Any] = {}
        self.lengths.update(zip(rows, lengths, strict=True))
        self._places = {row: place for place, row in enumerate(rows)}
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
                if "generators" in job.method.options:  # torch's own is shared by the threads of all models
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
        for row in self.rows:
            if not row.finished:  # a judge ended it
                self.end(row, row.give_up("time") if now > row.job.deadline else row.rest())
        for waiting in self.jobs:
            if self.waits(waiting):
                self.finish(waiting)

    def _decode_beams(self, inputs: dict[str, Any], options: dict[str, Any]) -> None:
        """The best beam is known at the end; its tokens are then taken like any others."""
        row = self.rows[0]
        options["stopping_criteria"] = StoppingCriteriaList([Watch(row.job)])
        output = self.decoder.model.generate(**inputs, **options)
        for token in self.decoder.asker.new_tokens(output, inputs["input_ids"])[0]:
            if not row.finished:
                self.step([token])
        if not row.finished:
            self.end(row, row.give_up("time"))

    def _about(self, place: int, row: AnswerRow) -> dict[str, Any]:
        """What a picture of the tokens to come needs to know: where the image tokens lie, how many layers."""
        backbone = self.decoder.backbone
        grids = image_grids(backbone, self._inputs, len(self.rows))[place]
        placed = facts.placed(grids, row.job, self.decoder.processor)
        return {"grids": [asdict(grid) for grid in placed], "layers": backbone.num_layers}

    def step(self, tokens: Sequence[int]) -> list[bool]:
        """The tokens that all rows got in this step; returns which rows are finished."""
        for row, token in zip(self.rows, tokens, strict=True):
            if row.finished:
                continue
            if self.judged and token == self.decoder.pad and token not in self.decoder.asker.ends:
                self.start(row)  # of a row that a judge ended
            else:
                self.take(row, token)
        return [row.finished for row in self.rows]

    def live(self, row: AnswerRow, token: int) -> dict[str, Any]:
        """What a trace tells of it."""
        if not row.job.trace:
            return {}
        spelled, place = row.spelled(self.decoder.tokenizer), self._places[row]
        # Settled tokens come sentence by sentence: what the session knows is of the newest step.
        told = {"id": token, "text": spelled}
        if not self.judged:
            told = facts.live(self.handle.session, place, token, spelled)
        if place < len(self.features) and len(self.features[place]):
            chosen = evidence(self.decoder.backbone, torch.tensor([token]), self.features[place])
            told["similarity"] = packed(chosen[0])
        live: dict[str, Any] = {"tokens": [told | {"special": token in self.decoder.asker.ends}]}
        return live | self._about(place, row) if len(row.tokens) == 1 else live

    def waits(self, job: Job) -> bool:
        """Traces and verdicts wait for the end of the batch, anything else does not."""
        return job.trace or self.judged

    def known(self, row: AnswerRow) -> Known:
        """What the session recorded."""
        job, place, call = row.job, self._places[row], self.handle.session.calls.current
        fired = None
        if gated(job):
            fired = facts.fired(self.handle.session.last, place, len(row.tokens), call.steps)
        shown, text = None, row.writer.text
        if job.trace:
            shown = facts.full(self._trace(), place, job, text, self.decoder.asker, public(job.method))
        return Known(fired, shown, facts.told(call.told[place], text) if call.told else None)

    def notes(self, job: Job) -> tuple[str, ...]:
        """Of the method, if it was the job's own."""
        guest = sharing.rides(job.method) and job.method != self.handle.method
        return () if guest else tuple(dict.fromkeys(self.handle.session.calls.current.notes))

    def _trace(self) -> Any:
        lengths = tuple(len(row.tokens) for row in self.rows)
        trace = dataclasses.replace(self.handle.trace, lengths=lengths).with_texts(self.decoder.tokenizer)
        return with_similarity(trace, self.decoder.backbone, self.features) if self.features else trace
