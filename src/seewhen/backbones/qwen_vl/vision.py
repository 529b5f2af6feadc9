"""Vision tower of Qwen-VL: a ViT, then one cross-attention layer that reads it into 256 queries.

Parameters keep the published names below `visual`, so loading only changes the prefix (and splits the
fused projection of the resampler).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.qwen2.modeling_qwen2 import eager_attention_forward
from transformers.utils.generic import can_return_tuple

from seewhen.backbones.qwen_vl.configuration import QwenVLVisionConfig

Method = TypeVar("Method", bound=Callable[..., Any])


def tuple_on_request(method: Method) -> Method:
    """`return_dict=False` gives a tuple, as everywhere in transformers (their decorator is untyped)."""
    return cast(Method, can_return_tuple(method))


def resize_grid(table: torch.Tensor, cells: int) -> torch.Tensor:
    """Bicubic resize of a square table of position embeddings [n, width] to `cells` rows."""
    old, new = math.isqrt(table.shape[0]), math.isqrt(cells)
    if old == new:
        return table
    grid = table.float().view(1, old, old, -1).permute(0, 3, 1, 2)
    grid = F.interpolate(grid, size=(new, new), mode="bicubic", align_corners=False)
    return grid.permute(0, 2, 3, 1).flatten(0, 2).to(table.dtype)


def sine_cosine_grid(width: int, side: int) -> torch.Tensor:
    """2-D position embedding [side * side, width]: sines and cosines of the column, then of the row."""
    frequency = 10000.0 ** (-torch.arange(width // 4, dtype=torch.float64) / (width // 4))
    angle = torch.arange(side, dtype=torch.float64)[:, None] * frequency
    line = torch.cat((angle.sin(), angle.cos()), dim=1)
    columns, rows = line.repeat(side, 1), line.repeat_interleave(side, dim=0)
    return torch.cat((columns, rows), dim=1).float()


class VisionAttention(nn.Module):
    """Multi-head attention through the attention interface; heads come as [batch, length, heads, d]."""

    is_causal = False
    num_key_value_groups = 1

    def __init__(self, config: QwenVLVisionConfig) -> None:
        super().__init__()
        self.config = config

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        interface = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        query, key, value = (heads.transpose(1, 2) for heads in (query, key, value))
        output, _ = interface(self, query, key, value, None, scaling=query.shape[-1] ** -0.5, is_causal=False)
        return output.flatten(2)


class VisionSelfAttention(VisionAttention):
    def __init__(self, config: QwenVLVisionConfig) -> None:
        super().__init__(config)
        self.in_proj = nn.Linear(config.width, 3 * config.width)
        self.out_proj = nn.Linear(config.width, config.width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        # The published projection holds query, key and value of one head next to each other.
        heads = self.in_proj(hidden).unflatten(-1, (self.config.heads, -1))
        return self.out_proj(self.attend(*heads.chunk(3, dim=-1)))


class ResamplerAttention(VisionAttention):
    def __init__(self, config: QwenVLVisionConfig) -> None:
        super().__init__(config)
        self.heads = config.output_dim // config.resampler_head_dim
        self.q_proj = nn.Linear(config.output_dim, config.output_dim)
        self.k_proj = nn.Linear(config.output_dim, config.output_dim)
        self.v_proj = nn.Linear(config.output_dim, config.output_dim)
        self.out_proj = nn.Linear(config.output_dim, config.output_dim)

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        pairs = ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        return self.out_proj(self.attend(*(project(x).unflatten(-1, (self.heads, -1)) for project, x in pairs)))


class VisionBlock(nn.Module):
    def __init__(self, config: QwenVLVisionConfig) -> None:
        super().__init__()
        inner = int(config.width * config.mlp_ratio)
        self.ln_1 = nn.LayerNorm(config.width, eps=config.layer_norm_eps)
        self.ln_2 = nn.LayerNorm(config.width, eps=config.layer_norm_eps)
        self.attn = VisionSelfAttention(config)
        self.mlp = nn.ModuleDict(
            {"c_fc": nn.Linear(config.width, inner), "c_proj": nn.Linear(inner, config.width)}
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self.attn(self.ln_1(hidden))
        return hidden + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(hidden))))


class Resampler(nn.Module):
    """One cross-attention layer from learned queries to the patches, both with 2-D position embeddings."""

    def __init__(self, config: QwenVLVisionConfig) -> None:
        super().__init__()
        self.pos_embed = nn.Parameter(torch.empty(config.n_queries, config.output_dim), requires_grad=False)
        self.query = nn.Parameter(torch.empty(config.n_queries, config.output_dim))
        same = config.width == config.output_dim
        self.kv_proj = nn.Identity() if same else nn.Linear(config.width, config.output_dim, bias=False)
        self.attn = ResamplerAttention(config)
        self.ln_q = nn.LayerNorm(config.output_dim, eps=config.layer_norm_eps)
        self.ln_kv = nn.LayerNorm(config.output_dim, eps=config.layer_norm_eps)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        patches = self.ln_kv(self.kv_proj(patches))
        query = (self.ln_q(self.query) + self.pos_embed).expand(patches.shape[0], -1, -1)
        return self.attn(query, patches + resize_grid(self.pos_embed, patches.shape[1]), patches)


class QwenVLVisionModel(PreTrainedModel):
    """Pixels [n, 3, side, side] to `n_queries` embeddings per image, as wide as the language model."""

    config: QwenVLVisionConfig
    config_class = QwenVLVisionConfig
    main_input_name = "pixel_values"
    input_modalities = ("image",)
    _no_split_modules = ["VisionBlock", "Resampler"]  # noqa: RUF012
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def __init__(self, config: QwenVLVisionConfig) -> None:
        super().__init__(config)
        self.conv1 = nn.Conv2d(3, config.width, config.patch_size, stride=config.patch_size, bias=False)
        # 16 x 16 whatever the image size: the published model is trained at 224 pixels first, 448 later.
        self.positional_embedding = nn.Parameter(torch.empty(256, config.width))
        self.ln_pre = nn.LayerNorm(config.width, eps=config.layer_norm_eps)
        self.transformer = nn.ModuleDict()
        self.transformer["resblocks"] = nn.ModuleList(VisionBlock(config) for _ in range(config.layers))
        self.attn_pool = Resampler(config)
        self.ln_post = nn.LayerNorm(config.output_dim, eps=config.layer_norm_eps)
        self.proj = nn.Parameter(torch.empty(config.output_dim, config.output_dim))
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, Resampler):
            queries, width = module.pos_embed.shape
            init.trunc_normal_(module.query, std=0.02)
            init.copy_(module.pos_embed, sine_cosine_grid(width, math.isqrt(queries)))
        elif module is self:
            init.normal_(module.positional_embedding, std=module.config.width**-0.5)
            init.normal_(module.proj, std=module.config.output_dim**-0.5)

    @tuple_on_request
    def forward(self, pixel_values: torch.Tensor, **kwargs: Any) -> BaseModelOutputWithPooling:
        pixel_values = pixel_values.to(self.conv1.weight.dtype)
        hidden = self.conv1(pixel_values).flatten(2).transpose(1, 2)
        hidden = self.ln_pre(hidden + resize_grid(self.positional_embedding, hidden.shape[1]))
        for block in self.transformer["resblocks"].children():
            hidden = block(hidden)
        pooled = self.ln_post(self.attn_pool(hidden)) @ self.proj
        return BaseModelOutputWithPooling(last_hidden_state=hidden, pooler_output=pooled)
