"""Prompts read once and kept for all runs about the same pictures: on a processor that is most of the work.

Every run describes the same pictures with the same prompt, and methods that look at nothing before the first new
token leave its keys and values alone. So all but the prompt's last token are read by the bare decoder once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from confirm.material import Item
from seewhen.backbones.backbone import Backbone


@dataclass
class KeptPrompts:
    """Inputs and caches of batches of pictures, by their names."""

    model: Any
    inputs: dict[tuple[str, ...], dict[str, Any]] = field(default_factory=dict)
    caches: dict[tuple[str, ...], DynamicCache] = field(default_factory=dict)

    def encoded(self, items: Sequence[Item], make: Callable[[Sequence[Item]], dict[str, Any]]) -> dict[str, Any]:
        """The inputs with the tower's features instead of pixels, where this transformers takes them."""
        key = names(items)
        if key not in self.inputs:
            made = make(items)
            if "mm_encoder_outputs" not in inspect.signature(self.model.forward).parameters:
                self.inputs[key] = made
                return made
            rest = {name: value for name, value in made.items() if name != "pixel_values"}
            with torch.inference_mode():
                output = self.model.base_model.get_image_features(made["pixel_values"], return_dict=True)
            kept = type(output)(pooler_output=output.pooler_output)
            self.inputs[key] = rest | {"mm_encoder_outputs": {"image": kept}}
        return self.inputs[key]

    @contextmanager
    def reading(self, items: Sequence[Item]) -> Iterator[None]:
        """The next prompt the decoder reads is that of these pictures."""
        backbone, key, waits = Backbone.of(self.model), names(items), [True]

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if not waits:
                return None
            waits.clear()
            embeds: Tensor = kwargs["inputs_embeds"]
            positions = kwargs["position_ids"].expand(len(embeds), -1)
            if key not in self.caches:
                cache = DynamicCache(config=backbone.decoder.config)
                backbone.read(embeds[:, :-1], None, positions[:, :-1], cache)
                self.caches[key] = cache
            for number, layer in enumerate(self.caches[key].layers):
                kwargs["past_key_values"].update(layer.keys, layer.values, number)
            left = {**kwargs, "inputs_embeds": embeds[:, -1:], "position_ids": positions[:, -1:]}
            if isinstance(kwargs.get("cache_position"), Tensor):
                left["cache_position"] = kwargs["cache_position"][-1:]
            return args, left

        handle = backbone.decoder.register_forward_pre_hook(before, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()


def names(items: Sequence[Item]) -> tuple[str, ...]:
    """What a batch is known by."""
    return tuple(item.name for item in items)
