"""Confirm: say only what the model stands by when it is asked. Our own method.

A vision-language model answers "Is there a vase in the image?" better than it avoids saying "vase" while it
writes. So it is asked. When a sentence is complete, each object it names for the first time is put to the same
model as a yes/no question, on the image's own cached keys and values. A sentence that names a denied object is
taken back, the object's words are forbidden for the rest of the answer, and the sentence is made again; after
`retries` attempts the answer ends before it.

Promise: every object word of the answer was confirmed, or stands in the trace as denied (`on_denied="mark"`, or
a first sentence that could not be made otherwise) or as not asked (`when`, rows without image). What can be
gained is bounded by what the model knows better than it says: `seewhen diagnose` measures that.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from seewhen.decoding.method import Method, Parts, Preset
from seewhen.errors import InvalidMethod
from seewhen.methods.confirm_judge import Sentences
from seewhen.methods.confirm_words import Words
from seewhen.verdicts.lexicon import lexicon_named
from seewhen.verdicts.questions import QUESTION, check_template
from seewhen.verdicts.shipped import note_if_weak, shipped_verdict, verdict_named
from seewhen.verdicts.verdict import Verdict, log_odds_of

if TYPE_CHECKING:
    from seewhen.backbones.backbone import Backbone
    from seewhen.decoding.aside import Aside
    from seewhen.decoding.judge import Judge

_SOURCE = "seewhen; docs/confirm.md"
MOST_DRAFTS = 16


@dataclass(frozen=True)
class Confirm(Method):
    """Objects are confirmed by asking the model itself; sentences with a denied one are made again."""

    name: ClassVar[str] = "confirm"
    summary: ClassVar[str] = "ask the model about each object it names; take back sentences with denied ones"
    source: ClassVar[str] = _SOURCE
    endless: ClassVar[tuple[str, ...]] = ("threshold", "when")
    beams: ClassVar[bool] = False
    judges: ClassVar[bool] = True
    presets: ClassVar[Mapping[str, Preset]] = {
        "mark": Preset({"on_denied": "mark"}, f"{_SOURCE}: the detector, changes no token"),
        "coco": Preset({"lexicon": "coco"}, f"{_SOURCE}: CHAIR's 80 objects, as in docs/evidence.md"),
    }

    threshold: Annotated[
        float | None, "log-odds from which an object is confirmed; none: the verdict's own, 0 for asking alone"
    ] = None
    retries: Annotated[int, "how often a sentence is made again before the answer ends"] = 2
    lexicon: Annotated[str, "which words are objects: open, coco, or a file with one object per line"] = "open"
    when: Annotated[float | None, "ask only about words written with more doubt than this; none: all"] = None
    doubt: Annotated[
        Literal["entropy", "probability"],
        "what `when` measures: entropy (nats), or one less the word's probability",
    ] = "entropy"
    question: Annotated[str, "the question, with {object} in it"] = QUESTION
    on_denied: Annotated[
        Literal["again", "stop", "mark"], "make the sentence again, end the answer before it, or only report"
    ] = "again"
    verdict: Annotated[
        str,
        "a file of `seewhen calibrate confirm` (`confirm:FILE.json`); auto: the packaged models' own, else asking",
    ] = "auto"
    drafts: Annotated[
        int,
        "texts drawn of the prompt: what they name counts, and sentences of theirs replace denied ones",
    ] = 0
    budget: Annotated[float, "decoding steps per token of the longest answer, those taken back included"] = 2.0

    def __post_init__(self) -> None:
        if self.threshold is not None and math.isnan(self.threshold):
            raise InvalidMethod("confirm: threshold is not a number.", "Use log-odds: 0 is even odds.")
        if self.when is not None and math.isnan(self.when):
            raise InvalidMethod("confirm: when is not a number.", "Use nats, 0.5, or none to ask about all words.")
        if self.doubt not in ("entropy", "probability"):
            raise InvalidMethod(f"confirm: doubt={self.doubt!r}.", "Use 'entropy' or 'probability'.")
        if self.retries < 0:
            raise InvalidMethod(f"confirm: retries={self.retries}.", "Use 0 (the answer ends) or more.")
        if not 1 <= self.budget < math.inf:
            raise InvalidMethod(f"confirm: budget={self.budget}.", "Use 1 (nothing may be made again) or more.")
        if not 0 <= self.drafts <= MOST_DRAFTS:
            raise InvalidMethod(f"confirm: drafts={self.drafts}.", f"Use 0 (none) to {MOST_DRAFTS}; 4 is usual.")
        if self.on_denied not in ("again", "stop", "mark"):
            raise InvalidMethod(f"confirm: on_denied={self.on_denied!r}.", "Use 'again', 'stop' or 'mark'.")
        check_template(self.question)

    def prepare(self, tokenizer: Any) -> Self:
        """A copy that can put questions to a model with this tokenizer."""
        copy = self.replace()
        object.__setattr__(copy, "words", Words.of(tokenizer, lexicon_named(self.lexicon), self.question))
        return copy

    def replace(self, /, **changes: Any) -> Self:
        """A copy with some parameters changed; it stays prepared where its words are the same."""
        copy = super().replace(**changes)
        if "words" in self.__dict__ and (copy.lexicon, copy.question) == (self.lexicon, self.question):
            object.__setattr__(copy, "words", self.__dict__["words"])
        return copy

    def parts(self, backbone: Backbone) -> Parts:
        """A judge, and nothing inside the model."""
        words: Words | None = getattr(self, "words", None)
        if words is None:
            raise InvalidMethod(
                "confirm: it reads the model's words and needs its tokenizer.",
                "Use seewhen.generate, or attach(model, method.prepare(processor.tokenizer)).",
            )
        verdict = verdict_named(self.verdict, backbone.model, drafts=self.drafts > 0)
        if verdict.wants_drafts and not self.drafts:
            raise InvalidMethod(
                f"confirm: the verdict {self.verdict} was fitted with drafts.", "Use drafts=4, or fit one without."
            )
        threshold = log_odds_of(verdict.threshold) if self.threshold is None else self.threshold
        if verdict == Verdict() and self.on_denied != "mark":
            self._warn_if_weak(backbone)

        def judge(aside: Aside) -> Judge:
            return Sentences(self, words.on(backbone.image_token_ids), verdict, threshold, aside)

        return Parts(judge=judge, budget=self.budget if self.on_denied == "again" else 1.0)

    def _warn_if_weak(self, backbone: Backbone) -> None:
        """Asking alone takes true sentences back from a model that answers badly."""
        fitted = shipped_verdict(backbone.model)
        note = note_if_weak(fitted) if fitted else None
        if note:
            warnings.warn(f"{note} Asking alone does harm here: use verdict=auto.", stacklevel=2)
