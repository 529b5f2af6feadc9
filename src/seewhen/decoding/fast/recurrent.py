"""Recurrent layers (gated delta rule) on our kernels, for single tokens that follow a cache.

The module keeps its weights, its projections and its cache; what lies between the projections becomes two
kernels, which update the cache's states where they are. Everything else (prompts, caches that record their
past) goes the stock way. A layer is changed only where the kernels give what it gives itself on a probe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import StaticCache

from seewhen.backbones.backbone import Backbone
from seewhen.decoding.kernels import recurrent_kernel
from seewhen.decoding.kernels.availability import kernels_run_on

_PROJECTIONS = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj")


def recurrent_layers(backbone: Backbone) -> Iterator[tuple[nn.Module, Callable[..., Tensor]]]:
    """The decoder's recurrent layers that our kernels reproduce, each with its new forward."""
    known: dict[tuple[Any, ...], bool] = {}
    for module in backbone.decoder.modules():
        if not _is_recurrent(module):
            continue
        stock, ours = module.forward, _forward(module)
        kind = (type(module), module.conv1d.weight.shape, module.conv1d.weight.dtype)
        if kind not in known:
            known[kind] = _agree(module, stock, ours, backbone.decoder.config)
        if known[kind]:
            yield module, ours


def _is_recurrent(module: Any) -> bool:
    conv: Any = getattr(module, "conv1d", None)
    norm: Any = getattr(module, "norm", None)
    return (
        all(isinstance(getattr(module, name, None), nn.Module) for name in _PROJECTIONS)
        and all(isinstance(getattr(module, name, None), Tensor) for name in ("A_log", "dt_bias"))
        and isinstance(conv, nn.Conv1d)
        and conv.bias is None
        and conv.weight.is_contiguous()
        and hasattr(norm, "weight")
        and hasattr(norm, "variance_epsilon")
        and norm.weight.dtype in (conv.weight.dtype, torch.float32)
        and "forward" not in module.__dict__
        and kernels_run_on(conv.weight.device)
    )


def _forward(module: Any) -> Callable[..., Tensor]:
    stock = module.forward

    def forward(
        hidden_states: Tensor, cache_params: Any = None, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> Tensor:
        states = _states(module, cache_params) if attention_mask is None and hidden_states.shape[1] == 1 else None
        if states is None or states[0].dtype != hidden_states.dtype:
            result: Tensor = stock(hidden_states, cache_params, attention_mask, **kwargs)
            return result
        qkv, z, b, a = (getattr(module, name)(hidden_states)[:, 0] for name in _PROJECTIONS[:4])
        conv_weight = module.conv1d.weight[:, 0]
        weights = (conv_weight, module.A_log, module.dt_bias, module.norm.weight)
        inner = recurrent_kernel.recur(qkv, z, b, a, *states, *weights, float(module.norm.variance_epsilon))
        output: Tensor = module.out_proj(inner[:, None])
        return output

    return forward


def _states(module: Any, cache: Any) -> tuple[Tensor, Tensor] | None:
    """The layer's convolution columns and state, where the kernels may update them in place."""
    layers = getattr(cache, "layers", ())
    if module.layer_idx >= len(layers):
        return None
    layer = layers[module.layer_idx]
    conv, state = (getattr(layer, name, {}).get(0) for name in ("conv_states", "recurrent_states"))
    if conv is None or state is None or not layer.has_previous_state[0] or layer.record_past:
        return None
    return (conv, state) if recurrent_kernel.takes(conv, state, module.conv1d.weight[:, 0]) else None


@torch.no_grad()
def _agree(module: Any, stock: Callable[..., Tensor], ours: Callable[..., Tensor], config: Any) -> bool:
    """Whether ours gives the stock outputs and states for a few tokens after a short prompt."""
    weight = module.conv1d.weight
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn((2, 5, module.hidden_size), generator=generator).to(weight.device, weight.dtype)
    results = []
    for forward in (stock, ours):
        cache = StaticCache(config=config.get_text_config(decoder=True), max_cache_len=8)
        stock(tokens[:, :3], cache_params=cache)
        outputs = [forward(tokens[:, at : at + 1], cache_params=cache) for at in (3, 4)]
        states = _states(module, cache)
        if states is None:
            return False
        results.append((*outputs, *states))
    # The norm at the end enlarges the rounding of heads whose output happens to be small; another rule would
    # differ by as much as its own size.
    bound = 16 * torch.finfo(tokens.dtype).eps
    return all(bool((a - b).float().norm() <= bound * b.float().norm()) for b, a in zip(*results, strict=True))
