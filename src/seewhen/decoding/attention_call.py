"""One attention call of one layer, as interventions see it and edit it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


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
    position_bias: Tensor | None = None  # (rows or 1, heads or 1, queries, columns), added to the scores
    sinks: Tensor | None = None  # (heads,): the score of a further column, which has no value
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
    def plain(self) -> bool:
        """Whether SDPA computes such attention."""
        return self.softcap is None and self.position_bias is None and self.sinks is None

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
        scores = self.shaped(scores.view(rows, heads, 1, -1), queries - 1)[:, :, 0]
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

    def shaped(self, scores: Tensor, first: int) -> Tensor:
        """Scaled scores (rows, heads, queries, columns) of the queries from `first` on, capped and biased as the
        model does it."""
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        if self.position_bias is not None:
            scores = scores + self.position_bias[:, :, first : first + scores.shape[2], : scores.shape[3]]
        return scores

    @property
    def log_normaliser(self) -> Tensor:
        """Log-sum-exp of the last row's scores: (rows, heads, 1)."""
        if self._log_normaliser is None:
            self._log_normaliser = self.with_sinks(torch.logsumexp(self.scores, dim=-1, keepdim=True))
        return self._log_normaliser

    def with_sinks(self, total: Tensor) -> Tensor:
        """Log-sum-exp (rows, heads, queries) of columns, and of the sinks where there are any."""
        return total if self.sinks is None else torch.logaddexp(total, self.sinks.float()[:, None])

    def probabilities(self, scores: Tensor) -> Tensor:
        """Attention (rows, heads, columns) of such scores; beside sinks it sums to less than one."""
        if self.sinks is None:
            return torch.softmax(scores, dim=-1)
        return torch.exp(scores - self.with_sinks(torch.logsumexp(scores, dim=-1, keepdim=True)))

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
