"""`check`: does a model stand by the objects that a text names? The text may be anybody's.

Every object is put to the model once, as a yes/no question. The image is read once: all questions stand on its
cached keys and values, as those of `confirm` do, and give the same odds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from seewhen.asking.asker import Asker, Question
from seewhen.backbones.prompts import Picture
from seewhen.decoding.judge import Judge
from seewhen.decoding.method import Method, Parts
from seewhen.errors import InvalidInput
from seewhen.lazy import provided
from seewhen.methods.confirm_words import Words
from seewhen.verdicts.lexicon import Lexicon, lexicon_named
from seewhen.verdicts.questions import QUESTION, YesNo, check_template
from seewhen.verdicts.questions import question as wording
from seewhen.verdicts.reader import Mention, check_text, read_mentions
from seewhen.verdicts.shipped import note_if_weak, verdict_named
from seewhen.verdicts.verdict import Signals, Verdict, log_odds_of, sigmoid

if TYPE_CHECKING:
    from seewhen.backbones.backbone import Backbone
    from seewhen.decoding.aside import Aside

MOST_OBJECTS = 256  # asked about one image
_ONE_TOKEN = {"max_new_tokens": 1, "do_sample": False, "num_beams": 1}
_TOGETHER = 16  # questions in one pass: each has a copy of the image's keys and values

Range = tuple[float | None, float | None]  # None: an open end


@dataclass(frozen=True)
class CheckedMention:
    """A word that names an object, and what the model says when asked about it."""

    object: str
    text: str  # as written
    start: int  # in characters, end excluded
    end: int
    sentence: int  # from 0
    verdict: str  # confirmed, denied, or not asked
    odds: float | None = None  # log-odds of yes when asked
    probability: float | None = None  # that the object is there
    range: Range | None = None  # in which the odds lie, where a server tells only its likeliest tokens


@dataclass(frozen=True, repr=False)
class Checked:
    """A text with a verdict for each object it names. In a notebook it shows the text, denied objects struck."""

    text: str
    mentions: tuple[CheckedMention, ...]
    notes: tuple[str, ...] = ()

    def having(self, verdict: str) -> tuple[str, ...]:
        """The objects with this verdict, in the order in which they are named."""
        return tuple(dict.fromkeys(each.object for each in self.mentions if each.verdict == verdict))

    @property
    def denied(self) -> tuple[str, ...]:
        """The objects that the model does not see."""
        return self.having("denied")

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "text": self.text,
            "mentions": [asdict(each) for each in self.mentions],
            "denied": list(self.denied),
            "notes": list(self.notes),
        }

    def _repr_html_(self) -> str:
        return provided("notebook_html")(self)

    def __repr__(self) -> str:
        named = len({each.object for each in self.mentions})
        return f"Checked({named} objects, denied: {', '.join(self.denied) or 'none'})"


def check(
    model: Any,
    processor: Any,
    image: Picture | Sequence[Picture] | None,
    text: str,
    *,
    lexicon: str = "open",
    verdict: str = "auto",
    threshold: float | None = None,
    question: str = QUESTION,
) -> Checked:
    """Ask `model` about every object that `text` names; a verdict for each mention.

    Every object is put to the model once, as a yes/no question. The text may be anybody's.

    Args:
        model: A vision-language model of transformers, as `seewhen.load` gives it.
        processor: Its processor.
        image: The picture that the text is about (path, bytes or PIL image), or a list of pictures.
        text: What is to be checked.
        lexicon: Which words name objects: `"open"`, or a lexicon of the method `confirm`.
        verdict: How answers become probabilities, as in the method `confirm`; `"auto"` chooses by the model.
        threshold: Log-odds from which an object counts as confirmed; the verdict's own unless given.
        question: The wording, with `{object}` in it.

    Returns:
        The text with a verdict for each mention; `denied` lists the objects that the model does not see.

    Raises:
        SeewhenError: Without an image, or where the text is too long or in another language than the lexicon.

    Examples:
        >>> checked = seewhen.check(model, processor, "photo.jpg", "A dog beside a vase.")
        >>> checked.denied
        ('vase',)
    """
    return Checker(Asker((model, processor)), lexicon, verdict, threshold, question).check(image, text)


class Checker:
    """A model that is asked which objects are in an image."""

    def __init__(
        self,
        asker: Asker,
        lexicon: str = "open",
        verdict: str = "auto",
        threshold: float | None = None,
        question: str = QUESTION,
        tokenizer: Any = None,
    ) -> None:
        """`tokenizer` reads questions in place of the asker's, which a thread of its own may be using."""
        self.asker = asker
        words = Words.of(tokenizer or asker.tokenizer, lexicon_named(lexicon), check_template(question))
        self.words = words.on(asker.backbone.image_token_ids)
        self.standard = Standard.of(verdict_named(verdict, asker.model), threshold)

    def check(self, image: Picture | Sequence[Picture] | None, text: str) -> Checked:
        """A verdict for each object of `text`."""
        inquiry = Inquiry.of(text, self.words.lexicon)
        return inquiry.judged(self.odds(image, inquiry.objects), self.standard)

    def odds(self, image: Picture | Sequence[Picture] | None, names: Sequence[str]) -> dict[str, float]:
        """Log-odds of yes for each of `names`; the image is read once."""
        images = given_images(image)
        if not names:
            return {}
        with self.asker.attached(self.questions(names), fast="off") as attached:
            (batch,) = attached.answer([Question(self.prompt(names, len(images)), images)], _ONE_TOKEN)
        assert batch.trace is not None
        return dict(zip(names, batch.trace.told[0]["odds"], strict=True))

    def prompt(self, names: Sequence[str], images: int = 1) -> str:
        """With the first question in it; all of them are asked in its place."""
        return self.asker.prompt(wording(names[0], self.words.lexicon, self.words.template), images)

    def questions(self, names: Sequence[str]) -> YesNoQuestions:
        """What asks about these objects while one token is decoded."""
        answers = self.words.answers
        return YesNoQuestions(tuple(tuple(self.words.question(name)) for name in names), answers.yes, answers.no)


@dataclass(frozen=True)
class Standard:
    """When an object counts as confirmed."""

    verdict: Verdict
    threshold: float  # log-odds

    @staticmethod
    def of(verdict: Verdict, threshold: float | None) -> Standard:
        """The verdict's own threshold unless another is given."""
        if threshold is None:
            return Standard(verdict, log_odds_of(verdict.asked_threshold))
        if not isinstance(threshold, int | float) or threshold != threshold:
            raise InvalidInput("The threshold is not a number.", "Use log-odds: 0 is even odds.")
        return Standard(verdict, threshold)

    @property
    def notes(self) -> tuple[str, ...]:
        """Whether the model's answers are worth little, where that was measured."""
        note = note_if_weak(self.verdict)
        return () if note is None else (note,)

    def judged(self, mention: Mention, odds: float | None, within: Range | None = None) -> CheckedMention:
        """The mention with its verdict."""
        if odds is None:
            return CheckedMention(**asdict(mention), verdict="not asked")
        found = self.verdict.log_odds(Signals(odds), mention.object)
        said = "confirmed" if found >= self.threshold else "denied"
        probability = round(sigmoid(found), 4)
        return CheckedMention(
            **asdict(mention), verdict=said, odds=round(odds, 4), probability=probability, range=within
        )


@dataclass(frozen=True)
class Inquiry:
    """A text, the objects it names, and which of them are asked about."""

    text: str
    mentions: tuple[Mention, ...]
    objects: tuple[str, ...]
    notes: tuple[str, ...]

    @staticmethod
    def of(text: str, lexicon: Lexicon) -> Inquiry:
        """Read `text`; refused where it is too long or in another language than the lexicon."""
        check_text(text, lexicon)
        mentions = read_mentions(text, lexicon)
        objects = tuple(dict.fromkeys(mention.object for mention in mentions))
        if len(objects) <= MOST_OBJECTS:
            return Inquiry(text, mentions, objects, ())
        note = f"The text names {len(objects)} objects; the first {MOST_OBJECTS} were asked about."
        return Inquiry(text, mentions, objects[:MOST_OBJECTS], (note,))

    def judged(
        self, odds: Mapping[str, float], standard: Standard, ranges: Mapping[str, Range] | None = None
    ) -> Checked:
        """All mentions with their verdicts."""
        within = ranges or {}
        judged = tuple(
            standard.judged(each, odds.get(each.object), within.get(each.object)) for each in self.mentions
        )
        return Checked(self.text, judged, (*self.notes, *(standard.notes if odds else ())))


@dataclass(frozen=True)
class YesNoQuestions(Method):
    """Yes/no questions about the image of each row. It changes nothing; `trace.told` has the odds of yes."""

    name: ClassVar[str] = "questions"
    beams: ClassVar[bool] = False

    ids: tuple[tuple[int, ...], ...]  # the tokens of each question
    yes: tuple[int, ...]
    no: tuple[int, ...]

    def parts(self, backbone: Backbone) -> Parts:
        """A judge that never interferes."""
        return Parts(judge=lambda aside: _Asking(aside, self))


class _Asking(Judge):
    def __init__(self, aside: Aside, asked: YesNoQuestions) -> None:
        self.aside, self.asked = aside, asked

    def finish(self, tokens: Sequence[list[int]]) -> list[dict[str, Any]]:
        """The odds of yes for each question of each row."""
        return [{"odds": self._odds(row)} for row in range(len(tokens))]

    def _odds(self, row: int) -> list[float]:
        ids, answers, odds = self.asked.ids, YesNo(self.asked.yes, self.asked.no), []
        for start in range(0, len(ids), _TOGETHER):
            part = ids[start : start + _TOGETHER]
            odds += answers.log_odds(self.aside.ask([row] * len(part), part, after="image")).tolist()
        return odds


def given_images(image: Any) -> tuple[Picture, ...]:
    """One image or several; refused where there is none."""
    images = tuple(image) if isinstance(image, list | tuple) else (image,)
    if not images or any(image is None for image in images):
        raise InvalidInput("There is no image to ask about.", "Give the picture that the text is about.")
    return images
