"""How published code asks for a description."""

from __future__ import annotations

from collections.abc import Mapping

from seewhen.benchmarks.prompts import GLUED, HUMAN, USER, Style

_DESCRIBE = "Please describe this image in detail."

STYLES: Mapping[str, Style] = {
    "plain-64": Style(None, max_new_tokens=64, question=_DESCRIBE),
    "plain-128": Style(None, max_new_tokens=128, question=_DESCRIBE),
    "plain-512": Style(None, max_new_tokens=512, question=_DESCRIBE),
    "opera": Style(GLUED, "", 512, "beam 5", _DESCRIBE),
    "sid": Style(GLUED, "", 512, question=_DESCRIBE),
    "pai": Style(GLUED, "", 512, question="Please help me describe the image in detail."),
    "only": Style(HUMAN, "", 128, "sample T=1", _DESCRIBE),
    "cai-64": Style(None, "", 64, question="Please describe this image in detail"),
    "cai-128": Style(None, "", 128, question="Please describe this image in detail"),
    "memvr": Style(USER, "", 1024, question=_DESCRIBE),
    "halc": Style(None, "", 64, question=_DESCRIBE),
    "agla": Style(HUMAN, "", 1024, "sample T=1", _DESCRIBE),
}
