"""Small probes on frozen features: which objects a photograph shows, and where a network sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from photographs import boxes, tower
from photographs.recipe import Recipe

PENALTIES = (
    100.0,
    30.0,
    10.0,
    3.0,
    1.0,
    0.3,
    0.1,
    0.03,
    0.01,
    0.003,
    0.001,
)  # strongest first: each fit starts from the last
HELD = 5  # one training photograph in so many chooses the penalty and the passes
RATES, PASSES = (2e-3, 1e-2), 12  # of the probe over positions
DINO = "dinov2-s"


@dataclass(frozen=True)
class Seen:
    """One network's features of a group of photographs, and the objects there."""

    maps: Tensor  # (n, positions, width), float16
    truth: Tensor  # (n, objects), bool

    def __getitem__(self, rows: slice) -> Seen:
        return Seen(self.maps[rows], self.truth[rows])


# The probe of whole photographs


def summary(maps: Tensor) -> Tensor:
    """(n, positions, width) -> (n, 2 * width): the mean and the maximum over positions."""
    return torch.cat([torch.cat([part.float().mean(1), part.float().amax(1)], 1) for part in maps.split(256)])


@dataclass(frozen=True)
class Probe:
    """A logistic regression for each object, on features at mean zero and spread one."""

    mean: Tensor
    spread: Tensor
    weight: Tensor
    bias: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        return F.linear((features - self.mean) / self.spread, self.weight, self.bias)


def fit(features: Tensor, truth: Tensor, penalties: Sequence[float]) -> list[Probe]:
    """The probe at each penalty: half of it times the weights' squares, on the mean loss of a photograph."""
    mean, spread = features.mean(0), features.std(0).clamp_min(1e-6)
    x, y = (features - mean) / spread, truth.float()
    weight = torch.zeros(truth.shape[1], features.shape[1], requires_grad=True)
    share = y.mean(0).clamp(1e-4, 1 - 1e-4)
    bias = torch.logit(share).requires_grad_()
    found = []
    for penalty in penalties:
        optimiser = torch.optim.LBFGS(
            [weight, bias], max_iter=60, tolerance_change=1e-7, line_search_fn="strong_wolfe"
        )

        def loss(penalty: float = penalty, optimiser: torch.optim.LBFGS = optimiser) -> Tensor:
            optimiser.zero_grad()
            wrong = F.binary_cross_entropy_with_logits(F.linear(x, weight, bias), y, reduction="sum") / len(x)
            total = wrong + penalty / 2 * weight.square().sum()
            total.backward()
            return total

        optimiser.step(loss)
        found.append(Probe(mean, spread, weight.detach().clone(), bias.detach().clone()))
    return found


def mean_precision(scores: Tensor, truth: Tensor) -> float:
    """Mean average precision over the objects that some photograph shows."""
    return float(tower.average_precision(scores, truth).nanmean())


def best_probe(features: Tensor, truth: Tensor) -> tuple[float, Probe]:
    """The penalty that does best on a fifth of these photographs, and the probe fitted to all of them with it."""
    cut = len(features) - len(features) // HELD
    tried = fit(features[:cut], truth[:cut], PENALTIES)
    reached = [mean_precision(probe(features[cut:]), truth[cut:]) for probe in tried]
    best = reached.index(max(reached))
    return PENALTIES[best], fit(features, truth, PENALTIES[: best + 1])[-1]


# The probe of positions


def train_scores(
    seen: Seen, rate: float, passes: int, check: Seen | None, seed: int
) -> tuple[tower.Scores, list[float]]:
    """The recipe's head on frozen features, and its precision on `check` after each pass."""
    torch.manual_seed(seed)
    scores = tower.Scores(seen.maps.shape[-1], seen.truth.shape[1])
    optimiser = torch.optim.AdamW(scores.parameters(), lr=rate, weight_decay=0.01)
    reached = []
    for _ in range(passes):
        for rows in torch.randperm(len(seen.maps)).split(50):
            found = tower.pooled(scores(seen.maps[rows].float()), Recipe().tower.sharpness)
            loss = F.binary_cross_entropy_with_logits(found, seen.truth[rows].float(), reduction="sum") / len(rows)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        if check is not None:
            reached.append(mean_precision(smooth_maximum(scores, check.maps), check.truth))
    return scores, reached


@torch.inference_mode()
def smooth_maximum(scores: tower.Scores, maps: Tensor) -> Tensor:
    """(n, objects)"""
    sharpness = Recipe().tower.sharpness
    return torch.cat([tower.pooled(scores(part.float()), sharpness) for part in maps.split(100)])


def best_scores(seen: Seen, seed: int) -> tuple[float, int, tower.Scores]:
    """The rate and as many passes as do best on a fifth of the photographs, then the same over all of them."""
    cut = len(seen.maps) - len(seen.maps) // HELD
    tried = [
        (precision, rate, done)
        for rate in RATES
        for done, precision in enumerate(train_scores(seen[:cut], rate, PASSES, seen[cut:], seed)[1], 1)
    ]
    _, rate, passes = max(tried)
    return rate, passes, train_scores(seen, rate, passes, None, seed)[0]


Spot = tuple[
    int, int, Tensor, float
]  # row, object, what of the grid lies on it (side, side), its share of the picture


def spots(
    known: Mapping[str, Sequence[boxes.Box]], numbers: Sequence[int], names: Sequence[str], side: int
) -> list[Spot]:
    """Every object with boxes in every photograph, and the positions whose centres lie in one of them."""
    centres = (torch.arange(side) + 0.5) / side
    found: list[Spot] = []
    for row, number in enumerate(numbers):
        by_thing: dict[str, list[tuple[float, ...]]] = {}
        for thing, *box in known[str(number)]:
            by_thing.setdefault(thing, []).append(tuple(box))
        for thing, its in by_thing.items():
            inside = torch.zeros(side, side, dtype=torch.bool)
            for left, top, right, bottom in its:
                across, down = (centres >= left) & (centres <= right), (centres >= top) & (centres <= bottom)
                inside |= down[:, None] & across[None]
            largest = max((right - left) * (bottom - top) for left, top, right, bottom in its)
            found.append((row, names.index(thing), inside, largest))
    return found


@torch.inference_mode()
def pointing(scores: tower.Scores, maps: Tensor, where: Sequence[Spot]) -> Tensor:
    """Whether each object's best position lies on it."""
    by_position = torch.cat([scores(part.float()) for part in maps.split(100)])
    best = by_position.argmax(dim=1)
    return torch.tensor([bool(inside.flatten()[best[row, thing]]) for row, thing, inside, _ in where])


# Intervals: photographs are drawn with replacement, the same ones for all networks.


def drawn_precision(scores: Mapping[str, Tensor], truth: Tensor, draws: int, seed: int) -> dict[str, Tensor]:
    """Mean average precision of each network in each draw."""
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, list[float]] = {name: [] for name in scores}
    for _ in range(draws):
        rows = torch.randint(len(truth), (len(truth),), generator=generator)
        for name, its in scores.items():
            found[name].append(mean_precision(its[rows], truth[rows]))
    return {name: torch.tensor(values) for name, values in found.items()}


def drawn_shares(
    hits: Mapping[str, Tensor], rows: Tensor, photographs: int, draws: int, seed: int
) -> dict[str, Tensor]:
    """Share of hits in each draw of photographs; `rows` says whose photograph each hit is."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(photographs, (draws, photographs), generator=generator)
    often = torch.zeros(draws, photographs).scatter_add_(1, drawn, torch.ones(draws, photographs))[:, rows]
    return {name: (often * its.float()).sum(1) / often.sum(1) for name, its in hits.items()}


def around(value: float, draws: Tensor) -> dict[str, Any]:
    """95 %, from the draws' percentiles about their own mean.

    A photograph drawn twice ranks beside itself, which lifts average precision: draws lie above the value. Only
    their spread is used.
    """
    low, high = (value + torch.quantile(draws, torch.tensor([0.025, 0.975])) - draws.mean()).tolist()
    return {"value": round(value, 4), "low": round(low, 4), "high": round(high, 4)}


def compared(values: Mapping[str, float], draws: Mapping[str, Tensor]) -> dict[str, Any]:
    """Each network, and DINOv2-S minus each other."""
    return {
        **{name: around(value, draws[name]) for name, value in values.items()},
        **{
            f"{DINO} minus {name}": around(values[DINO] - value, draws[DINO] - draws[name])
            for name, value in values.items()
            if name != DINO
        },
    }
