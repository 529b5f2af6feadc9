"""Facts for `seewhen doctor`: the machine's, and a model's without loading its weights."""

from __future__ import annotations

import importlib.util
import platform
import re
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

from seewhen.backbones.backbone import Backbone
from seewhen.backbones.loading import load_config
from seewhen.backbones.photo.source import INSTALL, find
from seewhen.backbones.shapes import is_shape, shape_config
from seewhen.backbones.supported import family_of
from seewhen.errors import InvalidInput, SeewhenError
from seewhen.methods.cai import CAI

_PACKAGES = ("seewhen", "torch", "transformers", "huggingface_hub", "tokenizers", "safetensors", "pillow", "numpy")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _extras() -> dict[str, list[str]]:
    """The packages of each extra that is for users, as this installation declares them; a bare tree has none."""
    found: dict[str, list[str]] = {}
    try:
        declared = requires("seewhen") or []
    except PackageNotFoundError:
        return found
    for text in declared:
        package, _, marker = text.partition(";")
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", marker)
        name = re.match(r"[\w.-]+", package)
        if extra and name and extra[1] not in ("all", "dev"):
            found.setdefault(extra[1], []).append(name[0])
    return found


def _extra(name: str, packages: list[str]) -> str:
    """The versions of its packages, or how to install it."""
    if any(_version(package) == "not installed" for package in packages):
        return f"not installed: pip install 'seewhen[{name}]'"
    return ", ".join(f"{package} {_version(package)}" for package in packages)


def _photo() -> str:
    """The language model of the model for photographs: one file, whatever else its package wants."""
    file = find()
    return f"not installed: {INSTALL}" if file is None or not file.is_file() else str(file)


def machine_facts() -> dict[str, Any]:
    """Versions, what each extra brings, devices, instructions, attention kernels."""
    import torch

    facts: dict[str, Any] = {"python": platform.python_version(), "platform": platform.platform()}
    facts |= {package: _version(package) for package in _PACKAGES}
    facts |= {f"extra_{name}": _extra(name, packages) for name, packages in _extras().items()}
    if "extra_photo" in facts:
        facts["extra_photo"] = _photo()
    facts["instructions"] = torch.backends.cpu.get_cpu_capability()
    facts["devices"] = [f"cpu ({torch.get_num_threads()} threads)"]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        facts["devices"].append(f"cuda:{index} {properties.name} ({properties.total_memory / 2**30:.0f} GiB)")
    if torch.backends.mps.is_available():
        facts["devices"].append("mps")
    facts["attention_kernels"] = ["eager", "sdpa"]
    if importlib.util.find_spec("flash_attn") is not None:
        facts["attention_kernels"].append("flash_attention_2")
    return facts


def model_facts(name: str, dtype: str = "bfloat16") -> dict[str, Any]:
    """Whether and how the model `name` is supported, from its configuration alone."""
    import torch
    from transformers import AutoModelForImageTextToText

    if dtype not in ("float32", "float16", "bfloat16"):
        raise InvalidInput(f"There is no dtype {dtype!r}.", "Use float32, float16 or bfloat16.")
    size = torch.empty((), dtype=getattr(torch, dtype)).element_size()
    config = shape_config(name) if is_shape(name) else load_config(name)
    facts: dict[str, Any] = {"name": name, "model_type": config.model_type, "supported": False}
    try:
        with torch.device("meta"):
            model = AutoModelForImageTextToText.from_config(config, trust_remote_code=False)
        backbone = Backbone.of(model)
    except SeewhenError as error:
        return {**facts, "why_not": str(error)}
    except Exception as error:  # whatever transformers makes of a stranger's configuration
        return {
            **facts,
            "why_not": f"not an image-text-to-text model of transformers: {str(error).partition(chr(10))[0]}",
        }
    facts["supported"] = True
    known = family_of(config.model_type)
    facts["tested"] = list(known.tested) if known else "not this family; the generic path applies"
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
    facts["tokens_per_image"] = _image_tokens(backbone.model.config) or "varies with the image"
    return facts


def _image_tokens(config: Any) -> int | str | None:
    """Tokens of one image where the configuration fixes them, or an example."""
    for name in ("image_seq_length", "num_query_tokens", "mm_tokens_per_image"):
        value = getattr(config, name, None)
        if isinstance(value, int):
            tiled = config.model_type == "internvl"
            return f"{value} for each tile of 448 x 448" if tiled else value
    vision = getattr(config, "vision_config", None)
    merge, patch = getattr(vision, "spatial_merge_size", None), getattr(vision, "patch_size", None)
    if isinstance(merge, int) and isinstance(patch, int):
        side = merge * patch
        return f"{round(640 / side) * round(480 / side)} for 640 x 480, more for larger images"
    scale, size = getattr(config, "scale_factor", None), getattr(vision, "image_size", None)
    if isinstance(scale, int) and isinstance(patch, int) and isinstance(size, int):
        return f"{(size // patch // scale) ** 2} for each tile of {size} x {size}"
    return None


def _cost_facts(backbone: Backbone, size: int, dtype: str) -> dict[str, Any]:
    total = sum(p.numel() for p in backbone.model.parameters())
    head = backbone.head.weight.numel()
    text = sum(p.numel() for p in backbone.decoder.parameters()) + head
    gated = len(CAI().tilted_layers(backbone))
    cache = _cache_bytes_per_token(backbone, size)
    return {
        "parameters": f"{total / 1e9:.2f} billion" if total > 1e9 else f"{total / 1e6:.1f} million",
        "weights_memory": f"{_gib(total * size)} in {dtype}",
        "quantised": " or ".join(
            f"{_gib(_quantised_bytes(backbone, bits, size))} in {bits} bit" for bits in (8, 4)
        ),
        "cache_memory": f"{_gib(1000 * cache)} for 1,000 tokens of one row; a contrast adds a row",
        "gate_cost": f"{100 * head / text:.1f} % of the decoder's weights for each gated layer, "
        f"{gated} by default ({100 * gated * head / text:.1f} % in all)",
    }


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"


def _cache_bytes_per_token(backbone: Backbone, size: int) -> int:
    """Keys and values of the softmax layers; linear layers keep a state that does not grow."""
    text = backbone.text_config
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    kinds = getattr(text, "layer_types", None) or ["full_attention"] * backbone.num_layers
    growing = sum("attention" in kind and "linear" not in kind for kind in kinds)
    return 2 * growing * heads * width * size


def _quantised_bytes(backbone: Backbone, bits: int, size: int) -> float:
    """Linear layers but the head in `bits`, everything else as it is; without the few scales."""
    import torch

    small = sum(
        module.weight.numel()
        for module in backbone.model.modules()
        if isinstance(module, torch.nn.Linear) and module is not backbone.head
    )
    total = sum(p.numel() for p in backbone.model.parameters())
    return (total - small) * size + small * bits / 8
