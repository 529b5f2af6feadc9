"""Low-rank updates of a language model beside frozen weights; `seewhen.backbones.photo.lora` merges them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Lora(nn.Module):
    """A frozen linear layer plus up(down(x)); `up` begins at zero, so training begins at the frozen model."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.empty(rank, base.in_features, device=base.weight.device))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank, device=base.weight.device))
        nn.init.normal_(self.down, std=base.in_features**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(F.linear(x, self.down.to(x.dtype)), self.up.to(x.dtype))


def add(layers: nn.Module, rank: int) -> list[nn.Parameter]:
    """Puts an update beside every linear layer; returns what is to be trained."""
    trained: list[nn.Parameter] = []
    for module in list(layers.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and not isinstance(module, Lora):
                update = Lora(child, rank)
                setattr(module, name, update)
                trained += [update.down, update.up]
    return trained


def updates(layers: nn.Module) -> dict[str, Tensor]:
    """The trained parts by the name of the layer they belong to."""
    found = {}
    for name, module in layers.named_modules():
        if isinstance(module, Lora):
            found[f"{name}.down"], found[f"{name}.up"] = module.down.detach(), module.up.detach()
    return found


def set_updates(layers: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Continue from updates trained before."""
    with torch.no_grad():
        for name, module in layers.named_modules():
            if isinstance(module, Lora):
                module.down.copy_(values[f"{name}.down"])
                module.up.copy_(values[f"{name}.up"])
