"""`confirm` with a served model: sentences are asked for, their objects are asked about, denied ones taken back.

What stays and what goes is decided as for a local model (`methods/confirm_answer.py`). Taking back is asking again
with the answer so far. Words of denied objects are forbidden where the server can do that: by the numbers of the
tokens that said them, or by spelling. Where one is said nevertheless, the text is cut before it and goes on with
the next likeliest token, as if it had been forbidden.
"""

from __future__ import annotations

import dataclasses
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from seewhen.methods.confirm import Confirm
from seewhen.methods.confirm_answer import Answer, Asked, Decision, Sentence, complete, fresh_mentions
from seewhen.served.odds import Odds
from seewhen.served.offers import (
    CONTINUE,
    ENDS,
    NEVER,
    STOPS,
    TELL_NUMBERS,
    Offers,
    begun,
    request,
    with_log_probs,
)
from seewhen.served.replies import Completion, Likely, Piece
from seewhen.verdicts.forbidden import Forbidden
from seewhen.verdicts.lexicon import Lexicon
from seewhen.verdicts.reader import TokenSpans
from seewhen.verdicts.verdict import Signals, Verdict

GO_ON = "Go on with your answer exactly where it stops. Do not repeat any of it."
DO_NOT_MENTION = "Do not mention: {words}."
_MOST_WORDS = 200  # forbidden by one request
_SPECIAL = re.compile(r"<[|/]?[\w|]+>|")  # how a vocabulary writes the end of an answer


class Asking(Protocol):
    """What is asked of a served model while an answer is written."""

    @property
    def offers(self) -> Offers: ...

    def complete(self, request: Mapping[str, Any]) -> Completion: ...

    def odds(self, names: Sequence[str]) -> Mapping[str, Odds | None]: ...


@dataclass(frozen=True)
class Judging:
    """What judges the objects of an answer."""

    method: Confirm
    lexicon: Lexicon  # as texts are read by it
    forbidden: Forbidden
    verdict: Verdict
    threshold: float


@dataclass
class Writer:
    """One answer while it is written."""

    model: Asking
    messages: Sequence[Mapping[str, Any]]
    judging: Judging
    longest: int  # tokens
    sampling: Mapping[str, Any]  # temperature and so on; empty is greedy
    settled: Callable[[str], None]  # gets text that stays
    answer: Answer = field(default_factory=Answer)
    tokens: list[Piece] = field(default_factory=list)
    numbers: dict[str, set[int]] = field(default_factory=dict)  # of tokens that were said, by their text

    def __post_init__(self) -> None:
        method = self.judging.method
        again = method.on_denied == "again"
        self.most = max(self.longest, int(method.budget * self.longest)) if again else self.longest
        self.random = random.Random(self.sampling.get("seed", 0))
        self._sent = 0

    @property
    def text(self) -> str:
        """The answer so far."""
        return _joined(self.tokens)

    def write(self) -> dict[str, Any]:
        """To the end; returns what `confirm` tells of it."""
        ended = False
        while not ended:
            ended = self._read(*self._more())
        rules = self.judging
        return self.answer.told(self.text, len(self.tokens), rules.lexicon, rules.threshold)

    # -- asking for text -------------------------------------------------------------------------------------

    def _more(self) -> tuple[Sequence[Piece], bool]:
        """The next tokens, a sentence where the server stops at its end; and whether the answer is over."""
        if self.answer.forced:
            return self.answer.forced, True
        self._forget_spaces()
        room = min(self.longest - len(self.tokens), self.most - self.answer.steps)
        if room < 1:
            return (), True
        found = self.model.complete(self._request(room))
        pieces = self._spaced(found.pieces[:room])
        self.answer.steps += len(pieces)
        self._remember(pieces)
        said = bool(_joined(pieces).strip())
        by_string = self.model.offers.stops and self.model.offers.continues
        stopped = by_string and not found.over and found.text.rstrip().endswith(ENDS)
        return pieces, not said or not stopped or len(self.tokens) + len(pieces) >= self.longest

    def _forget_spaces(self) -> None:
        """What an answer goes on from has no space at its end."""
        while len(self.tokens) > self.answer.settled and not self.tokens[-1].text.strip():
            self.tokens.pop()

    def _spaced(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        """With the space between two sentences, which some servers cut off and another message does not have."""
        if self.model.offers.spaces or not self.text.endswith(ENDS) or not pieces:
            return pieces
        first = dataclasses.replace(pieces[0], text=f" {pieces[0].text.lstrip()}")
        return (first, *pieces[1:])

    def _request(self, room: int) -> dict[str, Any]:
        offers, forbidden = self.model.offers, sorted(self.answer.forbidden)
        options: dict[str, Any] = {**self.sampling, "max_tokens": room, **with_log_probs(offers.likeliest)}
        if self.sampling:  # another try is another draw
            options["seed"] = self.random.getrandbits(31)
        options |= self._bans()
        so_far = self.text.strip()
        if offers.continues:
            options |= STOPS if offers.stops else {}
            if so_far:
                return request(begun(self.messages, so_far), **options, **CONTINUE)
            return request(self.messages, **options)
        said = [DO_NOT_MENTION.format(words=", ".join(forbidden))] if forbidden else []
        if not so_far:
            return request(_with(self.messages, said), **options)
        go_on = {"role": "user", "content": " ".join([GO_ON, *said])}
        return request([*begun(self.messages, so_far), go_on], **options)

    # -- reading it --------------------------------------------------------------------------------------------

    def _read(self, pieces: Sequence[Piece], over: bool) -> bool:
        """Judge every sentence that is complete; True at the end of the answer."""
        for piece in pieces:
            self.tokens.append(piece)
            if self._is_forbidden():
                return False if self._replaced() else self._finish()
            if complete(self.text, self.answer.judged):
                decided = self._judge()
                if decided.again or decided.ended:
                    return decided.ended
        return self._finish() if over or self.answer.steps >= self.most else False

    def _finish(self) -> bool:
        """Judge what is left; False where it is taken back and made again."""
        decided = self._judge() if len(self.tokens) > self.answer.settled else Decision(True, False, True)
        return decided.ended or not decided.again

    def _judge(self) -> Decision:
        """Ask about what is new in the sentence that the tokens end with, and decide."""
        text, rules, answer = self.text, self.judging, self.answer
        mentions = fresh_mentions(text, rules.lexicon, answer.judged)
        spans = TokenSpans.of([piece.text for piece in self.tokens])
        places = tuple(spans.covering(mention.start, mention.end)[0] for mention in mentions)
        sentence = Sentence(text, list(self.tokens), mentions, places)
        self._ask(sentence)
        decided = answer.decide(sentence, rules.method, rules.threshold, answer.steps >= self.most)
        if decided.again:
            del self.tokens[answer.settled :]
        elif decided.settle:
            whole = text.strip()
            self.settled(whole[self._sent :])
            self._sent = len(whole)
        return decided

    def _ask(self, sentence: Sentence) -> None:
        rules, answer = self.judging, self.answer
        new = answer.unasked(sentence)
        if not new or rules.threshold == -math.inf:
            return
        for name, odds in self.model.odds(tuple(new)).items():
            if odds is not None:
                log_prob, place = self.tokens[new[name]].log_prob, new[name]
                signals = Signals(odds.value, log_prob, None, float(place), float(answer.attempts))
                bound = {} if odds.range is None else {"range": list(odds.range)}
                answer.asked[name] = Asked(signals, rules.verdict.log_odds(signals, name), bound)

    # -- forbidden words ---------------------------------------------------------------------------------------

    def _remember(self, pieces: Sequence[Piece]) -> None:
        """The numbers of tokens that begin a word: wherever such a one may not stand, it may stand nowhere."""
        for piece in pieces:
            if piece.number is not None and piece.text[:1].isspace():
                self.numbers.setdefault(_spoken(piece.text), set()).add(piece.number)

    def _bans(self) -> dict[str, Any]:
        """How a request forbids what was denied, as far as the server lets it."""
        how, denied = self.model.offers.bans, sorted(self.answer.forbidden)
        if how == "logit_bias":
            never = self._barred(()) & set(self.numbers)
            biased = {str(number): NEVER for text in sorted(never) for number in sorted(self.numbers[text])}
            return {**TELL_NUMBERS, **({"logit_bias": biased} if biased else {})}
        if how == "bad_words" and denied:
            spelled = (form for name in denied for form in self.judging.forbidden.spellings(name))
            words = (word for form in spelled for word in (form, form.capitalize()))
            return {"bad_words": list(dict.fromkeys(words))[:_MOST_WORDS]}
        return {}

    def _is_forbidden(self) -> bool:
        """Whether the newest token says, or begins, a word of a denied object."""
        if not self.model.offers.continues or not self.answer.forbidden:
            return False
        return _spoken(self.tokens[-1].text) in self._barred(self.tokens[:-1])

    def _barred(self, before: Sequence[Piece]) -> set[str]:
        return self.judging.forbidden.pieces(self.answer.forbidden, _joined(before))

    def _replaced(self) -> bool:
        """Put the next likeliest token in place of the newest; False where the answer ends instead."""
        newest = self.tokens.pop()
        barred = self._barred(self.tokens)
        bare = not any(each.text[:1].isspace() for each in newest.others)
        lead = newest.text[: len(newest.text) - len(newest.text.lstrip())] if bare else ""
        others = [dataclasses.replace(each, text=lead + each.text) for each in newest.others]
        allowed = [each for each in others if _spoken(each.text) not in barred]
        if not allowed:
            return False
        chosen = self._chosen(allowed)
        if _SPECIAL.fullmatch(chosen.text.strip()):
            return False
        self.tokens.append(Piece(chosen.text, chosen.log_prob, newest.others))
        self.answer.steps += 1
        return True

    def _chosen(self, allowed: Sequence[Likely]) -> Likely:
        temperature = self.sampling.get("temperature", 0.0)
        if not temperature:
            return allowed[0]
        weights = [math.exp((each.log_prob - allowed[0].log_prob) / temperature) for each in allowed]
        return self.random.choices(allowed, weights)[0]


def _joined(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def _spoken(text: str) -> str:
    """A piece in small letters, with at most one space before it."""
    bare = text.lstrip()
    return f" {bare}".lower() if bare != text else text.lower()


def _with(messages: Sequence[Mapping[str, Any]], said: Sequence[str]) -> Sequence[Mapping[str, Any]]:
    """The conversation with something added to what the user said last."""
    if not said:
        return messages
    last = dict(messages[-1])
    more = "\n" + " ".join(said)
    content = last["content"]
    last["content"] = content + more if isinstance(content, str) else [*content, {"type": "text", "text": more}]
    return [*messages[:-1], last]
