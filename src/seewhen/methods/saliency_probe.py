"""The saliency of candidates for the next token: attention times gradient, of the newest row.

The gradient is that of `-log p(candidate)` with respect to the newest token's attention in some layers. By
causality no other position depends on that row, so a pass over the newest token after a cache of all before it
is enough, forwards and (from the first of the layers up) backwards. Rows of a batch share no parameter that
is differentiated: the gradient of their sum is every row's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from seewhen.decoding.attention_call import AttentionCall
from seewhen.decoding.hosting import KEYWORD
from seewhen.decoding.prefill import Prefill
from seewhen.errors import UnsupportedModel

if TYPE_CHECKING:
    from seewhen.backbones.backbone import Backbone

_SMALLEST = 1e-9


class _ProbedStep:
    """Stands for the step in a pass of our own: makes the target layers' last attention row a graph node.

    Recording of the graph starts at the first target layer; nothing below it is kept.
    """

    def __init__(self, layers: tuple[int, ...]) -> None:
        self.edited, self.masked, self.fork = frozenset(layers), frozenset[int](), None
        self.maps: list[Tensor] = []  # (rows, heads, columns) of each target layer

    def before_layer(self, layer: int, hidden: Tensor) -> None:
        """Nothing to see."""

    def edit_attention(self, call: AttentionCall) -> Tensor:
        """The same output, its last row computed from a map that gradients can be taken of."""
        attention = call.probabilities(call.scores)
        if not self.maps:
            torch.set_grad_enabled(True)  # until the end of the pass's no_grad block
            attention = attention.detach().requires_grad_()
        self.maps.append(attention)
        rows, heads, columns = attention.shape
        row = attention.view(rows, -1, call.groups, columns) @ call.value.float()
        row = row.view(rows, 1, heads, -1).to(call.output.dtype)
        return torch.cat([call.output[:, :-1], row], dim=1)


class SaliencyProbe:
    """Saliency of candidates for the next token after the prompt and the outputs `tokens` (rows, steps).

    `cache`, if given, holds all positions but the newest, and takes that one up.
    """

    def __init__(
        self, backbone: Backbone, prefill: Prefill, tokens: Tensor, layers: tuple[int, ...], cache: Any = None
    ) -> None:
        watch = _ProbedStep(layers)
        end = prefill.embeds.shape[1] + tokens.shape[1]
        # Tensors made in inference mode cannot be part of a graph; new ones made outside of it can.
        with torch.inference_mode(False), torch.no_grad():
            arguments = _arguments(backbone, prefill, tokens, 0 if cache is None else end - 1, end)
            hidden = backbone.read(**arguments | {KEYWORD: watch}, cache=cache)
            logits = backbone.project(hidden[:, -1]).float()
            self.log_probs = torch.log_softmax(logits, dim=-1)
        for layer in () if cache is None else cache.layers:  # later passes must not go back into this one
            layer.keys, layer.values = layer.keys.detach(), layer.values.detach()
        self.maps = watch.maps
        self.outputs = torch.nn.functional.pad(prefill.tail, (0, tokens.shape[1]), value=True)

    def saliency(self, candidates: Tensor) -> Tensor:
        """Of one candidate per row: (layers, rows, columns), mean over heads, not yet normalised."""
        with torch.inference_mode(False), torch.enable_grad():
            index = candidates.clone().to(self.log_probs.device)[:, None]
            loss = -self.log_probs.gather(1, index).sum()
            gradients: Any = (None,)
            if loss.requires_grad:
                gradients = torch.autograd.grad(loss, self.maps, retain_graph=True, allow_unused=True)
        if any(gradient is None for gradient in gradients):
            raise UnsupportedModel(
                "saliency: no gradient comes through this model's layers, as through some quantised ones.",
                "Load whole weights, or choose another method.",
            )
        device = self.log_probs.device
        products = [
            (p.detach() * g).abs().mean(dim=1).to(device) for p, g in zip(self.maps, gradients, strict=True)
        ]
        return torch.stack(products)

    def score(self, candidates: Tensor) -> Tensor:
        """Mean normalised saliency on the columns after the image, per row; 1 where there are none."""
        rows = self.saliency(candidates)
        rows = rows / rows.norm(dim=-1, keepdim=True).clamp(min=_SMALLEST)
        columns = self.outputs.to(rows.device)
        count = columns.sum(dim=-1)
        mean = (rows * columns).sum(dim=-1) / count.clamp(min=1)
        return torch.where(count > 0, mean.mean(dim=0), 1.0)


def _arguments(backbone: Backbone, prefill: Prefill, tokens: Tensor, start: int, end: int) -> dict[str, Any]:
    """What the decoder reads for positions `start` to before `end` of the prompt with `tokens` after it."""
    length, device, positions = prefill.embeds.shape[1], prefill.embeds.device, prefill.position_ids
    embeds, places = [prefill.embeds[:, start:end]], [positions[..., start:end]]
    if end > length:
        first = max(start - length, 0)
        new = backbone.decoder.get_input_embeddings()(tokens[:, first:].to(device))
        embeds.append(new.to(prefill.embeds))
        following = torch.arange(first + 1, end - length + 1, device=positions.device)
        places.append(positions[..., -1:] + following)
    arguments: dict[str, Any] = {
        "embeds": torch.cat(embeds, dim=1),
        "mask": torch.nn.functional.pad(~prefill.padding, (0, end - length), value=True).long(),
        "positions": torch.cat(places, dim=-1),
    }
    visual = next((extra for extra in prefill.extras.values() if isinstance(extra, Tensor)), None)
    if visual is None or start >= length:
        return arguments
    kept = visual.nonzero()[:, 1]  # the position of each visual feature
    kept = (kept >= start) & (kept < end)
    for name, extra in prefill.extras.items():
        if isinstance(extra, Tensor):  # which positions are visual
            arguments[name] = torch.nn.functional.pad(extra, (0, end - length))[:, start:]
        else:
            arguments[name] = [feature[kept.to(feature.device)] for feature in extra]
    return arguments
