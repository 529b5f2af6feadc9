"""How often one CAI token crosses from one of our files into another: `python benchmarks/speed/hops.py`.

A tiny LLaVA of 32 layers, four of them tilted; one decoding step in transformers' own loop.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

import seewhen
import tiny

PACKAGE = str(Path(seewhen.__file__).parent)


def main() -> None:
    model, inputs = tiny.model("llava", num_hidden_layers=32), tiny.inputs("llava")
    crossings: Counter[tuple[str, str]] = Counter()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        caller = frame.f_back
        if event != "call" or caller is None:
            return
        to, origin = frame.f_code.co_filename, caller.f_code.co_filename
        if to != origin and to.startswith(PACKAGE) and frame.f_code.co_name[0] != "<":
            crossings[Path(origin).name, Path(to).name] += 1

    with seewhen.attach(model, seewhen.method("cai", threshold=-1.0), fast="off"), torch.inference_mode():
        output = model(**inputs)
        token = {"input_ids": torch.tensor([[9]]), "past_key_values": output.past_key_values}
        sys.setprofile(profile)
        try:
            model(**token)
        finally:
            sys.setprofile(None)
    for (origin, to), count in crossings.most_common():
        print(f"{count:4d}  {origin} -> {to}")
    print(f"{sum(crossings.values()):4d}  in all")


if __name__ == "__main__":
    main()
