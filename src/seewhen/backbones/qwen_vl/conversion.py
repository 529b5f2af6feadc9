"""Weights under the published key names: renamed and split while loading, joined again while saving.

transformers 5.x applies a registered list of transforms to every checkpoint key as the shards are read
(so it works with `device_map`, quantisation and sharded files alike) and reverses the list in
`save_pretrained`. Keys that already have our names pass through untouched.

    transformer.wte                  -> model.language_model.embed_tokens
    transformer.h.N.attn.c_attn      -> model.language_model.layers.N.self_attn.{q,k,v}_proj   (split)
    transformer.h.N.mlp.{w1,w2}      -> model.language_model.layers.N.mlp.{up,gate}_proj
    transformer.visual.*             -> model.visual.*   (in_proj of the resampler split)
"""

from __future__ import annotations

import json
from pathlib import Path

from transformers import PreTrainedModel
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import Chunk, WeightConverter, WeightRenaming

from seewhen.atomic import write
from seewhen.backbones.qwen_vl.configuration import QwenVLConfig, published_config

_LAYER_NAMES = {
    "ln_1": "input_layernorm",
    "ln_2": "post_attention_layernorm",
    "attn.c_attn": "attn.c_attn",  # moved to its layer here, split by a converter below
    "attn.c_proj": "self_attn.o_proj",
    "mlp.w1": "mlp.up_proj",
    "mlp.w2": "mlp.gate_proj",
    "mlp.c_proj": "mlp.down_proj",
}


def _transforms() -> list[WeightRenaming | WeightConverter]:
    layers = [
        WeightRenaming(
            r"^transformer\.h\.(\d+)\." + theirs.replace(".", r"\.") + r"\.",
            rf"model.language_model.layers.\1.{ours}.",
        )
        for theirs, ours in _LAYER_NAMES.items()
    ]
    splits = [
        WeightConverter(
            source,
            [f"{target}.{part}_proj.{kind}" for part in "qkv"],
            operations=[Chunk(dim=0)],
        )
        for kind in ("weight", "bias")
        for source, target in (
            (f"attn.c_attn.{kind}", "self_attn"),
            (f"attn_pool.attn.in_proj_{kind}", "attn_pool.attn"),
        )
    ]
    return [
        WeightRenaming(r"^transformer\.wte\.", "model.language_model.embed_tokens."),
        WeightRenaming(r"^transformer\.ln_f\.", "model.language_model.norm."),
        WeightRenaming(r"^transformer\.visual\.", "model.visual."),
        *layers,
        *splits,
    ]


def register_conversion() -> None:
    """Make the transforms known to transformers; safe to call again."""
    register_checkpoint_conversion_mapping(QwenVLConfig.model_type, _transforms(), overwrite=True)


def save_original(model: PreTrainedModel, directory: str | Path, max_shard_size: str = "5GB") -> None:
    """Write a checkpoint directory in the published layout: key names, flat `config.json`, safetensors."""
    directory = Path(directory)
    # transformers reverses the registered transforms, so the weights come out under the published names.
    model.save_pretrained(directory, max_shard_size=max_shard_size, save_original_format=True)
    write(directory / "config.json", json.dumps(published_config(model.config), indent=2) + "\n")
