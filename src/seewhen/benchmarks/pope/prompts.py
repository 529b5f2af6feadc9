"""How published code asks POPE's questions."""

from __future__ import annotations

from collections.abc import Mapping

from seewhen.benchmarks.prompts import BARE, GLUED, HUMAN, ONE_WORD, PHRASE, USER, YES_OR_NO, Style

STYLES: Mapping[str, Style] = {
    "plain": Style(None, max_new_tokens=8),
    "vcd-llava": Style(HUMAN, ONE_WORD, 1024, "sample T=1"),
    # 256 counts prompt and answer together; the sampler's hidden top_k of 50 is active.
    "vcd-instructblip": Style(BARE, ONE_WORD, 256, "sample T=1, top_k 50"),
    "vcd-qwen-vl": Style("<img><image></img>{question} Answer:", "", 20, "sample T=1"),
    "only-llava": Style(HUMAN, "", 8, "sample T=1"),
    "only-instructblip": Style(BARE, "", 4, "sample T=1, top_k 50"),
    "only-qwen-vl": Style("<img><image></img>{question} Answer:", "", 8, "sample T=1"),
    "cai-llava": Style(HUMAN, "", 8, "sample T=1"),
    "pai": Style(GLUED, "", 512),
    "opera": Style(GLUED, "", 10, "beam 5"),
    "sid": Style(GLUED, "", 10),
    "farsight": Style(USER, YES_OR_NO, 1024, "as configured"),
    "saliency": Style(HUMAN, YES_OR_NO, 1024, "SGRS"),
    "agla": Style(HUMAN, ONE_WORD, 1024, "sample T=1"),
    "ict": Style(None, "Please answer this question in one word.", None),  # no space before it, as released
    "degf": Style(HUMAN, "", 3),
    "lmms-eval": Style(None, PHRASE, 128),
}
