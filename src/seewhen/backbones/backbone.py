"""Backbone: the few facts about a vision-language model that every method needs.

All of them are read through transformers' generic accessors, so a new model family needs no code
here. What those accessors do not answer is a small entry in `families.py`, or an override given by
the caller: `Backbone.of(model, norm=..., image_token_ids=...)`.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from seewhen.backbones.families import exceptions_of
from seewhen.errors import UnsupportedModel

# Names under which decoders keep their final norm and their layers.
_NORMS = ("norm", "final_layernorm", "final_layer_norm", "ln_f", "final_norm")
_LAYERS = ("layers", "h", "blocks")

# How classes that scale the head's output, or its input, write it in `forward`.
_SCALING = re.compile(
    r"([*/])\s*self\.(?:config\.)?(?:text_config\.)?"
    r"(logits_scaling|logit_scale|output_multiplier|logits_mup_width_multiplier)\b"
)


@dataclass(frozen=True)
class Backbone:
    """Facts about one model. Read-only: nothing here changes the model."""

    model: Any
    driver: Any  # whose forward `generate` calls: the model, or its inner language model
    decoder: Any
    layers: tuple[nn.Module, ...]
    softmax_layers: tuple[int, ...]  # layers with full softmax attention: the only ones that can be tilted
    norm: Any
    head: Any
    text_config: Any
    image_token_ids: tuple[int, ...]
    softcap: float | None = None  # bound of the output logits, where the model has one
    scale: float = 1.0  # what the model multiplies its head's output by, before any bound

    @classmethod
    def of(cls, model: Any, **overrides: Any) -> Backbone:
        """Read the facts of `model`. `overrides` replace any field the model does not answer correctly."""
        model = _unwrapped(model)
        family = exceptions_of(model)
        known = {**family(model), **overrides}
        _check_kind(model, known.get("driver"))
        decoder = known.get("decoder") or _decoder(model)
        layers = known.get("layers") or _child(decoder, _LAYERS, "decoder layers", "layers")
        text_config = known.get("text_config") or model.config.get_text_config(decoder=True)
        facts = {
            "model": model,
            "driver": known.get("driver") or model,
            "decoder": decoder,
            "layers": tuple(layers),
            "softmax_layers": known.get("softmax_layers") or _softmax_layers(text_config, len(layers)),
            "norm": known.get("norm") or _child(decoder, _NORMS, "final norm", "norm"),
            "head": known.get("head") or model.get_output_embeddings(),
            "text_config": text_config,
            "image_token_ids": known.get("image_token_ids") or _image_token_ids(model.config),
            "softcap": known.get("softcap") or _softcap(known.get("driver") or model, text_config),
            "scale": known.get("scale") or _scale(known.get("driver") or model, text_config),
        }
        unknown = set(overrides) - {field.name for field in dataclasses.fields(cls)}
        if unknown:
            raise TypeError(f"Backbone has no field {sorted(unknown)}")
        if facts["head"] is None:
            raise _unsupported(model, "it has no output embeddings", "head")
        return cls(**facts)

    @property
    def num_layers(self) -> int:
        """Depth L of the decoder."""
        return len(self.layers)

    @property
    def tied(self) -> bool:
        """Whether the head multiplies by the table of the input tokens.

        Where it does, the two are one tensor, until each is offloaded, or laid in memory, by itself: then what
        transformers tied at loading says it.
        """
        words = self.decoder.get_input_embeddings()
        if getattr(words, "weight", None) is getattr(self.head, "weight", words):
            return True
        loaded = getattr(self.driver, "all_tied_weights_keys", {})
        name = next((name for name, module in self.driver.named_modules() if module is self.head), None)
        return f"{name}.weight" in loaded

    @property
    def plain_head(self) -> bool:
        """Whether the head's output are the logits: our kernels that read the head themselves know no more."""
        return self.softcap is None and self.scale == 1.0

    def image_mask(self, input_ids: Tensor) -> Tensor:
        """Which positions of `input_ids` hold image (or video) features, as booleans of the same shape."""
        # A model that takes features by place knows them best: Qwen-VL's slots may hold the bytes of a path.
        slots = getattr(self.model, "image_slots", None)
        mask = torch.zeros_like(input_ids, dtype=torch.bool) if slots is None else slots(input_ids)
        for token in self.image_token_ids:
            mask = mask | (input_ids == token)
        return mask

    def read(self, embeds: Tensor, mask: Any, positions: Tensor, cache: Any = None, **more: Any) -> Tensor:
        """The bare decoder's hidden states for embeddings that follow `cache`, which takes them up. Past the
        decoder's hooks: those belong to the sequence that is being decoded."""
        output = self.decoder.forward(
            inputs_embeds=embeds,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=cache is not None,
            **more,
        )
        hidden: Tensor = output[0]
        return hidden

    def lens(self, hidden: Tensor) -> Tensor:
        """Logit lens: final norm and head applied to hidden states (..., d), giving (..., vocabulary)."""
        return self.project(through(self.norm, hidden)).to(hidden.device)

    def project(self, hidden: Tensor) -> Tensor:
        """Logits of hidden states (..., d) that the final norm has seen already, or shall not see."""
        logits = through(self.head, hidden)
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits.to(hidden.device)


def through(module: nn.Module, states: Tensor) -> Tensor:
    """The module's output for tensors that may lie elsewhere. Offloaded weights are brought by its own hooks."""
    held = next(chain(module.parameters(), module.buffers()), states)  # packed weights may be neither
    return module(states if held.device.type == "meta" else states.to(held.device))


def _unwrapped(model: Any) -> Any:
    """The model itself, where peft has put its own around it: `generate` of that only calls the model's."""
    inner = getattr(model, "get_base_model", None)
    return inner() if callable(inner) else model


def _unsupported(model: nn.Module, why: str, field: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{type(model).__name__} is not supported: {why}.",
        f"If the model has it under another name, pass Backbone.of(model, {field}=...) to attach().",
    )


def _check_kind(model: Any, driver: Any) -> None:
    for part in (model, driver):
        config = getattr(part, "config", None)
        if getattr(config, "is_encoder_decoder", False):
            raise UnsupportedModel(
                f"{type(model).__name__} is not supported: {type(part).__name__} is an encoder-decoder model.",
                "The methods act on decoder-only vision-language models.",
            )
        if config is not None and getattr(config.get_text_config(), "cross_attention_layers", None):
            raise UnsupportedModel(
                f"{type(model).__name__} is not supported: it reads the image through cross-attention layers, "
                "so its prompt has no image columns.",
                "The methods act on models that put image tokens into the prompt.",
            )


def _decoder(model: Any) -> Any:
    if isinstance(model, (str, os.PathLike)):
        raise UnsupportedModel(f"{model} is a name, not a model.", f"Load it first: seewhen.load({str(model)!r}).")
    if getattr(model, "config", None) is None or not hasattr(model, "get_decoder"):
        raise _unsupported(model, "it is not a transformers model", "decoder")
    decoder = model.get_decoder()
    if decoder is None or decoder is model:
        raise _unsupported(model, "get_decoder() finds no text decoder", "decoder")
    return decoder


def _child(parent: nn.Module, names: tuple[str, ...], what: str, field: str) -> Any:
    for name in names:
        if hasattr(parent, name):
            return getattr(parent, name)
    raise _unsupported(parent, f"its {what} is under none of {', '.join(names)}", field)


def _softmax_layers(text_config: Any, depth: int) -> tuple[int, ...]:
    """Layers with full softmax attention.

    Sliding-window layers are left out, because their cache columns are not absolute positions, and so
    are linear-attention layers, which have no attention row to tilt.
    """
    types = getattr(text_config, "layer_types", None)
    if types is None:
        if getattr(text_config, "sliding_window", None) and getattr(text_config, "use_sliding_window", True):
            raise UnsupportedModel(
                f"All layers of this {text_config.model_type} decoder use sliding-window attention.",
                "Load the model with text_config.sliding_window=None if its prompts fit the window.",
            )
        return tuple(range(depth))
    full = tuple(index for index, kind in enumerate(types) if kind == "full_attention")
    if not full:
        raise UnsupportedModel(
            "This decoder has no layer with full softmax attention.",
            "Attention methods need one; contrast-only methods can be attached with softmax_layers=(...).",
        )
    return full


def _softcap(driver: Any, text_config: Any) -> float | None:
    """The configuration may name a cap that the class which makes the logits leaves out (PaliGemma 2)."""
    name, source = "final_logit_softcapping", _source(driver)
    return getattr(text_config, name, None) if source is None or name in source else None


def _scale(driver: Any, text_config: Any) -> float:
    """Granite divides its logits by a number of the configuration, Cohere multiplies them; the same text decoder
    inside LLaVA does neither."""
    found = _SCALING.search(_source(driver) or "")
    if found is None:
        return 1.0
    value = float(getattr(text_config, found[2], None) or 1.0)
    return 1.0 / value if found[1] == "/" else value


def _source(driver: Any) -> str | None:
    """How the class makes its logits, if that is at hand."""
    try:
        return inspect.getsource(type(driver).forward)
    except (OSError, TypeError):
        return None


def _image_token_ids(config: Any) -> tuple[int, ...]:
    names = ("image_token_id", "image_token_index", "video_token_id", "video_token_index")
    found = [getattr(config, name, None) for name in names]
    ids = tuple(dict.fromkeys(int(token) for token in found if token is not None))
    if not ids:
        raise UnsupportedModel(
            f"The configuration of this {config.model_type} model names no image token.",
            "Pass Backbone.of(model, image_token_ids=(...,)) to attach().",
        )
    return ids
