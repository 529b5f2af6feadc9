"""Shared fixtures: the reference material that some tests compare with, and the reference tiny LLaVA."""

from __future__ import annotations

import functools
import gc
import os
import random
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
import typer.main
from hypothesis import HealthCheck, settings

# As many workers as there are cores run at once; `make test-processors` asks for more.
torch.set_num_threads(int(os.environ.get("SEEWHEN_TEST_THREADS", "1")))
# A shell starts what runs in its background with Ctrl-C ignored, and every process begun here would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Our command line is made of its functions once, not for every call of it.
typer.main.get_command = functools.cache(typer.main.get_command)
# How long examples take is the machine's, not the code's, and which are drawn is the same for everybody: one that
# fails must fail in the change that broke it. `--hypothesis-profile=drawn` looks for others.
untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("drawn", untimed)
settings.register_profile("untimed", untimed, derandomize=True, database=None)
settings.load_profile("untimed")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A real browser takes its time, and so does building the site: what needs them is slow."""
    for item in items:
        if {"browser", "whole_site"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """What was imported stays to the end: the garbage collector need not look through it again and again."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """What a test or its fixtures draw does not depend on the tests before it."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """No test leaves a model that others share in another layout: theirs would round otherwise, by their order."""
    import tiny

    changed = tiny.changed()
    assert not changed, f"this test laid the weights of shared tiny models otherwise: {changed} (take a copy)"


def shared_path() -> Path:
    """Where the reference material is: $SEEWHEN_SHARED, else a folder `shared` beside the repository."""
    return Path(os.environ.get("SEEWHEN_SHARED", Path(__file__).resolve().parents[2] / "shared"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of published benchmark data."""
    path = shared_path() / "data"
    if not path.is_dir():
        pytest.skip(f"no published benchmark data at {path} (set SEEWHEN_SHARED)")
    return path


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
