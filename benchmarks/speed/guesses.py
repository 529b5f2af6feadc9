"""Gates that are guessed and checked afterwards: how often is a guess wrong, and what would a token cost?

    PYTHONPATH=src:benchmarks python benchmarks/speed/guesses.py --out benchmarks/speed/results/guesses.json

The last reading of the head in a step gives the exact entropies of all gates for nothing, if the states before
them are kept: a few more rows in a pass that reads memory. So a gate may act on a guess, if a step whose guess
was wrong is taken back. The running statistics then always see exact entropies.

A guess here is the entropy under a copy of the head in few bits (whole numbers, one scale per row, chosen for the
least squared error), whose likely words are then read again in full: those with a probability above `cut`, at
most 1 / cut of them. What is left is a sum of many small errors. Its deviation is known to first order: along
a logit the entropy has the slope `-p_i (log p_i + H)`, and a logit's error has the deviation
`|w_i - v_i| |h| / sqrt(d)` where the two point in unrelated directions. Where the guess is within `sigmas`
deviations of the threshold, the gate
reads the whole head after all (a second look, on the device); elsewhere it acts, and the check finds the rest.

States are those that CAI meets, in answers of the two packaged models: the threshold is the adaptive rule's.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

import seewhen
from seewhen.backbones.backbone import Backbone
from seewhen.backbones.prompts import chat_prompt, model_inputs
from seewhen.equations.when import Gate, RunningEntropy, entropy
from seewhen.scenes import dataset, render
from seewhen.scenes.photographs import photographs

RULE = Gate(start=0.1 * math.log(10))
QUESTIONS = (
    "Please describe this image in detail.",
    "What is this picture about? Tell a short story.",
    "List what you see, and say where it is.",
)


@dataclass(frozen=True)
class Answer:
    """Normed states (tokens, d) before each gated layer of one answer."""

    states: dict[int, Tensor]


def answers(name: str, pictures: list, tokens: int, start: float) -> tuple[Tensor, list[Answer]]:
    """The head, and greedy and sampled answers with CAI."""
    model, processor = seewhen.load(name, device="cpu", dtype="float32")
    backbone = Backbone.of(model)
    gated = [layer for layer in backbone.softmax_layers if layer > int(start * backbone.num_layers)]
    found: dict[int, list[Tensor]] = {}

    def keep(layer: int):
        def hook(module, args, kwargs) -> None:
            found[layer].append((args[0] if args else kwargs["hidden_states"])[:1, -1].float())

        return hook

    handles = [backbone.layers[layer].register_forward_pre_hook(keep(layer), with_kwargs=True) for layer in gated]
    out = []
    torch.manual_seed(0)
    for picture in pictures:
        for question in QUESTIONS:
            inputs = model_inputs(model, processor, [[picture]], [chat_prompt(processor, question, 1)])
            for samples in (False, True):
                found.update({layer: [] for layer in gated})
                with seewhen.attach(model, seewhen.method("cai", start_layer=start), fast="off"):
                    model.generate(**inputs, max_new_tokens=tokens, do_sample=samples)
                out.append(Answer({la: backbone.norm(torch.cat(each)) for la, each in found.items()}))
    for handle in handles:
        handle.remove()
    return backbone.head.weight.detach().float(), out


def in_bits(head: Tensor, bits: int) -> Tensor:
    """The head in whole numbers of so many bits: the clipping of each row with the least squared error."""
    most = 2 ** (bits - 1) - 1
    best, least = head, torch.full((len(head), 1), math.inf)
    largest = head.abs().amax(1, keepdim=True).clamp(min=1e-30)
    for share in torch.linspace(0.3, 1.0, 15):
        scale = largest * share / most
        copy = (head / scale).round().clamp(-most, most) * scale
        error = (copy - head).square().sum(1, keepdim=True)
        best, least = torch.where(error < least, copy, best), torch.minimum(error, least)
    return best


def guessed(head: Tensor, copy: Tensor, states: Tensor, cut: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """Entropy (n,), its deviation, and how many words were read in full, for states (n, d)."""
    off = (head - copy).norm(dim=1)[None] * states.norm(dim=1, keepdim=True) / head.shape[1] ** 0.5
    logits = states @ copy.T
    # The exponential of a wrong logit is too large on average, by the factor exp(deviation^2 / 2).
    log_p = torch.log_softmax(logits - off.square() / 2, dim=-1)
    likely = torch.zeros_like(log_p, dtype=torch.bool) if cut is None else log_p > math.log(cut)
    logits = torch.where(likely, states @ head.T, logits - off.square() / 2)
    log_p = torch.log_softmax(logits, dim=-1)
    value = entropy(logits)
    slope = log_p.exp() * (log_p + value[:, None])
    return value, (slope * off).masked_fill(likely, 0.0).square().sum(-1).sqrt(), likely.sum(-1)


def thresholds(values: Tensor) -> Tensor:
    """The adaptive rule's thresholds along one answer."""
    history, out = RunningEntropy.zeros(1, values.device), []
    for value in values:
        out.append(history.threshold(RULE.sd_factor, RULE.start)[0])
        history.update(value[None])
    return torch.stack(out)


def shares(head: Tensor, copy: Tensor, given: list[Answer], bits: int, cut: float | None, sigmas: float) -> dict:
    """How often a guess is wrong, and how often the gate looks twice, per gate and per token."""
    wrong, looks, left, errors, scaled, words = [], [], [], [], [], []
    for answer in given:
        rows = []
        for states in answer.states.values():
            exact = entropy(states @ head.T)
            limit = thresholds(exact)
            value, deviation, read = guessed(head, copy, states, cut)
            twice = (value - limit).abs() <= sigmas * deviation + 1e-6
            miss = (value > limit) != (exact > limit)
            rows.append((miss, twice, miss & ~twice))
            errors.append((value - exact).abs())
            scaled.append((value - exact) / deviation.clamp(min=1e-9))
            words.append(read.float())
        for kept, each in zip((wrong, looks, left), zip(*rows, strict=True), strict=True):
            kept.append(torch.stack(each))
    gates = {name: torch.cat(v, dim=1) for name, v in (("wrong", wrong), ("looks", looks), ("left", left))}
    error, words_read, z = torch.cat(errors), torch.cat(words), torch.cat(scaled)
    return {
        "bits": bits,
        "cut": cut,
        "sigmas": sigmas,
        "tokens": gates["wrong"].shape[1],
        "gates": gates["wrong"].shape[0],
        "wrong guesses, per gate": gates["wrong"].float().mean().item(),
        "tokens with a wrong guess": gates["wrong"].any(0).float().mean().item(),
        "second looks, per gate": gates["looks"].float().mean().item(),
        "tokens wrong after second looks": gates["left"].any(0).float().mean().item(),
        "words read in full, mean": words_read.mean().item(),
        "words read in full, 95 %": words_read.quantile(0.95).item(),
        "error of the entropy, median": error.median().item(),
        "error of the entropy, 99 %": error.quantile(0.99).item(),
        "error in deviations, root mean square": z.square().mean().sqrt().item(),
    }


def flat(tokens: int) -> tuple[Tensor, list[Answer]]:
    """A random head of 32,064 x 1,024 whose words are all about as likely, as in models of random weights."""
    torch.manual_seed(0)
    head = torch.randn(32064, 1024) * 0.04
    states = torch.randn(tokens, 1024)
    return head, [Answer({0: states / states.square().mean(1, keepdim=True).sqrt()})]


def subjects(options: argparse.Namespace) -> Iterator[tuple[str, tuple[Tensor, list[Answer]]]]:
    """What the guesses are tried on."""
    scenes = [render(scene) for scene in dataset("shifted", options.pictures)]
    taken = [Image.open(photo.path).convert("RGB") for photo in photographs()][: options.pictures]
    yield "photo", answers("photo", taken, options.tokens, 0.85)
    yield "packaged", answers("packaged", scenes, options.tokens, 0.5)
    yield "random, flat", flat(options.tokens * 4)


@torch.no_grad()
def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--pictures", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    rows = []
    for name, (head, given) in subjects(options):
        for bits in (8, 6, 4, 3):
            copy = in_bits(head, bits)
            for cut in (None, 2**-10, 2**-13):
                row = {"head": name, "words": len(head)} | shares(head, copy, given, bits, cut, 3.0)
                rows.append(row)
                print({k: round(v, 5) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    if options.out:
        result = {
            "command": f"guesses.py --pictures {options.pictures} --tokens {options.tokens}",
            "versions": {p: version(p) for p in ("torch", "transformers")} | {"python": platform.python_version()},
            "rows": rows,
        }
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
