"""How tokens are chosen, for everyone who asks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from seewhen.errors import InvalidInput

if TYPE_CHECKING:
    from seewhen.decoding.method import Method

DESCRIBE = "Please describe this image in detail."
TRIED = "regular,min-p,cai,confirm,cai+confirm,pai"  # what `seewhen try` tries unless told otherwise
TRIED_SERVED = "regular,confirm"  # and with a served model, inside of which nothing can be done
BEAMS = 5  # of a method that is a beam search, where nobody says how many
# What decoding can do something with, and how that is said.
_POSSIBLE: Mapping[str, tuple[Callable[[float], bool], str]] = {
    "temperature": (lambda value: 0 < value < math.inf, "above 0; without sampling decoding is greedy"),
    "top_p": (lambda value: 0 < value <= 1, "above 0 and at most 1, which is off"),
    "top_k": (lambda value: value >= 0, "0, which is off, or more"),
    "min_p": (lambda value: 0 <= value <= 1, "from 0, which is off, to 1"),
    "repetition_penalty": (lambda value: 0 < value < math.inf, "above 0; 1 is none"),
    "seed": (lambda value: 0 <= value < 2**63, "from 0 to 9223372036854775807"),
}


def check_possible(**given: float | None) -> None:
    """Refuse numbers that no decoding can use, by name."""
    for name, value in given.items():
        possible, said = _POSSIBLE[name]
        if value is not None and not possible(value):
            raise InvalidInput(f"{name.replace('_', '-')} {value} is out of range.", f"Give a number {said}.")


def needed(method: Method) -> dict[str, Any]:
    """How a method decodes: greedily, unless it cannot."""
    if method.beams_only:
        return {"num_beams": BEAMS, "do_sample": False}
    # top_k=0: the library's default of 50 would cut silently.
    return {"do_sample": True, "top_k": 0} if method.samples_only else {"do_sample": False}


@dataclass(frozen=True)
class Decoding:
    """The names are those of transformers. Greedy unless `do_sample`."""

    max_new_tokens: int = 128
    do_sample: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    num_beams: int = 1
    repetition_penalty: float | None = None
    seed: int = 0

    def check(self) -> None:
        """Refuse what would silently do nothing, and what cannot be done."""
        given = [name for name in ("temperature", "top_p", "top_k", "min_p") if getattr(self, name) is not None]
        if given and not self.do_sample:
            raise InvalidInput(
                f"--{given[0].replace('_', '-')} does nothing in greedy decoding.", "Add --do-sample."
            )
        check_possible(**{name: getattr(self, name) for name in _POSSIBLE})

    def arguments(self) -> dict[str, Any]:
        """For `generate`. Everything is said, so that a checkpoint's generation config decides nothing."""
        chosen: dict[str, Any] = {
            "max_new_tokens": self.max_new_tokens,
            "do_sample": self.do_sample,
            "num_beams": self.num_beams,
        }
        if self.do_sample:
            chosen["temperature"] = 1.0 if self.temperature is None else self.temperature
            chosen["top_p"] = 1.0 if self.top_p is None else self.top_p
            chosen["top_k"] = 0 if self.top_k is None else self.top_k
            if self.min_p is not None:
                chosen["min_p"] = self.min_p
        chosen["repetition_penalty"] = 1.0 if self.repetition_penalty is None else self.repetition_penalty
        return chosen

    def about(self) -> dict[str, Any]:
        """What a reader wants to know of it."""
        told = {k: v for k, v in self.arguments().items() if k not in ("do_sample", "max_new_tokens")}
        told = {k: v for k, v in told.items() if v != {"num_beams": 1, "repetition_penalty": 1.0}.get(k)}
        how: dict[str, Any] = {"decoding": "sampled" if self.do_sample else "greedy"}
        return how | told | ({"seed": self.seed} if self.do_sample else {})
