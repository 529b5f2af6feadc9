"""Measurements that stand alone, one after the other: one that fails leaves its traceback in the result."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
import triton

from seewhen.backbones.shapes import random_inputs, random_model, shape_config


@dataclass(frozen=True)
class Setting:
    """Where and how large."""

    device: str
    tiny: bool

    @cache  # noqa: B019  (one setting per run)
    def model(self, shape: str) -> tuple[Any, Any]:
        """A model of random weights, and its configuration."""
        config = shape_config(shape, tiny=self.tiny)
        return random_model(config, device=self.device, dtype=torch.bfloat16), config

    def inputs(self, config: Any, rows: int) -> dict[str, Any]:
        """A prompt with one image for each row."""
        return dict(random_inputs(config, rows=rows, device=self.device, dtype=torch.bfloat16))


Items = dict[str, Callable[[Setting], Any]]


def run(items: Items, out: Path | None, seconds: float, chosen: list[str], setting: Setting) -> dict[str, Any]:
    """All chosen items, whatever happens to each."""
    began = time.time()
    result: dict[str, Any] = {
        "command": told(sys.argv),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "triton": triton.__version__,
    }
    if setting.device == "cuda":
        result["device"] = torch.cuda.get_device_name()
    for name in chosen:
        if time.time() - began > seconds:
            result[name] = {"left out": f"after {time.time() - began:.0f} s"}
            continue
        print(name, flush=True)
        try:
            result[name] = items[name](setting)
        except Exception:
            result[name] = {"failed": traceback.format_exc()}
            print(traceback.format_exc()[-1500:], flush=True)
        result[f"{name}: s"] = round(time.time() - began, 1)
        if out:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(result, indent=1) + "\n")
        if not name.endswith("profile"):
            print(json.dumps(result[name])[:1500], f"{time.time() - began:.0f} s", flush=True)
    return result


def told(command: list[str]) -> str:
    """A command without the folders of a machine."""
    return " ".join(Path(part).name if part.startswith("/") else part for part in command)


def main(items: Items, about: str) -> None:
    """Measure some of the items."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=110)
    parser.add_argument("--items", default=",".join(items))
    parser.add_argument("--tiny", action="store_true", help="small models, on the CPU where there is no GPU")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    run(items, options.out, options.seconds, options.items.split(","), Setting(device, options.tiny))
