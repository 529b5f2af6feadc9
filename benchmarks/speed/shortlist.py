"""A gate that looks at a shortlist of words: how often does its bound decide, on the packaged model?

    python benchmarks/speed/shortlist.py --out benchmarks/speed/shortlist.json

The first gated layer looks at the whole vocabulary. A deeper one computes the logits of the first one's K
likeliest words exactly and bounds all others: with `a` the projection of its state on the first layer's
and `r` the rest, `z_j = a z0_j + w_j r`, and `|w_j r| <= |w_j| |r|`. From the bounds on the mass outside
the shortlist follow bounds on the entropy; where both lie on one side of the threshold, the gate is
decided without the other words, and by construction as the exact gate decides. Elsewhere the exact gate
must be asked, and the shortlist was a detour.
"""

from __future__ import annotations

import argparse
import json
import platform
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor

import seewhen
from seewhen.backbones.backbone import Backbone
from seewhen.backbones.prompts import chat_prompt, model_inputs
from seewhen.equations.when import entropy
from seewhen.scenes import dataset, render


def entropy_bounds(chosen: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds on the entropy from the exact logits `chosen` (n, K) and bounds on all others (n, rest).

    With mass `q` outside the shortlist: H = h(q) + (1 - q) H_inside + q H_outside, and H_outside lies between
    0 and the logarithm of the number of other words.
    """
    inside, within = torch.logsumexp(chosen, -1), entropy(chosen)
    ends = [torch.sigmoid(torch.logsumexp(bound, -1) - inside) for bound in (low, high)]
    words = torch.tensor(float(low.shape[-1])).log()

    def whole(q: Tensor, outside: Tensor | float) -> Tensor:
        binary = -(torch.xlogy(q, q) + torch.xlogy(1 - q, 1 - q))
        return binary + (1 - q) * within + q * outside

    lowest = torch.minimum(*(whole(q, 0.0) for q in ends))  # concave in q: least at an end
    best = torch.sigmoid(words - within).clamp(*ends)  # where h(q) + (1 - q) H + q log n is largest
    return lowest, whole(best, words)


def states(scenes: int, tokens: int, start: float) -> tuple[Backbone, dict[int, Tensor]]:
    """Normed last states of captions, before each gated layer: (tokens in all, d)."""
    model, processor = seewhen.load(device="cpu")
    backbone = Backbone.of(model)
    first = int(start * backbone.num_layers)
    gated = [layer for layer in backbone.softmax_layers if layer > first]
    kept: dict[int, list[Tensor]] = {layer: [] for layer in gated}
    handles = [
        backbone.layers[layer].register_forward_pre_hook(
            lambda module, args, kwargs, layer=layer: kept[layer].append(
                (args[0] if args else kwargs["hidden_states"])[:, -1].float()
            ),
            with_kwargs=True,
        )
        for layer in gated
    ]
    prompt = chat_prompt(processor, "Please describe this image in detail.", 1)
    for scene in dataset("shifted", scenes):
        inputs = model_inputs(model, processor, [[render(scene)]], [prompt])
        model.generate(**inputs, max_new_tokens=tokens, do_sample=False)
    for handle in handles:
        handle.remove()
    with torch.no_grad():
        return backbone, {layer: backbone.norm(torch.cat(found)) for layer, found in kept.items()}


@torch.no_grad()
def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--scenes", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=64)
    # Twelve layers have one gate at the usual 0.85; from the middle on there are several to compare.
    parser.add_argument("--start", type=float, default=0.5)
    options = parser.parse_args()
    backbone, found = states(options.scenes, options.tokens, options.start)
    head = backbone.head.weight.float()
    norms = head.norm(dim=1)
    layers = sorted(found)
    origin = found[layers[0]]
    at_first = origin @ head.T
    threshold = 0.1 * torch.log(torch.tensor(10.0)).item()  # the paper's, in nats
    rows = []
    for layer in layers[1:]:
        here = found[layer]
        exact = here @ head.T
        truth = entropy(exact)
        along = (here * origin).sum(1, keepdim=True) / (origin * origin).sum(1, keepdim=True)
        rest = (here - along * origin).norm(dim=1, keepdim=True)
        for share in (1 / 16, 1 / 8, 1 / 4, 1 / 2):
            count = max(1, round(share * len(head)))
            order = at_first.argsort(dim=1, descending=True)
            chosen, others = exact.gather(1, order[:, :count]), order[:, count:]
            centre, reach = along * at_first.gather(1, others), norms[others] * rest
            low, high = entropy_bounds(chosen, centre - reach, centre + reach)
            assert bool(((low <= truth + 1e-4) & (truth <= high + 1e-4)).all()), "a bound does not hold"
            opens, closes = low > threshold, high <= threshold
            decided = opens | closes
            agree = (opens == (truth > threshold))[decided]
            rows.append(
                {
                    "layer": layer,
                    "shortlist": count,
                    "share of vocabulary": share,
                    "tokens": len(truth),
                    "decided": decided.float().mean().item(),
                    "agreeing among decided": agree.float().mean().item() if len(agree) else None,
                    "median bound on |w r|": (norms.median() * rest.median()).item(),
                    "median width of entropy bounds": (high - low).median().item(),
                    "exact gate open": (truth > threshold).float().mean().item(),
                }
            )
            print({k: round(v, 3) if isinstance(v, float) else v for k, v in rows[-1].items()})
    result = {
        "command": f"shortlist.py --scenes {options.scenes} --tokens {options.tokens} --start {options.start}",
        "model": "packaged",
        "vocabulary": len(head),
        "threshold (nats)": threshold,
        "versions": {p: version(p) for p in ("torch", "transformers")} | {"python": platform.python_version()},
        "rows": rows,
    }
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
