"""What each method costs on this model: ms per token and the ratio to regular decoding, in interleaved rounds.

    python -m photographs.latency RUN

One validation photograph, batch 1, transformers' own loop, a fixed number of tokens. Every round runs every method
once; the fastest round of each counts, because other work on the machine can only slow a round down. Without a GPU
one thread computes and its time on the processor is counted: waiting for others is left out. VTI and ICT are timed
where RUN has their directions.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
import warnings
from pathlib import Path
from typing import Any

import torch

import seewhen
from photographs.wanted import NAMES, make
from seewhen.backbones.prompts import chat_prompt, model_inputs
from seewhen.runs.versions import package_versions, processor_name

EXTRA: dict[str, dict[str, Any]] = {"opera": {"num_beams": 5}, "saliency": {"do_sample": True, "top_k": 0}}


def once(model: Any, inputs: dict[str, Any], chosen: Any, tokens: int, extra: dict[str, Any]) -> float:
    """Milliseconds per token, prompt included."""
    with seewhen.attach(model, chosen, fast="off"):
        start = now(model)
        options = {"do_sample": False, "max_new_tokens": tokens, "min_new_tokens": tokens, **extra}
        model.generate(**inputs, **options)
        return 1000 * (now(model) - start) / tokens


def now(model: Any) -> float:
    """Seconds on the wall once the GPU is done, or on the processor."""
    if model.device.type == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=32)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    run: Path = options.run
    model, processor = seewhen.load(run / "model")
    picture = sorted((run / "exam" / "validation" / "val2014").iterdir())[0]
    prompt = chat_prompt(processor, "Please describe this image in detail.", 1)
    inputs = model_inputs(model, processor, [[picture]], [prompt])
    names = [n for n in NAMES if n not in ("vti", "ict") or (run / f"{n}.safetensors").is_file()]
    chosen = {name: make(name, run).prepare(processor.tokenizer) for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    with torch.inference_mode():
        for lap in range(options.rounds + 1):  # the first round warms up
            for name in names:
                tokens = options.tokens if lap else 4
                times[name].append(once(model, inputs, chosen[name], tokens, EXTRA.get(name, {})))
    best = {name: min(found[1:]) for name, found in times.items()}
    cuda = model.device.type == "cuda"
    result = {
        "machine": torch.cuda.get_device_name() if cuda else f"{processor_name()}, one thread, processor time",
        "python": platform.python_version(),
        "versions": package_versions(),
        "precision": str(model.dtype).removeprefix("torch."),
        "command": f"python -m photographs.latency RUN --rounds {options.rounds} --tokens {options.tokens}",
        "methods": {
            name: {
                "ms_per_token": round(ms, 2),
                "ratio": round(ms / best["regular"], 2),
                "rounds": [round(one, 2) for one in times[name][1:]],
            }
            for name, ms in best.items()
        },
    }
    (run / f"latency-{model.device.type}.json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    print(json.dumps(result["methods"]))


if __name__ == "__main__":
    main()
