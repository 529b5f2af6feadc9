"""The host's side of fast decoding: tokens read a few steps late, stopping, streaming, the result."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from seewhen.decoding.sending import posted

LAG = 4  # steps the device may be ahead of the host


class Tape:
    """The tokens of one decoding. `put` queues a step; what the host does with it happens when it arrives."""

    def __init__(self, prompt: Tensor, steps: int, config: Any, criteria: Any, streamer: Any) -> None:
        rows, self.start = prompt.shape
        self.config, self.streamer = config, streamer
        self.ids = torch.nn.functional.pad(prompt, (0, steps))  # on the device
        self.host = self.ids.cpu()
        self.queue: list[tuple[Tensor, Any]] = []
        self.queued = self.read = 0
        self.eos = [c.eos_token_id.cpu() for c in criteria if isinstance(c, EosTokenCriteria)]
        self.others = [c for c in criteria if not isinstance(c, EosTokenCriteria | MaxLengthCriteria)]
        pad = config._pad_token_tensor
        self.pad = None if pad is None else int(pad)
        self.done = torch.zeros(rows, dtype=torch.bool)
        self.logits: list[Tensor] | None = [] if config.output_logits else None
        self.scores: list[Tensor] | None = [] if config.output_scores else None
        if streamer is not None:
            streamer.put(self.host[:, : self.start])

    @property
    def finished(self) -> bool:
        """Whether, as far as the host has read, every row has ended."""
        return bool(self.done.all())

    @property
    def so_far(self) -> Tensor:
        """Prompt and tokens queued so far, on the device."""
        return self.ids[:, : self.start + self.queued]

    def put(self, tokens: Tensor, logits: Tensor, scores: Tensor) -> None:
        """Queue the tokens (rows,) of one step; does not wait for the device unless it is far ahead."""
        self.ids[:, self.start + self.queued] = tokens
        for kept, value in ((self.logits, logits), (self.scores, scores)):
            if kept is not None:
                kept.append(value.clone())
        self.queue.append(posted(tokens))
        self.queued += 1
        # A device that is far ahead would decode for nothing after the last token.
        while len(self.queue) > (LAG if tokens.is_cuda else 0) and not self.finished:
            self._read()

    def _read(self) -> None:
        tokens, arrived = self.queue.pop(0)
        if arrived is not None:
            arrived.synchronize()
        if self.pad is not None:
            tokens = torch.where(self.done, self.pad, tokens)
        end = self.start + self.read + 1
        self.host[:, end - 1] = tokens
        self.read += 1
        if self.streamer is not None:
            self.streamer.put(tokens)
        for eos in self.eos:
            self.done |= torch.isin(tokens, eos)
        for criterion in self.others:
            self.done |= criterion(self.host[:, :end], None).cpu()

    def catch_up(self) -> None:
        """Read all that is queued."""
        while self.queue and not self.finished:
            self._read()

    def result(self) -> Any:
        """What `generate` returns."""
        self.catch_up()
        if self.streamer is not None:
            self.streamer.end()
        sequences = self.host[:, : self.start + self.read].to(self.ids.device)
        if not self.config.return_dict_in_generate:
            return sequences
        kept = [None if values is None else tuple(values[: self.read]) for values in (self.scores, self.logits)]
        return GenerateDecoderOnlyOutput(sequences=sequences, scores=kept[0], logits=kept[1])
