"""WHEN: act only where the model is unsure (the paper's Eq. condition).

The entropy of the logit lens (final norm and head applied to a hidden state) is compared with a
threshold: a fixed one, or the label-free rule of the paper's appendix, running mean plus half a
standard deviation over the tokens decoded before in the same sample. Everything is a tensor per row,
so that a batch needs no loop and a device no synchronisation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


def entropy(logits: Tensor, base: float = math.e) -> Tensor:
    """Entropy of `softmax(logits)` over the last dimension, in float32, to the given base (nats by default)."""
    log_p = torch.log_softmax(logits.float(), dim=-1)
    # exp(-inf) * -inf would be NaN for tokens that some processor removed; they contribute nothing.
    terms = torch.where(torch.isneginf(log_p), 0.0, log_p.exp() * log_p)
    return -terms.sum(dim=-1) / math.log(base)


@dataclass(frozen=True)
class Gate:
    """WHEN, as parameters: `threshold` None is the adaptive rule, which starts at `start`."""

    threshold: float | None = None
    base: float = math.e
    sd_factor: float = 0.5
    start: float = 0.23


@dataclass
class RunningEntropy:
    """Welford statistics of the entropies seen so far, per row (rows,) and on the device.

    Updated in place, so that a captured graph can go on updating them.
    """

    count: Tensor
    mean: Tensor
    spread: Tensor  # sum of squared deviations

    @classmethod
    def zeros(cls, rows: int, device: torch.device) -> RunningEntropy:
        count, mean, spread = (torch.zeros(rows, device=device) for _ in range(3))
        for tensor in (count, mean, spread):
            # Updated in place by captured graphs, so the address must stay.
            torch._dynamo.mark_static_address(tensor)
        return cls(count, mean, spread)

    def threshold(self, sd_factor: float, start: float) -> Tensor:
        """`mean + sd_factor * sd`; `start` for a row that has no history yet."""
        sd = (self.spread / self.count.clamp(min=1)).sqrt()
        return torch.where(self.count > 0, self.mean + sd_factor * sd, start)

    def update(self, value: Tensor) -> None:
        """Take in the entropy of one more token per row."""
        self.count.add_(1)
        delta = value - self.mean
        self.mean.add_(delta / self.count)
        self.spread.add_(delta * (value - self.mean))

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """The per-row tensors, for reordering by beams."""
        return self.count, self.mean, self.spread


def start_layer(start: int | float, num_layers: int, softmax_layers: tuple[int, ...]) -> int:
    """The layer l_s: absolute, or a fraction of the depth (`floor(start * L)`).

    A fraction that leaves no softmax layer above it (shallow or hybrid models) is lowered so that the
    deepest softmax layer stays, as the paper's rule for hybrid architectures asks.
    """
    if isinstance(start, int):
        return start
    return min(math.floor(start * num_layers), max(softmax_layers) - 1)
