"""Facts for `seewhen doctor`: the machine's, and a model's without loading its weights."""

from __future__ import annotations

import importlib.util
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from seewhen.backbone import Backbone
from seewhen.errors import InvalidInput, SeewhenError
from seewhen.loading import resolve
from seewhen.methods.cai import CAI
from seewhen.models import register_models

_PACKAGES = ("seewhen", "torch", "transformers", "tokenizers", "safetensors", "pillow", "numpy")
_OPTIONAL = ("scipy", "matplotlib", "fastapi", "nltk", "ray", "accelerate", "bitsandbytes", "torchao", "peft")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def machine_facts() -> dict[str, Any]:
    """Versions, devices, attention kernels."""
    import torch

    facts: dict[str, Any] = {"python": platform.python_version(), "platform": platform.platform()}
    facts |= {package: _version(package) for package in _PACKAGES}
    facts["optional"] = [f"{p} {_version(p)}" for p in _OPTIONAL if _version(p) != "not installed"]
    facts["devices"] = [f"cpu ({torch.get_num_threads()} threads)"]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        facts["devices"].append(f"cuda:{index} {properties.name} ({properties.total_memory / 2**30:.0f} GiB)")
    if torch.backends.mps.is_available():
        facts["devices"].append("mps")
    facts["attention_kernels"] = ["eager", "sdpa", "flex_attention"]
    if importlib.util.find_spec("flash_attn") is not None:
        facts["attention_kernels"].append("flash_attention_2")
    return facts


def model_facts(name: str, dtype: str = "bfloat16") -> dict[str, Any]:
    """Whether and how the model `name` is supported, from its configuration alone."""
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    register_models()
    try:
        size = torch.empty((), dtype=getattr(torch, dtype)).element_size()
    except (AttributeError, TypeError):
        raise InvalidInput(f"There is no dtype {dtype!r}.", "Use float32, float16 or bfloat16.") from None
    try:
        config = AutoConfig.from_pretrained(resolve(name))
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0][:200]
        raise InvalidInput(
            f"The configuration of {name} cannot be read: {reason}",
            "Give a hub id that this machine can reach or has cached, or a checkpoint directory.",
        ) from None
    facts: dict[str, Any] = {"name": name, "model_type": config.model_type, "supported": False}
    try:
        with torch.device("meta"):
            model = AutoModelForImageTextToText.from_config(config)
        backbone = Backbone.of(model)
    except SeewhenError as error:
        return {**facts, "why_not": str(error)}
    except ValueError as error:
        return {
            **facts,
            "why_not": f"not an image-text-to-text model of transformers: {str(error).splitlines()[0]}",
        }
    facts["supported"] = True
    return facts | _layer_facts(backbone) | _cost_facts(backbone, size, dtype)


def _layer_facts(backbone: Backbone) -> dict[str, Any]:
    softmax, depth = backbone.softmax_layers, backbone.num_layers
    facts: dict[str, Any] = {
        "class": type(backbone.model).__name__,
        "decoder": f"{type(backbone.decoder).__name__}, {depth} layers",
        "softmax_layers": "all" if len(softmax) == depth else list(softmax),
        "tilted_by_default": list(CAI().tilted_layers(backbone)),
        "image_token_ids": list(backbone.image_token_ids),
    }
    tokens = _image_tokens(backbone.model.config)
    facts["tokens_per_image"] = tokens if tokens is not None else "varies with the image"
    return facts


def _image_tokens(config: Any) -> int | None:
    """Tokens of one image where the configuration fixes them."""
    for name in ("image_seq_length", "num_query_tokens", "mm_tokens_per_image"):
        value = getattr(config, name, None)
        if isinstance(value, int):
            return value
    return None


def _cost_facts(backbone: Backbone, size: int, dtype: str) -> dict[str, Any]:
    total = sum(p.numel() for p in backbone.model.parameters())
    text = sum(p.numel() for p in backbone.decoder.parameters()) + backbone.head.weight.numel()
    head = backbone.head.weight.numel()
    gated = len(CAI().tilted_layers(backbone))
    return {
        "parameters": f"{total / 1e9:.2f} billion" if total > 1e9 else f"{total / 1e6:.1f} million",
        "weights_memory": f"{total * size / 2**30:.2f} GiB in {dtype}",
        "gate_cost": f"{100 * head / text:.1f} % of the decoder's weights for each gated layer, "
        f"{gated} by default ({100 * gated * head / text:.1f} % in all)",
    }
