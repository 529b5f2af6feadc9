"""What frozen networks see in the photographs, written down once: a file per network and 250 photographs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from photographs import dino, holdout, tower
from photographs.photos import SIDE, decode, read_shard
from photographs.teachers import Teacher
from seewhen.atomic import replacing
from seewhen.errors import InvalidInput

PIECE = 250  # photographs in a file
BATCH = 8

Maps = Callable[[Tensor], Tensor]  # bytes (n, side, side, 3) -> features (n, positions, width)


def chosen(store: Path, training: int, annotated: int) -> dict[str, dict[int, bytes]]:
    """Encoded photographs by group: some to fit on, all of validation, some with boxes that no question asks."""
    lists = holdout.read()
    tested = lists["pope"] | lists["chair"]
    held_out = _shards(store, "heldout")
    free = _shards(store, "train")
    if leaked := frozenset().union(*lists.values()) & free.keys():
        raise InvalidInput(f"{len(leaked)} held-out photographs are among the training shards.")
    if len(free) < training:
        raise InvalidInput(f"{store} has {len(free)} training photographs, not {training}.", "Ask for fewer.")
    known = json.loads((store / "boxes.json").read_text("utf-8"))
    boxed = [n for n in held_out if str(n) in known and n not in tested]
    return {
        "validation": {n: held_out[n] for n in sorted(lists["validation"] & held_out.keys())},
        "annotated": {n: held_out[n] for n in holdout.shuffled(boxed, "towers")[:annotated]},
        "training": {n: free[n] for n in holdout.shuffled(free, "towers")[:training]},
    }


def _shards(store: Path, kind: str) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for shard in sorted(store.glob(f"{kind}-*.safetensors")):
        found |= read_shard(shard)
    return found


def dino_maps(path: Path) -> Maps:
    """Patch tokens as the recipe's head reads them: the last layer, each patch at mean zero and spread one."""
    model = dino.load_tower(path).eval()

    def maps(pixels: Tensor) -> Tensor:
        found = tower.features(model, tower.normalised(pixels))
        return F.layer_norm(found, found.shape[-1:])

    return maps


@torch.inference_mode()
def by_layer(path: Path, content: Mapping[int, bytes], summary: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """DINOv2-S after the embedding and after each block: a summary of the patches of each photograph."""
    model = dino.load_tower(path).eval()
    found: list[list[Tensor]] = [[] for _ in range(model.config.num_hidden_layers + 1)]
    pictures = list(content.values())
    for start in range(0, len(pictures), BATCH):
        pixels = torch.from_numpy(decode(pictures[start : start + BATCH], SIDE))
        states = model(tower.normalised(pixels), output_hidden_states=True).hidden_states
        for kept, state in zip(found, states, strict=True):
            kept.append(summary(F.layer_norm(state[:, 1:], state.shape[-1:])))
    return [torch.cat(kept) for kept in found]


def networks(dino_file: Path, teachers: Mapping[str, Teacher]) -> dict[str, Maps]:
    return {"dinov2-s": dino_maps(dino_file), **{name: teacher.last_map for name, teacher in teachers.items()}}


def extract(groups: Mapping[str, Mapping[int, bytes]], by: Mapping[str, Maps], out: Path) -> None:
    """Maps in float16 under `out`; files that are there are kept. All networks see a piece before the next."""
    out.mkdir(parents=True, exist_ok=True)
    for group, content in groups.items():
        for start in range(0, len(content), PIECE):
            part = list(content.items())[start : start + PIECE]
            for name, maps in by.items():
                path = _file(out, name, group, start)
                numbers = [n for n, _ in part]
                if path.is_file() and load_file(path)["numbers"].tolist() == numbers:
                    continue
                with replacing(path) as target:
                    found = {"numbers": torch.tensor(numbers), "maps": _seen([p for _, p in part], maps)}
                    save_file(found, target)
                print(f"{name} {group} {start + len(part)}/{len(content)}", flush=True)


@torch.inference_mode()
def _seen(pictures: Sequence[bytes], maps: Maps) -> Tensor:
    found = []
    for start in range(0, len(pictures), BATCH):
        pixels = torch.from_numpy(decode(pictures[start : start + BATCH], SIDE))
        found.append(maps(pixels).to(torch.float16))
    return torch.cat(found).contiguous()


def load(out: Path, name: str, group: str, photographs: int) -> Tensor:
    """(photographs, positions, width), float16, in the order they were chosen in."""
    starts = range(0, photographs, PIECE)
    return torch.cat([load_file(_file(out, name, group, start))["maps"] for start in starts])


def _file(out: Path, name: str, group: str, start: int) -> Path:
    return out / f"{name}-{group}-{start:05d}.safetensors"
