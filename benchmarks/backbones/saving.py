"""A backbone at its real size, saved and loaded again on a CPU: are all weights the same, bytes and all?

    python benchmarks/backbones/saving.py llava-1.5-7b      # 14 GB of memory and of disk, about four minutes

A GPU chooses its kernels by where weights lie in memory, so logits there can differ by rounding after loading;
here checksums of every weight and buffer are compared, and the logits of a short text.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import platform
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from seewhen.loading import load_model
from seewhen.shapes import random_model, shape_config


def checksums(model: Any) -> dict[str, str]:
    """Of every parameter and buffer, by name."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {
        name: hashlib.sha1(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()).hexdigest()
        for name, tensor in named
    }


@torch.no_grad()
def main() -> None:
    """Save, load, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    model = random_model(shape_config(options.shape, tiny=options.tiny), dtype=torch.bfloat16)
    ids = torch.tensor([[1, 5, 9, 77]])
    before, expected = checksums(model), model(input_ids=ids).logits.float()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, max_shard_size="1GB")
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        del model
        gc.collect()
        loaded = load_model(folder, device="cpu", dtype="bfloat16")
        after, got = checksums(loaded), loaded(input_ids=ids).logits.float()
    result = {
        "command": f"saving.py {options.shape}" + (" --tiny" if options.tiny else ""),
        "versions": {p: version(p) for p in ("torch", "transformers")} | {"python": platform.python_version()},
        "bytes": size,
        "tensors": len(before),
        "same names": before.keys() == after.keys(),
        "changed": sorted(name for name in before if after.get(name) != before[name]),
        "largest logit": expected.abs().max().item(),
        "largest difference of logits": (got - expected).abs().max().item(),
    }
    print(json.dumps(result, indent=1))
    if options.out:
        known = json.loads(options.out.read_text()) if options.out.exists() else {}
        options.out.write_text(json.dumps(known | {options.shape: result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
