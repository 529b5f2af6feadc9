"""OPERA's decoding loop: a beam search whose candidates are rows of one forward pass.

Each step feeds the candidates of all beams at once. The row of a candidate that is chosen already is
its beam's next state, so a step costs one pass over `beams * candidates` rows. Going back feeds the
prefix again, token by token, on a copy of the prompt's cache; no other cache is kept. The rows of a
batch roll back to different lengths, so they are searched one after the other after a common prefill.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from seewhen.errors import UnsupportedMode
from seewhen.methods.opera import Opera, Watch, Watched, column_logs, strongest_column
from seewhen.sequence import ATTRIBUTE, Sequence

if TYPE_CHECKING:
    from seewhen.intervene import Session

_FAR = 999.0


@dataclass(frozen=True)
class Settings:
    """The part of `generate`'s arguments that a beam search needs."""

    beams: int
    length_penalty: float
    early_stopping: bool | str
    ends: int  # number of end-of-sequence tokens
    longest: int  # tokens a response can have


@dataclass(frozen=True)
class Finished:
    """A completed hypothesis."""

    score: float
    tokens: Tensor


@dataclass(frozen=True)
class Snapshot:
    """The search before it chose the next token of every beam."""

    tokens: Tensor  # (beams, length)
    scores: Tensor  # (beams,)
    finished: tuple[Finished, ...]


@dataclass(frozen=True)
class Choice:
    """The outcome of one step: which beams go on, with which tokens."""

    position: int
    beams: Tensor
    tokens: Tensor
    scores: Tensor


@dataclass
class State:
    """What the model knows of the beams of a snapshot."""

    cache: Any
    logits: Tensor  # (beams, vocabulary), float32
    columns: Tensor  # (beams, length): logarithms of the column products


@dataclass(frozen=True)
class Runner:
    """Forward passes of one row of the batch, on copies of the prompt's cache."""

    session: Session
    sequence: Sequence
    watched: Watched
    prompt_cache: Any
    prompt_logits: Tensor  # (vocabulary,)
    row: int
    scale: float

    def start(self, beams: int) -> State:
        """The state after the prompt."""
        # The copy keeps belonging to the same sequence (and must not copy the model behind it).
        cache = copy.deepcopy(self.prompt_cache, {id(self.sequence): self.sequence})
        take_rows(cache, torch.full((beams,), self.row, device=self.prompt_logits.device))
        self.sequence.recorder.step.zero_()
        empty = torch.zeros(beams, 0, device=self.prompt_logits.device)
        return State(cache, self.prompt_logits.expand(beams, -1), empty)

    def replay(self, tokens: Tensor) -> State:
        """The state after the prompt and `tokens` (beams, length)."""
        state = self.start(tokens.shape[0])
        for index in range(tokens.shape[1]):
            logits, row = self.feed(state.cache, tokens[:, index], index)
            state = State(state.cache, logits, column_logs(state.columns, self.response(row), self.scale))
        return state

    def feed(self, cache: Any, tokens: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """One pass over `tokens` (rows,), the `position`-th of the response: logits and attention rows."""
        padding = self.watched.padding[self.row]
        mask = torch.nn.functional.pad(~padding, (0, position + 1), value=True)
        positions = self.watched.last_position[..., self.row, None, None] + 1 + position
        output = self.session.backbone.driver(
            input_ids=tokens[:, None],
            attention_mask=mask.long().expand(len(tokens), -1),
            position_ids=positions.expand(*positions.shape[:-2], len(tokens), 1),
            past_key_values=cache,
            use_cache=True,
            return_dict=True,
        )
        assert self.watched.row is not None
        return output.logits[:, -1].float(), self.watched.row

    def response(self, rows: Tensor) -> Tensor:
        """The part of attention rows that lies on the response."""
        return rows[..., self.sequence.prompt_length :]

    def on_image(self, rows: Tensor) -> Tensor:
        """How much of each attention row lies on the image."""
        image = self.sequence.image
        weights = rows[..., image.columns[self.row].to(rows.device)]
        return weights.masked_fill(~image.valid[self.row].to(rows.device), 0.0).sum(dim=-1)


def take_rows(cache: Any, index: Tensor) -> None:
    """Make `index` the rows of the cache: repeats, drops and reorders, in every kind of layer."""
    for layer in cache.layers:
        layer.reorder_cache(index)


class Search:
    """The search for one row of the batch."""

    def __init__(
        self, method: Opera, runner: Runner, settings: Settings, prompt: Tensor, processors: Any, criteria: Any
    ) -> None:
        self.method, self.runner, self.settings = method, runner, settings
        self.prompt, self.processors, self.criteria = prompt, processors, criteria
        self.snapshots: list[tuple[Snapshot, Choice]] = []
        self.history: list[Tensor] = []  # per step: the strongest column of each beam
        self.rollbacks: Counter[int] = Counter()
        self.forbidden: dict[int, Tensor] = {}  # per position: flat (beam, token) indices

    def run(self) -> tuple[Finished, ...]:
        """The finished hypotheses, best first."""
        beams, device = self.settings.beams, self.prompt.device
        scores = torch.full((beams,), -1e9, device=device)
        scores[0] = 0.0
        tokens = torch.zeros(beams, 0, dtype=torch.long, device=device)
        snapshot = Snapshot(tokens, scores, ())
        state = self.runner.start(beams)
        while True:
            best, next_logits, logs, penalty = self.try_candidates(snapshot, state)
            back = self.rollback_position(snapshot.tokens.shape[1])
            if back is None:
                logits = self.penalised(state.logits, best, penalty)
                choice, after, done = self.choose(snapshot, logits)
                state = self.advance(state, choice, after, best, next_logits, logs)
            else:
                snapshot, state = self.go_back(back)
                choice, after, done = self.choose(snapshot, self.without_forbidden(state.logits, back))
                state = self.step(state, choice)
            self.snapshots.append((snapshot, choice))
            self.runner.watched.choices.append(choice)
            if done:
                return after.finished
            snapshot = after

    def try_candidates(self, snapshot: Snapshot, state: State) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Feed the candidates; returns their tokens, next logits, column logs and penalties."""
        beams, count = self.settings.beams, self.method.candidates
        length = snapshot.tokens.shape[1]
        best = state.logits.topk(min(count, state.logits.shape[-1]), dim=-1).indices
        repeated = torch.arange(beams, device=best.device).repeat_interleave(best.shape[1])
        take_rows(state.cache, repeated)
        next_logits, rows = self.runner.feed(state.cache, best.reshape(-1), length)
        logs = column_logs(state.columns[repeated], self.runner.response(rows), self.method.scale)
        phi, column = strongest_column(logs.view(*best.shape, -1), self.method.reference_parity)
        self.history.append(column.cpu().mode(dim=-1).values)
        early = length + 1 <= self.method.warmup
        penalty = -self.runner.on_image(rows).view(best.shape) if early else phi
        return best, next_logits, logs, penalty

    def penalised(self, logits: Tensor, best: Tensor, penalty: Tensor) -> Tensor:
        """Logits of the candidates minus their penalty; all other tokens far below."""
        kept = logits.gather(1, best) - self.method.weight * penalty
        floor = torch.full_like(kept[:, :1], -_FAR)
        if not self.method.reference_parity:
            floor = kept.amin(dim=1, keepdim=True) - _FAR
        return floor.expand_as(logits).scatter(1, best, kept)

    def rollback_position(self, length: int) -> int | None:
        """Where to go back to, if one column has been the strongest in all beams for long enough."""
        column = int(self.history[-1].mode().values)
        counts = (torch.stack(self.history) == column).sum(dim=0)
        if not bool((counts > self.method.threshold).all()) or column < self.method.earliest_rollback:
            return None
        for position in (column + 1, column):
            # The newest chosen token is the last that can be chosen again.
            if self.rollbacks[position] < self.method.candidates and position < length:
                self.rollbacks[position] += 1
                return position
        return None

    def go_back(self, position: int) -> tuple[Snapshot, State]:
        """Restore the search before it chose token `position`, and forbid what it chose."""
        snapshot, choice = self.snapshots[position]
        del self.snapshots[position:]
        del self.history[position + 1 :]
        state = self.runner.replay(snapshot.tokens)
        chosen = choice.beams * state.logits.shape[1] + choice.tokens
        earlier = self.forbidden.get(position, chosen[:0])
        later = [p for p in self.forbidden if p > position]
        for p in later:
            if not self.method.reference_parity or p == position + 1:
                del self.forbidden[p]
        self.forbidden[position] = torch.cat([earlier, chosen])
        return snapshot, state

    def without_forbidden(self, logits: Tensor, position: int) -> Tensor:
        """The whole vocabulary without the choices made at `position` before."""
        lowest = logits.amin(dim=1, keepdim=True) - (0.0 if self.method.reference_parity else _FAR)
        index = self.forbidden[position]
        blocked = torch.zeros(logits.numel(), dtype=torch.bool, device=logits.device)
        blocked[index] = True
        return torch.where(blocked.view_as(logits), lowest, logits)

    def choose(self, snapshot: Snapshot, logits: Tensor) -> tuple[Choice, Snapshot, bool]:
        """An ordinary beam search step: the choice, the search after it, and whether it is over."""
        beams, length = self.settings.beams, snapshot.tokens.shape[1]
        log_probs = torch.log_softmax(logits, dim=-1)
        log_probs = self.processors(self.with_prompt(snapshot.tokens), log_probs)
        total = (log_probs + snapshot.scores[:, None]).view(-1)
        # Each beam can finish in `ends` ways: these are enough that `beams` continuations are unfinished.
        top, index = total.topk(min(max(2, 1 + self.settings.ends) * beams, total.numel()))
        parents, tokens = index // logits.shape[1], index % logits.shape[1]
        grown = torch.cat([snapshot.tokens[parents], tokens[:, None]], dim=1)
        stops = self.criteria(self.with_prompt(grown), None).to(top.device)
        norm = (length + 1) ** self.settings.length_penalty
        finished = list(snapshot.finished)
        for rank in (stops[:beams]).nonzero().flatten().tolist():
            finished.append(Finished(float(top[rank]) / norm, grown[rank]))
        finished = sorted(finished, key=lambda one: -one.score)[:beams]
        order = stops.long().argsort(stable=True)[:beams]  # unfinished ones first, best first
        choice = Choice(length, parents[order], tokens[order], top[order])
        scores = top[order] + stops[order] * -1e9
        over = bool(stops[order].all()) or self.cannot_improve(finished, float(scores[0]), norm)
        return choice, Snapshot(grown[order], scores, tuple(finished)), over

    def cannot_improve(self, finished: list[Finished], best_running: float, norm: float) -> bool:
        """Whether no running beam can beat the worst finished one (transformers' early stopping rules)."""
        if len(finished) < self.settings.beams:
            return False
        if self.settings.early_stopping is True:
            return True
        if self.settings.early_stopping == "never" and self.settings.length_penalty > 0:
            norm = self.settings.longest**self.settings.length_penalty
        return best_running / norm <= finished[-1].score

    def with_prompt(self, tokens: Tensor) -> Tensor:
        """Full token ids, as processors and stopping criteria want them."""
        return torch.cat([self.prompt.expand(len(tokens), -1), tokens], dim=1)

    def advance(
        self, state: State, choice: Choice, after: Snapshot, best: Tensor, next_logits: Tensor, logs: Tensor
    ) -> State:
        """The state after a choice among the candidates, whose passes have been made already."""
        matches = best[choice.beams] == choice.tokens[:, None]
        if not bool(matches.any(dim=1).all()):  # too few candidates: another token was taken
            return self.runner.replay(after.tokens)
        rows = choice.beams * best.shape[1] + matches.long().argmax(dim=1)
        take_rows(state.cache, rows)
        return State(state.cache, next_logits[rows], logs[rows])

    def step(self, state: State, choice: Choice) -> State:
        """The state after a choice from the whole vocabulary."""
        take_rows(state.cache, choice.beams)
        logits, rows = self.runner.feed(state.cache, choice.tokens, choice.position)
        columns = column_logs(state.columns[choice.beams], self.runner.response(rows), self.method.scale)
        return State(state.cache, logits, columns)


def generate(method: Opera, watch: Watch, session: Session, stock: Any, *args: Any, **kwargs: Any) -> Any:
    """`model.generate` with OPERA's search; everything but the loop itself is transformers' own."""
    model = session.backbone.model
    config = kwargs.get("generation_config") or model.generation_config

    def option(name: str, default: Any) -> Any:
        value = kwargs.pop(name, None)
        value = getattr(config, name, None) if value is None else value
        return default if value is None else value

    beams, returned = option("num_beams", 1), option("num_return_sequences", 1)
    length_penalty, early_stopping = float(option("length_penalty", 1.0)), option("early_stopping", False)
    if option("do_sample", False):
        raise UnsupportedMode("opera cannot run with do_sample=True.", "It is a beam search: leave it unset.")
    if kwargs.get("streamer") is not None:
        raise UnsupportedMode("opera cannot run with a streamer.", "It takes tokens back: leave it unset.")
    if returned > beams:
        raise UnsupportedMode(
            f"opera cannot return {returned} sequences of {beams} beams.",
            "Set num_return_sequences to num_beams or less.",
        )

    def decode(
        owner: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **model_kwargs: Any,
    ) -> Any:
        if getattr(model_kwargs.get("past_key_values"), "is_compileable", False):
            raise UnsupportedMode(
                "opera cannot run with a static cache.",
                "The number of its rows changes at every step: leave cache_implementation unset.",
            )
        output = _prefill(owner, input_ids, model_kwargs)
        cache, logits = output.past_key_values, output.logits[:, -1].float()
        sequence: Sequence = getattr(cache, ATTRIBUTE)
        watched = sequence.memories[session.interventions.index(watch)]
        ends = generation_config.eos_token_id
        settings = Settings(
            beams,
            length_penalty,
            early_stopping,
            ends=0 if ends is None else 1 if isinstance(ends, int) else len(ends),
            longest=generation_config.max_length - input_ids.shape[1],
        )
        best: list[Finished] = []
        for row in range(len(input_ids)):
            runner = Runner(session, sequence, watched, cache, logits[row], row, method.scale)
            search = Search(method, runner, settings, input_ids[row], logits_processor, stopping_criteria)
            best += search.run()[:returned]
        pad = generation_config.pad_token_id
        tokens = torch.nn.utils.rnn.pad_sequence(
            [one.tokens for one in best], batch_first=True, padding_value=0 if pad is None else int(pad)
        )
        if session.level != "summary" and returned == 1:
            _record(session, watch, owner, input_ids, tokens, model_kwargs)
        prompts = input_ids.repeat_interleave(returned, dim=0)
        sequences = torch.cat([prompts, tokens], dim=1)
        if not generation_config.return_dict_in_generate:
            return sequences
        from transformers.generation.utils import GenerateBeamDecoderOnlyOutput

        scores = torch.tensor([one.score for one in best], device=sequences.device)
        return GenerateBeamDecoderOnlyOutput(sequences=sequences, sequences_scores=scores)

    kwargs.update(num_beams=1, num_return_sequences=1, do_sample=False, custom_generate=decode)
    return stock(*args, **kwargs)


def _prefill(owner: Any, input_ids: Tensor, model_kwargs: dict[str, Any]) -> Any:
    inputs = owner.prepare_inputs_for_generation(input_ids, is_first_iteration=True, **model_kwargs)
    return owner(**inputs, return_dict=True)


def _record(
    session: Session, watch: Watch, owner: Any, input_ids: Tensor, tokens: Tensor, model_kwargs: dict[str, Any]
) -> None:
    """Run once more over the chosen tokens alone: a full trace is of them, not of all that was tried."""
    output = _prefill(owner, input_ids, {**model_kwargs, "past_key_values": None})
    cache = output.past_key_values
    sequence: Sequence = getattr(cache, ATTRIBUTE)
    watched: Watched = sequence.memories[session.interventions.index(watch)]
    for index in range(tokens.shape[1] - 1):
        session.backbone.driver(
            input_ids=tokens[:, index, None],
            attention_mask=torch.nn.functional.pad(~watched.padding, (0, index + 1), value=True).long(),
            position_ids=watched.last_position[..., None] + 1 + index,
            past_key_values=cache,
            use_cache=True,
        )
