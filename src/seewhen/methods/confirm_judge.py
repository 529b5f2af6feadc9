"""The judge of `confirm`: sentence by sentence, the objects it names are asked about; denied ones are not said."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from seewhen.decoding.aside import Aside
from seewhen.decoding.judge import Judge, Newest, Ruling
from seewhen.decoding.sending import sent
from seewhen.methods.confirm_answer import Answer, Asked, Decision, Rules, Sentence, complete, fresh_mentions
from seewhen.methods.confirm_drafts import Drafts
from seewhen.methods.confirm_words import Words
from seewhen.verdicts.verdict import Signals, Verdict


class Parameters(Rules, Protocol):
    """What the judge reads of `confirm`."""

    @property
    def when(self) -> float | None: ...

    @property
    def doubt(self) -> str: ...

    @property
    def drafts(self) -> int: ...


@dataclass
class Row(Answer):
    """An answer, with how sure each of its tokens was."""

    doubts: list[Tensor] = field(default_factory=list)  # (2,): log-probability and entropy of each token
    drafts: Drafts | None = None


class Sentences(Judge):
    """Judges sentences; one for a call."""

    def __init__(self, method: Parameters, words: Words, verdict: Verdict, threshold: float, aside: Aside) -> None:
        self.method, self.words, self.verdict, self.threshold, self.aside = (
            method,
            words,
            verdict,
            threshold,
            aside,
        )
        self.answers = [Row(asks) for asks in aside.with_image.tolist()]
        self.stuck: set[int] = set()  # rows whose newest token could only be a word of a denied object

    # -- scores ------------------------------------------------------------------------------------------------

    def logits(self, tokens: Sequence[list[int]], logits: Tensor) -> Tensor:
        """Words of denied objects cannot be chosen. Where a method leaves nothing else, the row is stuck."""
        self.stuck = set()
        forbidden = (answer.forbidden for answer in self.answers)
        barred = [self.words.barred(denied, row) for denied, row in zip(forbidden, tokens, strict=True)]
        if not any(barred):
            return logits
        allowed = logits.clone()
        rows = sent([row for row, ids in enumerate(barred) for _ in ids], logits.device)
        allowed[rows, sent([token for ids in barred for token in ids], logits.device)] = -torch.inf
        none = ~allowed.isfinite().any(dim=1)
        self.stuck = {row for row, nothing in enumerate(none.tolist()) if nothing}
        return torch.where(none[:, None], logits, allowed)

    def scores(self, tokens: Sequence[list[int]], scores: Tensor) -> Tensor:
        """A sentence that is said once more is said in the same words."""
        said = [len(row) - answer.settled for row, answer in zip(tokens, self.answers, strict=True)]
        forced = [(row, a.forced[said[row]]) for row, a in enumerate(self.answers) if said[row] < len(a.forced)]
        if forced:
            scores = scores.clone()
        for row, token in forced:
            scores[row] = -torch.inf
            scores[row, token] = 0.0
        return scores

    def accepts(self, tokens: Sequence[list[int]], chosen: Sequence[int | None]) -> bool | None:
        """Whether no row has begun a word of a denied object, or has to say a sentence once more."""
        self.stuck = set()
        if any(answer.forced for answer in self.answers):
            return None
        return not any(
            token in self.words.barred(answer.forbidden, tokens[row])
            for row, (answer, token) in enumerate(zip(self.answers, chosen, strict=True))
            if token is not None and answer.forbidden
        )

    # -- rulings -----------------------------------------------------------------------------------------------

    def ruling(self, newest: Newest) -> Ruling:
        """Nothing until a sentence is complete; then all new objects of all such rows are asked in one pass."""
        self._note(newest)
        running = [row for row, runs in enumerate(newest.running) if runs]
        stuck = {
            row: self.answers[row].stuck(self._so_far(row, newest), newest.last) for row in self.stuck & {*running}
        }
        due = {row: sentence for row in running if row not in stuck and (sentence := self._sentence(row, newest))}
        self._ask(due)
        self._look_for_spares(due)
        decided = stuck | {
            row: self.answers[row].decide(sentence, self.method, self.threshold, newest.last)
            for row, sentence in due.items()
        }
        nothing = Decision(False, False, False)
        settle, again, ended = zip(*(decided.get(row, nothing) for row in range(len(newest.tokens))), strict=True)
        return Ruling(settle, again, ended)

    def _so_far(self, row: int, newest: Newest) -> Sentence:
        """What a row says so far, without its newest token."""
        tokens = newest.tokens[row][:-1]
        return Sentence(self.words.text(tokens), list(tokens))

    def _note(self, newest: Newest) -> None:
        """Remember how sure each new token was."""
        log_probs = torch.log_softmax(newest.logits.float(), dim=-1)
        entropy = torch.special.entr(log_probs.exp()).sum(dim=-1)
        # On the device until somebody wants to know: a copy at every token would hold up decoding.
        chosen = sent([tokens[-1] if tokens else 0 for tokens in newest.tokens], log_probs.device)
        facts = torch.stack([log_probs.gather(1, chosen[:, None])[:, 0], entropy], dim=1)
        for row, answer in enumerate(self.answers):
            if newest.running[row]:
                answer.steps += 1
                del answer.doubts[len(newest.tokens[row]) - 1 :]
                answer.doubts.append(facts[row])

    def _sentence(self, row: int, newest: Newest) -> Sentence | None:
        """The row's newest sentence, if it is complete with the newest token."""
        tokens, answer = newest.tokens[row], self.answers[row]
        over = newest.ended[row] or newest.last
        if not over and not any(self.words.may_end(token) for token in tokens[-2:]):
            return None
        text = self.words.text(tokens)
        if not over and not complete(text, answer.judged):
            return None
        mentions = fresh_mentions(text, self.words.lexicon, answer.judged)
        return Sentence(text, list(tokens), mentions, self.words.places(tokens, answer.settled, mentions))

    def _ask(self, sentences: Mapping[int, Sentence]) -> None:
        """Every object once per answer; all of them in one pass."""
        named = {  # -> the token where it is first said
            (row, name): place
            for row, sentence in sentences.items()
            for name, place in self.answers[row].unasked(sentence).items()
        }
        if not named or self.threshold == -math.inf:
            return
        facts = torch.stack([self.answers[row].doubts[place] for (row, _), place in named.items()]).tolist()
        doubts = dict(zip(named, facts, strict=True))
        new = {key: place for key, place in named.items() if self._doubted(*doubts[key])}
        if not new:
            return
        self._draw()
        for (row, name), value in self._odds(list(new)).items():
            answer = self.answers[row]
            log_prob, entropy = doubts[row, name]
            elsewhere = None if answer.drafts is None else answer.drafts.elsewhere(name)
            place, attempt = float(new[row, name]), float(answer.attempts)
            signals = Signals(value, log_prob, entropy, place, attempt, elsewhere)
            answer.asked[name] = Asked(signals, self.verdict.log_odds(signals, name))

    def _odds(self, named: Sequence[tuple[int, str]]) -> dict[tuple[int, str], float]:
        """Of objects of some rows, all asked about in one pass."""
        questions = [self.words.question(name) for _, name in named]
        logits = self.aside.ask([row for row, _ in named], questions, after="image")
        return dict(zip(named, self.words.answers.log_odds(logits).tolist(), strict=True))

    # -- drafts ------------------------------------------------------------------------------------------------

    def _draw(self) -> None:
        """The drafts of all rows, once, when something is asked for the first time."""
        if not self.method.drafts or any(answer.drafts for answer in self.answers):
            return
        rows = [row for row, answer in enumerate(self.answers) if answer.asks]
        for row, drafts in self.aside.drafts(rows, self.method.drafts).items():
            self.answers[row].drafts = Drafts.read(drafts, self.words)

    def _look_for_spares(self, sentences: Mapping[int, Sentence]) -> None:
        """Where a sentence is denied, ask about what the drafts name: a sentence of theirs may take its place."""
        if self.method.on_denied != "again" or not self.method.drafts:
            return
        wanted = {
            row: self.answers[row]
            for row, sentence in sentences.items()
            if self.answers[row].denies(sentence, self.threshold)
        }
        named = [(row, name) for row, a in wanted.items() if a.drafts for name in a.drafts.unasked(a.asked)]
        for (row, name), value in (self._odds(named) if named else {}).items():
            answer = self.answers[row]
            assert answer.drafts is not None
            signals = answer.drafts.signals(name, value)
            answer.asked[name] = Asked(signals, self.verdict.log_odds(signals, name))
        for answer in wanted.values():
            if answer.drafts is not None:
                answer.spares = answer.drafts.confirmed(answer.asked, self.threshold)

    def _doubted(self, log_prob: float, entropy: float) -> bool:
        """Whether a word was written with enough doubt to ask about it."""
        if self.method.when is None:
            return True
        return (entropy if self.method.doubt == "entropy" else 1 - math.exp(log_prob)) > self.method.when

    # -- what is told ------------------------------------------------------------------------------------------

    def finish(self, tokens: Sequence[list[int]]) -> list[dict[str, Any]]:
        """Of each row: every mention with its verdict, what was taken back, what it cost."""
        texts, lexicon = [self.words.text(row) for row in tokens], self.words.lexicon
        if note := next(filter(None, map(lexicon.note_if_foreign, texts)), None):
            self.aside.warn(note)
        return [
            answer.told(text, len(row), lexicon, self.threshold)
            for answer, text, row in zip(self.answers, texts, tokens, strict=True)
        ]
