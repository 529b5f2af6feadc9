"""Captured steps for a judge. They choose tokens by themselves and run one pass ahead of what is judged.

The host looks at a token while the pass that the token begins is under way. As long as the judge lets tokens
through, the device never waits. Otherwise that pass never was: a static cache is rewound by counting back, and the
next pass writes over its column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.cache_utils import StaticLayer

from seewhen.decoding.fast.prompts import Passes
from seewhen.decoding.fast.step import Captured, Choose, StepMaker, capture
from seewhen.decoding.judging import Choosing, judged
from seewhen.decoding.kept import Kept
from seewhen.decoding.kernels.capturing import turn
from seewhen.decoding.sending import posted

if TYPE_CHECKING:
    from seewhen.decoding.session import Session


class CapturedSteps:
    """A stepper of captured steps; the host chooses where it must."""

    def __init__(
        self,
        session: Session,
        kept: Kept[Captured],
        model: Any,
        kwargs: dict[str, Any],
        prompt: Tensor,
        choose: Choose,
        earlier: Captured | None,
        prompts: Passes,
    ) -> None:
        self.session, self.kept, self.model = session, kept, model
        self.kwargs, self.prompt, self.earlier, self.prompts = kwargs, prompt, earlier, prompts
        # A pass ahead that never was has drawn from torch's generator for all rows: beside others the host draws.
        shared = choose.samples and len(prompt) > 1
        self.choose = choose if choose.capturable and not shared else None
        self.made: Captured | None = None
        self.passes = 0  # that stay
        self.ahead = False  # a pass is under way, or over, that nobody has asked for
        self.arriving: tuple[Tensor, Any] | None = None  # what the newest pass chose, on its way to the host

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

    @property
    def chosen(self) -> list[int] | None:
        """What the newest pass chose by itself."""
        if self.arriving is None:
            return None
        tokens, arrived = self.arriving
        if arrived is not None:
            arrived.synchronize()
        found: list[int] = tokens.tolist()
        return found

    def step(self, tokens: Tensor | None, ahead: bool) -> Tensor:
        """One pass, unless it is under way already."""
        made = self.made
        if made is None:
            assert tokens is not None
            made, logits = self._first(tokens)
        else:
            if tokens is not None:
                self._rewind()
                made.buffers.token.copy_(tokens[:, None])
            if not self.ahead:
                self._run(made)
            logits = self._result(made)
        self.passes += 1
        self.ahead = ahead and self.choose is not None and self._rewinds()
        if self.ahead:
            self._run(made)
        return logits

    def _first(self, tokens: Tensor) -> tuple[Captured, Tensor]:
        """The first pass of a call: with a step of an earlier one, or with a new step, which is then captured."""
        ids = torch.cat([self.prompt, tokens[:, None]], dim=1)
        made, warm = StepMaker(self.session).step(self.model, ids, self.kwargs, self.choose, self.earlier)
        self.made = made
        made.buffers.token.copy_(tokens[:, None])
        self._run(made)
        logits = self._result(made)
        if not warm:
            capture(made)  # which gives the step other addresses for its results
        return made, logits

    @staticmethod
    def _run(made: Captured) -> None:
        with turn(made.buffers.token.device):
            made.run()

    def _result(self, made: Captured) -> Tensor:
        """Logits at an address of their own, and the choice on its way: the next pass writes over both."""
        output = made.output
        assert output.logits is not None
        if output.tokens is not None:
            self.arriving = posted(output.tokens)
        return output.logits.clone()

    # -- going back --------------------------------------------------------------------------------------------

    def _rewinds(self) -> bool:
        """Whether a pass ahead can be undone by counting back, and has room."""
        layers, sequence = self.cache.layers, self.session.last
        assert sequence is not None and self.made is not None
        filled = sequence.prompt_length + self.passes
        return all(type(layer) is StaticLayer and filled < layer.max_cache_len for layer in layers)

    def _rewind(self) -> None:
        """The pass ahead never was."""
        self.arriving = None
        if not self.ahead:
            return
        self.ahead = False
        made, sequence = self.made, self.session.last
        assert made is not None and sequence is not None
        counts = [layer.cumulative_length for layer in self.cache.layers]
        counts += [made.buffers.length, sequence.recorder.step]
        torch._foreach_sub_(counts, 1)
        if made.buffers.positions is not None:
            made.buffers.positions.sub_(1)

    def arrive(self) -> None:
        """The cache always holds what was fed."""

    def go_back(self, row: int, columns: list[int]) -> None:
        """In the step's own mask and positions."""
        self._rewind()
        if self.made is None or not columns:
            return
        sequence, buffers = self.session.last, self.made.buffers
        assert sequence is not None
        buffers.visible[row, [column - sequence.widened for column in columns]] = False
        if buffers.positions is not None:
            buffers.positions[..., row, :] -= len(columns)
