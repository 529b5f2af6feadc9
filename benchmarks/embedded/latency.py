"""What each method costs on a CPU: ms per token and the ratio to regular decoding, in interleaved rounds.

    python benchmarks/embedded/latency.py --out benchmarks/embedded/latency.json [--vti FILE] [--ict FILE]

One scene, batch 1, one thread, a fixed number of tokens. Every round runs every method once; the fastest
round of each counts, because other work on the machine can only slow a round down. Counted is the time on
the processor: with one thread that is the time a quiet machine takes, and waiting for others is left out.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
import warnings
from importlib.metadata import version
from pathlib import Path

import torch

import seewhen
from seewhen.backbones.prompts import chat_prompt, model_inputs
from seewhen.decoding.method import Part
from seewhen.methods import method, method_names
from seewhen.scenes import dataset, render


def rows(options: argparse.Namespace) -> dict:
    """The methods with what `generate` needs for them."""
    cai = method("cai", contrast=3.0)
    found = {"cai-attention": (method("cai"), {}), "cai": (cai, {}), "cai-contrast": (Part("contrast", cai), {})}
    for name in method_names():
        if name in ("cai", "cai-gla"):
            continue
        if name in ("vti", "ict"):
            path = getattr(options, name)
            if path:
                found[name] = (method(name, directions=path), {})
            continue
        extra = {"opera": {"num_beams": 5}, "saliency": {"do_sample": True, "top_k": 0}}.get(name, {})
        found[name] = (method(name), extra)
    return found


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--vti")
    parser.add_argument("--ict")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    model, processor = seewhen.load(device="cpu")
    prompt = chat_prompt(processor, "Please describe this image in detail.", 1)
    inputs = model_inputs(model, processor, [[render(dataset("shifted", 1)[0])]], [prompt])
    times: dict[str, list[float]] = {}
    extra_rows: dict[str, int] = {}
    for _ in range(options.rounds + 1):  # the first round warms up
        for name, (each, extra) in rows(options).items():
            prepared = each.prepare(processor.tokenizer)
            with seewhen.attach(model, prepared, fast="off") as handle:
                start = time.process_time()
                size = {"max_new_tokens": options.tokens, "min_new_tokens": options.tokens}
                model.generate(**inputs, **size, **{"do_sample": False, **extra})
                times.setdefault(name, []).append(time.process_time() - start)
                extra_rows[name] = len(handle.session.parts.branches)
    best = {name: 1000 * min(found[1:]) / options.tokens for name, found in times.items()}
    result = {
        "machine": f"{platform.machine()}, one thread, processor time",
        "versions": {p: version(p) for p in ("seewhen", "torch", "transformers")}
        | {"python": platform.python_version()},
        "command": f"latency.py --rounds {options.rounds} --tokens {options.tokens}",
        "methods": {
            name: {
                "ms_per_token": round(ms, 2),
                "ratio": round(ms / best["regular"], 2),
                "extra_rows": extra_rows[name],
                "rounds_ms": [round(1000 * t / options.tokens, 2) for t in times[name][1:]],
            }
            for name, ms in sorted(best.items(), key=lambda item: item[1])
        },
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print("| method | ms/token | ratio | extra rows |\n|---|--:|--:|--:|")
    for name, facts in result["methods"].items():
        print(f"| {name} | {facts['ms_per_token']:.1f} | {facts['ratio']:.2f} | {facts['extra_rows']} |")


if __name__ == "__main__":
    main()
