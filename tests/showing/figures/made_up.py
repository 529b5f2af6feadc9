"""Answers about real scenes with made-up numbers: every figure can be drawn and recomputed without a model."""

from __future__ import annotations

import math

import torch

from seewhen.backbones.grids import ImageGrid
from seewhen.decoding.trace import Trace
from seewhen.scenes import CATEGORIES, dataset
from seewhen.showing.figures.cases import Case, scene_case

LAYERS, HEADS, SIDE = 6, 2, 12
TILTED = (3, 4, 5)
THRESHOLD = 0.6


def said(names: tuple[str, ...], absent: str) -> list[str]:
    """Tokens of a caption that names all that is there and one thing that is not."""
    pieces = [" The", " image", " shows"]
    for name in (*names, absent):
        pieces += [" a", *(f" {part}" for part in name.split()), " and"]
    return [*pieces[:-1], ".", "</s>"]


def trace_of(texts: list[str], seed: int) -> Trace:
    """A full trace of random numbers, with gates that follow from its entropies."""
    random = torch.Generator().manual_seed(seed)
    steps, patches = len(texts), SIDE * SIDE

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(steps, 1, *shape, generator=random)

    entropy = uniform(LAYERS) * torch.linspace(2.0, 1.0, LAYERS)
    threshold = torch.full((steps, 1, LAYERS), math.nan)
    threshold[..., list(TILTED)] = THRESHOLD
    gate = torch.zeros(steps, 1, LAYERS, dtype=torch.bool)
    for layer in TILTED:
        gate[..., layer] = entropy[..., layer - 1] > THRESHOLD
    heads = uniform(HEADS, patches) / patches
    attention = uniform(LAYERS, patches) / patches
    tensors = {
        "entropy": entropy,
        "threshold": threshold,
        "gate": gate,
        "relevance": uniform(patches),
        "attention_before": attention,
        "attention_after": attention * 1.2,
        "heads_before_at_5": heads,
        "heads_after_at_5": heads * 1.2,
        "chosen_log_probs": uniform().log(),
    }
    for layer in range(LAYERS):
        tensors[f"cosine_at_{layer}"] = 2 * uniform(patches) - 1
    return Trace(
        method={"method": "cai", "parameters": {}},
        level="full",
        num_layers=LAYERS,
        softmax_layers=tuple(range(LAYERS)),
        tilted_layers=TILTED,
        prompt_length=4,
        lengths=(steps,),
        tokens=torch.arange(steps)[:, None],
        tensors=tensors,
        image_tokens=(patches,),
        grids=((ImageGrid(0, 0, SIDE, SIDE, SIDE),),),
        texts=(tuple(texts),),
    )


def answers(count: int) -> list[Case]:
    """Answers about `count` scenes."""
    found = []
    for number, scene in enumerate(dataset("test", count)):
        absent = next(name for name in CATEGORIES[number:] if name not in scene.names)
        trace = trace_of(said(scene.names, absent), number)
        found.append(scene_case(scene, "Please describe this image in detail.", "", trace))
    return found
