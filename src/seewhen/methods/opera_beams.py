"""OPERA's search for one prompt: its beams, what they chose, and the way back when they all look at one column."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from seewhen.methods.opera_columns import OverTrust
    from seewhen.methods.opera_rows import Rows

FAR = 999.0  # below every score that counts


@dataclass(frozen=True)
class BeamSettings:
    """The part of `generate`'s arguments that a beam search needs."""

    beams: int
    length_penalty: float
    early_stopping: bool | str
    ends: int  # number of end-of-sequence tokens
    longest: int  # tokens a response can have


@dataclass(frozen=True)
class FinishedBeam:
    """A completed hypothesis."""

    score: float
    tokens: Tensor


@dataclass(frozen=True)
class Snapshot:
    """The search before it chose the next token of every beam."""

    tokens: Tensor  # (beams, length)
    scores: Tensor  # (beams,)
    finished: tuple[FinishedBeam, ...]

    @property
    def length(self) -> int:
        """Tokens chosen so far."""
        return self.tokens.shape[1]


@dataclass(frozen=True)
class BeamChoice:
    """The outcome of one step: which beams go on, with which tokens."""

    position: int
    beams: Tensor
    tokens: Tensor
    scores: Tensor


@dataclass
class Search:
    """The search for one prompt: what it has chosen, and which rows of the last pass its beams are."""

    method: OverTrust
    settings: BeamSettings
    prompt: int
    snapshot: Snapshot
    rows: Tensor  # (beams,), numbers of rows; see `Rows`
    fed: int = 0  # response tokens these rows have read
    ahead: list[Tensor] = field(default_factory=list)  # tokens (beams,) they still have to read, one by one
    back: int | None = None  # the position to choose again once they have
    done: bool = False
    choices: list[BeamChoice] = field(default_factory=list)  # all that were made, in order
    snapshots: list[tuple[Snapshot, BeamChoice]] = field(default_factory=list)
    history: list[Tensor] = field(default_factory=list)  # per step: the strongest column of each beam
    rollbacks: Counter[int] = field(default_factory=Counter)
    forbidden: dict[int, Tensor] = field(default_factory=dict)  # per position: flat (beam, token) indices

    @property
    def tries(self) -> bool:
        """Whether it is at the end of its tokens, and tries candidates for the next."""
        return not self.ahead

    def read_again(self, tokens: Tensor, rows: Rows) -> None:
        """Start again with the prompt and `tokens` (beams, length)."""
        self.rows = torch.full_like(self.rows, rows.prompt(self.prompt))
        self.fed, self.ahead = 0, list(tokens.unbind(dim=1))

    def rollback_position(self) -> int | None:
        """Where to go back to, if one column has been the strongest in all beams for long enough."""
        column = int(self.history[-1].mode().values)
        counts = (torch.stack(self.history) == column).sum(dim=0)
        if not bool((counts > self.method.threshold).all()) or column < self.method.earliest_rollback:
            return None
        for position in (column + 1, column):
            # The newest chosen token is the last that can be chosen again.
            if self.rollbacks[position] < self.method.candidates and position < self.snapshot.length:
                self.rollbacks[position] += 1
                return position
        return None

    def go_back(self, position: int, rows: Rows) -> None:
        """Restore the search before it chose token `position`, and forbid what it chose."""
        self.snapshot, choice = self.snapshots[position]
        del self.snapshots[position:]
        del self.history[position + 1 :]
        self.read_again(self.snapshot.tokens, rows)
        self.back = position
        chosen = choice.beams * rows.logits.shape[1] + choice.tokens
        earlier = self.forbidden.get(position, chosen[:0])
        for later in [p for p in self.forbidden if p > position]:
            if not self.method.reference_parity or later == position + 1:
                del self.forbidden[later]
        self.forbidden[position] = torch.cat([earlier, chosen])

    def without_forbidden(self, logits: Tensor, position: int) -> Tensor:
        """The whole vocabulary without the choices made at `position` before."""
        lowest = logits.amin(dim=1, keepdim=True) - (0.0 if self.method.reference_parity else FAR)
        blocked = torch.zeros(logits.numel(), dtype=torch.bool, device=logits.device)
        blocked[self.forbidden[position].to(logits.device)] = True
        return torch.where(blocked.view_as(logits), lowest, logits)

    def settle(self, top: Tensor, parents: Tensor, tokens: Tensor, grown: Tensor, stops: Tensor) -> BeamChoice:
        """An ordinary beam search step from the best continuations, best first; which of them end the response."""
        beams, length = self.settings.beams, self.snapshot.length
        norm = (length + 1) ** self.settings.length_penalty
        finished = list(self.snapshot.finished)
        for rank in (stops[:beams]).nonzero().flatten().tolist():
            finished.append(FinishedBeam(float(top[rank]) / norm, grown[rank]))
        finished = sorted(finished, key=lambda one: -one.score)[:beams]
        order = stops.long().argsort(stable=True)[:beams]  # unfinished ones first, best first
        choice = BeamChoice(length, parents[order], tokens[order], top[order])
        scores = top[order] + stops[order] * -1e9
        self.done = bool(stops[order].all()) or self.cannot_improve(finished, float(scores[0]), norm)
        self.snapshots.append((self.snapshot, choice))
        self.choices.append(choice)
        self.snapshot = Snapshot(grown[order], scores, tuple(finished))
        return choice

    def cannot_improve(self, finished: list[FinishedBeam], best_running: float, norm: float) -> bool:
        """Whether no running beam can beat the worst finished one (transformers' early stopping rules)."""
        if len(finished) < self.settings.beams:
            return False
        if self.settings.early_stopping is True:
            return True
        if self.settings.early_stopping == "never" and self.settings.length_penalty > 0:
            norm = self.settings.longest**self.settings.length_penalty
        return best_running / norm <= finished[-1].score

    def take(self, choice: BeamChoice, best: Tensor, first: int, rows: Rows) -> None:
        """Go on after a choice among the candidates `best`, whose rows in the last pass start with `first`."""
        matches = best[choice.beams] == choice.tokens[:, None]
        if not bool(matches.any(dim=1).all()):  # too few candidates: another token was taken
            self.read_again(self.snapshot.tokens, rows)
            return
        self.rows = first + choice.beams * best.shape[1] + matches.long().argmax(dim=1)
        self.fed += 1
