"""Interventions: what a method does inside the forward pass.

An intervention is a frozen description. Its per-sequence memory is made at prefill and lives on the
`Sequence`; its per-forward values live on the `Step`. It never keeps anything on itself or on the
model, so any number of batches, beams, threads and nested calls can use one at the same time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from seewhen.attention import AttentionCall
    from seewhen.backbone import Backbone
    from seewhen.sequence import Prefill, Sequence, Step


class Intervention:
    """Base class. Override what you need; every callback runs on main and branch rows alike.

    `memory` is whatever `begin` returned. Callbacks must stay on the device: no `.item()`, no branching
    on tensor values, so that they can be compiled.
    """

    # Whether no decoding step looks at the sequence's prompt length (a number, which a captured step would
    # keep): then a step captured for one prompt serves prompts of other lengths too.
    any_prompt_length: ClassVar[bool] = False

    def sees(self, backbone: Backbone) -> frozenset[int]:
        """Layers whose input hidden states `before_layer` wants to see."""
        return frozenset()

    def edits(self, backbone: Backbone) -> frozenset[int]:
        """Layers whose attention output `attend` edits."""
        return frozenset()

    def masks(self, backbone: Backbone) -> frozenset[int]:
        """Layers whose attention mask `edit_mask` edits."""
        return frozenset()

    def begin(self, sequence: Sequence, prefill: Prefill) -> Any:
        """Called once per sequence, before the prefill runs. Returns the memory."""
        return None

    def before_forward(self, step: Step, memory: Any, embeds: Tensor) -> None:
        """Called before the decoder runs, with its input embeddings (all rows)."""

    def before_layer(self, step: Step, memory: Any, layer: int, hidden: Tensor) -> None:
        """Called before decoder layer `layer` with its input (all rows)."""

    def attend(self, step: Step, memory: Any, call: AttentionCall) -> Tensor:
        """Return the edited attention output of `call`."""
        return call.output

    def fuses(self, step: Step) -> bool:
        """Whether `attend` uses `call.fused` and does not need the stock kernel's output."""
        return False

    def edit_mask(
        self, step: Step, memory: Any, layer: int, mask: Tensor | None, shape: tuple[int, int]
    ) -> Tensor | None:
        """Return the edited attention mask; `shape` is (queries, columns)."""
        return mask

    def install(self, backbone: Backbone, current: CurrentStep) -> list[Any]:
        """Place hooks of your own (on an MLP, say), return their handles; `current.step` is the running step."""
        return []

    def reorder(self, memory: Any, index: Tensor) -> None:
        """Beam search reordered the main rows by `index`; reorder per-row memory in place."""


class CurrentStep:
    """The step a forward pass is in, for hooks on modules that receive no keyword arguments."""

    def __init__(self) -> None:
        self.step: Step | None = None


def select_rows(tensors: tuple[Tensor, ...], index: Tensor) -> None:
    """Reorder the first dimension of each tensor in place."""
    for tensor in tensors:
        tensor.copy_(tensor.index_select(0, index.to(tensor.device)))


def pad_rows(per_main: Tensor, rows: int) -> Tensor:
    """Extend a per-main-row tensor with zeros for the branch rows, which are never tilted."""
    missing = rows - per_main.shape[0]
    if missing == 0:
        return per_main
    zeros = torch.zeros((missing, *per_main.shape[1:]), dtype=per_main.dtype, device=per_main.device)
    return torch.cat([per_main, zeros])
