"""Golden files: numbers computed by the methods' own released code, on a tiny LLaVA stored with them."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForImageTextToText

import seewhen
from promises import close
from seewhen.decoding.method import Method


@functools.cache
def golden_folder() -> Path:
    shared = os.environ.get("SEEWHEN_SHARED") or Path(__file__).resolve().parents[2] / "shared"
    folder = Path(shared) / "golden" / "llava"
    if not folder.is_dir():
        pytest.skip("the golden files are not here: set SEEWHEN_SHARED to the folder that holds golden/")
    return folder


def golden(name: str) -> dict[str, Tensor]:
    """Tensors computed by a method's own released code."""
    return load_file(golden_folder() / f"{name}.safetensors")


@functools.cache
def golden_model() -> Any:
    return AutoModelForImageTextToText.from_pretrained(golden_folder() / "model").eval()


def golden_replay(method: Method, steps: int | None = None) -> tuple[seewhen.Replay, dict[str, Tensor]]:
    """The method over the golden prompt and its continuation, or some tokens of it; and the golden inputs."""
    given = golden("inputs")
    prompt = {name: given[name] for name in ("input_ids", "pixel_values")}
    prompt["attention_mask"] = torch.ones_like(prompt["input_ids"])
    return seewhen.replay(golden_model(), prompt, given["continuation"][0, :steps], method), given


def matches(ours: Tensor, theirs: Tensor, tolerance: float = 2e-4) -> None:
    """Equal over the rows that are stored, and cut at the same tokens."""
    close(ours[: len(theirs)], theirs, tolerance)
