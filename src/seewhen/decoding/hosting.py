"""The registered attention functions: the stock kernel for every row, then an edit of the last row.

One function per stock kernel is registered with transformers, `seewhen_sdpa` around `sdpa` and so on,
in the attention registry *and* in the mask registry (a name missing from the second silently loses
causal and padding masks). What an edit needs travels as the keyword argument `seewhen`, which decoder
layers hand down untouched; layers in which nothing acts are left to SDPA.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from seewhen.decoding.attention_call import AttentionCall
from seewhen.decoding.kernels.availability import kernels_run_on
from seewhen.errors import UnsupportedModel

if TYPE_CHECKING:
    from seewhen.decoding.sequence import Step

PREFIX = "seewhen_"
KEYWORD = "seewhen"
FAST = "fast"  # hosts our one-row kernel for decoding steps and SDPA for prompts


def _stock(kernel: str, module: nn.Module) -> Callable[..., tuple[Tensor, Any]]:
    """The stock attention function `kernel`; `eager` is the modelling file's own."""
    if kernel == FAST:
        kernel = "sdpa"  # for what the fast kernel does not take: prompts
    if kernel == "eager":
        return sys.modules[type(module).__module__].eager_attention_forward
    return ALL_ATTENTION_FUNCTIONS[kernel]


def _hosted(kernel: str) -> Callable[..., tuple[Tensor, Any]]:
    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> tuple[Tensor, Any]:
        step: Step | None = kwargs.pop(KEYWORD, None)
        layer: int = getattr(module, "layer_idx", -1)
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        if step is not None and layer in step.masked:
            attention_mask = step.edit_mask(layer, attention_mask, query.shape[2], key.shape[2])
        bias = kwargs.get("position_bias")
        if kernel == FAST and bias is None and takes_fast(query, key, value, attention_mask):
            return _fast(module, step, layer, (query, key, value), attention_mask, scaling), None
        output, weights = _stock(kernel, module)(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        if step is not None and layer in step.edited:
            # SDPA adds the bias, but has neither cap nor sinks, whoever asks.
            more = {} if kernel in ("sdpa", FAST) else kwargs
            states = (query, key, value, attention_mask, scaling, output)
            call = AttentionCall(module, layer, *states, more.get("softcap"), bias, more.get("s_aux"))
            output = step.edit_attention(call)
        return output, weights

    return attention


def takes_fast(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether the one-row kernel takes this call."""
    if query.shape[2] != 1 or not kernels_run_on(query.device):
        return False
    from seewhen.decoding.kernels import attention_kernel

    return attention_kernel.takes(query, key, value, mask)


def _fast(
    module: nn.Module,
    step: Step | None,
    layer: int,
    states: tuple[Tensor, Tensor, Tensor],
    mask: Tensor | None,
    scaling: float,
) -> Tensor:
    """One query row through the one-pass kernel; an edit that is a plain tilt happens inside it."""
    from seewhen.decoding.kernels.attention_kernel import attention

    def tilted(weights: Tensor, gate: Tensor, form: str, strength: float) -> Tensor:
        main, fresh = None, None
        if step is not None and step.fork is not None and step.fork.states:
            main, fresh = step.sequence.rows, step.fork.own(states[1])
        return attention(*states, mask, scaling, weights, gate, form, strength, main, fresh)[0]

    if step is None or layer not in step.edited:
        return attention(*states, mask, scaling)[0]
    if step.fuses(layer):
        call = AttentionCall(module, layer, *states, mask, scaling, states[0], fused=tilted)
    else:
        output, normaliser = attention(*states, mask, scaling)
        call = AttentionCall(module, layer, *states, mask, scaling, output, _log_normaliser=normaliser[..., None])
    return step.edit_attention(call)


def hosted_name(kernel: str) -> str:
    """The registered name of our function around the stock `kernel`, registering it on first use."""
    if kernel.startswith(PREFIX):
        return kernel
    name = PREFIX + kernel
    if name not in ALL_ATTENTION_FUNCTIONS:
        masks = "sdpa" if kernel == FAST else kernel
        known = masks in ALL_MASK_ATTENTION_FUNCTIONS and (masks == "eager" or masks in ALL_ATTENTION_FUNCTIONS)
        if not known or kernel == "flex_attention":  # whose masks are blocks, not the columns that a row sees
            raise UnsupportedModel(
                f"The attention implementation {kernel!r} cannot be hosted.",
                "Load the model with attn_implementation='sdpa' or 'eager'.",
            )
        AttentionInterface.register(name, _hosted(kernel))
        AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[masks])
    return name


def leave_alone(layers: Iterable[nn.Module], hosted: Any, stock: Any) -> list[nn.Module]:
    """Let the attention of `layers`, in which nothing acts, call the stock kernel itself: not one call of ours.

    It gets the configuration `stock` in the place of `hosted`. Returns the modules that did.
    """
    if stock._attn_implementation != "sdpa":  # the one that is known to ignore our keyword
        return []
    modules = [m for layer in layers for m in layer.modules() if getattr(m, "config", None) is hosted]
    for module in modules:
        module.config = stock
    return modules
