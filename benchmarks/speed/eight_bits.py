"""A gate that reads the head in eight bits: how often does its proven bound decide?

    PYTHONPATH=src:benchmarks python benchmarks/speed/eight_bits.py --out benchmarks/speed/results/eight-bits.json

Let `w_i` be a row of the head and `v_i` its copy in eight bits. For a state `h` the logits differ by
`|w_i h - v_i h| = |(w_i - v_i) h| <= |w_i - v_i| |h| =: d_i` (Cauchy and Schwarz). No smaller bound holds for
all `h` of that length: `h` along `w_i - v_i` reaches it. So the true logits lie in a box of half-widths `d_i`
around those of the copy, and the gate is decided where the entropy is on one side of the threshold in all of it.

How far the entropy reaches in the box: along one logit its slope is `-p_i (log p_i + H)`, positive below
`p_i = exp(-H)` and negative above. So it is largest where every logit is as near to one common level as its
interval allows, and along each logit it has no minimum inside: it is smallest at a corner, where likely words are
raised and unlikely ones lowered. Both ends are searched over the level. The search for the smallest looks at the
corners of one cut only, so it may end above the true one: the share of decided tokens below is at best what a
bound could decide, and where even that is small, eight bits do not pay.

A second look reads the whole head again (16 bits), so the gate costs 0.5 + (share undecided) of an exact one.

The adaptive rule compares with mean and deviation of all entropies before, so it inherits their intervals: with
half-widths `e_t` (zero after a second look) the mean is off by at most their mean, and the deviation by at most
their root mean square (the triangle inequality). A token whose exact entropy lies that near to the threshold stays
undecided even after its second look: only looking again at all tokens before would tell.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor

from seewhen.equations.when import Gate, RunningEntropy, entropy
from speed.shortlist import states

_LEVELS = 160


def by_row(head: Tensor) -> Tensor:
    """The head in whole numbers from -127 to 127, with a scale for each row."""
    return by_block(head, head.shape[1])


def by_block(head: Tensor, width: int = 32) -> Tensor:
    """The same with a scale for each `width` columns (more scales to read: 6 % for 32)."""
    parts = head.view(len(head), -1, width)
    scale = parts.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
    return ((parts / scale).round() * scale).view_as(head)


def by_float(head: Tensor) -> Tensor:
    """The head in 8-bit floating point (e4m3), with a scale for each row."""
    scale = head.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 448
    return (head / scale).to(torch.float8_e4m3fn).float() * scale


FORMS = {"whole numbers, scale per row": by_row, "scale per 32 columns": by_block, "e4m3, scale per row": by_float}


def reach(logits: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
    """Least and largest entropy (n,) where logits (n, words) may be wrong by `width` (n, words)."""
    low, high = logits - width, logits + width
    least = largest = entropy(logits)
    top = high.amax(-1, keepdim=True)
    for share in torch.linspace(0.0, 1.0, _LEVELS):
        level = top - 40.0 * share
        largest = torch.maximum(largest, entropy(torch.minimum(torch.maximum(level, low), high)))
        least = torch.minimum(least, entropy(torch.where(logits > level, high, low)))
    return least, largest


def adaptive(exact: Tensor, least: Tensor, largest: Tensor, rule: Gate) -> tuple[Tensor, Tensor]:
    """Which tokens of one sequence need a second look, and which stay undecided even then."""
    history, halves = RunningEntropy.zeros(1, exact.device), []
    looked, lost = [], []
    for value, low, high in zip(exact, least, largest, strict=True):
        limit = history.threshold(rule.sd_factor, rule.start)[0]
        past = torch.tensor(halves or [0.0])
        off = past.mean() + rule.sd_factor * past.square().mean().sqrt()
        looks = bool((low <= limit + off) & (limit - off < high))
        looked.append(looks)
        lost.append(looks and bool((value - limit).abs() <= off) and bool(off > 0))
        middle = value if looks else (low + high) / 2
        halves.append(0.0 if looks else float(high - low) / 2)
        history.update(middle[None])
    return torch.tensor(looked), torch.tensor(lost)


def judged(name: str, head: Tensor, found: Tensor, lengths: list[int]) -> list[dict]:
    """How often each form decides, for states (n, d) of sequences of these lengths."""
    exact = entropy(found @ head.T)
    rule = Gate(start=0.1 * math.log(10))
    rows = []
    for form, copy in FORMS.items():
        if head.shape[1] % 32:
            continue
        near = copy(head)
        bound = (head - near).norm(dim=1)[None] * found.norm(dim=1, keepdim=True)
        logits = found @ near.T
        error = (logits - found @ head.T).abs()
        assert bool((error <= bound * (1 + 1e-3) + 1e-4).all()), "the bound does not hold"
        least, largest = reach(logits, bound)
        assert bool(((least <= exact + 1e-3) & (exact <= largest + 1e-3)).all()), "the entropy leaves its interval"
        row = {"head": name, "form": form, "tokens": len(exact), "entropy, median": exact.median().item()}
        row |= {"bound on a logit, median": bound.median().item(), "its error, largest": error.max().item()}
        row |= {"interval, median width": (largest - least).median().item()}
        row |= {"entropy of the copy, largest error": (entropy(logits) - exact).abs().max().item()}
        fixed = (least <= rule.start) & (rule.start < largest)
        sequences = zip(*(t.split(lengths) for t in (exact, least, largest)), strict=True)
        looked, lost = (torch.cat(parts) for parts in zip(*(adaptive(*p, rule) for p in sequences), strict=True))
        for kind, undecided in (("fixed", fixed), ("adaptive", looked)):
            share = undecided.float().mean().item()
            row[f"{kind}: needs a second look"] = share
            row[f"{kind}: cost beside an exact gate, 1 and 8 rows"] = [1.5 - (1 - share) ** n for n in (1, 8)]
        row["adaptive: undecided even then"] = lost.float().mean().item()
        rows.append(row)
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    return rows


def like_a_7b(count: int) -> tuple[Tensor, Tensor]:
    """A random head of LLaVA-1.5-7B's size and states with up to twelve likely words, the others spread."""
    torch.manual_seed(0)
    head = torch.randn(32064, 4096)
    found = torch.randn(count, 4096) * 2.5 / 64
    for state in found:
        few = int(torch.randint(1, 13, ()))
        words = torch.randint(0, len(head), (few,))
        state += ((12 + 4 * torch.rand(few))[:, None] * head[words] / 4096).sum(0)
    return head, found


@torch.no_grad()
def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--scenes", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--states", type=int, default=48, help="of the random head")
    options = parser.parse_args()
    rows = []
    backbone, kept = states(options.scenes, options.tokens, 0.85)
    for layer, found in kept.items():
        lengths = [options.tokens] * (len(found) // options.tokens)
        lengths += [len(found) % options.tokens] * bool(len(found) % options.tokens)
        rows += judged(f"packaged, before layer {layer}", backbone.head.weight.float(), found, lengths)
    head, found = like_a_7b(options.states)
    rows += judged("random, 32,064 x 4,096", head, found, [options.states])
    if options.out:
        result = {
            "command": f"eight_bits.py --scenes {options.scenes} --tokens {options.tokens} "
            f"--states {options.states}",
            "versions": {p: version(p) for p in ("torch", "transformers")} | {"python": platform.python_version()},
            "rows": rows,
        }
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
