"""The stages of training. Each takes the model and returns nothing; weights change in place."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seewhen.scenes.train.data import Pictures, Rows
from seewhen.scenes.train.recipe import Stage
from seewhen.scenes.world import CATEGORIES, COLORS, CONTEXTS, plural

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)

Log = Callable[[str], None]


@dataclass(frozen=True)
class Words:
    """Token ids the stages need: of names, contexts and colours, and of what precedes the image."""

    singular: tuple[tuple[int, ...], ...]
    plural: tuple[tuple[int, ...], ...]
    contexts: tuple[tuple[int, ...], ...]
    colors: tuple[tuple[int, ...], ...]
    before_image: tuple[int, ...]


def words(tokenizer: Any) -> Words:
    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, add_special_tokens=False))

    return Words(
        tuple(ids(f" {name}") for name in CATEGORIES),
        tuple(ids(f" {plural(name)}") for name in CATEGORIES),
        tuple(ids(f" {context.name}") for context in CONTEXTS),
        tuple(ids(f" {color}") for color in COLORS),
        (tokenizer.bos_token_id, *ids("USER: ")),
    )


def normalised(pixels: Tensor) -> Tensor:
    """What the processor makes of pictures (n, height, width, 3) of bytes."""
    mean, std = (torch.tensor(v, device=pixels.device) for v in (MEAN, STD))
    return ((pixels.float() / 255 - mean) / std).permute(0, 3, 1, 2)


def features(model: Any, pixels: Tensor) -> Tensor:
    """The tower's output for the patches, before the projector."""
    tower = model.model.vision_tower(normalised(pixels), output_hidden_states=True)
    return tower.hidden_states[-1][:, 1:]


def name_vectors(table: nn.Embedding, names: Iterable[tuple[int, ...]]) -> Tensor:
    """One unit vector per name: the mean of its tokens' embeddings."""
    device = table.weight.device
    means = [table(torch.tensor(ids, device=device)).mean(0) for ids in names]
    return F.normalize(torch.stack(means), dim=-1)


class Trainer:
    """AdamW with warm-up and cosine decay over the parameters that were not frozen."""

    def __init__(self, modules: Iterable[nn.Module | nn.Parameter], stage: Stage, device: str) -> None:
        self.parameters: list[nn.Parameter] = []
        for module in modules:
            self.parameters += [module] if isinstance(module, nn.Parameter) else list(module.parameters())
        self.stage = stage
        self.device = device
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=stage.rate, weight_decay=0.02, betas=(0.9, 0.98), fused=device == "cuda"
        )

    def run(
        self, loss_of: Callable[[], Tensor], log: Log, after: Callable[[int], None] | None = None
    ) -> None:
        began = time.monotonic()
        shown = torch.zeros((), device=self.device)
        every = max(1, self.stage.steps // 8)
        for step in range(1, self.stage.steps + 1):
            warm = min(1.0, step / max(1, min(100, self.stage.steps // 10)))
            decay = 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / self.stage.steps))
            for group in self.optimizer.param_groups:
                group["lr"] = self.stage.rate * warm * decay
            with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
                loss = loss_of()
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.parameters, 1.0)
            self.optimizer.step()
            shown += loss.detach()
            if step % every == 0:
                log(f"  step {step:5d}  loss {shown.item() / every:.4f}  {time.monotonic() - began:.1f} s")
                shown.zero_()
            if after is not None:
                after(step)


def pick(n: int, batch: int, device: str) -> Tensor:
    return torch.randint(n, (batch,), device=device)


def train_tower(model: Any, pictures: Pictures, known: Words, stage: Stage, log: Log, device: str) -> None:
    """Patches are pulled towards the word for what they show (the place, for background), and tinted patches
    towards their colour's word as well: contrastive over all names, and over all colours."""
    inner = model.model
    table = inner.language_model.embed_tokens
    scale = nn.Parameter(torch.tensor([2.3, 2.3], device=device))
    images = torch.from_numpy(pictures.pixels).to(device)
    labels = torch.from_numpy(pictures.labels).to(device).long()
    colors = torch.from_numpy(pictures.colors).to(device).long()
    weight = torch.ones(len(CATEGORIES) + len(CONTEXTS), device=device)
    weight[len(CATEGORIES) :] = 0.15  # most patches are background

    def loss_of() -> Tensor:
        rows = pick(len(images), stage.batch, device)
        patches = F.normalize(inner.multi_modal_projector(features(model, images[rows])).float(), dim=-1)
        forms = known.singular if torch.rand(()) < 0.7 else known.plural
        names = name_vectors(table, (*forms, *known.contexts)).float()
        target = labels[rows]
        background = (target < 0) & (target > -100)
        target = torch.where(background, len(CATEGORIES) - 1 - target, target)
        strength = scale.clamp(max=3.7).exp()
        by_name = F.cross_entropy(strength[0] * (patches @ names.T).flatten(0, 1), target.flatten(), weight)
        hues = name_vectors(table, known.colors).float()
        by_color = F.cross_entropy(
            strength[1] * (patches @ hues.T).flatten(0, 1), colors[rows].flatten(), ignore_index=-100
        )
        return by_name + 0.5 * torch.nan_to_num(by_color)

    Trainer((inner.vision_tower, inner.multi_modal_projector, table, scale), stage, device).run(loss_of, log)


def tower_features(model: Any, pixels: Any, device: str, batch: int = 1024) -> Tensor:
    """Features of all pictures, once: the tower stays frozen from here on."""
    out = []
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        for at in range(0, len(pixels), batch):
            out.append(features(model, torch.from_numpy(pixels[at : at + batch]).to(device)).to(dtype))
    return torch.cat(out)


class Dialogues:
    """Rows on the device, and their loss with or without a picture in front."""

    def __init__(self, rows: Rows, device: str) -> None:
        self.ids = torch.from_numpy(rows.ids).to(device).long()
        self.start = torch.from_numpy(rows.start).to(device).long()
        self.end = torch.from_numpy(rows.end).to(device).long()
        self.room = int(rows.end.max())

    def __len__(self) -> int:
        return len(self.ids)

    def loss(self, model: Any, chosen: Tensor, before: Tensor | None = None) -> Tensor:
        """Mean cross-entropy of the answers. `before` are the embeddings in front of the rows."""
        ids = self.ids[chosen, : self.room]
        embedded = model.model.language_model.embed_tokens(ids)
        if before is not None:
            embedded = torch.cat([before.to(embedded.dtype), embedded], dim=1)
        # Rows are padded on the right: with causal attention nothing before the padding can see it.
        hidden = model.model.language_model(inputs_embeds=embedded, use_cache=False).last_hidden_state
        logits = model.lm_head(hidden[:, -self.room - 1 : -1] if before is not None else hidden[:, :-1])
        if before is None:
            ids = ids[:, 1:]
        place = torch.arange(self.room - ids.shape[1], self.room, device=ids.device)
        asked = (place >= self.start[chosen, None]) & (place < self.end[chosen, None])
        return F.cross_entropy(logits.flatten(0, 1).float(), torch.where(asked, ids, -100).flatten())


def in_front(model: Any, seen: Tensor, known: Words) -> Tensor:
    """Embeddings of everything before a dialogue about a picture: "USER: " and the image tokens."""
    table = model.model.language_model.embed_tokens
    start = table(torch.tensor(known.before_image, device=seen.device)).expand(len(seen), -1, -1)
    patches = model.model.multi_modal_projector(seen)
    return torch.cat([start.to(patches.dtype), patches], dim=1)


def decoder(model: Any) -> tuple[nn.Module, ...]:
    """All of the language model but its input embeddings, which the tower's words were aligned with."""
    inner = model.model.language_model
    return inner.layers, inner.norm, model.lm_head


def train_language(model: Any, rows: Dialogues, stage: Stage, log: Log, device: str) -> None:
    """The decoder on text alone."""
    model.model.language_model.embed_tokens.weight.requires_grad_(False)
    Trainer(decoder(model), stage, device).run(
        lambda: rows.loss(model, pick(len(rows), stage.batch, device)), log
    )


def train_projector(
    model: Any, seen: Tensor, rows: Dialogues, known: Words, stage: Stage, log: Log, device: str
) -> None:
    """The projector alone, on captions."""

    def loss_of() -> Tensor:
        chosen = pick(len(rows), stage.batch, device)
        return rows.loss(model, chosen, in_front(model, seen[chosen], known))

    model.requires_grad_(False)
    model.model.multi_modal_projector.requires_grad_(True)
    Trainer((model.model.multi_modal_projector,), stage, device).run(loss_of, log)
    model.requires_grad_(True)


def finetune(
    model: Any,
    seen: Tensor,
    captions: Dialogues,
    questions: Dialogues,
    known: Words,
    stage: Stage,
    log: Log,
    device: str,
    after: Callable[[int], None],
) -> None:
    """Projector and decoder, on captions and questions; the tower and the embeddings stay as they are."""

    def loss_of() -> Tensor:
        chosen = pick(len(captions), stage.batch, device)
        asked = pick(len(questions), stage.batch, device)
        return captions.loss(model, chosen, in_front(model, seen[chosen], known)) + 0.5 * questions.loss(
            model, asked, in_front(model, seen[asked], known)
        )

    model.requires_grad_(False)
    trained = (model.model.multi_modal_projector, *decoder(model))
    for module in trained:
        module.requires_grad_(True)
    Trainer(trained, stage, device).run(loss_of, log, after)
    model.requires_grad_(True)
