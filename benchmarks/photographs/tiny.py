"""Everything in miniature: a store of random photographs, a tiny tower, a tiny language model, all stages."""

from __future__ import annotations

import gzip
import io
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from transformers import Dinov2Config, Dinov2Model, LlamaConfig, LlamaForCausalLM

from photographs import dino, exam, holdout, packing, photos, run
from photographs.boxes import COCO
from photographs.recipe import FineTune, Projector, Recipe, Tower
from seewhen.backbones.photo.building import build
from seewhen.backbones.photo.dino import stored
from seewhen.backbones.photo.language import _NAMES

SIDE = 28
RECIPE = Recipe(
    Tower(6, 8, 1e-3), Projector(4, 6, 1e-3),
    FineTune(6, 10, 1e-3, rank=2, questions=2, text_only=0.2, texts=8, text_tokens=200),
    check_every=3, checked=4,
)  # fmt: skip


def make_store(store: Path, training: int = 48, tested: int = 12) -> None:
    """A store with the numbers of real photographs, random pixels and random objects."""
    store.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    lists = holdout.read()
    held_out = [n for name in ("validation", "pope", "chair", "annotated") for n in sorted(lists[name])[:tested]]
    every = frozenset().union(*lists.values())
    free = [n for n in range(1, 10_000) if n not in every][:training]
    categories = sorted(COCO)
    table = {
        str(n): sorted(rng.choice(len(categories), rng.integers(3, 6), replace=False).tolist())
        for n in [*held_out, *free, *every]
    }
    with gzip.open(store / run.TABLE, "wt", encoding="utf-8") as stream:
        json.dump({"categories": categories, "images": table}, stream)
    located = {
        str(n): [(categories[table[str(n)][0]], 0.2, 0.2, 0.7, 0.7)] for n in sorted(lists["annotated"])[:tested]
    }
    (store / "boxes.json").write_text(json.dumps(located), "utf-8")
    for name, numbers in (("heldout-00", held_out), ("train-00", free[::2]), ("train-01", free[1::2])):
        photos.write_shard(store / f"{name}.safetensors", {n: _picture(rng) for n in numbers})
    for kind in ("random", "popular", "adversarial"):
        asked = [
            {"question_id": i + 1, "image": f"COCO_val2014_{n:012d}.jpg", "text": f"Is there a {t} in the image?",
             "label": label}
            for i, (n, t, label) in enumerate(
                (n, categories[table[str(n)][0]], "yes") for n in sorted(lists["pope"])[:tested]
            )
        ]  # fmt: skip
        (store / f"coco_pope_{kind}.json").write_text("".join(json.dumps(a) + "\n" for a in asked), "utf-8")
    shape = Dinov2Config(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=SIDE, patch_size=14
    )
    torch.manual_seed(0)
    dino.save_tower(shape, stored(Dinov2Model(shape)), store / "dinov2-small.int8.safetensors")
    save_file(tiny_teacher(), store / run.TEACHER)
    write_gguf(store / "smollm2.gguf")


def tiny_teacher(width: int = 8) -> dict[str, torch.Tensor]:
    """EfficientNet-Lite0 with few and equal channels, as `teachers.save_efficientnet` writes it."""
    kernels = {"_conv_stem": (width, 3, 3, 3), "_conv_head": (2 * width, width, 1, 1)}
    for i in range(16):
        kernels |= {f"_blocks.{i}._expand_conv": (width, width, 1, 1)} if i else {}
        kernels[f"_blocks.{i}._depthwise_conv"] = (width, 1, 3 + 2 * (i % 2), 3 + 2 * (i % 2))
        kernels[f"_blocks.{i}._project_conv"] = (width, width, 1, 1)
    weights = {f"{name}.weight": torch.randn(shape).mul(0.5).half() for name, shape in kernels.items()}
    return weights | {f"{name}.bias": torch.randn(shape[0]).half() for name, shape in kernels.items()}


def _picture(rng: np.random.Generator) -> bytes:
    out = io.BytesIO()
    Image.fromarray(rng.integers(0, 255, (SIDE, SIDE, 3), dtype=np.uint8)).save(out, "WEBP", quality=50)
    return out.getvalue()


def tiny_language() -> tuple[LlamaForCausalLM, list[str]]:
    """A model over single bytes and SmolLM2's marks."""
    from tokenizers import pre_tokenizers

    words = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<empty_output>"]
    words += sorted(pre_tokenizers.ByteLevel.alphabet())
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=len(words), hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=4096, tie_word_embeddings=True, bos_token_id=1,
        eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(shape), words


def write_gguf(path: Path) -> LlamaForCausalLM:
    """The tiny language model as a GGUF file: embeddings in Q8_0, matrices in Q4_1, norms in F32."""
    model, words = tiny_language()
    c = model.config
    facts: dict[str, Any] = {
        "llama.embedding_length": c.hidden_size,
        "llama.feed_forward_length": c.intermediate_size,
        "llama.block_count": c.num_hidden_layers,
        "llama.attention.head_count": c.num_attention_heads,
        "llama.attention.head_count_kv": c.num_key_value_heads,
        "llama.context_length": c.max_position_embeddings,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.token_type": [3] * 4 + [1] * (len(words) - 4),
    }
    weights = model.state_dict()
    heads = {"attn_q": c.num_attention_heads, "attn_k": c.num_key_value_heads}
    tensors = {
        "token_embd.weight": (8, weights["model.embed_tokens.weight"]),
        "output_norm.weight": (0, weights["model.norm.weight"]),
    }
    for layer in range(c.num_hidden_layers):
        for theirs, ours in _NAMES.items():
            weight = weights[f"model.layers.{layer}.{ours}.weight"]
            if theirs in heads:  # pairs of neighbours, where transformers has halves
                n, (rows, width) = heads[theirs], weight.shape
                weight = weight.view(n, 2, rows // n // 2, width).transpose(1, 2).reshape(rows, width)
            tensors[f"blk.{layer}.{theirs}.weight"] = (3 if weight.dim() > 1 else 0, weight)
    _write(path, facts, {name: (kind, w.numpy()) for name, (kind, w) in tensors.items()})
    return model


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _fact(value: Any) -> bytes:
    if isinstance(value, list):
        inner = value or [""]
        kind = 8 if isinstance(inner[0], str) else 5
        items = b"".join(_text(v) if kind == 8 else struct.pack("<i", v) for v in value)
        return struct.pack("<IIQ", 9, kind, len(value)) + items
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    return struct.pack("<II", 4, value)


def quantised(kind: int, values: np.ndarray) -> bytes:
    """F32 (0), Q8_0 (8) or Q4_1 (3), in blocks of 32."""
    if kind == 0:
        return values.astype("<f4").tobytes()
    blocks = values.reshape(-1, 32).astype(np.float32)
    if kind == 8:
        scale = (np.abs(blocks).max(1, keepdims=True) / 127).astype(np.float16)
        rounded = np.round(blocks / np.maximum(scale.astype(np.float32), 1e-8)).astype(np.int8)
        return np.concatenate([scale.view(np.uint8), rounded.view(np.uint8)], axis=1).tobytes()
    least = blocks.min(1, keepdims=True).astype(np.float16)
    scale = ((blocks.max(1, keepdims=True) - least) / 15).astype(np.float16)
    steps = (blocks - least.astype(np.float32)) / np.maximum(scale.astype(np.float32), 1e-8)
    rounded = np.clip(np.round(steps), 0, 15).astype(np.uint8)
    halves = rounded[:, :16] | (rounded[:, 16:] << 4)
    return np.concatenate([scale.view(np.uint8), least.view(np.uint8), halves], axis=1).tobytes()


def _write(path: Path, facts: dict[str, Any], tensors: dict[str, tuple[int, np.ndarray]]) -> None:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(facts))
    head += b"".join(_text(name) + _fact(value) for name, value in facts.items())
    body = b""
    for name, (kind, values) in tensors.items():
        shape = values.shape[::-1]
        head += _text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, len(body))
        body += quantised(kind, values)
        body += b"\0" * (-len(body) % 32)
    path.write_bytes(head + b"\0" * (-len(head) % 32) + body)


def smoke(out: Path) -> None:
    """Store, all stages, packing, exam and measurement in a folder."""
    from photographs.study import measure_regular

    store = out / "store"
    make_store(store)
    place = run.Place(store, out / "run", "cuda" if torch.cuda.is_available() else "cpu", 2)
    run.train(place, RECIPE)
    packed = packing.pack(place.out, store / "dinov2-small.int8.safetensors")
    build(packed, store / "smollm2.gguf", place.out / "model")
    exam.write_folders(store, place.out / "exam")
    print(measure_regular(place.out, 3, 8))
