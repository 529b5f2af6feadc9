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
| relevance | image tokens | full |
| mass_before, mass_after | layers: share of attention on the image, mean over heads | full |
| attention_before, attention_after | layers, image tokens: mean over heads | full |
| relevance_at_L, cosine_at_L | image tokens: read at source layer L | full, `relevance_layers` |
| heads_before_at_L, heads_after_at_L | heads, image tokens: attention of layer L | full, `head_layers` |
| top_ids, top_log_probs | 5: chosen and runner-up tokens of the final scores | full |
| logits, scores | vocabulary | replay |
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seewhen.atomic import replacing
from seewhen.errors import InvalidInput
from seewhen.grids import ImageGrid
from seewhen.sequence import Sequence

FORMAT = 1


@dataclass(frozen=True)
class Trace:
    """What happened in one call of `generate` (or `replay`), for all its rows."""

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
    meta: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        sequence: Sequence,
        method: dict[str, Any],
        tokens: Tensor,
        eos: frozenset[int],
        entropy_base: float = math.e,
        beam_indices: Tensor | None = None,
    ) -> Trace:
        """Bring the recorded buffers of `sequence` to the host. `tokens` (rows, steps).

        After a beam search `beam_indices` (rows, steps) says which row each token of a returned sequence
        came from (-1 past its end); its trace is put together from those rows.
        """
        recorder = sequence.recorder
        steps = tokens.shape[1]
        tensors = {name: buffer[:steps].cpu() for name, buffer in recorder.buffers.items()}
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
            lengths=tuple(_length(row, eos) for row in tokens.tolist()),
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

    def summary(self) -> str:
        """What a person wants to know, in a few lines."""
        name = self.method.get("method", "?")
        total = sum(self.lengths)
        lines = [f"{name}: {total} token{'s' * (total != 1)} in {self.rows} row{'s' * (self.rows != 1)}"]
        if not self.tilted_layers:
            lines.append("no attention intervention")
            return "\n".join(lines)
        hit = sum(self.fired_tokens())
        lines.append(
            f"tilted {hit} of {total} tokens ({100 * hit / max(total, 1):.0f} %), "
            f"layers {_ranges(self.tilted_layers)} of {self.num_layers}"
        )
        fired = self.fired().sum(dim=0)
        per_layer = ", ".join(f"{layer}: {int(fired[layer])}" for layer in self.tilted_layers)
        lines.append(f"fired per layer: {per_layer}")
        if hit == 0:
            lines.append("it never fired: the gate stayed closed at every token")
        if "mass_before" in self.tensors and hit:
            gate = self.tensors["gate"]
            before = float(self.tensors["mass_before"][gate].mean())
            after = float(self.tensors["mass_after"][gate].mean())
            lines.append(f"image attention where it fired: {before:.3f} before, {after:.3f} after")
        return "\n".join(lines)

    def save(self, path: str | Path) -> Path:
        """Write `path`.json and `path`.safetensors (atomically); returns the JSON's path."""
        from safetensors.torch import save_file

        base = _base(path)
        tensors = {**self.tensors, "tokens": self.tokens}
        described = {k: v for k, v in self.__dict__.items() if k not in ("tensors", "tokens", "grids")}
        described["grids"] = [[asdict(grid) for grid in row] for row in self.grids]
        described["format"] = FORMAT
        target = base.with_name(base.name + ".safetensors")
        with replacing(target) as temporary:
            save_file({k: v.contiguous() for k, v in tensors.items()}, temporary)
        final = base.with_name(base.name + ".json")
        with replacing(final) as temporary:
            Path(temporary).write_text(json.dumps(described, ensure_ascii=False, indent=1))
        return final

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read what `save` wrote."""
        from safetensors.torch import load_file

        base = _base(path)
        described_path = base.with_name(base.name + ".json")
        try:
            described = json.loads(described_path.read_text())
            tensors = load_file(base.with_name(base.name + ".safetensors"))
        except FileNotFoundError as error:
            raise InvalidInput(
                f"No trace at {base}: {error.filename} is missing.",
                "Traces are made by `seewhen describe --trace FILE`.",
            ) from None
        except (ValueError, OSError) as error:
            raise InvalidInput(f"{described_path} is not a trace: {error}", "") from None
        if not isinstance(described, dict) or described.pop("format", None) != FORMAT:
            raise InvalidInput(f"{described_path} is not a trace of this version.", "Make it again.")
        grids = tuple(tuple(ImageGrid.from_json(g) for g in row) for row in described.pop("grids"))
        fields = {k: _tuples(v) if isinstance(v, list) else v for k, v in described.items()}
        return cls(**fields, grids=grids, tokens=tensors.pop("tokens"), tensors=tensors)


def _base(path: str | Path) -> Path:
    path = Path(path)
    return path.with_suffix("") if path.suffix in (".json", ".safetensors") else path


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


def _length(tokens: list[int], eos: frozenset[int]) -> int:
    for index, token in enumerate(tokens):
        if token in eos:
            return index + 1
    return len(tokens)


def _tilted_layers(sequence: Sequence) -> tuple[int, ...]:
    from seewhen.tilting import Tilt

    layers = {layer for i in sequence.interventions if isinstance(i, Tilt) for layer in i.layers}
    return tuple(sorted(layers))


def _ranges(numbers: tuple[int, ...]) -> str:
    """`(3, 4, 5, 9)` as `3-5, 9`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)
