"""An answerer that asks again: does the model stand by an object, and how sure was it where it said it?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seewhen.asking.asker import Asker, Question
from seewhen.asking.check import Checker, Standard
from seewhen.errors import InvalidInput
from seewhen.runs.model_answerer import loaded_once
from seewhen.runs.pictures import open_picture
from seewhen.runs.work import Task, TaskAnswer, by_picture
from seewhen.verdicts.reader import Mention, TokenSpans, read_mentions

Sure = Mapping[str, dict[str, float]]  # object -> log-probability and entropy of the token where it is first said


def verdict_on(
    name: str, odds: float | None, standard: Standard, more: Mapping[str, float | None] | None = None
) -> TaskAnswer:
    """What is recorded of an object that was asked about; `more` is what else is known."""
    judged = standard.judged(Mention(name, name, 0, len(name), 0), odds)
    facts = {"odds": judged.odds, "probability": judged.probability, **(more or {})}
    return TaskAnswer(judged.verdict, facts={k: v for k, v in facts.items() if v is not None})


@dataclass(frozen=True)
class SecondLook:
    """Each task is an object (its prompt) of a picture. `answers` are what regular decoding said, with the number
    of its tokens, by the picture's name."""

    asker: Asker
    checker: Checker
    answers: Mapping[str, tuple[str, int]]
    prompt: str
    max_new_tokens: int

    def close(self) -> None:
        """Nothing is left on the model between tasks."""

    def answer(self, tasks: Sequence[Task], seed: int | None) -> list[TaskAnswer]:
        """Answers in order; those of a picture that cannot be opened are errors."""
        return by_picture(tasks, self._about)

    def _about(self, tasks: Sequence[Task]) -> list[TaskAnswer]:
        try:
            picture = open_picture(tasks[0].source)
        except InvalidInput as error:
            return [TaskAnswer("", error=str(error)) for _ in tasks]
        odds = self.checker.odds(picture, [task.prompt for task in tasks])
        sure = self._sure(tasks[0].image, picture)
        return [verdict_on(name, value, self.checker.standard, sure.get(name)) for name, value in odds.items()]

    def _sure(self, name: str, picture: Any) -> Sure:
        said, count = self.answers.get(name, ("", 0))
        if not said:
            return {}
        tokens = self.asker.recorded(said, count, self.max_new_tokens)
        words = self.checker.words
        mentions = read_mentions(words.text(tokens), words.lexicon)
        if not mentions:
            return {}
        spans = TokenSpans(tuple(words.lengths(tokens, 1)))
        question = Question(self.asker.prompt(self.prompt), (picture,))
        log_probs, entropies = self.asker.sureness(question, tokens)
        found: dict[str, dict[str, float]] = {}
        for each in mentions:
            place = min(spans.covering(each.start, each.end)[0], len(tokens) - 1)
            facts = {"logprob": round(log_probs[place], 4), "entropy": round(entropies[place], 4)}
            found.setdefault(each.object, facts)
        return found


def build(
    model: str,
    judging: Mapping[str, Any],
    device: str | None = None,
    loading: Mapping[str, Any] | None = None,
    **options: Any,
) -> SecondLook:
    """For `Maker`: an answerer from plain options."""
    asker = Asker(loaded_once(model, device, tuple(sorted((loading or {}).items()))))
    return SecondLook(asker, Checker(asker, **judging), **options)
