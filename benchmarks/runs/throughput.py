"""Samples per second of `seewhen eval` against a plain loop of `model.generate` with batch 1, in one run.

    python benchmarks/runs/throughput.py --out benchmarks/runs/throughput.json

POPE on the packaged scenes with the packaged model, regular decoding, greedy, on a CPU. Rounds alternate, each
starts from nothing (a new run directory, which writes and syncs every batch), and both say the same answers.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import torch

import seewhen
from seewhen.backbones.prompts import chat_prompt, model_inputs
from seewhen.runs.evaluate import Ask, Machine, evaluate
from seewhen.scenes import dataset, render


def plain(ask: Ask, loaded) -> tuple[float, dict[str, str]]:
    """What a script would do: one question after the other."""
    model, processor = loaded
    benchmark = ask.load()
    scenes = dataset(ask.split, ask.scenes)
    pictures = {f"{scene.split}_{scene.seed}_{scene.index:06d}": render(scene) for scene in scenes}
    answers = {}
    start = time.perf_counter()
    for sample in benchmark.samples():
        prompt = chat_prompt(processor, benchmark.prompt(sample, ask.style_of(benchmark)[0]), 1)
        inputs = model_inputs(model, processor, [[pictures[Path(sample.image).stem]]], [prompt])
        with torch.no_grad():
            output = model.generate(**inputs, max_new_tokens=ask.tokens(benchmark), do_sample=False)
        new = output[0, inputs["input_ids"].shape[1] :]
        answers[sample.id] = processor.tokenizer.decode(new, skip_special_tokens=True).strip()
    return time.perf_counter() - start, answers


def engine(ask: Ask) -> tuple[float, dict[str, str]]:
    """`seewhen eval` in this process, loading of the model included."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        path, _ = evaluate(ask, seewhen.method("regular"), Path(folder), Machine(devices=("cpu",)))
        took = time.perf_counter() - start
        lines = [json.loads(line) for line in (path / "samples.jsonl").read_text().splitlines()]
    return took, {line["id"]: line["answer"] for line in lines if "answer" in line}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scenes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    ask = Ask("pope", split="shifted", scenes=options.scenes)
    loaded = seewhen.load(device="cpu")
    times = {"plain": [], "engine": []}
    for _ in range(options.rounds):
        took, one = plain(ask, loaded)
        times["plain"].append(took)
        took, other = engine(ask)
        times["engine"].append(took)
        differing = [key for key in one if other.get(key) != one[key]]
    result = {
        "questions": len(one),
        "differing_answers": len(differing),
        "seconds": {name: [round(t, 2) for t in found] for name, found in times.items()},
        "samples_per_second": {name: round(len(one) / min(found), 2) for name, found in times.items()},
        "ratio": round(min(times["plain"]) / min(times["engine"]), 2),
        "machine": f"{platform.machine()}, one thread",
        "versions": {p: version(p) for p in ("torch", "transformers")} | {"python": platform.python_version()},
        "command": f"throughput.py --scenes {options.scenes} --rounds {options.rounds}",
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
