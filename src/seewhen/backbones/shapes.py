"""Shapes: the published sizes of well-known backbones, as configurations without weights.

`shape:llava-1.5-7b` stands for "a model built exactly like LLaVA-1.5-7B". Memory needs can be told, and
speed measured, without its checkpoint: `shape_config` is the configuration, `random_model` a model of
it with random weights made on the device, `random_inputs` a prompt with one image in the layout of the
family's processor. `tiny=True` keeps the structure and makes everything narrow and shallow.

Values are those of the published `config.json` files (facts; the files themselves are not copied).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from seewhen.errors import InvalidInput

PREFIX = "shape:"
_VICUNA = {
    "model_type": "llama",
    "vocab_size": 32064,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
_VICUNA_7B = _VICUNA | {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
}
_VICUNA_13B = _VICUNA | {
    "hidden_size": 5120,
    "intermediate_size": 13824,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "num_key_value_heads": 40,
}
_CLIP_LARGE_336 = {
    "model_type": "clip_vision_model",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
    "projection_dim": 768,
}
_QWEN_35_4B = {
    "hidden_size": 2560,
    "intermediate_size": 9216,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 248320,
    "max_position_embeddings": 262144,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "tie_word_embeddings": True,
    "eos_token_id": 248044,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000_000.0,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
        "partial_rotary_factor": 0.25,
    },
}
_QWEN_35_VISION = {
    "depth": 24,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_heads": 16,
    "out_hidden_size": 2560,
}

# What `tiny` makes of a size, wherever it appears; head sizes stay, so that rotary sections fit.
_TINY_TEXT = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 8, "num_attention_heads": 4}
_TINY_TEXT |= {"num_key_value_heads": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
_TINY_VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
_TINY_VISION |= {"depth": 2, "num_heads": 2, "out_hidden_size": 64, "projection_dim": 16}
_TINY_QWEN_VL = {"width": 32, "layers": 2, "heads": 2, "mlp_ratio": 2.0, "output_dim": 64}


def _shrunk(sizes: Mapping[str, Any], tiny: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tiny.get(name, value) for name, value in sizes.items()}


def _llava(text: dict[str, Any], tiny: bool) -> Any:
    from transformers import LlavaConfig

    vision = _CLIP_LARGE_336
    if tiny:
        text, vision = _shrunk(text, _TINY_TEXT), _shrunk(vision, _TINY_VISION)
    return LlavaConfig(text_config=dict(text), vision_config=dict(vision), image_token_index=32000)


def _instructblip(tiny: bool) -> Any:
    from transformers import InstructBlipConfig

    vision = {"hidden_size": 1408, "intermediate_size": 6144, "num_hidden_layers": 39, "num_attention_heads": 16}
    former = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
    text = _VICUNA_7B
    if tiny:
        text, vision = _shrunk(text, _TINY_TEXT), _shrunk(vision, _TINY_VISION)
        former = _shrunk(former, _TINY_VISION)
    former |= {"vocab_size": 30523, "encoder_hidden_size": vision["hidden_size"]}
    return InstructBlipConfig(
        text_config=dict(text),
        vision_config=vision,
        qformer_config=former,
        num_query_tokens=32,
        image_token_index=32000,
    )


def _qwen_vl(tiny: bool) -> Any:
    from seewhen.backbones.qwen_vl import QwenVLConfig, QwenVLTextConfig, QwenVLVisionConfig

    text = {"vocab_size": 151936, "num_key_value_heads": 32, "rms_norm_eps": 1e-6, "initializer_range": 0.02}
    vision: dict[str, Any] = {}
    if tiny:
        text |= {k: v for k, v in _TINY_TEXT.items() if not k.startswith("linear")}
        vision = dict(_TINY_QWEN_VL) | {"resampler_head_dim": 16}
    return QwenVLConfig(text_config=QwenVLTextConfig(**text), vision_config=QwenVLVisionConfig(**vision))


def _qwen_35(tiny: bool) -> Any:
    from transformers import Qwen3_5Config

    text, vision = _QWEN_35_4B, _QWEN_35_VISION
    if tiny:
        text, vision = _shrunk(text, _TINY_TEXT), _shrunk(vision, _TINY_VISION)
    return Qwen3_5Config(text_config=dict(text), vision_config=dict(vision), tie_word_embeddings=True)


@dataclass(frozen=True)
class Shape:
    """A published size: how to build its configuration, and the checkpoint it is the size of."""

    build: Callable[[bool], Any]
    checkpoint: str


SHAPES: Mapping[str, Shape] = {
    "llava-1.5-7b": Shape(lambda tiny: _llava(_VICUNA_7B, tiny), "llava-hf/llava-1.5-7b-hf"),
    "llava-1.5-13b": Shape(lambda tiny: _llava(_VICUNA_13B, tiny), "llava-hf/llava-1.5-13b-hf"),
    "instructblip-7b": Shape(_instructblip, "Salesforce/instructblip-vicuna-7b"),
    "qwen-vl-7b": Shape(_qwen_vl, "Qwen/Qwen-VL"),
    "qwen3.5-4b": Shape(_qwen_35, "Qwen/Qwen3.5-4B"),
}


def is_shape(name: str) -> bool:
    """Whether `name` asks for a shape instead of a checkpoint."""
    return name.startswith(PREFIX)


def shape_config(name: str, *, tiny: bool = False, layers: int | None = None) -> Any:
    """The configuration of a shape (`llava-1.5-7b`, with or without `shape:`), cut to `layers` if given."""
    shape = SHAPES.get(name.removeprefix(PREFIX))
    if shape is None:
        raise InvalidInput(
            f"There is no shape {name!r}.", f"Shapes: {', '.join(PREFIX + known for known in SHAPES)}."
        )
    config = shape.build(tiny)
    if layers is not None:
        text = config.get_text_config(decoder=True)
        text.num_hidden_layers = layers
        if getattr(text, "layer_types", None):
            text.layer_types = text.layer_types[:layers]
    return config


def random_model(config: Any, *, device: str = "cpu", dtype: Any = None, seed: int = 0) -> Any:
    """A model of this configuration with random weights, drawn on `device` in `dtype`, ready to generate."""
    import torch
    from transformers import AutoModelForImageTextToText

    from seewhen.backbones.qwen_vl import register as register_models

    register_models()
    on_gpu = [torch.device(device)] if device.startswith("cuda") else []
    with torch.random.fork_rng(devices=on_gpu), torch.device(device):
        torch.manual_seed(seed)
        model = AutoModelForImageTextToText.from_config(config, dtype=dtype or torch.float32)
    for module in model.modules():
        # Loading makes rotary tables on the CPU, and a GPU's powers differ in the last bit.
        if hasattr(module, "inv_freq") and hasattr(module, "config"):
            for name, table in type(module)(config=module.config).named_buffers():
                getattr(module, name).copy_(table)
    # Tables that a module computes by itself may have been made elsewhere.
    return model.to(device).eval()


def random_inputs(
    config: Any,
    *,
    rows: int = 1,
    images: int = 1,
    text_before: int = 34,
    text_after: int = 28,
    device: str = "cpu",
    dtype: Any = None,
    seed: int = 0,
) -> dict[str, Any]:
    """A batch for `generate` with random images in each row, laid out as the family's processor does.

    The text is random too. Lengths of the text before and after the image are those of a POPE question in
    LLaVA-1.5's template; families that begin with the image have no text before it.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    if images > 1 and config.model_type in _ONE_IMAGE:
        raise InvalidInput(f"A prompt of {config.model_type} holds one image.", "Use one image.")
    layout = _LAYOUTS[config.model_type](config, rows * images, generator)
    words = (3, min(30_000, config.get_text_config(decoder=True).vocab_size))
    before = layout.pop("begins_with", None)
    parts = [layout.pop("image_ids").repeat(images)[None].expand(rows, -1)]
    if before is None:
        parts.insert(0, torch.randint(*words, (rows, text_before), generator=generator))
    parts.append(torch.randint(*words, (rows, text_after), generator=generator))
    ids = torch.cat(parts, dim=1)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **layout}
    if "image_grid_thw" in inputs:
        inputs["mm_token_type_ids"] = (ids == config.image_token_id).int()
    cast = {name: value.to(dtype) if value.is_floating_point() else value for name, value in inputs.items()}
    return {name: value.to(device) for name, value in cast.items()}


def _square_image(config: Any, rows: int, generator: Any) -> Any:
    import torch

    size = config.vision_config.image_size
    return torch.randn(rows, 3, size, size, generator=generator)


def _llava_layout(config: Any, rows: int, generator: Any) -> dict[str, Any]:
    import torch

    vision = config.vision_config
    count = (vision.image_size // vision.patch_size) ** 2
    return {
        "image_ids": torch.full((count,), config.image_token_index),
        "pixel_values": _square_image(config, rows, generator),
    }


def _instructblip_layout(config: Any, rows: int, generator: Any) -> dict[str, Any]:
    import torch

    question = torch.randint(1000, 20_000, (rows, 12), generator=generator)
    return {
        "begins_with": "image",
        "image_ids": torch.full((config.num_query_tokens,), config.image_token_index),
        "pixel_values": _square_image(config, rows, generator),
        "qformer_input_ids": question,
        "qformer_attention_mask": torch.ones_like(question),
    }


def _qwen_vl_layout(config: Any, rows: int, generator: Any) -> dict[str, Any]:
    import torch

    pads = [config.image_token_id] * config.image_seq_length
    return {
        "begins_with": "image",
        "image_ids": torch.tensor([config.image_start_id, *pads, config.image_end_id]),
        "pixel_values": _square_image(config, rows, generator),
    }


def _qwen_35_layout(config: Any, rows: int, generator: Any) -> dict[str, Any]:
    import torch

    vision = config.vision_config
    grid = (1, 30, 40)  # a COCO photograph of 640 x 480 in patches of 16
    merged = math.prod(grid) // vision.spatial_merge_size**2
    values = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    pads = [config.image_token_id] * merged
    return {
        "image_ids": torch.tensor([config.vision_start_token_id, *pads, config.vision_end_token_id]),
        "pixel_values": torch.randn(rows * math.prod(grid), values, generator=generator),
        "image_grid_thw": torch.tensor([grid] * rows),
    }


_ONE_IMAGE = ("instructblip",)
_LAYOUTS: Mapping[str, Callable[[Any, int, Any], dict[str, Any]]] = {
    "llava": _llava_layout,
    "instructblip": _instructblip_layout,
    "qwen": _qwen_vl_layout,
    "qwen3_5": _qwen_35_layout,
}
