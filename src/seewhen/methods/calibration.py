"""Calibration: directions that some methods (VTI, ICT) need, fitted once on a few labelled pictures.

A `Directions` file is a safetensors file whose header holds where it comes from: the model, the settings
and a digest of every picture it was fitted on, so that an evaluation can tell whether it would be graded
on its own training data. Nothing in it is ever executed.

    directions = seewhen.methods.vti.calibrate(model, processor, samples)
    directions.save("vti.safetensors")
    seewhen.method("vti", directions="vti.safetensors")
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
from PIL import Image
from torch import Tensor, nn
from typing_extensions import TypedDict

from seewhen.atomic import write
from seewhen.decoding.method import Method
from seewhen.errors import InvalidInput, InvalidMethod, UnsupportedModel
from seewhen.reading import check_form, parse_json, stored_tensors

if TYPE_CHECKING:
    from seewhen.backbones.backbone import Backbone

_KEY = "seewhen.directions"


class _Provenance(TypedDict):
    images: list[str]
    layers: int
    width: int


class _Described(TypedDict):
    """What the header of a file of directions must say."""

    method: str
    provenance: _Provenance


@dataclass(frozen=True)
class Directions:
    """Fitted tensors of one method for one model, and where they come from."""

    method: str
    tensors: dict[str, Tensor]
    provenance: dict[str, Any]

    def save(self, path: str | Path) -> Path:
        """Write a safetensors file; the same directions give the same bytes."""
        from safetensors import torch as safetensors

        target = Path(path)
        described = json.dumps({"method": self.method, "provenance": self.provenance}, sort_keys=True)
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.tensors.items()}
        write(target, safetensors.save(tensors, metadata={_KEY: described}))
        return target

    @classmethod
    def load(cls, path: str | Path) -> Directions:
        """Read what `save` wrote."""
        from safetensors import safe_open

        hint = "Fit some with `seewhen calibrate`."
        with stored_tensors(Path(path), hint), safe_open(str(path), framework="pt") as file:
            described = parse_json((file.metadata() or {}).get(_KEY, "null"), str(path), hint)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        if described is None:
            raise InvalidInput(f"{path} holds no directions.", hint)
        check_form(_Described, described, path, hint)
        return cls(described["method"], tensors, described["provenance"])

    def seen(self, images: Iterable[Image.Image]) -> int:
        """How many of `images` the directions were fitted on: an evaluation on them would be worthless."""
        known = set(self.provenance["images"])
        return sum(digest(image) in known for image in images)


def digest(image: Image.Image) -> str:
    """Sixteen hex digits of a picture's pixels."""
    pixels = image.convert("RGB")
    return hashlib.sha256(repr(pixels.size).encode() + pixels.tobytes()).hexdigest()[:16]


def provenance(backbone: Backbone, images: Sequence[Image.Image], **settings: Any) -> dict[str, Any]:
    """What is noted about a fit."""
    config = backbone.model.config
    name = str(getattr(config, "_name_or_path", "") or "")
    return {
        # Of a directory only its name: where it lies is nobody's business once the file is passed on.
        "model": Path(name).name if Path(name).is_dir() else name,
        "model_type": config.model_type,
        "layers": backbone.num_layers,
        "width": backbone.text_config.hidden_size,
        "images": [digest(image) for image in images],
        "settings": settings,
    }


@dataclass(frozen=True)
class Calibrated(Method):
    """Base of methods that need a file of directions."""

    directions: Annotated[str, "file of directions fitted for this model by `seewhen calibrate`"] = ""

    def loaded(self, backbone: Backbone) -> Directions:
        """The directions, checked against the method and the model."""
        if not self.directions:
            raise InvalidMethod(
                f"{self.name} needs directions fitted for this model.",
                f"Fit them with `seewhen calibrate {self.name} --out FILE`, then give directions=FILE.",
            )
        found = _loaded(*_state(self.directions))
        if found.method != self.name:
            raise InvalidInput(
                f"{self.directions} holds directions of {found.method!r}, not of {self.name!r}.",
                f"Fit some with `seewhen calibrate {self.name}`.",
            )
        ours = (backbone.num_layers, backbone.text_config.hidden_size)
        theirs = (found.provenance["layers"], found.provenance["width"])
        if ours != theirs:
            raise InvalidInput(
                f"{self.directions} was fitted on a model with {theirs[0]} layers of width {theirs[1]}; "
                f"this one has {ours[0]} of width {ours[1]}.",
                "Fit directions on this model.",
            )
        return found

    @property
    def fingerprint(self) -> str:
        """Changes with the content of the directions file too, not only with its name."""
        before = super().fingerprint
        path = Path(self.directions)
        if not self.directions or not path.is_file():
            return before
        return hashlib.sha256(before.encode() + path.read_bytes()).hexdigest()[:16]


def _state(path: str) -> tuple[str, int, int]:
    """The path with what changes when the file does."""
    try:
        status = os.stat(path)
    except OSError:
        return path, 0, 0
    return path, status.st_mtime_ns, status.st_size


@lru_cache(maxsize=4)
def _loaded(path: str, changed: int, size: int) -> Directions:
    return Directions.load(path)


def vision_layers(model: Any) -> tuple[nn.Module, ...]:
    """The transformer layers of the vision tower."""
    tower = model.get_encoder(modality="image")
    if tower is not model:
        for module in tower.modules():
            if isinstance(module, nn.ModuleList) and len(module) and _has_mlp(module[0]):
                return tuple(module)
    raise UnsupportedModel(
        f"The vision tower of {type(model).__name__} has no layers with an MLP that could be found.",
        "Use the textual part alone: image_strength=0.",
    )


def _has_mlp(layer: nn.Module) -> bool:
    return any(hasattr(layer, name) for name in ("mlp", "feed_forward"))


@contextmanager
def outputs_of(modules: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """A list that fills with the outputs of `modules`, in order, in each forward pass inside."""
    found: list[Tensor] = []

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        found.append((output[0] if isinstance(output, tuple) else output).detach())

    handles = [module.register_forward_hook(keep) for module in modules]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def principal_direction(differences: Tensor) -> Tensor:
    """Mean plus first principal component of `differences` (samples, features).

    The component has length 1, and the sign that makes its largest coefficient over the samples positive.
    """
    mean = differences.mean(dim=0)
    centered = differences - mean
    # The eigenvectors of the small (samples x samples) matrix give those of the large one.
    coefficients = torch.linalg.eigh(centered @ centered.T).eigenvectors[:, -1]
    coefficients = coefficients * coefficients[coefficients.abs().argmax()].sign()
    component = centered.T @ coefficients
    length = component.norm()
    return mean + component / length if length > 0 else mean
