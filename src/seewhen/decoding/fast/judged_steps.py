"""Captured steps for a judge, who sees the tokens of each before the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from seewhen.decoding.fast.prompts import Passes
from seewhen.decoding.fast.step import Captured, StepMaker, capture
from seewhen.decoding.judging import Choosing, judged
from seewhen.decoding.kept import Kept
from seewhen.decoding.kernels.capturing import turn

if TYPE_CHECKING:
    from seewhen.decoding.session import Session


class CapturedSteps:
    """A stepper of captured steps: the host chooses the tokens."""

    def __init__(
        self,
        session: Session,
        kept: Kept[Captured],
        model: Any,
        kwargs: dict[str, Any],
        prompt: Tensor,
        earlier: Captured | None,
        prompts: Passes,
    ) -> None:
        self.session, self.kept, self.model = session, kept, model
        self.kwargs, self.prompt, self.earlier, self.prompts = kwargs, prompt, earlier, prompts
        self.made: Captured | None = None

    @property
    def cache(self) -> Any:
        """Keys and values so far."""
        return self.kwargs["past_key_values"]

    def judged(self, choosing: Choosing, logits: Tensor) -> Any:
        """Decode to the end; afterwards the step is kept."""
        session = self.session
        output = judged(session, self.prompt, choosing, self, logits)
        if self.made is not None:
            assert session.last is not None
            session.calls.current.sequence = session.last.kept()
            self.made.prompts = self.prompts
            self.kept.put(self.made.key, self.made)
        return output

    def step(self, tokens: Tensor) -> Tensor:
        """One pass."""
        made, warm = self.made, True
        if made is None:
            ids = torch.cat([self.prompt, tokens[:, None]], dim=1)
            made, warm = StepMaker(self.session).step(self.model, ids, self.kwargs, None, self.earlier)
            self.made = made
        made.buffers.token.copy_(tokens[:, None])
        with turn(tokens.device):
            made.run()
        assert made.output.logits is not None
        if warm:
            return made.output.logits
        logits = made.output.logits.clone()  # capturing gives the step other addresses for its results
        capture(made)
        return logits

    def go_back(self, row: int, columns: list[int]) -> None:
        """In the step's own mask and positions."""
        if self.made is None or not columns:
            return
        sequence, buffers = self.session.last, self.made.buffers
        assert sequence is not None
        buffers.visible[row, [column - sequence.widened for column in columns]] = False
        if buffers.positions is not None:
            buffers.positions[..., row, :] -= len(columns)
