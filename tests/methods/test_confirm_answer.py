"""What becomes of sentences, without a model: whole decisions of an answer of `confirm`."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from seewhen.methods.confirm_answer import Answer, Asked, Decision, Sentence, Spare, complete, fresh_mentions
from seewhen.verdicts.lexicon import lexicon_named
from seewhen.verdicts.reader import read_mentions
from seewhen.verdicts.verdict import Signals

COCO = lexicon_named("coco")
STAYS, BACK, ENDS = Decision(True, False, False), Decision(False, True, False), Decision(False, True, True)


@dataclass(frozen=True)
class Rules:
    retries: int = 2
    on_denied: str = "again"


def asked(answer: Answer, **odds: float) -> None:
    answer.asked |= {name: Asked(Signals(value), value) for name, value in odds.items()}


def said(answer: Answer, text: str) -> Decision:
    """The answer so far ends with this sentence; a token is a word."""
    mentions = tuple(m for m in read_mentions(text, COCO) if m.start >= answer.judged)
    return answer.decide(Sentence(text, text.split(), mentions, (0,) * len(mentions)), Rules(), 0.0, last=False)


def spare(text: str, *objects: str, first: bool = False) -> Spare:
    return Spare(tuple(text.split()), frozenset(objects), first)


def test_a_spare_is_said_word_for_word_and_stays() -> None:
    answer = Answer()
    asked(answer, cat=2.0, dog=-1.0, bus=1.0)
    answer.spares = [spare("A bus.", "bus", first=True), spare("A bus is there.", "bus")]
    assert said(answer, "A cat.") == STAYS
    assert said(answer, "A cat. A dog.") == BACK
    assert answer.forced == ["A", "bus", "is", "there."] and answer.forbidden == {"dog"} and answer.attempts == 0
    assert said(answer, "A cat. A bus is there.") == STAYS
    assert not answer.forced


def test_a_spare_that_reads_otherwise_here_is_judged_again_and_not_said_twice() -> None:
    """Behind a toilet the reader takes a seat for its seat; where none was named it is a chair."""
    answer = Answer()
    asked(answer, cat=2.0, dog=-1.0, bus=1.0, chair=-3.0)
    answer.spares = [spare("A bus and a seat.", "bus"), spare("A bus is there.", "bus")]
    assert said(answer, "A cat.") == STAYS
    assert said(answer, "A cat. A dog.") == BACK
    assert said(answer, "A cat. A bus and a seat.") == BACK
    assert answer.forced == ["A", "bus", "is", "there."] and answer.forbidden == {"dog", "chair"}
    assert said(answer, "A cat. A bus is there.") == STAYS
    assert said(answer, "A cat. A bus is there. A seat.") == BACK
    assert said(answer, "A cat. A bus is there. A dog.") == BACK
    assert said(answer, "A cat. A bus is there. A seat.") == ENDS
    assert len(answer.taken_back) == 5


def test_the_least_denied_first_sentence_is_kept_whatever_it_names() -> None:
    answer = Answer()
    asked(answer, dog=-1.0, chair=-3.0, bus=-2.0)
    assert [said(answer, text) for text in ("A chair.", "A dog.", "A bus.")] == [BACK, BACK, BACK]
    assert answer.forced == ["A", "dog."] and answer.final
    assert said(answer, "A dog.") == Decision(True, False, True)


# Also what comes glued to the end of a sentence, which a model that has to end there may well say.
PIECES = [" a kitchen sink", " a kitchen sink.", " hot", " dog", "s", ".", "…", "is", "The", " no", "/", ".5"]


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(["coco", "open"]), st.lists(st.sampled_from(PIECES), max_size=12))
def test_nothing_is_read_afterwards_that_was_not_asked_about(name: str, pieces: list[str]) -> None:
    """Judged sentence by sentence as it grows, an answer names no object that it did not name then."""
    lexicon = lexicon_named(name).with_variants
    text, judged, asked = "", 0, set()
    for number, piece in enumerate(pieces, 1):
        text += piece
        if number == len(pieces) or complete(text, judged):
            asked |= {mention.object for mention in fresh_mentions(text, lexicon, judged)}
            judged = len(text)
    assert {mention.object for mention in read_mentions(text, lexicon)} <= asked


def test_what_is_glued_to_a_sentence_hides_no_word_of_it() -> None:
    """Said by the photo model: "there is a couch.aderie"."""
    for text in ("There is a couch.aderie", "There is a couch.…"):
        assert [m.object for m in read_mentions(text, COCO.with_variants)] == ["couch"]
        assert read_mentions(text, COCO) == ()  # as CHAIR reads
