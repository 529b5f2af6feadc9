"""The methods that every rung is asked with. What is of CAI waits for the choice of the stand-in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from seewhen.decoding.method import Method
from seewhen.methods import method

if TYPE_CHECKING:
    from ladder.exam import Exam


@dataclass(frozen=True)
class Named:
    """A method with the name it has in the tables. `spec` may need the model's own verdict."""

    name: str
    spec: str | Callable[[Exam], str]
    questions: bool = True  # whether it is asked POPE

    def method(self, exam: Exam) -> Method:
        return method(self.spec if isinstance(self.spec, str) else self.spec(exam))


def _fitted(exam: Exam) -> str:
    if not exam.verdict.is_file():
        exam.fit()
    return f'confirm:coco:verdict="{exam.verdict}"'


def _judged(drafts: int) -> Callable[[Exam], str]:
    def spec(exam: Exam) -> str:
        from ladder.judging import judged

        return judged(exam, drafts)

    return spec


REGULAR = Named("regular", "regular")
RIVALS: dict[str, tuple[Named, ...]] = {
    "base": (REGULAR, Named("min-p", "min-p")),
    "rule": (Named("vcd", "vcd"), Named("pai", "pai"), Named("only", "only")),
    "confirm": (
        Named("confirm", _fitted, questions=False),
        Named("confirm asking", "confirm:coco:verdict=asking", questions=False),
    ),
    "more": (Named("icd", "icd"), Named("m3id", "m3id"), Named("dola", "dola")),
    "opera": (Named("opera", "opera", questions=False),),
    # Thresholds chosen on other scenes; drafts are further texts of the same prompt that the verdict knows.
    "drafts-0": (Named("confirm chosen", _judged(0), questions=False),),
    "drafts-2": (Named("confirm 2 drafts", _judged(2), questions=False),),
    "drafts-4": (Named("confirm 4 drafts", _judged(4), questions=False),),
}
CAI: dict[str, tuple[Named, ...]] = {
    "cai": (
        Named("cai", "cai:contrast=3"),
        Named("cai paper", "cai:paper"),
        Named("cai reference", "cai:reference:llava-1.5/coco/adversarial"),
    ),
    "parts": (
        Named("contrast", "cai:contrast=3:contrast"),
        Named("tilt", "cai:attention"),
        Named("tilt exponential", "cai:tilt=exponential,kl_budget=0.5:attention"),
    ),
}
GROUPS = RIVALS | CAI
