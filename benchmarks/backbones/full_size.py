"""The paper's four backbones at their real sizes, with random weights: saved, loaded again, decoded.

For each of them: weights drawn on the GPU in bfloat16; written to disk in the published layout (Qwen-VL
under its original key names); loaded again with `seewhen.backbones.loading.load_model`, logits equal bit for bit;
64 tokens greedily with each method in transformers' own loop and as a captured step (`fast="graph"`),
milliseconds per token and peak memory; a closed gate equals stock bit for bit. Then, at reduced depth in
float32, compiled decoding (static cache) equals eager.

    python benchmarks/backbones/full_size.py                # one large GPU, about five minutes, 20 GB of disk
    python benchmarks/backbones/full_size.py --tiny         # everything narrow, on a CPU, about a minute

Writes full_size.json and full_size.md. What does not fit into --budget seconds is left out and named.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import shutil
import tempfile
import time
import traceback
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from full_size_page import as_markdown
from transformers import CompileConfig
from transformers.utils.logging import disable_progress_bar

import seewhen
from seewhen.backbones.loading import load_model
from seewhen.backbones.qwen_vl import save_original
from seewhen.backbones.shapes import random_inputs, random_model, shape_config
from seewhen.decoding import fast as speed

BACKBONES = ("qwen3.5-4b", "llava-1.5-7b", "instructblip-7b", "qwen-vl-7b")
METHODS: dict[str, seewhen.Method] = {
    "regular": seewhen.method("regular"),
    "CAI attention only": seewhen.method("cai"),
    "CAI": seewhen.method("cai", contrast=3.0),
    "PAI": seewhen.method("pai"),
    "VCD": seewhen.method("vcd"),
    "ONLY": seewhen.method("only"),
}
CLOSED = seewhen.method("cai", threshold=1e9)
OPEN = seewhen.method("cai", threshold=-1.0, contrast=3.0)


class Run:
    """Options, clock and results of one run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.began = time.perf_counter()
        self.device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.dtype = torch.float32 if options.tiny else torch.bfloat16
        self.results: dict[str, Any] = {"about": self._about(), "backbones": {}, "left_out": [], "failures": []}

    def _about(self) -> dict[str, Any]:
        flags = ("tiny", "no_save", "no_compile")
        asked = [f"--{flag.replace('_', '-')}" for flag in flags if getattr(self.options, flag)]
        asked += [f"--tokens {self.options.tokens}", f"--budget {self.options.budget:g}"]
        command = " ".join(["python benchmarks/backbones/full_size.py", *asked])
        about = {"command": command, "python": platform.python_version()}
        about |= {name: _version(name) for name in ("seewhen", "torch", "transformers")}
        gpu = self.device.startswith("cuda")
        about["device"] = torch.cuda.get_device_name() if gpu else platform.machine() + " CPU"
        about["dtype"] = str(self.dtype).removeprefix("torch.")
        about["tokens"] = self.options.tokens
        return about

    def left(self) -> float:
        return self.options.budget - (time.perf_counter() - self.began)

    def synchronize(self) -> float:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()
        return time.perf_counter()

    def say(self, text: str) -> None:
        print(f"[{time.perf_counter() - self.began:6.1f} s] {text}", flush=True)

    def write(self) -> None:
        self.results["about"]["seconds"] = round(time.perf_counter() - self.began, 1)
        out = Path(self.options.out)
        out.mkdir(parents=True, exist_ok=True)
        for name, text in (
            ("full_size.json", json.dumps(self.results, indent=2) + "\n"),
            ("full_size.md", as_markdown(self.results)),
        ):
            temporary = out / (name + ".tmp")
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, out / name)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # run from a checkout, with src on the path
        return "from source"


def forget() -> None:
    """Give the memory of models no longer referenced back to the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def generate(model: Any, inputs: dict[str, Any], tokens: int, **options: Any) -> Any:
    # Exactly `tokens` tokens, whatever random weights think of the end of a sentence.
    length = {"min_new_tokens": tokens, "max_new_tokens": tokens}
    return model.generate(**inputs, **length, do_sample=False, return_dict_in_generate=True, **options)


def logits(model: Any, inputs: dict[str, Any], tokens: int, **options: Any) -> Any:
    return generate(model, inputs, tokens, output_logits=True, **options)


def compared(found: torch.Tensor, expected: torch.Tensor) -> str:
    """On a CPU, weights mapped from a file may lie otherwise in memory, and sums be taken in another order."""
    largest = float((found - expected).abs().max())
    if largest == 0:
        return "equal"
    close = found.device.type == "cpu" and largest < 1e-6 * float(expected.abs().max())
    return f"equal to {largest:.0e}" if close else f"DIFFERENT by {largest:.1e}"


def checksums(model: Any) -> dict[str, int]:
    """A number for the bits of each tensor of the model."""
    kinds = {2: torch.int16, 4: torch.int32}
    tensors = {name: t for name, t in model.state_dict().items() if t.is_floating_point()}
    return {name: int(t.view(kinds[t.element_size()]).sum(dtype=torch.int64)) for name, t in tensors.items()}


def copy_weights(model: Any) -> None:
    """Move every weight to fresh memory, one after the other."""
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def save(model: Any, name: str, directory: Path) -> None:
    if name.startswith("qwen-vl"):
        save_original(model, directory)
    else:
        model.save_pretrained(directory, max_shard_size="5GB")


def round_trip(run: Run, name: str, model: Any, inputs: dict[str, Any], entry: dict[str, Any]) -> Any:
    """Save, drop, load; returns the loaded model."""
    expected, before = logits(model, inputs, 1).logits[0], checksums(model)
    directory = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=run.options.checkpoints))
    try:
        start = run.synchronize()
        save(model, name, directory)
        entry["save_s"] = round(run.synchronize() - start, 1)
        entry["checkpoint_gb"] = round(sum(f.stat().st_size for f in directory.iterdir()) / 1e9, 2)
        entry["files"] = sorted(f.name for f in directory.iterdir())
        run.say(f"{name}: saved {entry['checkpoint_gb']} GB in {entry['save_s']} s")
        del model
        forget()
        start = run.synchronize()
        loaded = load_model(directory, device=run.device, dtype=run.dtype)
        entry["load_s"] = round(run.synchronize() - start, 1)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    entry["weights_after_loading"] = "equal" if checksums(loaded) == before else "DIFFERENT"
    entry["logits_after_loading"] = compared(logits(loaded, inputs, 1).logits[0], expected)
    if "DIFFERENT" in entry["logits_after_loading"]:
        # Weights read from a file may begin at any multiple of 8 bytes, for which other kernels are chosen.
        copy_weights(loaded)
        entry["logits_of_copied_weights"] = compared(logits(loaded, inputs, 1).logits[0], expected)
        if entry["logits_of_copied_weights"] == "equal":
            rounding = entry["logits_after_loading"].removeprefix("DIFFERENT by ")
            entry["logits_after_loading"] = f"equal once copied to aligned memory, before to {rounding}"
    told = f"weights {entry['weights_after_loading']}, logits {entry['logits_after_loading']}"
    run.say(f"{name}: loaded in {entry['load_s']} s, {told}")
    return loaded


def measure(
    run: Run, model: Any, inputs: dict[str, Any], method: seewhen.Method, fast: speed.Fast
) -> tuple[dict[str, Any], torch.Tensor]:
    """Time per token after the first, time to the first, peak memory, gate; and the tokens."""
    tokens = run.options.tokens
    gpu = run.device.startswith("cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a gate that never opens is no news with random weights
        with seewhen.attach(model, method, fast=fast) as handle:
            generate(model, inputs, 8 if fast == "off" else tokens)  # kernels are chosen, steps captured
            if gpu:
                torch.cuda.reset_peak_memory_stats()
            start = run.synchronize()
            generate(model, inputs, 1)
            first = run.synchronize() - start
            start = run.synchronize()
            sequences = generate(model, inputs, tokens).sequences
            whole = run.synchronize() - start
            trace = handle.trace
    assert trace.lengths == (tokens,), trace.lengths
    result: dict[str, Any] = {
        "ms_per_token": round(1000 * (whole - first) / (tokens - 1), 2),
        "first_token_ms": round(1000 * first, 1),
    }
    if gpu:
        result["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    if "gate" in trace.tensors:
        result["tokens_with_open_gate"] = trace.fired_tokens()[0]
    return result, sequences[0, -tokens:]


def measure_both(run: Run, model: Any, inputs: dict[str, Any], method: seewhen.Method) -> dict[str, Any]:
    """In transformers' loop, and as a captured step."""
    result, stock = measure(run, model, inputs, method, "off")
    result["graph"], captured = measure(run, model, inputs, method, "graph")
    same = (stock == captured).long().cumprod(0)
    result["graph"]["same_first_tokens"] = int(same.sum())
    result["graph"]["largest_logit_difference"] = second_step_difference(model, inputs, method)
    return result


def second_step_difference(model: Any, inputs: dict[str, Any], method: seewhen.Method) -> float | None:
    """Between the two loops, after the same prompt and first token: rounding, before it can add up."""
    outputs = []
    for fast in ("off", "graph"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with seewhen.attach(model, method, fast=fast):  # type: ignore[arg-type]
                outputs.append(logits(model, inputs, 2))
    if not torch.equal(outputs[0].sequences[:, :-1], outputs[1].sequences[:, :-1]):
        return None
    return round(finite_difference(outputs[0].logits[1], outputs[1].logits[1]), 4)


def methods_for(model: Any) -> dict[str, seewhen.Method]:
    """ONLY reads the attention of layer 0; in a hybrid model it takes the first layer that has a softmax."""
    first = seewhen.Backbone.of(model).softmax_layers[0]
    return METHODS | {"ONLY": METHODS["ONLY"].replace(layer=first)}


def closed_gate_is_stock(model: Any, inputs: dict[str, Any]) -> str:
    stock = logits(model, inputs, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with seewhen.attach(model, CLOSED, fast="off"):
            closed = logits(model, inputs, 4)
    same = all(torch.equal(a, b) for a, b in zip(stock.logits, closed.logits, strict=True))
    return "equal" if same else "DIFFERENT"


def full_size(run: Run, name: str) -> None:
    entry: dict[str, Any] = {"methods": {}}
    run.results["backbones"][name] = entry
    config = shape_config(name, tiny=run.options.tiny)
    start = run.synchronize()
    model = random_model(config, device=run.device, dtype=run.dtype)
    entry["parameters"] = sum(p.numel() for p in model.parameters())
    entry["weights_gib"] = round(sum(p.numel() * p.element_size() for p in model.parameters()) / 2**30, 2)
    run.say(
        f"{name}: {entry['parameters'] / 1e9:.2f} billion parameters drawn in {run.synchronize() - start:.1f} s"
    )
    inputs = random_inputs(config, device=run.device, dtype=run.dtype)
    entry["prompt_tokens"] = inputs["input_ids"].shape[1]
    entry["image_tokens"] = int(seewhen.Backbone.of(model).image_mask(inputs["input_ids"]).sum())
    # Rough need of what follows, from the sizes: saving at 0.7 GB/s, loading at 1.5 GB/s.
    need = entry["weights_gib"] * 2.1
    if run.options.no_save:
        run.results["left_out"].append(f"{name}: saving and loading")
    elif run.left() > need + run.options.reserve:
        # Only `holder` refers to the model, so that it is gone from the device before loading.
        holder = [model]
        del model
        model = round_trip(run, name, holder.pop(), inputs, entry)
    else:
        run.results["left_out"].append(f"{name}: saving and loading (time)")
    for title, method in methods_for(model).items():
        if run.left() < 5:
            run.results["left_out"].append(f"{name}: {title} (time)")
            continue
        try:
            entry["methods"][title] = measure_both(run, model, inputs, method)
            run.say(f"{name}: {title} {entry['methods'][title]}")
        except Exception as error:
            entry["methods"][title] = {"error": f"{type(error).__name__}: {error}"[:500]}
            failed(run, f"{name}: {title}")
    entry["closed_gate"] = closed_gate_is_stock(model, inputs)
    run.say(f"{name}: closed gate and stock {entry['closed_gate']}")
    run.write()


def finite_difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest among tokens that neither side's plausibility cut removes."""
    both = a.isfinite() & b.isfinite()
    return float((a - b)[both].abs().max())


def compiled_equals_eager(run: Run, name: str) -> None:
    """CAI with contrast and every gate open, in float32, with as few layers as hold a tilted one."""
    layers = 4 if name.startswith("qwen3.5") else 2
    config = shape_config(name, tiny=run.options.tiny, layers=layers)
    model = random_model(config, device=run.device, dtype=torch.float32)
    inputs = random_inputs(config, device=run.device, dtype=torch.float32)
    options: dict[str, Any] = {"cache_implementation": "static"}
    if not run.device.startswith("cuda"):
        # On a CPU transformers compiles only when told to; tracing is what can fail.
        options["compile_config"] = CompileConfig(fullgraph=True, mode="default", dynamic=False)
        options["compile_config"].backend = "eager"
        options["compile_config"]._compile_all_devices = True
    start = run.synchronize()
    torch._dynamo.reset()
    with seewhen.attach(model, OPEN, fast="off") as handle:
        eager, gates = logits(model, inputs, 8), handle.trace.gate
        static = logits(model, inputs, 8, **options)
        same_gates = torch.equal(gates, handle.trace.gate)
    pairs = list(zip(eager.logits, static.logits, strict=True))
    difference = max(finite_difference(a, b) for a, b in pairs)
    run.results["backbones"].setdefault(name, {})["compiled"] = {
        "layers": layers,
        "tokens": "equal" if torch.equal(eager.sequences, static.sequences) else "DIFFERENT",
        "gates": "equal" if same_gates else "DIFFERENT",
        "largest_logit_difference": difference,
        "largest_logit": float(max(a[a.isfinite()].abs().max() for a in eager.logits)),
        "tokens_cut": "equal" if all(torch.equal(a.isfinite(), b.isfinite()) for a, b in pairs) else "DIFFERENT",
        "seconds": round(run.synchronize() - start, 1),
    }
    run.say(f"{name}: compiled {run.results['backbones'][name]['compiled']}")
    run.write()


def failed(run: Run, what: str) -> None:
    run.results["failures"].append(what)
    run.say(f"FAILED {what}\n{traceback.format_exc()[-3000:]}")
    run.write()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="same structure, narrow and shallow, float32")
    parser.add_argument("--only", nargs="*", default=list(BACKBONES), choices=BACKBONES, help="which backbones")
    parser.add_argument("--device", help="cuda where there is one")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--budget", type=float, default=330.0, help="seconds for everything")
    parser.add_argument("--reserve", type=float, default=60.0, help="seconds kept for what comes after a save")
    parser.add_argument("--checkpoints", help="folder for the checkpoints (20 GB at a time), deleted afterwards")
    parser.add_argument("--no-save", action="store_true", help="leave saving and loading out")
    parser.add_argument("--no-compile", action="store_true", help="leave the compiled comparison out")
    parser.add_argument("--out", default=str(Path(__file__).parent), help="folder of full_size.json and .md")
    run = Run(parser.parse_args())
    disable_progress_bar()
    # cuDNN plans attention anew for every length of a growing cache: 160 ms for each new length, once.
    torch.backends.cuda.enable_cudnn_sdp(False)
    for step in (full_size,) if run.options.no_compile else (full_size, compiled_equals_eager):
        for name in run.options.only:
            what = f"{name}: {step.__name__}"
            if run.left() < 15:
                run.results["left_out"].append(f"{what} (time)")
                continue
            try:
                step(run, name)
            except Exception:
                failed(run, what)
            forget()
    run.write()
    print(as_markdown(run.results))
    differing = "DIFFERENT" in json.dumps(run.results)
    return 1 if run.results["failures"] or differing else 0


if __name__ == "__main__":
    raise SystemExit(main())
