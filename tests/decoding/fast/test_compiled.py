"""Our kernels compile for a GPU (compute capability 9.0) on any machine: the interpreter takes more than that."""

from __future__ import annotations

import importlib
import os

import pytest
import torch

pytest.importorskip("triton", reason="the kernels are written in Triton, which is not installed")

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as compiled

B, F, BOOL, LONG, INT = "*bf16", "*fp32", "*i1", "*i64", "i32"
TILE = {"block_n": 64, "block_k": 128, "precision": "tf32"}
PLAIN = {"paths": 1, "width": 16, "fresh": False}
LINEAR = dict.fromkeys(("x_ptr", *(f"{kind}{n}" for kind in "wby" for n in range(4))), B)

# Kernel, types of its pointers (bfloat16 where not told) and numbers (whole where not told), constants, warps.
KERNELS = {
    "two recurrent kernels: the state": (
        "recurrent_kernel._recur", {"state_ptr": F, "scale": "fp32"},
        {"d": 128, "e": 128, "width": 4, "block_d": 128, "part": 32}, 4,
    ),
    "two recurrent kernels: the end": (
        "recurrent_kernel._finish", {},
        {"eps": 1e-6, "e": 128, "width": 4, "block_e": 128, "block": 256, "taps": 4}, 2,
    ),
    "cosines": ("relevance_kernel._cosine", {"unit_ptr": F, "cos_ptr": F}, {"block": 4096}, 4),
    "weights": (
        "relevance_kernel._weigh", {"cos_ptr": F, "valid_ptr": BOOL, "weight_ptr": F},
        {"scale": 100.0, "floor": 0.5, "shifted": True, "block": 1024}, 4,
    ),
    "weights at their columns": (
        "relevance_kernel._spread", {"weight_ptr": F, "column_ptr": LONG, "valid_ptr": BOOL, "out_ptr": F},
        {"block": 1024, "wide": 1024}, 4,
    ),
    "the largest logits": (
        "second_look_kernel._best", {"used_ptr": BOOL, "out_ptr": F}, {"first": False, "kept": 10, **TILE}, 4,
    ),
    "a judgement": (
        "second_look_kernel._judge",
        {"best_ptr": F, "present_ptr": BOOL, "used_ptr": BOOL, "open_ptr": BOOL, "entropy_ptr": F}
        | {"gate_ptr": BOOL, "step_ptr": LONG},
        {"layer": 5, "first": False, "kept": 10, "base": 2.3, "threshold": 0.75, "block": 8192}, 16,
    ),
    "a look: keys": (
        "second_look_kernel._keys",
        {"memory_ptr": F, "size_ptr": F, "up_ptr": F, "open_ptr": BOOL, "score_ptr": F},
        {"active": True, "some": 4, "block": 1024}, 4,
    ),
    "a look: values": (
        "second_look_kernel._values", {"score_ptr": F, "memory_ptr": F, "open_ptr": BOOL, "delta_ptr": F},
        {"some": 64, "block": 32}, 4,
    ),
    "a look: the mix": (
        "second_look_kernel._mix", {"delta_ptr": F, "open_ptr": BOOL},
        {"ratio": 0.12, "tiny": 1.2e-38, "block": 4096}, 8,
    ),
    "four matrices, one row": (
        "linear_kernel._linear", LINEAR,
        {"matrices": 4, "single": True, "biased": False, "block_n": 2, "block_k": 2048, "precision": "tf32"}
        | {"width": 16}, 2,
    ),
    "three matrices, some rows": (
        "linear_kernel._linear", LINEAR, {"matrices": 3, "single": False, "biased": True, **TILE, "width": 32}, 4,
    ),
    "the gate": ("gate_kernel._parts", {"out_ptr": F}, TILE, 4),
    "tilted attention in stretches": (
        "attention_kernel._attend",
        {"mask_ptr": BOOL, "weight_ptr": F, "gate_ptr": BOOL, "out_ptr": F, "lse_ptr": F},
        {"scaling": 0.1, "strength": 1.0, "groups": 1, "d": 128, "masked": True, "additive": False, "form": 1}
        | {"split": True, "block": 64, "whole": 128, "lowest": 0, "precision": "tf32", **PLAIN}, 4,
    ),
    "attention in one go": (
        "attention_kernel._attend", {"weight_ptr": F, "gate_ptr": BOOL, "lse_ptr": F},
        {"scaling": 0.1, "strength": 1.0, "groups": 4, "d": 64, "masked": True, "additive": True, "form": 0}
        | {"split": False, "block": 64, "whole": 1024, "lowest": -60000.0, "precision": "tf32", **PLAIN}, 4,
    ),
    "a token into a cache": (
        "cache_kernel._write", {"length_ptr": LONG}, {"forked": False, "d": 128, "e": 128, "block": 128}, 1,
    ),
    "a gate's decision, on a path": (
        "gate_kernel._decide",
        dict.fromkeys(("parts_ptr", "count_ptr", "mean_ptr", "spread_ptr", "entropy_ptr", "threshold_ptr"), F)
        | {"valid_ptr": BOOL, "gate_ptr": BOOL, "open_ptr": BOOL, "step_ptr": LONG, "path_ptr": "*i32"},
        {"layer": 5, "base": 1.0, "fixed": False, "threshold": 0.23, "sd_factor": 0.5, "fork": 1, "block": 512}, 8,
    ),
    "logits of all paths and their gates": ("fork_kernel._both", {"parts_ptr": F}, {**TILE, "width": 64}, 4),
    "logits of the path taken": ("fork_kernel._take", {"path_ptr": "*i32"}, {"block": 2048}, 4),
    "keys and values of the path taken": (
        "cache_kernel._write", {"length_ptr": LONG, "path_ptr": "*i32"},
        {"forked": True, "d": 128, "e": 128, "block": 128}, 1,
    ),
    "attention of forked rows": (
        "attention_kernel._attend",
        {"mask_ptr": BOOL, "weight_ptr": F, "gate_ptr": BOOL, "out_ptr": F, "lse_ptr": F, "newest_ptr": LONG},
        {"scaling": 0.09, "strength": 1.0, "groups": 1, "d": 128, "masked": True, "additive": False, "form": 1}
        | {"split": True, "block": 64, "whole": 128, "lowest": 0, "precision": "tf32"}
        | {"paths": 16, "width": 16, "fresh": True}, 4,
    ),
}  # fmt: skip


def for_gpu(function, types, constants, options):
    kinds = {
        argument: "constexpr" if argument in constants else types.get(argument, B if "_ptr" in argument else INT)
        for argument in function.arg_names
    }
    given = {(function.arg_names.index(argument),): value for argument, value in constants.items()}
    return compiled(ASTSource(function, kinds, given, {}), target=GPUTarget("cuda", 90, 32), options=options)


SHARED = 232448  # bytes of shared memory that a program may have on that card


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing")
@pytest.mark.parametrize("name", KERNELS)
def test_compiles(name):
    place, types, constants, warps = KERNELS[name]
    file, kernel = place.split(".")
    function = getattr(importlib.import_module(f"seewhen.decoding.kernels.{file}"), kernel)
    assert for_gpu(function, types, constants, {"num_warps": warps}).asm["cubin"]


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing")
@pytest.mark.parametrize("words", (1000, 32064))
@pytest.mark.parametrize("rows", (3, 31, 56))
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float32))
def test_the_end_of_a_forked_step_has_the_memory_it_needs(words, rows, dtype):
    from seewhen.decoding.kernels import fork_kernel
    from seewhen.decoding.kernels.linear_kernel import tile_shape, tile_width

    block_n, block_k, warps, stages = tile_shape(rows, words, 4096, torch.empty(0, dtype=dtype))
    constants = {"block_n": block_n, "block_k": block_k, "width": tile_width(rows)}
    constants["precision"] = "ieee" if dtype == torch.float32 else "tf32"
    kind = F if dtype == torch.float32 else B
    types = {"x_ptr": kind, "w_ptr": kind, "logits_ptr": kind, "parts_ptr": F}
    made = for_gpu(fork_kernel._both, types, constants, {"num_warps": warps, "num_stages": stages})
    assert stages >= 2 and made.metadata.shared <= SHARED
