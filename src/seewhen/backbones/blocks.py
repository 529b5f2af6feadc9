"""The inside of a decoder layer: where its attention, its MLP, its norms and its output projection are.

Methods that work there (ONLY, MemVR) look the parts up by the names that transformers' decoders share;
a model that uses none of them gets an error that says so.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from seewhen.errors import UnsupportedModel

_ATTENTIONS = ("self_attn", "linear_attn", "attn", "attention", "self_attention")
_MLPS = ("mlp", "feed_forward", "block_sparse_moe", "moe")
_PROJECTIONS = ("o_proj", "out_proj", "c_proj", "dense", "wo")


def attention_of(layer: nn.Module) -> nn.Module:
    """The attention of a decoder layer (or the linear attention that stands in its place)."""
    return _child(layer, _ATTENTIONS, "attention")


def mlp_of(layer: nn.Module) -> nn.Module:
    """The feed-forward part of a decoder layer."""
    return _child(layer, _MLPS, "feed-forward part")


def input_norm(layer: nn.Module) -> nn.Module:
    """The norm before the attention."""
    return _child(layer, ("input_layernorm",), "input norm")


def feed_forward(layer: Any, hidden: Tensor) -> Tensor:
    """The second half of a decoder layer, `h + MLP(norm(h))`, for states (rows, positions, d)."""
    before = getattr(layer, "pre_feedforward_layernorm", None)
    if before is None:
        norm = _child(layer, ("post_attention_layernorm",), "norm before the feed-forward part")
        return hidden + first(mlp_of(layer)(norm(hidden)))
    # Layers with a norm on either side of attention and MLP (Gemma 2 and 3).
    after = _child(layer, ("post_feedforward_layernorm",), "norm after the feed-forward part")
    return hidden + after(first(mlp_of(layer)(before(hidden))))


def project_heads(attention: Any, heads: Tensor, normed: Tensor) -> Tensor:
    """The output projection of concatenated head outputs (rows, heads * d), giving (rows, hidden).

    `normed` is the input of the attention module. It matters only where the module multiplies its output
    with a gate of that input, which it takes from the second half of each head's query projection
    (Qwen3-Next, Qwen3.5).
    """
    projection = _child(attention, _PROJECTIONS, "output projection")
    heads = heads.to(normed.dtype)
    query = getattr(attention, "q_proj", None)
    if query is not None and getattr(query, "out_features", 0) == 2 * heads.shape[-1]:
        pairs = query(normed).view(normed.shape[0], -1, 2, attention.head_dim)
        heads = heads * torch.sigmoid(pairs[:, :, 1].reshape(heads.shape))
    return projection(heads)


def first(output: Any) -> Tensor:
    """The states among what a module returns: mixtures of experts add their router's logits."""
    return output[0] if isinstance(output, tuple) else output


def _child(module: nn.Module, names: tuple[str, ...], what: str) -> nn.Module:
    for name in names:
        child = getattr(module, name, None)
        if child is not None:
            return child
    raise UnsupportedModel(
        f"The {what} of {type(module).__name__} is under none of {', '.join(names)}.",
        "This method works inside decoder layers and does not know this model's.",
    )


def out_projection_of(layer: nn.Module) -> nn.Module:
    """The output projection of the attention of a decoder layer."""
    return _child(attention_of(layer), _PROJECTIONS, "output projection")
