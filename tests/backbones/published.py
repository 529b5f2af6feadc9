"""Families people use now: published structure at tiny width, with their own processors.

`published.write("internvl", directory)` writes a checkpoint directory with the files that published ones
have. The structure is that of a published checkpoint (image and patch sizes, tiles, merges, rotary
sections, kinds of layers); hidden sizes, heads and depth are small and weights random (and Idefics3 and
SmolVLM cut pictures into at most 2 x 2 tiles, not 4 x 4, for the time it takes). The tokenizer is
byte-level with the family's special tokens.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedTokenizerFast

TEXT = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16384,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
QWEN_VISION = {"depth": 4, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64}
PINPOINTS = [[384 * down, 384 * across] for down in range(1, 7) for across in range(1, 7)]
CHAT = (
    "{% for message in messages %}User:{% for part in message.content %}"
    "{% if part.type == 'image' %}IMAGE{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}\n{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)


@dataclass(frozen=True)
class Family:
    """How to build one: `tokens` maps roles to special tokens, `ids` configuration fields to roles."""

    like: str  # the published checkpoint whose structure it is
    processor: str
    image_processor: str
    placeholder: str  # what a prompt holds for an image
    tokens: dict[str, str]
    ids: dict[str, str]
    vision: dict[str, Any]
    text: dict[str, Any]
    outer: dict[str, Any] = field(default_factory=dict)
    image_settings: dict[str, Any] = field(default_factory=dict)
    processor_settings: dict[str, Any] = field(default_factory=dict)


_QWEN_TOKENS = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "vision_start_token": "<|vision_start|>",
    "vision_end_token": "<|vision_end|>",
}
_QWEN_IDS = {f"{name}_id": name for name in _QWEN_TOKENS}
_QWEN_PLACE = "<|vision_start|><|image_pad|><|vision_end|>"
_IDEFICS_TOKENS = {
    "image_token": "<image>",
    "fake_image_token": "<fake_token_around_image>",
    "global_image_token": "<global-img>",
    "end_of_utterance_token": "<end_of_utterance>",
}

FAMILIES: dict[str, Family] = {
    "llava_onevision": Family(
        like="llava-hf/llava-onevision-qwen2-7b-ov-hf",
        processor="LlavaOnevisionProcessor",
        image_processor="LlavaOnevision",
        placeholder="<image>",
        tokens={"image_token": "<image>", "video_token": "<video>"},
        ids={"image_token_index": "image_token", "video_token_index": "video_token"},
        vision={"model_type": "siglip_vision_model", **VISION, "image_size": 384, "patch_size": 14}
        | {"vision_use_head": False},
        text={"model_type": "qwen2"},
        outer={"image_grid_pinpoints": PINPOINTS, "vision_aspect_ratio": "anyres_max_9"},
        image_settings={"image_grid_pinpoints": PINPOINTS},
        processor_settings={"num_image_tokens": 729, "vision_feature_select_strategy": "full"},
    ),
    "qwen2_5_vl": Family(
        like="Qwen/Qwen2.5-VL-7B-Instruct",
        processor="Qwen2_5_VLProcessor",
        image_processor="Qwen2VL",
        placeholder=_QWEN_PLACE,
        tokens=_QWEN_TOKENS,
        ids=_QWEN_IDS,
        vision={**QWEN_VISION, "out_hidden_size": 512, "patch_size": 14}
        | {"window_size": 112, "fullatt_block_indexes": [1, 3]},
        text={
            "hidden_size": 512,  # heads of 128, which the published rotary sections are for
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
        },
    ),
    "qwen3_vl": Family(
        like="Qwen/Qwen3-VL-8B-Instruct",
        processor="Qwen3VLProcessor",
        image_processor="Qwen2VL",
        placeholder=_QWEN_PLACE,
        tokens=_QWEN_TOKENS,
        ids=_QWEN_IDS,
        vision={**QWEN_VISION, "patch_size": 16, "deepstack_visual_indexes": [0, 1, 2]},
        text={
            "head_dim": 128,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 5e6,
                "mrope_section": [24, 20, 20],
                "mrope_interleaved": True,
            },
        },
        image_settings={"patch_size": 16},
    ),
    "qwen3_5": Family(
        like="Qwen/Qwen3.5-4B",
        processor="Qwen3VLProcessor",
        image_processor="Qwen2VL",
        placeholder=_QWEN_PLACE,
        tokens=_QWEN_TOKENS,
        ids=_QWEN_IDS,
        vision={**QWEN_VISION, "patch_size": 16},
        text={  # three layers with a recurrent state, one with a softmax
            "head_dim": 256,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e7,
                "mrope_section": [11, 11, 10],
                "mrope_interleaved": True,
                "partial_rotary_factor": 0.25,
            },
        },
        image_settings={"patch_size": 16},
    ),
    "internvl": Family(
        like="OpenGVLab/InternVL3-8B-hf",
        processor="InternVLProcessor",
        image_processor="GotOcr2",
        placeholder="<IMG_CONTEXT>",
        tokens={
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
        ids={"image_token_id": "context_image_token"},
        vision={**VISION, "image_size": [448, 448], "patch_size": [14, 14]},
        text={"model_type": "qwen2"},
        outer={"image_seq_length": 256},
        image_settings={
            "size": {"height": 448, "width": 448},
            "crop_to_patches": True,
            "min_patches": 1,
            "max_patches": 12,
        },
        processor_settings={"image_seq_length": 256},
    ),
    "smolvlm": Family(
        like="HuggingFaceTB/SmolVLM2-2.2B-Instruct",
        processor="SmolVLMProcessor",
        image_processor="SmolVLM",
        placeholder="<image>",
        tokens=_IDEFICS_TOKENS | {"video_token": "<video>"},
        ids={"image_token_id": "image_token"},
        vision={**VISION, "image_size": 384, "patch_size": 14},
        text={"model_type": "llama"},
        outer={"scale_factor": 3},
        image_settings={"size": {"longest_edge": 768}, "max_image_size": {"longest_edge": 384}},
        processor_settings={"image_seq_len": 81},
    ),
    "idefics3": Family(
        like="HuggingFaceM4/Idefics3-8B-Llama3",
        processor="Idefics3Processor",
        image_processor="Idefics3",
        placeholder="<image>",
        tokens=_IDEFICS_TOKENS,
        ids={"image_token_id": "image_token"},
        vision={**VISION, "image_size": 364, "patch_size": 14},
        text={"model_type": "llama"},
        outer={"scale_factor": 2},
        image_settings={"size": {"longest_edge": 728}, "max_image_size": {"longest_edge": 364}},
        processor_settings={"image_seq_len": 169},
    ),
    "gemma3": Family(
        like="google/gemma-3-4b-it",
        processor="Gemma3Processor",
        image_processor="Gemma3",
        placeholder="<start_of_image>",
        tokens={
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
            "image_token": "<image_soft_token>",
        },
        ids={"boi_token_index": "boi_token", "eoi_token_index": "eoi_token", "image_token_index": "image_token"},
        vision={"model_type": "siglip_vision_model", **VISION, "image_size": 896, "patch_size": 14}
        | {"vision_use_head": False},
        text={"head_dim": 256, "num_hidden_layers": 6, "sliding_window": 1024},  # five sliding layers, one full
        outer={"mm_tokens_per_image": 256},
        image_settings={"size": {"height": 896, "width": 896}},
    ),
}


def tokenizer(special: dict[str, str]) -> PreTrainedTokenizerFast:
    """Bytes, and the special tokens; the vocabulary has fewer than 400 entries."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["<pad>", "<s>", "</s>", *alphabet]
    words += [f"<row_{down}_col_{across}>" for down in range(1, 7) for across in range(1, 7)]
    made = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        padding_side="left",
        extra_special_tokens=special,
    )
    fast.add_special_tokens({"additional_special_tokens": [word for word in words if word.startswith("<row")]})
    return fast


def write(name: str, directory: Path) -> None:
    """A checkpoint directory with the files a published one has."""
    spec, words = FAMILIES[name], tokenizer(FAMILIES[name].tokens)
    words.save_pretrained(directory)
    kind = {"image_processor_type": f"{spec.image_processor}ImageProcessor", "processor_class": spec.processor}
    files = {
        "preprocessor_config.json": kind | spec.image_settings,
        "processor_config.json": {"processor_class": spec.processor, **spec.processor_settings},
    }
    for file, content in files.items():
        (directory / file).write_text(json.dumps(content))
    (directory / "chat_template.jinja").write_text(CHAT.replace("IMAGE", spec.placeholder))
    _model(spec, name, words).save_pretrained(directory)


def _model(spec: Family, name: str, words: PreTrainedTokenizerFast) -> Any:
    ids = {key: words.convert_tokens_to_ids(spec.tokens[role]) for key, role in spec.ids.items()}
    text = {**TEXT, "vocab_size": len(words), **spec.text}
    config = AutoConfig.for_model(
        name, vision_config=dict(spec.vision), text_config=text, tie_word_embeddings=False, **ids, **spec.outer
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0.0, 1.2 / parameter[0].numel() ** 0.5)
            # Random weights like to end at once, or to speak in image tokens.
            model.get_output_embeddings().weight[[0, 1, 2, *ids.values()]] = 0.0
    model.generation_config.update(bos_token_id=1, eos_token_id=2, pad_token_id=0)
    return model
