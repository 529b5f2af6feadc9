"""The stages of training. Each takes the model and returns nothing; weights change in place."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from embedded.train.data import Pictures, Rows
from embedded.train.recipe import Stage
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


@cache
def constant(values: tuple[float, ...] | tuple[int, ...], device: torch.device) -> Tensor:
    """Copied to the device once: copies are not allowed while a graph is captured."""
    return torch.tensor(values, device=device)


def normalised(pixels: Tensor) -> Tensor:
    """What the processor makes of pictures (n, height, width, 3) of bytes."""
    mean, std = (constant(values, pixels.device) for values in (MEAN, STD))
    return ((pixels.float() / 255 - mean) / std).permute(0, 3, 1, 2)


def features(model: Any, pixels: Tensor) -> Tensor:
    """The tower's output for the patches, before the projector."""
    tower = model.model.vision_tower(normalised(pixels), output_hidden_states=True)
    return tower.hidden_states[-1][:, 1:]


def name_vectors(table: nn.Embedding, names: Iterable[tuple[int, ...]]) -> Tensor:
    """One unit vector per name: the mean of its tokens' embeddings."""
    wanted = list(names)
    longest = max(len(ids) for ids in wanted)
    # Repeating a name's tokens evenly leaves their mean; here names have one or two tokens.
    assert all(longest % len(ids) == 0 for ids in wanted)
    flat = tuple(token for ids in wanted for token in ids * (longest // len(ids)))
    vectors = table(constant(flat, table.weight.device)).view(len(wanted), longest, -1)
    return F.normalize(vectors.mean(1), dim=-1)


class Trainer:
    """AdamW with warm-up and cosine decay over the given modules.

    On a GPU a whole step is captured once as a CUDA graph and replayed: at this size launching kernels costs more
    than running them. `loss_of` therefore takes the rows to learn from as a tensor and must not wait for the GPU.
    """

    def __init__(self, modules: Iterable[nn.Module | nn.Parameter], stage: Stage, device: str) -> None:
        self.parameters: list[nn.Parameter] = []
        for module in modules:
            self.parameters += [module] if isinstance(module, nn.Parameter) else list(module.parameters())
        self.stage, self.device = stage, device
        self.rate = torch.tensor(stage.rate, device=device)
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=self.rate,
            weight_decay=0.02,
            betas=(0.9, 0.98),
            fused=device == "cuda",
            capturable=device == "cuda",
        )

    def run(
        self,
        loss_of: Callable[[Tensor], Tensor],
        rows: int,
        log: Log,
        after: Callable[[int], None] | None = None,
        until: float = math.inf,
    ) -> None:
        """All steps, or as many as fit before `until` on the monotonic clock."""
        if self.device != "cuda":
            self._run(loss_of, rows, log, after, until)
            return
        # A graph cannot be captured on the default stream, nor from work that began there.
        own = torch.cuda.Stream()
        own.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(own):
            self._run(loss_of, rows, log, after, until)
        torch.cuda.current_stream().wait_stream(own)

    def _run(
        self,
        loss_of: Callable[[Tensor], Tensor],
        rows: int,
        log: Log,
        after: Callable[[int], None] | None,
        until: float,
    ) -> None:
        chosen = torch.empty(self.stage.batch, dtype=torch.long, device=self.device)
        shown = torch.zeros((), device=self.device)

        def step() -> None:
            with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
                loss = loss_of(chosen)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.parameters, 1.0)
            self.optimizer.step()
            shown.add_(loss.detach())

        began = time.monotonic()
        every = max(1, self.stage.steps // 8)
        take = step
        for number in range(1, self.stage.steps + 1):
            if time.monotonic() > until:
                log(f"  out of time after {number - 1} steps")
                return
            warm = min(1.0, number / max(1, min(100, self.stage.steps // 10)))
            decay = 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * number / self.stage.steps))
            self.rate.fill_(self.stage.rate * warm * decay)
            torch.randint(rows, chosen.shape, out=chosen, device=self.device)
            if self.device == "cuda" and number == 4:
                take = self._captured(step, log)
            take()
            if number % every == 0:
                log(f"  step {number:5d}  loss {shown.item() / every:.4f}  {time.monotonic() - began:.1f} s")
                shown.zero_()
            if after is not None:
                after(number)

    def _captured(self, step: Callable[[], None], log: Log) -> Callable[[], None]:
        """The step as a graph. Capturing records and does not run."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        self.optimizer.zero_grad(set_to_none=True)
        try:
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
                step()
        except RuntimeError as error:
            log(f"  no CUDA graph ({str(error).splitlines()[0]}): going on without")
            self.optimizer.zero_grad(set_to_none=True)
            return step
        return graph.replay


def alignment(
    patches: Tensor, table: nn.Embedding, labels: Tensor, colors: Tensor, known: Words, scale: Tensor
) -> Tensor:
    """How far projected patches are from the words for what they show: contrastive over all names, and over all
    colours. `scale` holds the logarithms of two strengths, which are learned."""
    patches = F.normalize(patches.float(), dim=-1)
    # Both forms of a name are pulled to the same patches, the singular more often.
    forms = (*known.singular, *known.contexts), (*known.plural, *known.contexts)
    background = (labels < 0) & (labels > -100)
    target = torch.where(background, len(CATEGORIES) - 1 - labels, labels)
    # Most patches are background.
    weight = constant((1.0,) * len(CATEGORIES) + (0.15,) * len(CONTEXTS), patches.device)
    strength = scale.clamp(max=3.7).exp()
    by_name = torch.zeros((), device=patches.device)
    for share, names in zip((0.7, 0.3), forms, strict=True):
        scores = strength[0] * (patches @ name_vectors(table, names).float().T)
        by_name = by_name + share * F.cross_entropy(scores.flatten(0, 1), target.flatten(), weight)
    hues = name_vectors(table, known.colors).float()
    by_color = F.cross_entropy(strength[1] * (patches @ hues.T).flatten(0, 1), colors.flatten(), ignore_index=-100)
    return by_name + 0.5 * torch.nan_to_num(by_color)


def train_tower(model: Any, pictures: Pictures, known: Words, stage: Stage, log: Log, device: str) -> None:
    """Patches are pulled towards the word for what they show (the place, for background), and tinted patches
    towards their colour's word as well."""
    inner = model.model
    table = inner.language_model.embed_tokens
    scale = nn.Parameter(torch.tensor([2.3, 2.3], device=device))
    images = torch.from_numpy(pictures.pixels).to(device)
    labels = torch.from_numpy(pictures.labels).to(device).long()
    colors = torch.from_numpy(pictures.colors).to(device).long()

    def loss_of(rows: Tensor) -> Tensor:
        patches = inner.multi_modal_projector(features(model, images[rows]))
        return alignment(patches, table, labels[rows], colors[rows], known, scale)

    trained = (inner.vision_tower, inner.multi_modal_projector, table, scale)
    Trainer(trained, stage, device).run(loss_of, len(images), log)


def tower_features(model: Any, pixels: Any, device: str, batch: int = 1024) -> Tensor:
    """Features of all pictures, once: the tower stays frozen from here on."""
    out = []
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        for at in range(0, len(pixels), batch):
            out.append(features(model, torch.from_numpy(pixels[at : at + batch]).to(device)).to(dtype))
    return torch.cat(out)


def decode(model: Any, embedded: Tensor) -> Tensor:
    """The decoder's layers and final norm, in fewer and larger steps than its own forward pass: at this width
    memory is what takes the time. On a GPU all is computed in bfloat16, weights are rounded on the way."""
    inner = model.model.language_model
    positions = torch.arange(embedded.shape[1], device=embedded.device)[None]
    with torch.autocast(embedded.device.type, enabled=False):
        hidden = embedded.to(torch.bfloat16) if embedded.is_cuda else embedded
        turns = inner.rotary_emb(hidden, positions)
        for layer in inner.layers:
            hidden = _layer(layer, hidden, turns)
        return _normed(inner.norm, hidden)


def _normed(norm: Any, hidden: Tensor) -> Tensor:
    return F.rms_norm(hidden, hidden.shape[-1:], norm.weight.to(hidden.dtype), norm.variance_epsilon)


def _layer(layer: Any, hidden: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """A Llama layer with as many heads of keys as of queries, and causal attention."""
    own, mlp = layer.self_attn, layer.mlp
    rows, length, width = hidden.shape

    def applied(to: Tensor, *linears: nn.Linear) -> Tensor:
        weight = linears[0].weight if len(linears) == 1 else torch.cat([each.weight for each in linears])
        return F.linear(to, weight.to(to.dtype))

    mixed = applied(_normed(layer.input_layernorm, hidden), own.q_proj, own.k_proj, own.v_proj)
    mixed = mixed.view(rows, length, 3, -1, own.head_dim).permute(2, 0, 3, 1, 4)
    cos, sin = turns
    both = mixed[:2]
    first, second = both.chunk(2, dim=-1)
    queries, keys = both * cos + torch.cat([-second, first], dim=-1) * sin
    seen = F.scaled_dot_product_attention(queries, keys, mixed[2], is_causal=True)
    hidden = hidden + applied(seen.transpose(1, 2).reshape(rows, length, width), own.o_proj)
    gate, up = applied(_normed(layer.post_attention_layernorm, hidden), mlp.gate_proj, mlp.up_proj).chunk(2, -1)
    return hidden + applied(F.silu(gate) * up, mlp.down_proj)


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
        hidden = decode(model, embedded)
        logits = model.lm_head(hidden[:, -self.room - 1 : -1] if before is not None else hidden[:, :-1])
        if before is None:
            ids = ids[:, 1:]
        place = torch.arange(self.room - ids.shape[1], self.room, device=ids.device)
        asked = (place >= self.start[chosen, None]) & (place < self.end[chosen, None])
        return F.cross_entropy(logits.flatten(0, 1).float(), torch.where(asked, ids, -100).flatten())


def in_front(model: Any, seen: Tensor, known: Words) -> Tensor:
    """Embeddings of everything before a dialogue about a picture: "USER: " and the image tokens."""
    table = model.model.language_model.embed_tokens
    start = table(constant(known.before_image, seen.device)).expand(len(seen), -1, -1)
    patches = model.model.multi_modal_projector(seen)
    return torch.cat([start.to(patches.dtype), patches], dim=1)


def decoder(model: Any) -> tuple[nn.Module, ...]:
    """All of the language model but its input embeddings, which the tower's words were aligned with."""
    inner = model.model.language_model
    return inner.layers, inner.norm, model.lm_head


def train_language(model: Any, rows: Dialogues, stage: Stage, log: Log, device: str) -> None:
    """The decoder on text alone."""
    model.model.language_model.embed_tokens.weight.requires_grad_(False)
    Trainer(decoder(model), stage, device).run(lambda chosen: rows.loss(model, chosen), len(rows), log)


def train_projector(
    model: Any, seen: Tensor, rows: Dialogues, known: Words, stage: Stage, log: Log, device: str
) -> None:
    """The projector alone, on captions."""

    def loss_of(chosen: Tensor) -> Tensor:
        return rows.loss(model, chosen, in_front(model, seen[chosen], known))

    model.requires_grad_(False)
    model.model.multi_modal_projector.requires_grad_(True)
    Trainer((model.model.multi_modal_projector,), stage, device).run(loss_of, len(rows), log)
    model.requires_grad_(True)


@contextmanager
def sharpened(model: Any, factor: float) -> Iterator[None]:
    """The model with its output layer multiplied by `factor`."""
    weight = model.lm_head.weight.data
    before = weight.clone()
    weight.mul_(factor)
    try:
        yield
    finally:
        weight.copy_(before)


def finetune(
    model: Any,
    seen: Tensor,
    captions: Dialogues,
    questions: Dialogues,
    known: Words,
    stage: Stage,
    log: Log,
    device: str,
    after: Callable[[int], None] | None = None,
    until: float = math.inf,
    texts: Dialogues | None = None,
) -> None:
    """Projector and decoder, on captions and questions; the tower and the embeddings stay as they are. With
    `texts`, dialogues without a picture go on to be learned beside them."""

    def loss_of(chosen: Tensor) -> Tensor:
        # The caption of one half of the pictures, a question about the other half.
        half = len(chosen) // 2
        told, asked = chosen[:half], chosen[half:]
        loss = captions.loss(model, told, in_front(model, seen[told], known))
        loss = loss + 0.5 * questions.loss(model, asked, in_front(model, seen[asked], known))
        return loss if texts is None else loss + 0.5 * texts.loss(model, told)

    model.requires_grad_(False)
    trained = (model.model.multi_modal_projector, *decoder(model))
    for module in trained:
        module.requires_grad_(True)
    Trainer(trained, stage, device).run(loss_of, len(seen), log, after, until)
    model.requires_grad_(True)
