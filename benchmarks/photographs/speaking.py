"""Stages two and three: the projector alone, then projector and language model, on cached patch features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from photographs import lora
from photographs.loop import Log, train
from photographs.recipe import FineTune, Projector
from photographs.rows import BEFORE_IMAGE, Rows
from photographs.tower import half, pooled


@dataclass(frozen=True)
class Seen:
    """Patch features (2, n, patches, width), plain and of the mirrored photographs, and labels (n, objects)."""

    features: Tensor
    labels: Tensor


class Alignment(nn.Module):
    """How near the patches come to the words of objects: cosines, pooled like the tower's scores."""

    names: Tensor

    def __init__(self, names: Tensor) -> None:
        super().__init__()
        self.register_buffer("names", F.normalize(names.float(), dim=-1))
        self.scale = nn.Parameter(torch.tensor(10.0))
        self.bias = nn.Parameter(torch.tensor(-2.0))

    def forward(self, patches: Tensor, labels: Tensor) -> Tensor:
        near = F.normalize(patches.float(), dim=-1) @ self.names.T
        scores = pooled(self.scale * near + self.bias, 4.0)
        return F.binary_cross_entropy_with_logits(scores, labels.float())


def name_vectors(model: Any, tokenizer: Any, categories: Sequence[str]) -> Tensor:
    """The mean embedding of each category's tokens, as they stand inside a sentence."""
    table = model.get_input_embeddings().weight.detach().float()
    ids = [tokenizer.encode(f" {name}", add_special_tokens=False) for name in categories]
    return torch.stack([table[torch.tensor(i, device=table.device)].mean(0) for i in ids])


class Speaker:
    """The model as the stages use it: features in, losses out."""

    def __init__(self, model: Any, tokenizer: Any, seen: Seen) -> None:
        self.model, self.seen = model, seen
        self.dtype = model.get_input_embeddings().weight.dtype
        device = model.get_input_embeddings().weight.device
        self.before = torch.tensor(tokenizer.encode(BEFORE_IMAGE, add_special_tokens=False), device=device)

    def patches(self, photo: Tensor) -> Tensor:
        """Projected patches of these photographs, half of them mirrored."""
        side = torch.randint(0, len(self.seen.features), photo.shape, device=photo.device)
        projector = self.model.model.multi_modal_projector
        with half(photo.device.type):
            return projector(self.seen.features[side, photo].to(projector.linear_1.weight.dtype))

    def embedded(self, ids: Tensor, patches: Tensor | None) -> Tensor:
        table = self.model.get_input_embeddings()
        if patches is None:
            return table(ids)
        before = table(self.before).expand(len(ids), -1, -1)
        return torch.cat([before, patches.to(self.dtype), table(ids)], dim=1)

    def hidden(self, inputs: Tensor) -> Tensor:
        return self.model.model.language_model(inputs_embeds=inputs, use_cache=False).last_hidden_state

    def loss(self, rows: Rows, chosen: Tensor, patches: Tensor | None) -> Tensor:
        """Mean over the assistant's tokens of the chosen rows."""
        longest = int(rows.lengths[chosen].max())
        ids, learned = rows.ids[chosen, :longest].long(), rows.learned[chosen, :longest]
        states = self.hidden(self.embedded(ids, patches))
        if patches is None:  # the first token has nothing before it
            states, ids, learned = states[:, :-1], ids[:, 1:], learned[:, 1:]
        else:
            states = states[:, -longest - 1 : -1]
        logits = self.model.lm_head(states[learned])
        return F.cross_entropy(logits.float(), ids[learned])


def draw(rows: Rows, count: int) -> Tensor:
    return torch.randint(0, len(rows), (count,), device=rows.ids.device)


def train_projector(
    speaker: Speaker,
    alignment: Alignment,
    rows: Rows,
    stage: Projector,
    log: Log,
    *,
    check: Callable[[int], None] | None = None,
    check_every: int = 0,
) -> None:
    """The projector alone, on descriptions."""
    projector = speaker.model.model.multi_modal_projector
    speaker.model.requires_grad_(False)
    projector.requires_grad_(True)

    def backward(step: int) -> dict[str, Tensor]:
        chosen = draw(rows, stage.batch)
        photo = rows.photo[chosen]
        patches = speaker.patches(photo)
        told = speaker.loss(rows, chosen, patches)
        near = alignment(patches, speaker.seen.labels[photo])
        (told + stage.align * near).backward()
        return {"loss": told, "align": near}

    groups = [
        {"params": list(projector.parameters()), "lr": stage.rate},
        {"params": [alignment.scale, alignment.bias], "lr": 10 * stage.rate, "weight_decay": 0.0},
    ]
    train("projector", stage, groups, backward, log, check=check, check_every=check_every)


def finetune(
    speaker: Speaker,
    alignment: Alignment,
    rows: dict[str, Rows],
    stage: FineTune,
    log: Log,
    *,
    first: int,
    keep: Callable[[int], None],
    check: Callable[[int], None] | None = None,
    check_every: int = 0,
) -> None:
    """Projector and low-rank updates, on descriptions, questions and text alone. The updates must be in place."""
    projector = speaker.model.model.multi_modal_projector
    layers = speaker.model.model.language_model.layers
    updates = [p for module in layers.modules() if isinstance(module, lora.Lora) for p in (module.down, module.up)]
    speaker.model.requires_grad_(False)
    projector.requires_grad_(True)
    for parameter in updates:
        parameter.requires_grad_(True)
    shares = {
        "describe": stage.describe,
        "ask": 1 - stage.describe - stage.text_only,
        "text": stage.text_only,
    }

    def backward(step: int) -> dict[str, Tensor]:
        losses = {}
        for kind, share in shares.items():  # one after the other: their lengths differ
            count = round(share * stage.batch)
            if not count:
                continue
            chosen = draw(rows[kind], count)
            patches = None
            if kind != "text":
                photo = rows[kind].photo[chosen]
                patches = speaker.patches(photo)
            loss = speaker.loss(rows[kind], chosen, patches)
            total = share * loss
            if patches is not None:
                near = alignment(patches, speaker.seen.labels[photo])
                total = total + share * stage.align * near
                losses[f"{kind}_align"] = near
            total.backward()
            losses[kind] = loss
        return losses

    groups = [
        {"params": updates, "lr": stage.rate, "weight_decay": 0.0},
        {"params": list(projector.parameters()), "lr": stage.rate / 2},
        {"params": [alignment.scale, alignment.bias], "lr": stage.rate, "weight_decay": 0.0},
    ]
    train("finetune", stage, groups, backward, log, first=first, keep=keep, check=check, check_every=check_every)


def begin_projector(projector: Any, mean: torch.Tensor, spread: torch.Tensor, target: float) -> None:
    """Start where the language model can listen: features brought to mean 0 and spread 1 by the first layer,
    output vectors as long as word embeddings are (`target`, root mean square)."""
    with torch.no_grad():
        first, second = projector.linear_1, projector.linear_2
        nn.init.normal_(first.weight, std=first.in_features**-0.5)
        nn.init.normal_(second.weight, std=second.in_features**-0.5)
        first.weight /= spread
        first.bias.copy_(-first.weight @ mean)
        # GELU of a standard normal has a root mean square of 0.65.
        second.weight *= target / 0.65
        second.bias.zero_()
