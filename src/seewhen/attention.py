"""The registered attention functions: the stock kernel for every row, then an edit of the last row.

One function per stock kernel is registered with transformers, `seewhen_sdpa` around `sdpa` and so on,
in the attention registry *and* in the mask registry (a name missing from the second silently loses
causal and padding masks). Nothing is kept on modules: what an edit needs travels as the keyword
argument `seewhen`, which decoder layers hand down untouched.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from seewhen.errors import UnsupportedModel
from seewhen.speed import kernels_run_on

if TYPE_CHECKING:
    from seewhen.sequence import Step

PREFIX = "seewhen_"
KEYWORD = "seewhen"
FAST = "fast"  # hosts our one-row kernel for decoding steps and SDPA for prompts


@dataclass
class AttentionCall:
    """One attention call of one layer, as an intervention sees it.

    Heads are query heads: (rows, heads, ...). Scores and attention of the last query row are computed
    on demand, in float32, whatever the stock kernel was.
    """

    module: nn.Module
    layer: int
    query: Tensor  # (rows, heads, queries, d)
    key: Tensor  # (rows, key heads, columns, d)
    value: Tensor
    mask: Tensor | None
    scaling: float
    output: Tensor  # (rows, queries, heads, d), of the stock kernel; not computed where `fused` is set
    softcap: float | None = None  # bound of the scores, where the model has one
    # The kernel that tilts in its one pass, (weights, gate, form, strength) -> output, where there is one and
    # nothing has touched the output before.
    fused: Callable[[Tensor, Tensor, str, float], Tensor] | None = None
    # Computed once per call. Not functools.cached_property: its lock cannot be traced by torch.compile.
    _scores: Tensor | None = None
    _log_normaliser: Tensor | None = None

    @property
    def groups(self) -> int:
        """Query heads per key head."""
        return self.query.shape[1] // self.key.shape[1]

    @property
    def scores(self) -> Tensor:
        """Masked, scaled scores of the last query row: (rows, heads, columns)."""
        if self._scores is None:
            self._scores = self._last_row_scores()
        return self._scores

    def _last_row_scores(self) -> Tensor:
        rows, heads, queries, d = self.query.shape
        query = self.query[:, :, -1].float().view(rows, heads // self.groups, self.groups, d)
        scores = torch.matmul(query, self.key.float().transpose(2, 3)) * self.scaling
        scores = scores.view(rows, heads, -1)
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        mask = self.mask
        if mask is None:
            # No mask means plain causal attention: in a prefill into a longer (static) cache the columns
            # past the last query are still empty.
            if 1 < queries < scores.shape[-1]:
                scores = scores.clone()
                scores[..., queries:] = -torch.inf
            return scores
        if mask.dim() == 2:  # flash kernels: padding only
            return scores.masked_fill(~mask[:, None, : scores.shape[-1]].bool(), -torch.inf)
        last = mask[:, :, -1, : scores.shape[-1]]
        return scores.masked_fill(~last, -torch.inf) if last.dtype == torch.bool else scores + last

    @property
    def log_normaliser(self) -> Tensor:
        """Log-sum-exp of the last row's scores: (rows, heads, 1)."""
        if self._log_normaliser is None:
            self._log_normaliser = torch.logsumexp(self.scores, dim=-1, keepdim=True)
        return self._log_normaliser

    def scores_at(self, columns: Tensor) -> Tensor:
        """Scores of the last row at `columns` (rows, tokens): (rows, heads, tokens)."""
        return self.scores.gather(-1, columns[:, None].expand(-1, self.scores.shape[1], -1))

    def values_at(self, columns: Tensor) -> Tensor:
        """Values at `columns` (rows, tokens), repeated for the query heads: (rows, heads, tokens, d)."""
        index = columns[:, None, :, None].expand(-1, self.value.shape[1], -1, self.value.shape[-1])
        return self.value.gather(2, index).float().repeat_interleave(self.groups, dim=1)

    def replace_last(self, row: Tensor, where: Tensor) -> Tensor:
        """The output with its last query row replaced by `row` (rows, heads, d) in the rows marked `where`.

        Rows that are not marked keep the stock kernel's very bits.
        """
        old = self.output[:, -1]
        new = torch.where(where.view(-1, 1, 1), row.to(old.dtype), old)
        if self.output.shape[1] == 1:
            return new.unsqueeze(1)
        return torch.cat([self.output[:, :-1], new.unsqueeze(1)], dim=1)


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
        if step is not None:
            attention_mask = step.edit_mask(layer, attention_mask, query.shape[2], key.shape[2])
        if kernel == FAST and takes_fast(query, key, attention_mask):
            return _fast(module, step, layer, (query, key, value), attention_mask, scaling), None
        output, weights = _stock(kernel, module)(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        if step is not None and step.edits(layer):
            softcap = None if kernel in ("sdpa", FAST) else kwargs.get("softcap")  # SDPA has no cap, whoever asks
            call = AttentionCall(module, layer, query, key, value, attention_mask, scaling, output, softcap)
            output = step.edit_attention(call)
        return output, weights

    return attention


def takes_fast(query: Tensor, key: Tensor, mask: Tensor | None) -> bool:
    """Whether the one-row kernel takes this call."""
    if query.shape[2] != 1 or not kernels_run_on(query.device):
        return False
    from seewhen.speed import attention_kernel

    return attention_kernel.takes(query, key, mask)


def _fast(
    module: nn.Module,
    step: Step | None,
    layer: int,
    states: tuple[Tensor, Tensor, Tensor],
    mask: Tensor | None,
    scaling: float,
) -> Tensor:
    """One query row through the one-pass kernel; an edit that is a plain tilt happens inside it."""
    from seewhen.speed.attention_kernel import attention

    def tilted(weights: Tensor, gate: Tensor, form: str, strength: float) -> Tensor:
        return attention(*states, mask, scaling, weights, gate, form, strength)[0]

    if step is None or not step.edits(layer):
        return attention(*states, mask, scaling)[0]
    if step.fuses(layer):
        call = AttentionCall(module, layer, *states, mask, scaling, states[0], None, tilted)
    else:
        output = attention(*states, mask, scaling)[0]
        call = AttentionCall(module, layer, *states, mask, scaling, output)
    return step.edit_attention(call)


def hosted_name(kernel: str) -> str:
    """The registered name of our function around the stock `kernel`, registering it on first use."""
    if kernel.startswith(PREFIX):
        return kernel
    name = PREFIX + kernel
    if name not in ALL_ATTENTION_FUNCTIONS:
        masks = "sdpa" if kernel == FAST else kernel
        if masks not in ALL_MASK_ATTENTION_FUNCTIONS or (
            masks != "eager" and masks not in ALL_ATTENTION_FUNCTIONS
        ):
            raise UnsupportedModel(
                f"The attention implementation {kernel!r} cannot be hosted.",
                "Load the model with attn_implementation='sdpa' or 'eager'.",
            )
        AttentionInterface.register(name, _hosted(kernel))
        AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[masks])
    return name
