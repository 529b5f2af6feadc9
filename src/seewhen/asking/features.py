"""Image features computed once per image and shared by its questions, or by the methods that are asked in turn.

A batch holds several questions about few images. Where a model's pixels have one row per prompt, the
vision tower sees each image once and its features are handed to `generate` ready-made. Families that
pack pixels otherwise (Qwen's flattened patches, tiles without a row each, a Q-Former that reads the
question) are left as they are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from seewhen.decoding.fast.prompts import looking_with

_PIXELS = "pixel_values"


def shared_features(model: Any, inputs: dict[str, Any], images: Sequence[str]) -> dict[str, Any] | None:
    """The inputs with features instead of pixels, or None where this cannot be done or gains nothing.

    `images` names the image of each row; rows of one name must have equal pixels.
    """
    first = {name: row for row, name in reversed(list(enumerate(images)))}
    if len(first) == len(images) or not _supports(model):
        return None
    encode = model.base_model.get_image_features
    wanted = [name for name in inspect.signature(encode).parameters if name in inputs]
    given = {name: inputs[name] for name in wanted}
    per_row = all(isinstance(v, Tensor) and v.shape[0] == len(images) for v in given.values())
    if _PIXELS not in given or not per_row or any(name.startswith("qformer") for name in given):
        return None
    kept = sorted(first.values())
    index = torch.tensor(kept, device=inputs[_PIXELS].device)
    with torch.inference_mode():
        output = encode(**{name: value[index] for name, value in given.items()}, return_dict=True)
    features = output.pooler_output
    if len(features) != len(kept) or set(output.keys()) - {"last_hidden_state", "pooler_output", "hidden_states"}:
        return None  # more than one block per image, or features of several layers
    place = {row: k for k, row in enumerate(kept)}
    order = [place[first[name]] for name in images]
    expanded = features[order] if isinstance(features, Tensor) else [features[k] for k in order]
    rest = {name: value for name, value in inputs.items() if name not in given}
    return rest | {"mm_encoder_outputs": {"image": type(output)(pooler_output=expanded)}}


def looked_once(model: Any, seen: dict[str, Any]) -> AbstractContextManager[None]:
    """Inside, a picture that the vision tower saw before is not shown to it again; `seen` remembers the last one.

    Not where a method acts inside the tower. `generate` still gets the pixels, from which sizes are read.
    """

    def remembering(encode: Callable[..., Any]) -> Callable[..., Any]:
        def remembered(**given: Any) -> Any:
            if not seen or not _equal(seen["given"], given):
                seen.update(given=given, features=encode(**given))
            return seen["features"]

        return remembered

    return looking_with(model, remembering)


def _equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    def same(a: Any, b: Any) -> bool:
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            return a.device == b.device and a.dtype == b.dtype and torch.equal(a, b)
        return type(a) is type(b) and not isinstance(a, Tensor) and bool(a == b)

    return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)


def _supports(model: Any) -> bool:
    return "mm_encoder_outputs" in inspect.signature(model.forward).parameters and hasattr(
        model.base_model, "get_image_features"
    )
