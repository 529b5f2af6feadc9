"""Prompts by the name of the code they come from.

Two papers that "evaluate on POPE" rarely ask the same question: wrappers, suffixes and lengths differ
(table in `docs/benchmarks.md`). A style holds what a repository does; `wrapper=None` means the model's
own chat template, applied by whoever runs the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from seewhen.errors import InvalidMethod

# The two preambles of Vicuna that circulate for LLaVA-1.5; they differ in "human" and "user".
_PREAMBLE = (
    "A chat between a curious {who} and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the {who}'s questions."
)
HUMAN = _PREAMBLE.format(who="human") + " USER: <image>\n{question} ASSISTANT:"
USER = _PREAMBLE.format(who="user") + " USER: <image>\n{question} ASSISTANT:"
# PAI, OPERA and SID glue the preamble to "USER:" and put a space where the others put a newline.
GLUED = _PREAMBLE.format(who="user") + "USER: <image> {question} ASSISTANT:"
BARE = "{question}"

ONE_WORD = " Please answer this question with one word."
YES_OR_NO = " Please just answer yes or no."
PHRASE = "\nAnswer the question using a single word or phrase."


@dataclass(frozen=True)
class Style:
    """How one repository asks: `wrapper` around question plus `suffix`, and how it decodes."""

    wrapper: str | None
    suffix: str = ""
    max_new_tokens: int | None = None
    decoding: str = "greedy"
    question: str | None = None  # replaces the sample's question (captioning prompts)

    def text(self, question: str) -> str:
        """The prompt; `<image>` in it stands for the image."""
        asked = (self.question or question) + self.suffix
        return asked if self.wrapper is None else self.wrapper.replace("{question}", asked)


def style_named(styles: Mapping[str, Style], name: str) -> Style:
    """The style of that name; an error lists the names."""
    try:
        return styles[name]
    except KeyError:
        raise InvalidMethod(f"There is no prompt style {name!r}.", f"Use one of {', '.join(styles)}.") from None
