"""Trace: what happened, per token and layer.

A trace holds tensors of shape (steps, rows, ...) by name and what is needed to read them. Step t is
the forward pass that produced token t; step 0 is the prefill. Layer l of `gate`, `threshold`, `mass_*`
and `attention_*` is the layer that was (or was not) tilted; layer l of `entropy` is the layer whose
output was read, so `gate[t, l]` was decided by `entropy[t, l - 1]`. Entropy of layer L-1 is that of
the raw output distribution. Entropies and thresholds are to the method's own base (`entropy_base`: nats
unless the method says otherwise).

| name | shape after (steps, rows) | kept |
|---|---|---|
| gate | layers, bool | always, for methods with a gate or tilt |
| entropy, threshold | layers; NaN where not read | always (gated layers); full: all layers |
| changed | bool: the method's rule made another token the likeliest | always, for methods with a rule |
| relevance | image tokens | full |
| mass_before, mass_after | layers: share of attention on the image, mean over heads | full |
| attention_before, attention_after | layers, image tokens: mean over heads | full |
| relevance_at_L, cosine_at_L | image tokens: read at source layer L | full, `relevance_layers` |
| heads_before_at_L, heads_after_at_L | heads, image tokens: attention of layer L | full, `head_layers` |
| top_ids, top_log_probs | 5: chosen and runner-up tokens of the final scores | full |
| logits, scores | vocabulary | replay |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seewhen.backbones.grids import ImageGrid
from seewhen.decoding import stored_trace, telling
from seewhen.decoding.naming import name_in
from seewhen.decoding.sequence import CachedSequence
from seewhen.lazy import provided


@dataclass(frozen=True, repr=False)
class Trace:
    """What happened in one call of `generate` (or `replay`), for all its rows.

    Tensors are attributes, `trace.entropy`, of the shape (steps, rows, ...). A notebook shows the words.

    Examples:
        >>> answers = seewhen.generate(model, processor, "photo.jpg", "What is there?", trace=True)
        >>> print(answers.trace.summary())
        >>> answers.trace.save("t.json")  # `seewhen view t.json` shows it, with its words and its picture
    """

    method: dict[str, Any]
    level: str
    num_layers: int
    softmax_layers: tuple[int, ...]
    tilted_layers: tuple[int, ...]
    prompt_length: int
    lengths: tuple[int, ...]  # tokens of each row, up to and with its end-of-sequence token
    tokens: Tensor  # (steps, rows)
    tensors: dict[str, Tensor]
    image_tokens: tuple[int, ...]  # number of image tokens of each row
    grids: tuple[tuple[ImageGrid, ...], ...] = ()  # per row: the images' patch grids, for overlays
    texts: tuple[tuple[str, ...], ...] = ()  # per row: the text of each token
    runner_texts: tuple[tuple[tuple[str, ...], ...], ...] = ()  # per row and step: text of top_ids
    entropy_base: float = math.e
    model: str = ""
    told: tuple[dict[str, Any], ...] = ()  # per row: what the method itself tells (verdicts, say)
    meta: dict[str, Any] = field(default_factory=dict)
    does: tuple[str, ...] = ()  # what the method was placed on the model to do, in words
    pictures: tuple[bytes, ...] = ()  # those of all rows, as small image files
    # Finds words and pictures when somebody wants to see or keep them: most traces are only counted.
    completing: Callable[..., Trace] | None = field(default=None, compare=False)

    @classmethod
    def of(
        cls,
        sequence: CachedSequence,
        method: dict[str, Any],
        tokens: Tensor,
        eos: frozenset[int],
        entropy_base: float = math.e,
        beam_indices: Tensor | None = None,
        passes: Tensor | None = None,
        padding: int | None = None,
    ) -> Trace:
        """Bring the recorded buffers of `sequence` to the host. `tokens` (rows, steps).

        After a beam search `beam_indices` (rows, steps) says which row each token of a returned sequence
        came from (-1 past its end); its trace is put together from those rows. Where tokens were taken back
        `passes` (rows, steps) says which forward pass made each of those that stayed.
        """
        recorder = sequence.recorder
        steps = tokens.shape[1]
        if passes is None:
            tensors = {name: buffer[:steps].cpu() for name, buffer in recorder.buffers.items()}
        else:
            row = torch.arange(len(passes))
            tensors = {name: buffer.cpu()[passes.T, row] for name, buffer in recorder.buffers.items()}
        image_tokens = sequence.image.valid.sum(dim=1).cpu()
        if beam_indices is not None:
            path = beam_indices[:, :steps].cpu().clamp(min=0).T
            rows = torch.arange(path.shape[0])[:, None]
            tensors = {name: tensor[rows, path] for name, tensor in tensors.items()}
            image_tokens = image_tokens[path[0]]
        if "top_ids" in tensors:
            tensors["top_ids"] = tensors["top_ids"].nan_to_num(0).long()
        return cls(
            method=method,
            level=recorder.level,
            num_layers=sequence.backbone.num_layers,
            softmax_layers=sequence.backbone.softmax_layers,
            tilted_layers=_tilted_layers(sequence),
            prompt_length=sequence.prompt_length - sequence.widened,
            lengths=tuple(answer_length(row, eos, padding) for row in tokens.tolist()),
            tokens=tokens.T.cpu().contiguous(),
            tensors=tensors,
            image_tokens=tuple(image_tokens.tolist()),
            entropy_base=entropy_base,
            model=getattr(sequence.backbone.model.config, "_name_or_path", "") or "",
        )

    @property
    def rows(self) -> int:
        """Number of sequences."""
        return len(self.lengths)

    def __getattr__(self, name: str) -> Tensor:
        # `trace.entropy` for `trace.tensors["entropy"]`.
        tensors = self.__dict__.get("tensors", {})
        if name in tensors:
            return tensors[name]
        raise AttributeError(
            f"This trace has no {name!r}; it has {', '.join(sorted(tensors)) or 'no tensors'} "
            f"(level {self.__dict__.get('level')!r}; attach with trace=True for all)."
        )

    def row(self, index: int) -> dict[str, Tensor]:
        """The tensors of one row, (steps, ...), cut at the row's own length."""
        return {name: tensor[: self.lengths[index], index] for name, tensor in self.tensors.items()}

    def fired(self) -> Tensor:
        """How many tokens of each row were tilted at each layer: (rows, layers)."""
        counts = torch.zeros(self.rows, self.num_layers, dtype=torch.long)
        gate = self.tensors.get("gate")
        if gate is not None:
            for row, length in enumerate(self.lengths):
                counts[row] = gate[:length, row].sum(dim=0)
        return counts

    def fired_tokens(self) -> tuple[int, ...]:
        """How many tokens of each row were tilted in at least one layer."""
        gate = self.tensors.get("gate")
        if gate is None:
            return (0,) * self.rows
        return tuple(int(gate[:n, row].any(dim=-1).sum()) for row, n in enumerate(self.lengths))

    def with_texts(self, tokenizer: Any) -> Trace:
        """A copy that knows the text of its tokens."""

        def words(ids: list[int]) -> tuple[str, ...]:
            # Decoding growing prefixes keeps spaces and multi-token characters right.
            texts, before = [], ""
            for end in range(1, len(ids) + 1):
                after = tokenizer.decode(ids[:end], skip_special_tokens=False)
                texts.append(after[len(before) :])
                before = after
            return tuple(texts)

        per_row = [self.tokens[:n, row].tolist() for row, n in enumerate(self.lengths)]
        runners: tuple[tuple[tuple[str, ...], ...], ...] = ()
        if "top_ids" in self.tensors:
            top = self.tensors["top_ids"]
            runners = tuple(
                tuple(tuple(tokenizer.decode([t]) for t in top[s, row].tolist()) for s in range(n))
                for row, n in enumerate(self.lengths)
            )
        return replace(self, texts=tuple(words(ids) for ids in per_row), runner_texts=runners)

    def with_grids(self, grids: tuple[tuple[ImageGrid, ...], ...]) -> Trace:
        """A copy that knows the patch grids of its images."""
        return replace(self, grids=grids)

    def pictures_in(self, row: int) -> int:
        """How many pictures a row has; one where its grids are not known."""
        grids = self.grids[row] if self.grids else ()
        return max((grid.image + 1 for grid in grids), default=1) if self.image_tokens[row] else 0

    def whole(self) -> Trace:
        """The trace with its words and pictures, as far as they are known."""
        return self if self.completing is None else replace(self.completing(self), completing=None)

    def summary(self) -> str:
        """What a person wants to know, in a few lines: what the method did, where, and how often.

        Returns:
            The method and the number of tokens; what the method does, or why it did nothing; and what was counted:
            tokens that were tilted, layer by layer, tokens whose likeliest choice changed, objects asked about.
        """
        total = sum(self.lengths)
        rows = f"{self.rows} row{'s' * (self.rows != 1)}"
        first = f"{name_in(self.method)}: {total} token{'s' * (total != 1)} in {rows}"
        return "\n".join([first, *self.does, *(_counted(self) or _uncounted(self))])

    def page(self, path: str | Path, *, image: Any = None) -> Path:
        """Write one self-contained HTML page: each word, how sure the model was, and where it looked.

        Args:
            path: The file to write.
            image: The picture, or a list with those of all rows, where the trace does not know them.

        Returns:
            The path.
        """
        return provided("page")(path, self, image=image)

    def _repr_html_(self) -> str:
        return provided("notebook_html")(self)

    def __repr__(self) -> str:
        counts = f"{sum(self.lengths)} tokens in {self.rows} row{'s' * (self.rows != 1)}"
        kept = f": {', '.join(self.tensors)}" if self.tensors else ""
        return f"Trace({name_in(self.method)}, {counts}, {self.level}{kept})"

    def save(self, path: str | Path) -> Path:
        """Write `path`.json and `path`.safetensors, each whole or not at all; `seewhen view` shows them.

        Args:
            path: Either of the two, or their name without an ending.

        Returns:
            The path of the JSON file.
        """
        return stored_trace.save(vars(self.whole()), path)

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read what `save` wrote.

        Args:
            path: Either of the two files, or their name without an ending.
        """
        return cls(**stored_trace.load(path))


def answer_length(tokens: list[int], ends: frozenset[int], padding: int | None = None) -> int:
    """Up to and with the token that ends the answer. One that a method ended (`confirm` does, before a sentence it
    takes back) has no such token: it goes up to the padding beside longer answers of the batch."""
    for index, token in enumerate(tokens):
        if token in ends:
            return index + 1
    length = len(tokens)
    while length and tokens[length - 1] == padding:
        length -= 1
    return length


def _tilted_layers(sequence: CachedSequence) -> tuple[int, ...]:
    from seewhen.decoding.tilted_attention import Tilt

    layers = {layer for i in sequence.interventions if isinstance(i, Tilt) for layer in i.layers}
    return tuple(sorted(layers))


def _uncounted(trace: Trace) -> list[str]:
    """Some methods act all the time, and nothing of it can be counted in one answer."""
    idle = not trace.does or trace.does in ((telling.PASSED,), (telling.UNCHANGED,))
    return [] if idle else ["how often that changed a token is not counted: compare with regular decoding"]


def _counted(trace: Trace) -> list[str]:
    """What was counted, a line each."""
    return [] if trace.does == (telling.PASSED,) else list(_counts(trace))


def _counts(trace: Trace) -> Iterator[str]:
    total = sum(trace.lengths)
    if "gate" in trace.tensors:
        yield from _fired(trace, total)
    if "changed" in trace.tensors:
        changed = sum(int(trace.row(row)["changed"].sum()) for row in range(trace.rows))
        yield f"another token became the likeliest at {_share(changed, total)}"
    if "draws" in trace.tensors:
        draws = sum(int(trace.row(row)["draws"].nan_to_num(0).sum()) for row in range(trace.rows))
        yield f"{draws} tokens drawn to keep {total}"
    asked = [told for told in trace.told if {"asked", "taken_back"} <= told.keys()]
    if asked:
        objects, back = sum(told["asked"] for told in asked), sum(len(told["taken_back"]) for told in asked)
        yield f"asked about {objects} object{'s' * (objects != 1)}, took back {back} sentence{'s' * (back != 1)}"


def _fired(trace: Trace, total: int) -> Iterator[str]:
    hit = sum(trace.fired_tokens())
    fired = trace.fired().sum(dim=0)
    layers = trace.tilted_layers or tuple(fired.nonzero().flatten().tolist())
    verb = "tilted" if trace.tilted_layers else "fired at"
    yield f"{verb} {_share(hit, total)}" + (f", layers {_ranges(layers)} of {trace.num_layers}" if layers else "")
    if hit == 0:
        yield "it never fired: the gate stayed closed at every token"
        return
    yield "fired per layer: " + ", ".join(f"{layer}: {int(fired[layer])}" for layer in layers)
    if {"gate", "mass_before", "mass_after"} <= trace.tensors.keys() and trace.tilted_layers:
        gate = trace.tensors["gate"]
        before, after = (float(trace.tensors[f"mass_{when}"][gate].mean()) for when in ("before", "after"))
        yield f"image attention where it fired: {before:.3f} before, {after:.3f} after"


def _share(part: int, total: int) -> str:
    return f"{part} of {total} tokens ({100 * part / max(total, 1):.0f} %)"


def _ranges(numbers: tuple[int, ...]) -> str:
    """`(3, 4, 5, 9)` as `3-5, 9`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)
