"""What is supported, as a table in code: `seewhen models` prints it, a test holds it against the test suite.

Any decoder-only vision-language model of transformers that answers the generic accessors works (see
`backbone.py`); these are the families that are tested, and how.
"""

from __future__ import annotations

from dataclasses import dataclass

from seewhen.backbones.photo.source import INSTALL

# How a family is tested, from the weakest to the strongest.
HOW = {
    "identities": "tiny random model: off is stock bit for bit, a batch is its rows alone, beams, static cache, "
    "compiled equals eager",
    "processor": "published structure at tiny width, loaded from a checkpoint directory with its own processor: "
    "tiles, thumbnails and several images lie where the overlays show them",
    "full size": "real size with random weights on a GPU: saved in the published layout, loaded again with equal "
    "logits, decoded with six methods, a closed gate is stock bit for bit; times are in benchmarks/backbones",
    "golden": "equal to numbers computed with the original code",
}

# The models that seewhen brings along, by name.
BROUGHT = {
    "packaged": "the small LLaVA inside; knows its own drawn scenes only",
    "photo": "a small LLaVA for photographs: COCO's 80 objects; after " + INSTALL,
}


@dataclass(frozen=True)
class Family:
    """One supported family: `config.model_type`, a checkpoint people use, how it is tested, what to know."""

    model_type: str
    checkpoint: str
    tested: tuple[str, ...]
    note: str = ""


_BASIC = ("identities",)
_USUAL = ("identities", "processor")
# A test compares "full size" with benchmarks/backbones/full_size.json.
_PAPER = ("identities", "processor", "full size")

FAMILIES: tuple[Family, ...] = (
    Family("llava", "llava-hf/llava-1.5-7b-hf", (*_PAPER, "golden"), "the paper's; also 13B"),
    Family("instructblip", "Salesforce/instructblip-vicuna-7b", _PAPER, "the paper's; one image per prompt"),
    Family("qwen", "Qwen/Qwen-VL", (*_PAPER, "golden"), "the paper's; ported here, no remote code"),
    Family("qwen3_5", "Qwen/Qwen3.5-4B", _PAPER, "the paper's; hybrid: 8 softmax layers of 32"),
    Family("llava_next", "llava-hf/llava-v1.6-vicuna-7b-hf", _BASIC),
    Family("llava_onevision", "llava-hf/llava-onevision-qwen2-7b-ov-hf", _USUAL),
    Family("qwen2_vl", "Qwen/Qwen2-VL-7B-Instruct", _BASIC),
    Family("qwen2_5_vl", "Qwen/Qwen2.5-VL-7B-Instruct", _USUAL),
    Family("qwen3_vl", "Qwen/Qwen3-VL-8B-Instruct", _USUAL),
    Family("internvl", "OpenGVLab/InternVL3-8B-hf", _USUAL, "the checkpoints whose name ends in -hf"),
    Family("idefics3", "HuggingFaceM4/Idefics3-8B-Llama3", _USUAL),
    Family("smolvlm", "HuggingFaceTB/SmolVLM2-2.2B-Instruct", _USUAL, "its processor needs num2words"),
    Family("gemma3", "google/gemma-3-4b-it", _USUAL, "gated; only the full-attention layers are tilted"),
    Family("paligemma", "google/paligemma2-3b-pt-224", _BASIC, "gated; also PaliGemma 2"),
    Family("mistral3", "mistralai/Mistral-Small-3.1-24B-Instruct-2503", _BASIC),
)


def family_of(model_type: str) -> Family | None:
    """The entry for a `config.model_type`, None where there is none."""
    return next((family for family in FAMILIES if family.model_type == model_type), None)
