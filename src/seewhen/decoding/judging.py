"""Decoding with a judge: between steps somebody looks at the tokens, asks aside, and may take tokens back.

The loop does what transformers' own does, token for token, as long as nothing is taken back. A token that is
taken back leaves its column in the cache; the column is hidden from its row, and the row's position goes back. So
rows of a batch go back by themselves, and a captured step stays captured. A streamer gets settled tokens only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.generation.logits_process import TemperatureLogitsWarper
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from seewhen.decoding.aside import Aside
from seewhen.decoding.judge import Judge, Newest
from seewhen.decoding.rows import Saved
from seewhen.decoding.rule_scores import check_form
from seewhen.decoding.stepping import Following, Growing, Stepper
from seewhen.errors import UnsupportedMode

if TYPE_CHECKING:
    from seewhen.decoding.session import Session


@dataclass
class Row:
    """One answer while it is made."""

    tokens: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)  # the pass whose logits each token was chosen from
    columns: list[int] = field(default_factory=list)  # of the tokens that were fed already
    settled: int = 0
    start: tuple[int, Tensor] | None = None  # the pass and the logits of the first token that is not settled
    done: bool = False
    again: bool = False


@dataclass
class Choosing:
    """What `generate` was told about choosing tokens."""

    processors: Any
    criteria: Any
    config: Any
    streamer: Any

    def token(self, scores: Tensor) -> Tensor:
        """(rows,), as transformers chooses them."""
        if not self.config.do_sample:
            return scores.argmax(dim=-1)
        return torch.multinomial(torch.softmax(scores, dim=-1), num_samples=1).squeeze(1)

    @property
    def redraws(self) -> bool:
        """Whether refusing a choice and choosing again is choosing among what is left.

        Not so where a sample was cut to the likeliest tokens: without the refused ones others would be among them.
        """
        return not self.config.do_sample or all(isinstance(p, TemperatureLogitsWarper) for p in self.processors)


class JudgedCall:
    """One call with a judge."""

    def __init__(
        self, session: Session, prompt: Tensor, choosing: Choosing, stepper: Stepper, judge: Judge, aside: Aside
    ) -> None:
        self.session, self.prompt, self.choosing = session, prompt, choosing
        self.stepper, self.judge, self.aside = stepper, judge, aside
        self.rows = [Row() for _ in prompt]
        self.read = prompt.cpu().numpy()
        config, pad = choosing.config, choosing.config._pad_token_tensor
        self.longest = config.max_length - prompt.shape[1]
        self.pad = 0 if pad is None else int(pad)
        self.passes = self.streamed = 0
        self.straight = True  # nothing was taken back
        self.logits: list[list[Tensor]] = [[] for _ in prompt]  # of each row's tokens, where they are asked for
        self.scores: list[list[Tensor]] = [[] for _ in prompt]
        self.saved = Saved(aside.sequence, stepper.cache)
        self.ends = end_tokens(choosing.criteria)
        self.rules = [c for c in choosing.criteria if not isinstance(c, MaxLengthCriteria | EosTokenCriteria)]
        aside.given_up = self._given_up

    def decode(self, logits: Tensor) -> Any:
        """From the prompt's logits to what `generate` returns."""
        streamer = self.choosing.streamer
        if streamer is not None:
            streamer.put(self.prompt.cpu())
        self.saved.keep(range(len(self.rows)))
        sources = [0] * len(self.rows)
        most = most_steps(self.longest, self.session.parts.budget)
        for step in range(1, most + 1):
            tokens = self._choose(logits, sources)
            self._rule(logits, step == most)
            self._stream()
            running = [row for row in self.rows if not row.done]
            if not running or step == most:
                break
            if not all(row.again for row in running):  # else nobody has a token that stays
                logits = self._feed(tokens, step + 1 < most)
                sources = [self.passes] * len(self.rows)
            logits = self._back(logits, sources)
        self._close()
        if streamer is not None:
            streamer.end()
        return self._result()

    def _choose(self, logits: Tensor, sources: list[int]) -> Tensor | None:
        """The next token of each row (rows,), or None for what the pass chose and the judge accepts."""
        kept = [row.tokens for row in self.rows]
        own, tokens, scores = self._own(kept), None, logits
        if own is None:
            tokens, scores = self._by_the_host(kept, logits)
        for number, (row, token) in enumerate(zip(self.rows, own or tokens.tolist(), strict=True)):  # type: ignore[union-attr]
            if row.done:
                continue
            if len(row.tokens) == row.settled:
                row.start = (sources[number], logits[number].clone())
            row.tokens.append(token)
            row.steps.append(sources[number])
            if self.choosing.config.output_logits:
                self.logits[number].append(logits[number])
            if self.choosing.config.output_scores:
                self.scores[number].append(scores[number])
        return tokens

    def _own(self, kept: list[list[int]]) -> list[int] | None:
        """What the newest pass chose by itself, unless the judge would have it otherwise."""
        chosen = self.stepper.chosen if self._trusts else None
        if chosen is None:
            return None
        going = [None if row.done else token for row, token in zip(self.rows, chosen, strict=True)]
        return chosen if self.judge.accepts(kept, going) else None

    @property
    def _trusts(self) -> bool:
        """Whether a pass may choose by itself."""
        return (self.straight or self.choosing.redraws) and not self.choosing.config.output_scores

    def _by_the_host(self, kept: list[list[int]], logits: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens (rows,) and scores; the judge has the first and the last word on these."""
        processors, allowed = self.choosing.processors, self.judge.logits(kept, logits)
        scores = self.judge.scores(kept, processors(self._ids(), allowed) if processors else allowed)
        check_form(self.session.method.name, scores, allowed)
        tokens = self.choosing.token(scores)
        if any(row.done for row in self.rows):
            done = torch.tensor([row.done for row in self.rows], device=tokens.device)
            tokens = torch.where(done, self.pad, tokens)
        return tokens, scores

    def _ids(self) -> Tensor:
        """Prompt and tokens. Rows that went back are shorter: padded on the left, as prompts are."""
        longest = max(len(row.tokens) for row in self.rows)
        if all(len(row.tokens) == longest for row in self.rows):
            return torch.cat([self.prompt, self.prompt.new_tensor([row.tokens for row in self.rows])], dim=1)
        ids = np.full((len(self.rows), self.prompt.shape[1] + longest), self.pad)
        for place, prompt, row in zip(ids, self.read, self.rows, strict=True):
            start = 0 if row.done else longest - len(row.tokens)
            place[start : start + len(prompt)] = prompt
            place[start + len(prompt) : start + len(prompt) + len(row.tokens)] = row.tokens
        return torch.from_numpy(ids).to(self.prompt.device)

    def _rule(self, logits: Tensor, last: bool) -> None:
        running = [not row.done for row in self.rows]
        ended = self._ended(running)
        ruling = self.judge.ruling(Newest([row.tokens for row in self.rows], logits, running, ended, last))
        for number, row in enumerate(self.rows):
            if not running[number]:
                continue
            row.again = bool(ruling.again) and ruling.again[number]
            row.done = (ended[number] and not row.again) or (bool(ruling.ended) and ruling.ended[number])
            if row.again and (row.done or last):
                self._forget(number)
            elif row.done or ruling.settle[number]:
                row.settled = len(row.tokens)

    def _forget(self, number: int) -> None:
        """The row's tokens that are not settled never were."""
        row = self.rows[number]
        for kept in (row.tokens, row.steps, row.columns, self.logits[number], self.scores[number]):
            del kept[row.settled :]

    def _ended(self, running: list[bool]) -> list[bool]:
        """Rows that `generate`'s own rules end with their newest token."""
        over = [len(row.tokens) >= self.longest or not self.ends.isdisjoint(row.tokens[-1:]) for row in self.rows]
        return [now and end for now, end in zip(running, self._or_by_rules(over), strict=True)]

    def _or_by_rules(self, over: list[bool]) -> list[bool]:
        """And rows that stopping criteria end: the clock, say."""
        for rule in self.rules:
            over = [a or bool(b) for a, b in zip(over, rule(self._ids(), None).tolist(), strict=True)]
        return over

    def _given_up(self) -> bool:
        """Whether nobody waits for any answer, so that what is drawn aside may end."""
        return bool(self.rules) and all(self._or_by_rules([row.done for row in self.rows]))

    def _feed(self, tokens: Tensor | None, more: bool) -> Tensor:
        """One pass; logits (rows, vocabulary) of what follows."""
        logits = self.stepper.step(tokens, more and self._runs_ahead())
        for row in self.rows:
            if not row.done:
                row.columns.append(self.aside.filled)
        self.passes += 1
        self.aside.filled += 1
        self.saved.keep([n for n, row in enumerate(self.rows) if len(row.tokens) == row.settled])
        return logits

    def _runs_ahead(self) -> bool:
        """Whether the next pass may begin before the judge has seen what it begins with."""
        nearly = min(len(row.tokens) for row in self.rows if not row.done) + 1 >= self.longest
        if nearly or self.saved.holds or not self._trusts:
            return False
        nothing = [None] * len(self.rows)
        return self.judge.accepts([row.tokens for row in self.rows], nothing) is not None

    def _back(self, logits: Tensor, sources: list[int]) -> Tensor:
        """Rows that go back choose again from the logits before the first token they take back."""
        if any(row.again for row in self.rows):
            logits, self.straight = logits.clone(), False
        for number, row in enumerate(self.rows):
            if not row.again or row.done:
                continue
            assert row.start is not None
            sources[number], logits[number] = row.start
            gone = row.columns[row.settled :]
            self.stepper.go_back(number, gone)
            self.aside.sequence.take_back(number, gone, self.aside.filled)
            self.saved.restore(number)
            self._forget(number)
            row.again = False
        return logits

    def _close(self) -> None:
        """The steps are used up: what is there is the answer."""
        for row in self.rows:
            row.settled, row.done = len(row.tokens), True
        self._stream()

    def _stream(self) -> None:
        """Hand out what all rows have settled."""
        streamer = self.choosing.streamer
        if streamer is None:
            return
        running = [row.settled for row in self.rows if not row.done]
        ready = min(running) if running else max(row.settled for row in self.rows)
        for place in range(self.streamed, ready):
            column = [row.tokens[place] if place < len(row.tokens) else self.pad for row in self.rows]
            streamer.put(torch.tensor(column))
        self.streamed = max(self.streamed, ready)

    def _result(self) -> Any:
        longest = max(max(len(row.tokens) for row in self.rows), 1)  # an answer of which nothing stays is padding
        tokens = [row.tokens + [self.pad] * (longest - len(row.tokens)) for row in self.rows]
        call = self.session.calls.current
        call.steps = torch.tensor([row.steps + [0] * (longest - len(row.steps)) for row in self.rows])
        call.told = self.judge.finish([row.tokens for row in self.rows])
        sequences = torch.cat([self.prompt, self.prompt.new_tensor(tokens)], dim=1)
        if not self.choosing.config.return_dict_in_generate:
            return sequences
        scores, logits = (_by_step(kept, longest) for kept in (self.scores, self.logits))
        return GenerateDecoderOnlyOutput(sequences=sequences, scores=scores, logits=logits)


def most_steps(longest: int, budget: float) -> int:
    """How many steps a call may take for answers of `longest` tokens."""
    return max(longest, int(budget * longest))


def end_tokens(criteria: Any) -> frozenset[int]:
    """The tokens that end an answer."""
    ends = [criterion for criterion in criteria if isinstance(criterion, EosTokenCriteria)]
    return frozenset(int(token) for criterion in ends for token in criterion.eos_token_id.flatten())


def _by_step(rows: list[list[Tensor]], steps: int) -> tuple[Tensor, ...] | None:
    """One tensor (rows, vocabulary) per token; rows that ended earlier repeat their last."""
    if not rows[0]:
        return None
    return tuple(torch.stack([row[min(step, len(row) - 1)] for row in rows]) for step in range(steps))


@dataclass
class JudgedLoop:
    """The decoding loop of a session with a judge, in transformers' own steps."""

    session: Session
    streamer: Any = None

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        generation_config: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Decode."""
        logits, kwargs = read_prompt(model, input_ids, generation_config, kwargs)
        choosing = Choosing(logits_processor, stopping_criteria, generation_config, self.streamer)
        sequence = self.session.last
        assert sequence is not None
        course = self.session.course
        if course is None or not course.begins_like(logits, sequence):
            stepper = Growing(model, kwargs, input_ids, sequence.widened)
            return judged(self.session, input_ids, choosing, stepper, logits)
        following = Following(model, kwargs, input_ids, course=course, sequence=sequence)
        return judged(self.session, input_ids, choosing, following, logits)


def read_prompt(
    model: Any, input_ids: Tensor, config: Any, kwargs: dict[str, Any]
) -> tuple[Tensor, dict[str, Any]]:
    """As transformers' loops begin: the prompt's last logits (rows, vocabulary), and the next step's arguments."""
    outputs = model._prefill(input_ids, config, kwargs)
    kwargs = model._update_model_kwargs_for_generation(outputs, kwargs, is_encoder_decoder=False)
    return outputs.logits[:, -1].to(copy=True, dtype=torch.float32, device=input_ids.device), kwargs


def check_window(session: Session, length: int) -> None:
    """Refuse where a window would slide over columns that were taken back."""
    text = session.backbone.text_config
    slides = "sliding_attention" in (getattr(text, "layer_types", None) or ())
    window = (getattr(text, "sliding_window", None) if slides else None) or length
    if session.parts.budget > 1 and length > window:
        raise UnsupportedMode(
            f"{session.method.name} takes tokens back, which needs all of {length} columns, but some layers of "
            f"this model see the last {window} only.",
            "Use a shorter prompt or fewer new tokens, or a method that only marks.",
        )


def check_room(session: Session, cache: Any, length: int) -> None:
    """Refuse a static cache without room for the tokens that may be made again."""
    limits = [getattr(layer, "max_cache_len", None) for layer in getattr(cache, "layers", ())]
    room = min((limit for limit in limits if limit is not None), default=length)
    if session.parts.budget > 1 and room < length - 1:  # the last token is never stored
        raise UnsupportedMode(
            f"{session.method.name} takes tokens back, for which this static cache of {room} columns is "
            f"too short: it may take {length - 1}.",
            "Leave the cache to generate, or use fast='graph'.",
        )


def judged(session: Session, prompt: Tensor, choosing: Choosing, stepper: Stepper, logits: Tensor) -> Any:
    """Decode to the end with the session's judge."""
    longest = choosing.config.max_length - prompt.shape[1]
    aside = Aside(session, stepper.cache, stepper.arrive, longest, end_tokens(choosing.criteria))
    length = aside.sequence.prompt_length + most_steps(longest, session.parts.budget)
    check_window(session, length)
    check_room(session, stepper.cache, length)
    assert session.parts.judge is not None
    judge = session.parts.judge(aside)
    result = JudgedCall(session, prompt, choosing, stepper, judge, aside).decode(logits)
    stepper.arrive()
    return result
