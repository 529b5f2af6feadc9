"""Qwen-VL and Qwen-VL-Chat (v1) for transformers 5.x: ViT, resampler to 256 queries, Qwen2 language model.

The language model is the stock `Qwen2Model` with one attention subclass. It differs from Qwen2 only beyond
the training length `seq_length` (2,048 tokens):

* dynamic NTK: the rotary base grows with the length of the *prompt* and then stays for the whole answer,
  because the cached keys are already rotated. The factor therefore travels with the cache, one per row;
* log-n scaling: the query at position i (from 1) is multiplied by log(i) / log(seq_length).

Both are computed from `position_ids`, so left padding changes nothing, and both are plain tensor
arithmetic, so decoding compiles to one graph. The rotary tables reach the attention as a keyword argument.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from transformers import GenerationMixin, PreTrainedModel, Qwen2Model
from transformers.cache_utils import Cache
from transformers.modeling_outputs import (
    BaseModelOutputWithPast,
    BaseModelOutputWithPooling,
    CausalLMOutputWithPast,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention, eager_attention_forward, rotate_half

from seewhen.backbones.qwen_vl.configuration import QwenVLConfig, QwenVLTextConfig
from seewhen.backbones.qwen_vl.conversion import register_conversion
from seewhen.backbones.qwen_vl.vision import QwenVLVisionModel, tuple_on_request
from seewhen.errors import InvalidInput

# cosine, sine (both float32, [rows, length, head]) and the log-n factor of the queries ([rows, length, 1])
Rotary = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


# --- language model ------------------------------------------------------------------------------------


def ntk_factor(length: torch.Tensor, seq_length: int) -> torch.Tensor:
    """1 up to the training length, 3 up to twice it, 7 up to four times it, ... (integer arithmetic)."""
    limits = seq_length * 2 ** torch.arange(16, device=length.device)
    doublings = (length.unsqueeze(-1) > limits).sum(-1)
    return (2 ** (doublings + 1) - 1).float()


def log_n_factor(position_ids: torch.Tensor, seq_length: int) -> torch.Tensor:
    return (position_ids + 1).clamp(min=seq_length).float().log() / math.log(seq_length)


class QwenVLAttention(Qwen2Attention):
    """Qwen2 attention whose rotary tables carry the two long-context rules."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        rotary: Rotary,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        position_embeddings: Any = None,  # the stock tables: right only up to the training length, unused
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        rows = hidden_states.shape[:-1]
        query, key, value = (
            project(hidden_states).view(*rows, -1, self.head_dim).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        cosine, sine, scale = (table.unsqueeze(1) for table in rotary)
        # The tables are float32, so half-precision queries and keys are rotated in float32, as published.
        query = (query * cosine + rotate_half(query) * sine).to(value.dtype) * scale.to(value.dtype)
        key = (key * cosine + rotate_half(key) * sine).to(value.dtype)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        output, weights = attend(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=self.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            **kwargs,
        )
        return self.o_proj(output.reshape(*rows, -1).contiguous()), weights


class QwenVLTextModel(Qwen2Model):
    config: QwenVLTextConfig

    def __init__(self, config: QwenVLTextConfig) -> None:
        super().__init__(config)
        for index, layer in enumerate(self.layers):
            layer.self_attn = QwenVLAttention(config, index)
        self.post_init()

    @tuple_on_request
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        if inputs_embeds is None:
            if input_ids is None:
                raise InvalidInput("The language model needs input_ids or inputs_embeds.")
            inputs_embeds = self.embed_tokens(input_ids)
        if position_ids is None:
            past = past_key_values.get_seq_length() if past_key_values is not None else 0
            position_ids = torch.arange(inputs_embeds.shape[1], device=inputs_embeds.device)[None] + past
        position_ids = position_ids.expand(inputs_embeds.shape[0], -1)
        factor = self._ntk_factor(position_ids, past_key_values)
        outputs = super().forward(
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            rotary=self._rotary(position_ids, factor),
            **kwargs,
        )
        if past_key_values is None and outputs.past_key_values is not None:
            outputs.past_key_values.ntk_factor = factor
        return outputs

    def _ntk_factor(self, position_ids: torch.Tensor, cache: Cache | None) -> torch.Tensor:
        """[rows, 1]: fixed by the call that contains position 0 (the prompt), remembered by the cache."""
        fresh = ntk_factor(position_ids.amax(-1, keepdim=True) + 1, self.config.seq_length)
        if not self.config.use_dynamic_ntk or self.training:
            fresh = torch.ones_like(fresh)
        if cache is None:
            return fresh
        stored = getattr(cache, "ntk_factor", None)
        if stored is None:
            # Static like the key cache itself, so that CUDA graphs may update it in place.
            if not torch.compiler.is_compiling():
                torch._dynamo.mark_static_address(fresh)
            cache.ntk_factor = fresh
            return fresh
        if stored.shape != fresh.shape:
            # Rows were repeated after the prompt, as the cache's own helper does, or the cache was emptied and
            # serves another batch. (Rows picked out by index: the length so far is the best guess.)
            repeats, rest = divmod(fresh.shape[0], stored.shape[0])
            stored = fresh.clone() if rest or not repeats else stored.repeat_interleave(repeats, dim=0)
            cache.ntk_factor = stored
        is_prompt = (position_ids == 0).any(-1, keepdim=True)
        stored.copy_(torch.where(is_prompt, fresh, stored))
        return stored

    def _rotary(self, position_ids: torch.Tensor, factor: torch.Tensor) -> Rotary:
        head_dim = self.config.hidden_size // self.config.num_attention_heads
        even = torch.arange(0, head_dim, 2, device=position_ids.device).float()
        # (base * factor^(d / (d - 2)))^(-2i / d) is the usual frequency times factor^(-2i / (d - 2))
        frequency = self.config.rope_parameters["rope_theta"] ** (-even / head_dim)
        frequency = frequency * factor.unsqueeze(-1) ** (-even / (head_dim - 2))
        angle = position_ids.unsqueeze(-1).float() * frequency
        angle = torch.cat((angle, angle), dim=-1)
        if self.config.use_logn_attn and not self.training:
            scale = log_n_factor(position_ids, self.config.seq_length)
        else:
            scale = torch.ones_like(position_ids, dtype=torch.float32)
        return angle.cos(), angle.sin(), scale.unsqueeze(-1)


# --- the two together ----------------------------------------------------------------------------------


class QwenVLPreTrainedModel(PreTrainedModel):
    config: QwenVLConfig
    config_class = QwenVLConfig
    base_model_prefix = "model"
    input_modalities = ("image", "text")
    _no_split_modules = ["Qwen2DecoderLayer", "VisionBlock", "Resampler"]  # noqa: RUF012
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True


class QwenVLModel(QwenVLPreTrainedModel):
    def __init__(self, config: QwenVLConfig) -> None:
        super().__init__(config)
        self.visual = QwenVLVisionModel(config.vision_config)
        self.language_model = QwenVLTextModel(config.text_config)
        self.post_init()

    @tuple_on_request
    def get_image_features(self, pixel_values: torch.Tensor, **kwargs: Any) -> BaseModelOutputWithPooling:
        """`pooler_output`: one [n_queries, hidden] tensor per image, in the order of the images."""
        outputs = self.visual(pixel_values, return_dict=True)
        outputs.pooler_output = list(outputs.pooler_output)
        return outputs

    def image_slots(self, input_ids: torch.Tensor) -> torch.Tensor:
        """True between an image-open and its image-close tag, whatever the ids there (pads or path bytes)."""
        opened = (input_ids == self.config.image_start_id).cumsum(-1)
        closed = (input_ids == self.config.image_end_id).cumsum(-1)
        return (opened > closed) & (input_ids != self.config.image_start_id)

    def _insert_images(
        self, input_ids: torch.Tensor | None, embeds: torch.Tensor, features: list[torch.Tensor]
    ) -> torch.Tensor:
        if input_ids is None:
            raise InvalidInput(
                "Images were given without input_ids, so their places are unknown.",
                "Pass input_ids, or inputs_embeds that already contain the image features.",
            )
        slots = self.image_slots(input_ids)
        images = torch.cat([feature.to(embeds) for feature in features])
        if not torch.compiler.is_compiling() and (found := int(slots.sum())) != images.shape[0]:
            size = self.config.image_seq_length
            raise InvalidInput(
                f"{len(features)} image(s) need {images.shape[0]} slots between image tags, found {found}.",
                f"Each image takes {size} pads between <img> and </img>; the processor writes them.",
            )
        return embeds.masked_scatter(slots.unsqueeze(-1), images)

    @tuple_on_request
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        mm_encoder_outputs: dict[str, BaseModelOutputWithPooling] | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        if inputs_embeds is None:
            inputs_embeds = self.get_input_embeddings()(input_ids)
        encoded = (mm_encoder_outputs or {}).get("image")
        if encoded is None and pixel_values is not None:
            encoded = self.get_image_features(pixel_values, return_dict=True)
        if encoded is not None:
            inputs_embeds = self._insert_images(input_ids, inputs_embeds, list(encoded.pooler_output))
        return self.language_model(
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )


class QwenVLForConditionalGeneration(QwenVLPreTrainedModel, GenerationMixin):
    def __init__(self, config: QwenVLConfig) -> None:
        super().__init__(config)
        self.model = QwenVLModel(config)
        self.lm_head = nn.Linear(config.text_config.hidden_size, config.text_config.vocab_size, bias=False)
        self.post_init()

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        loaded = super().from_pretrained(*args, **kwargs)
        settings = (loaded[0] if isinstance(loaded, tuple) else loaded).generation_config
        # The published chat code stops at the end of a turn by "stop words"; here these are end tokens.
        if getattr(settings, "chat_format", None) == "chatml" and isinstance(settings.eos_token_id, int):
            end = settings.eos_token_id
            settings.eos_token_id = [end, end + 1, end + 2]  # <|endoftext|>, <|im_start|>, <|im_end|>
        return loaded

    def get_image_features(self, pixel_values: torch.Tensor, **kwargs: Any) -> BaseModelOutputWithPooling:
        return self.model.get_image_features(pixel_values, **kwargs)

    def image_slots(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Where image features go."""
        return self.model.image_slots(input_ids)

    @tuple_on_request
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        mm_encoder_outputs: dict[str, BaseModelOutputWithPooling] | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        outputs = self.model(
            input_ids=input_ids,
            pixel_values=pixel_values,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            mm_encoder_outputs=mm_encoder_outputs,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=self.config.text_config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


register_conversion()
