"""Shared fixtures: the reference material that some tests compare with, and the reference tiny LLaVA."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


def shared_path() -> Path:
    """Where the reference material is: $SEEWHEN_SHARED, else a folder `shared` beside the repository."""
    return Path(os.environ.get("SEEWHEN_SHARED", Path(__file__).resolve().parents[2] / "shared"))


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of numbers made by the original authors' code on tiny models."""
    path = shared_path() / "golden"
    if not path.is_dir():
        pytest.skip(f"no golden files at {path} (set SEEWHEN_SHARED)")
    return path


@pytest.fixture(scope="session")
def golden_llava(golden: Path):
    """(model, prompt inputs, continuation tokens, inputs file) of the LLaVA goldens."""
    from safetensors.torch import load_file
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(golden / "llava" / "model").eval()
    tensors = load_file(golden / "llava" / "inputs.safetensors")
    inputs = {"input_ids": tensors["input_ids"], "pixel_values": tensors["pixel_values"]}
    return model, inputs, tensors["continuation"], tensors
