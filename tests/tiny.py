"""Tiny random models of every family, and prompts for them, for tests.

`tiny.model("llava")` is a float32 model with fixed weights whose logits are not flat;
`tiny.inputs("llava", rows=3)` is a left-padded batch with one image per row, laid out as the family's
processor lays it out (markers, row breaks, tiles). Images differ in shape where the family allows it,
so rows have different numbers of image tokens.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForImageTextToText

PAD, BOS, EOS = 0, 1, 2
FIRST_WORD, WORDS = 3, 120  # text tokens are FIRST_WORD .. FIRST_WORD + WORDS - 1
IMAGE, VIDEO, OPEN, CLOSE, BREAK, FAKE, ROW_COL, GLOBAL, NEWLINE = range(130, 139)
VOCABULARY = 144

_TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "max_position_embeddings": 1024,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
    "tie_word_embeddings": False,
}
_VISION = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 4,
}
_CLIP = {"model_type": "clip_vision_model", "projection_dim": 16, **_VISION}
_SIGLIP = {"model_type": "siglip_vision_model", "vision_use_head": False, **_VISION}
_QWEN_VISION = {
    "depth": 2,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_heads": 2,
    "patch_size": 2,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 32,
}
_MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
_QWEN = {"image_token_id": IMAGE, "video_token_id": VIDEO, "vision_start_token_id": OPEN}
_QWEN |= {"vision_end_token_id": CLOSE, "tie_word_embeddings": False}
PINPOINTS = [[16, 32], [32, 16], [32, 32]]

# Configuration of each family: the outer fields, the vision tower and what the text tower adds to _TEXT.
_SPECS: dict[str, dict[str, Any]] = {
    "llava": {"vision": _CLIP, "text": {"model_type": "llama"}, "image_token_index": IMAGE},
    "llava_next": {
        "vision": _CLIP,
        "text": {"model_type": "llama"},
        "image_token_index": IMAGE,
        "image_grid_pinpoints": PINPOINTS,
    },
    "llava_onevision": {
        "vision": _SIGLIP,
        "text": {"model_type": "qwen2"},
        "image_token_index": IMAGE,
        "video_token_index": VIDEO,
        "image_grid_pinpoints": PINPOINTS,
        "vision_aspect_ratio": "anyres_max_2",
    },
    "instructblip": {
        "vision": _VISION,
        "text": {"model_type": "llama"},
        "image_token_index": IMAGE,
        "num_query_tokens": 5,
        "qformer_config": {
            "vocab_size": VOCABULARY,
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 24,
            "encoder_hidden_size": 16,
        },
    },
    "qwen2_vl": {
        "vision": {**_QWEN_VISION, "embed_dim": 16, "hidden_size": 32, "mlp_ratio": 2},
        "text": {"rope_parameters": _MROPE},
        **_QWEN,
    },
    "qwen2_5_vl": {
        "vision": {**_QWEN_VISION, "window_size": 8, "fullatt_block_indexes": [1]},
        "text": {"rope_parameters": _MROPE},
        **_QWEN,
    },
    "qwen3_vl": {
        "vision": {**_QWEN_VISION, "num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]},
        "text": {"rope_parameters": {**_MROPE, "mrope_interleaved": True}},
        **_QWEN,
    },
    "qwen3_5": {
        "vision": {**_QWEN_VISION, "num_position_embeddings": 16},
        "text": {
            "head_dim": 16,
            "rope_parameters": {**_MROPE, "mrope_interleaved": True, "partial_rotary_factor": 0.5},
            "layer_types": ["linear_attention", "full_attention"] * 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
        },
        **_QWEN,
    },
    "internvl": {
        "vision": {**_VISION, "image_size": [16, 16], "patch_size": [4, 4]},
        "text": {"model_type": "qwen2"},
        "image_token_id": IMAGE,
        "image_seq_length": 4,
    },
    "idefics3": {"vision": _VISION, "text": {"model_type": "llama"}, "image_token_id": IMAGE},
    "smolvlm": {"vision": _VISION, "text": {"model_type": "llama"}, "image_token_id": IMAGE},
    "paligemma": {
        "vision": _SIGLIP,
        "text": {"model_type": "gemma"},
        "image_token_index": IMAGE,
        "projection_dim": 32,
        "hidden_size": 32,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": False,
    },
    "gemma3": {
        "vision": _SIGLIP,
        "text": {
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "sliding_window": 8,  # shorter than the prompts, as in a long conversation
            "query_pre_attn_scalar": 8,
        },
        "image_token_index": IMAGE,
        "boi_token_index": OPEN,
        "eoi_token_index": CLOSE,
        "mm_tokens_per_image": 4,
        "tie_word_embeddings": False,
    },
    "mistral3": {
        "vision": {"model_type": "pixtral", **_VISION, "image_size": 32, "head_dim": 8},
        "text": {"model_type": "mistral", "sliding_window": None},
        "image_token_index": IMAGE,
    },
}
FAMILIES: tuple[str, ...] = tuple(_SPECS)

# A family member with capped attention scores, for which transformers has the eager kernel only.
_SPECS["paligemma2"] = {
    **_SPECS["paligemma"],
    "model_type": "paligemma",
    "text": {
        "model_type": "gemma2",
        "query_pre_attn_scalar": 8,
        "sliding_window": 8,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 5.0,  # PaliGemma itself does not apply it
    },
}
CAPPED = "paligemma2"
ONE_IMAGE_ONLY = ("instructblip",)  # one image per prompt by construction


def aligned(loaded: Any) -> Any:
    """A loaded model with its weights where torch would have put them, for comparisons bit for bit.

    Weights of a mapped file begin at any address, and some processors' matrix products round by the address.
    """
    for parameter in loaded.parameters():
        parameter.data = parameter.data.clone()
    return loaded


def model(family: str, **text_overrides: Any) -> Any:
    """The tiny model of `family`; overrides go to the text configuration (`num_key_value_heads=2`)."""
    return _model(family, tuple(sorted(text_overrides.items())))


@functools.cache
def _model(family: str, overrides: tuple[tuple[str, Any], ...]) -> Any:
    spec = dict(_SPECS[family])
    vision, text = spec.pop("vision"), {**_TEXT, **spec.pop("text"), **dict(overrides)}
    if "layer_types" in text and text["num_hidden_layers"] != len(text["layer_types"]):
        pattern = text["layer_types"][:2]
        text["layer_types"] = (pattern * text["num_hidden_layers"])[: text["num_hidden_layers"]]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = AutoConfig.for_model(
            spec.pop("model_type", family), vision_config=dict(vision), text_config=text, **spec
        )
        built = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
        _draw_weights(built)
    for part in (built, getattr(built, "language_model", None)):
        if getattr(part, "generation_config", None) is not None:
            part.generation_config.update(bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD)
    _laid[built] = _layout(built)
    return built.eval()


# The models that tests share, each with how its parameters were laid when it was made.
_laid: dict[Any, list[tuple[Any, ...]]] = {}


def _layout(built: Any) -> list[tuple[Any, ...]]:
    return [(each.data_ptr(), each.stride(), each.dtype) for each in built.parameters()]


def changed() -> list[str]:
    """The shared models whose parameters are not laid as they were made: later tests would compare with those."""
    return [built.config.model_type for built, laid in _laid.items() if _layout(built) != laid]


@torch.no_grad()
def _draw_weights(built: Any) -> None:
    """Weights of a size that keeps activations alive and logits far from flat (standard deviation 3)."""
    generator = torch.Generator().manual_seed(1)
    for parameter in built.parameters():
        if parameter.dim() > 1:
            fan_in = parameter[0].numel()
            parameter.normal_(0.0, 1.5 / math.sqrt(fan_in), generator=generator)
    head, embedding = built.get_output_embeddings().weight, built.get_input_embeddings().weight
    head.mul_(2.0)
    if head is not embedding:
        # Some families scale embeddings; after this their output has standard deviation 1 in all.
        embedding.div_(built.get_input_embeddings()(torch.arange(VOCABULARY)).std())
    # Tokens that would end a sequence early, or stand for an image, are never the likeliest.
    head[[PAD, EOS, IMAGE, VIDEO]] = 0.0


def inputs(
    family: str,
    rows: int = 1,
    text_lengths: tuple[int, ...] | None = None,
    seed: int = 0,
    images: int | tuple[int, ...] = 1,
    only: int | None = None,
) -> dict[str, Any]:
    """A batch for `generate`. `text_lengths` counts each row's text tokens, before and after the images.

    `images` is the number of images of every row, or one number per row. `only` gives a single row of
    that batch by itself, without padding.
    """
    counts = (images,) * rows if isinstance(images, int) else images
    if set(counts) != {1} and family in ONE_IMAGE_ONLY:
        raise ValueError(f"{family} takes one image per prompt")
    lengths = text_lengths or tuple(7 + (5 * row) % 8 for row in range(rows))
    wanted = range(rows) if only is None else [only]
    prompts: list[list[int]] = []
    pictures: list[list[dict[str, Any]]] = []
    for row in wanted:
        generator = torch.Generator().manual_seed(1000 * seed + row)
        words = torch.randint(FIRST_WORD, FIRST_WORD + WORDS, (lengths[row],), generator=generator).tolist()
        drawn = [_picture(family, sum(counts[:row]) + k + seed, generator) for k in range(counts[row])]
        before = len(words) // 2
        prompt = [BOS, *words[:before]]
        for picture in drawn:
            prompt += [*picture["tokens"], words[before]]
        prompts.append(prompt + words[before + 1 :])
        pictures.append(drawn)
    return _batch(family, prompts, pictures)


def _batch(family: str, prompts: list[list[int]], pictures: list[list[dict[str, Any]]]) -> dict[str, Any]:
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[PAD] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    flat = [picture for row in pictures for picture in row]
    batch: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
    if family == "gemma3":
        batch["token_type_ids"] = (ids == IMAGE).long()
    if family in ("paligemma", "paligemma2"):
        batch["token_type_ids"] = torch.zeros_like(ids)  # all of the prompt is prefix: seen both ways
    if not flat:
        return batch
    if family in ("idefics3", "smolvlm"):
        nothing = torch.zeros(0, 3, 16, 16)
        tiles = [torch.cat([nothing, *(picture["pixels"] for picture in row)]) for row in pictures]
        most = max(len(row) for row in tiles)
        batch["pixel_values"] = torch.stack([_grow(row, (most, *row.shape[1:])) for row in tiles])
        batch["pixel_attention_mask"] = torch.ones_like(batch["pixel_values"][:, :, 0], dtype=torch.long)
    elif family in ("llava_next", "llava_onevision"):
        most = max(len(picture["pixels"]) for picture in flat)
        shape = (most, *flat[0]["pixels"].shape[1:])
        batch["pixel_values"] = torch.stack([_grow(picture["pixels"], shape) for picture in flat])
        batch["image_sizes"] = torch.tensor([picture["size"] for picture in flat])
        if family == "llava_onevision":
            batch["batch_num_images"] = torch.tensor([1] * len(flat))
    elif family == "mistral3":
        height, width = (max(picture["size"][axis] for picture in flat) for axis in (0, 1))
        grown = [_grow(picture["pixels"], (1, 3, height, width)) for picture in flat]
        batch["pixel_values"] = torch.cat(grown)
        batch["image_sizes"] = torch.tensor([picture["size"] for picture in flat])
    else:
        batch["pixel_values"] = torch.cat([picture["pixels"] for picture in flat])
    if family.startswith("qwen"):
        batch["image_grid_thw"] = torch.tensor([picture["grid"] for picture in flat])
        batch["mm_token_type_ids"] = (ids == IMAGE).int()
    if family == "instructblip":
        batch["qformer_input_ids"] = torch.full((len(prompts), 3), FIRST_WORD)
        batch["qformer_attention_mask"] = torch.ones_like(batch["qformer_input_ids"])
    return batch


def _grow(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Pad with zeros at the end of each dimension."""
    grown = torch.zeros(shape)
    grown[tuple(slice(0, size) for size in tensor.shape)] = tensor
    return grown


def _picture(family: str, index: int, generator: torch.Generator) -> dict[str, Any]:
    """One random image as the family's processor would give it: pixels, and its tokens in the prompt."""

    def pixels(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    if family.startswith("qwen"):
        grid = [(1, 4, 6), (1, 6, 4), (1, 4, 4)][index % 3]
        count = math.prod(grid) // 4
        patches = pixels(math.prod(grid), 3 * 2 * 2 * 2)
        return {"pixels": patches, "grid": grid, "tokens": [OPEN, *[IMAGE] * count, CLOSE]}
    if family in ("llava_next", "llava_onevision"):
        size = [(20, 30), (30, 14), (31, 29)][index % 3]
        count, tiles = anyres(family, size)
        return {"pixels": pixels(tiles, 3, 16, 16), "size": size, "tokens": [IMAGE] * count}
    if family == "mistral3":
        size = [(16, 24), (24, 16), (16, 16)][index % 3]
        height, width = size[0] // 8, size[1] // 8
        tokens = ([IMAGE] * width + [BREAK]) * height
        return {"pixels": pixels(1, 3, *size), "size": size, "tokens": [*tokens[:-1], CLOSE]}
    if family in ("internvl", "idefics3", "smolvlm"):
        down, across = [(1, 2), (2, 1), (2, 3)][index % 3]
        picture = pixels(3, 16 * down, 16 * across)
        tiles = picture.unfold(1, 16, 16).unfold(2, 16, 16).permute(1, 2, 0, 3, 4).flatten(0, 1)
        small = torch.nn.functional.interpolate(picture[None], (16, 16), mode="area")
        marked = _internvl_tokens if family == "internvl" else idefics_tokens
        return {"pixels": torch.cat([tiles, small]), "tokens": marked(down, across), "tiles": (down, across)}
    count = {"llava": 16, "paligemma": 16, "paligemma2": 16, "gemma3": 4, "instructblip": 5}[family]
    tokens = [IMAGE] * count
    return {"pixels": pixels(1, 3, 16, 16), "tokens": [OPEN, *tokens, CLOSE] if family == "gemma3" else tokens}


def _internvl_tokens(down: int, across: int) -> list[int]:
    return [OPEN, *[IMAGE] * 4 * (down * across + 1), CLOSE]


def idefics_tokens(down: int, across: int) -> list[int]:
    row = [FAKE, ROW_COL, *[IMAGE] * 4] * across + [NEWLINE]
    return [*row * down, NEWLINE, FAKE, GLOBAL, *[IMAGE] * 4, FAKE]


def anyres(family: str, size: tuple[int, int]) -> tuple[int, int]:
    """Image tokens and tiles of an any-resolution image, counted by the model itself."""
    from transformers.models.llava_next.modeling_llava_next import image_size_to_num_patches

    tiles = image_size_to_num_patches(size, PINPOINTS, 16)
    with torch.no_grad():
        sizes = torch.tensor([size])
        features = model(family).get_image_features(torch.zeros(1, tiles, 3, 16, 16), image_sizes=sizes)
    return sum(len(part) for part in features.pooler_output), tiles
