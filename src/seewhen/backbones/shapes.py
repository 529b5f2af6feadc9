"""Shapes: the published sizes of well-known backbones, as configurations without weights.

`shape:llava-1.5-7b` stands for "a model built exactly like LLaVA-1.5-7B". Memory needs can be told, and
speed measured, without its checkpoint: `shape_config` is the configuration, `random_model` a model of
it with random weights made on the device, `random_inputs` a prompt with one image in the layout of the
family's processor. `tiny=True` keeps the structure and makes everything narrow and shallow.

Values are those of the published `config.json` files (facts; the files themselves are not copied).
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

from seewhen.errors import InvalidInput

PREFIX = "shape:"
# By name: the checkpoint it is the size of, its configuration, and what `tiny` makes of some sizes. Sizes of heads
# stay, so that rotary sections fit.
SHAPES: Mapping[str, Mapping[str, Any]] = json.loads(
    resources.files("seewhen.backbones").joinpath("shapes.json").read_text(encoding="utf-8")
)


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
    from transformers import AutoConfig

    from seewhen.backbones.qwen_vl import register as register_models

    register_models()
    sizes = copy.deepcopy(dict(shape["config"]))
    for part, shrunk in shape["tiny"].items() if tiny else ():
        sizes[part] |= shrunk
    config = AutoConfig.for_model(**sizes)
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
