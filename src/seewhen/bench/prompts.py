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
_HUMAN = _PREAMBLE.format(who="human") + " USER: <image>\n{question} ASSISTANT:"
_USER = _PREAMBLE.format(who="user") + " USER: <image>\n{question} ASSISTANT:"
# PAI, OPERA and SID glue the preamble to "USER:" and put a space where the others put a newline.
_GLUED = _PREAMBLE.format(who="user") + "USER: <image> {question} ASSISTANT:"
_BARE = "{question}"

_ONE_WORD = " Please answer this question with one word."
_YES_OR_NO = " Please just answer yes or no."
_PHRASE = "\nAnswer the question using a single word or phrase."


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


POPE_STYLES: Mapping[str, Style] = {
    "plain": Style(None, max_new_tokens=8),
    "vcd-llava": Style(_HUMAN, _ONE_WORD, 1024, "sample T=1"),
    # 256 counts prompt and answer together; the sampler's hidden top_k of 50 is active.
    "vcd-instructblip": Style(_BARE, _ONE_WORD, 256, "sample T=1, top_k 50"),
    "vcd-qwen-vl": Style("<img><image></img>{question} Answer:", "", 20, "sample T=1"),
    "only-llava": Style(_HUMAN, "", 8, "sample T=1"),
    "only-instructblip": Style(_BARE, "", 4, "sample T=1, top_k 50"),
    "only-qwen-vl": Style("<img><image></img>{question} Answer:", "", 8, "sample T=1"),
    "cai-llava": Style(_HUMAN, "", 8, "sample T=1"),
    "pai": Style(_GLUED, "", 512),
    "opera": Style(_GLUED, "", 10, "beam 5"),
    "sid": Style(_GLUED, "", 10),
    "farsight": Style(_USER, _YES_OR_NO, 1024, "as configured"),
    "saliency": Style(_HUMAN, _YES_OR_NO, 1024, "SGRS"),
    "agla": Style(_HUMAN, _ONE_WORD, 1024, "sample T=1"),
    "ict": Style(None, "Please answer this question in one word.", None),  # no space before it, as released
    "degf": Style(_HUMAN, "", 3),
    "lmms-eval": Style(None, _PHRASE, 128),
}

_DESCRIBE = "Please describe this image in detail."

CHAIR_STYLES: Mapping[str, Style] = {
    "plain-64": Style(None, max_new_tokens=64, question=_DESCRIBE),
    "plain-128": Style(None, max_new_tokens=128, question=_DESCRIBE),
    "plain-512": Style(None, max_new_tokens=512, question=_DESCRIBE),
    "opera": Style(_GLUED, "", 512, "beam 5", _DESCRIBE),
    "sid": Style(_GLUED, "", 512, question=_DESCRIBE),
    "pai": Style(_GLUED, "", 512, question="Please help me describe the image in detail."),
    "only": Style(_HUMAN, "", 128, "sample T=1", _DESCRIBE),
    "cai-64": Style(None, "", 64, question="Please describe this image in detail"),
    "cai-128": Style(None, "", 128, question="Please describe this image in detail"),
    "memvr": Style(_USER, "", 1024, question=_DESCRIBE),
    "halc": Style(None, "", 64, question=_DESCRIBE),
    "agla": Style(_HUMAN, "", 1024, "sample T=1", _DESCRIBE),
}

MME_STYLES: Mapping[str, Style] = {
    "plain": Style(None, " Please answer yes or no.", 16),
    "llava": Style(None, _PHRASE, 128),
}

AMBER_STYLES: Mapping[str, Style] = {
    "plain": Style(None, max_new_tokens=512),
    "yes-no": Style(None, _YES_OR_NO, 8),
}


def style_named(styles: Mapping[str, Style], name: str) -> Style:
    """The style of that name; an error lists the names."""
    try:
        return styles[name]
    except KeyError:
        raise InvalidMethod(f"There is no prompt style {name!r}.", f"Use one of {', '.join(styles)}.") from None
