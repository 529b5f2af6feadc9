"""Answers in captured steps and in transformers' own loop: how many differ, and how near the choice was then.

    python benchmarks/runs/ways.py --scenes 40 --dtypes float32,bfloat16 --out benchmarks/runs/ways.json

The same questions about drawn scenes, in the same batches, greedily, both ways, as `eval` asks them. Where two
answers part, each way chose another token: `margin` is how far apart the scores of the two tokens were in
transformers' loop, and `rounding` the largest difference of any score between the two ways up to there. A margin
within twice the rounding is a tie that rounding decides. Without a GPU the captured way runs the same steps
uncaptured, with stock kernels.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import seewhen
from seewhen.asking.asker import Asker, Question
from seewhen.scenes import dataset, pope, render


def questions(asker: Asker, count: int) -> list[Question]:
    """A description and a yes/no question for each scene."""
    scenes = dataset("test", count)
    asked = [(scene, "Please describe this image in detail.") for scene in scenes]
    short = pope(scenes, "adversarial")
    asked += [(scene, str(short[number]["text"])) for number, scene in enumerate(scenes)]
    return [
        Question(asker.prompt(text), (render(scene),), str(number)) for number, (scene, text) in enumerate(asked)
    ]


def answered(asker: Asker, method: str, fast: str, batches: list[list[Question]], tokens: int) -> list[Any]:
    """Tokens (rows, steps) and scores (steps, rows, vocabulary) of each batch."""
    found = []
    with asker.attached(method, fast=fast) as attached, torch.inference_mode():  # type: ignore[arg-type]
        for batch in batches:
            inputs = asker.inputs(batch)
            output = attached.asker.model.generate(
                **inputs,
                max_new_tokens=tokens,
                do_sample=False,
                pad_token_id=asker.tokenizer.pad_token_id,
                return_dict_in_generate=True,
                output_logits=True,
            )
            new = asker.new_tokens(output, inputs["input_ids"])
            found.append((new, torch.stack(output.logits).float().cpu()))
    return found


def compared(one: list[Any], other: list[Any]) -> tuple[int, list[dict[str, float]], float]:
    """How many answers there are, what is known of each pair that differs, and the largest rounding."""
    count, differing, largest = 0, [], 0.0
    for (tokens, scores), (others, other_scores) in zip(one, other, strict=True):
        for row, (mine, theirs) in enumerate(zip(tokens, others, strict=True)):
            count += 1
            alike = next((n for n, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), None)
            steps = min(len(mine), len(theirs)) if alike is None else alike + 1
            a, b = scores[:steps, row], other_scores[:steps, row]
            kept = torch.isfinite(a) & torch.isfinite(b)
            rounding = float((a - b).masked_fill(~kept, 0.0).abs().max())
            largest = max(largest, rounding)
            if alike is not None:
                last = scores[alike, row]
                margin = float((last[mine[alike]] - last[theirs[alike]]).abs())
                differing.append({"token": alike, "margin": round(margin, 6), "rounding": round(rounding, 6)})
    return count, differing, largest


def main() -> None:
    """Compare and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="packaged")
    parser.add_argument("--methods", type=lambda text: text.split(","), default=["regular", "cai", "vcd"])
    parser.add_argument("--dtypes", type=lambda text: text.split(","), default=["float32", "bfloat16"])
    parser.add_argument("--device", default=None)
    parser.add_argument("--scenes", type=int, default=40)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/runs/ways.json"))
    options = parser.parse_args()
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    result: dict[str, Any] = {
        "command": " ".join(["python", "benchmarks/runs/ways.py", *sys.argv[1:]]),
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else f"cpu, {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("torch", "transformers")},
        "runs": [],
    }
    warnings.simplefilter("ignore")
    for dtype in options.dtypes:
        asker = Asker(seewhen.load(options.model, device=device, dtype=dtype))
        asked = questions(asker, options.scenes)
        batches = [asked[start : start + options.batch] for start in range(0, len(asked), options.batch)]
        for method in options.methods:
            began = time.perf_counter()
            ways = [answered(asker, method, fast, batches, options.tokens) for fast in ("off", "graph")]
            count, differing, largest = compared(*ways)
            run = {
                "method": method,
                "dtype": dtype,
                "answers": count,
                "different": len(differing),
                "decided_by_rounding": sum(each["margin"] <= 2 * each["rounding"] for each in differing),
                "largest_rounding": round(largest, 6),
                "differences": differing,
                "seconds": round(time.perf_counter() - began, 1),
            }
            print(json.dumps({name: value for name, value in run.items() if name != "differences"}), flush=True)
            result["runs"].append(run)
            options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
