"""`load`: a model and its processor, by hub id, by directory, or the one inside the package."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from seewhen.errors import InvalidInput, UnsupportedModel

PACKAGED = "packaged"
PACKAGED_PATH = Path(__file__).parent / "models" / "emoji"


class Loaded(NamedTuple):
    """A model with its processor."""

    model: Any
    processor: Any


def resolve(name_or_path: str | Path) -> str:
    """The directory of the packaged model for the name `packaged`, anything else as it is."""
    return str(PACKAGED_PATH) if str(name_or_path) == PACKAGED else str(name_or_path)


def load(
    name_or_path: str | Path = PACKAGED,
    *,
    device: str | None = None,
    dtype: Any = "auto",
    **kwargs: Any,
) -> Loaded:
    """Load a vision-language model for inference.

    `name_or_path` is a hub id, a checkpoint directory or "packaged". `device` None means CUDA where there
    is one. Other keyword arguments go to `from_pretrained` (`device_map`, `revision`, `attn_implementation`,
    `quantization_config`, ...). Remote code is never run. On a CPU, `dtype="auto"` means float32.
    """
    import torch
    from transformers import AutoModelForImageTextToText, AutoProcessor

    from seewhen.models import register_models

    register_models()
    path = resolve(name_or_path)
    if kwargs.pop("trust_remote_code", False):
        raise UnsupportedModel("Remote code is never run.", "Use a model whose code is in transformers.")
    if device is None and "device_map" not in kwargs:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if dtype == "auto" and device == "cpu":
        dtype = torch.float32
    try:
        processor = AutoProcessor.from_pretrained(path, **_shared(kwargs))
        model = AutoModelForImageTextToText.from_pretrained(path, dtype=dtype, **kwargs)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise _cannot_load(str(name_or_path), error) from error
    if device is not None:
        model = model.to(device)
    tokenizer = getattr(processor, "tokenizer", processor)
    # Generation needs padding on the left; the processors of some families default to the right.
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return Loaded(model.eval(), processor)


def _shared(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {k: kwargs[k] for k in ("revision", "token", "cache_dir", "local_files_only") if k in kwargs}


def _cannot_load(name: str, error: Exception) -> InvalidInput | UnsupportedModel:
    text = str(error).strip().splitlines()
    reason = text[0][:300] if text else type(error).__name__
    if "gated" in str(error).lower() or "401" in str(error) or "403" in str(error):
        hint = f"Accept its licence on its model card (huggingface.co/{name}) and log in with `hf auth login`."
    elif Path(name).is_dir():
        hint = "Is it a complete checkpoint directory (config.json, model.safetensors, processor files)?"
    elif isinstance(error, OSError):
        hint = "Give a hub id that this machine can reach or has cached, a checkpoint directory, or 'packaged'."
    else:
        return UnsupportedModel(f"{name} cannot be loaded: {reason}", "See `seewhen doctor --model`.")
    return InvalidInput(f"{name} cannot be loaded: {reason}", hint)
