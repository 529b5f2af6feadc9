"""Configuration of Qwen-VL (v1), read from the published flat `config.json` or from our nested one.

The published file describes the language model at the top level and the vision tower under `visual`.
Here both become sub-configurations, as in every other vision-language model of transformers, so that
`config.get_text_config(decoder=True)` and `config.image_token_id` hold with no code per family.
"""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig, Qwen2Config

from seewhen.errors import UnsupportedModel

# published name -> our name (attention and MLP sizes that need arithmetic are handled in the functions below)
_TEXT_NAMES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "max_position_embeddings": "max_position_embeddings",
    "layer_norm_epsilon": "rms_norm_eps",
    "initializer_range": "initializer_range",
    "attn_dropout_prob": "attention_dropout",
    "use_cache": "use_cache",
    "seq_length": "seq_length",
    "use_dynamic_ntk": "use_dynamic_ntk",
    "use_logn_attn": "use_logn_attn",
}
# published names that carry nothing the port needs
_DROPPED = {
    *("auto_map", "bf16", "fp16", "fp32", "emb_dropout_prob", "kv_channels", "no_bias", "onnx_safe"),
    *("padded_vocab_size", "rotary_pct", "scale_attn_weights", "tokenizer_type", "use_flash_attn"),
    *("softmax_in_fp32", "use_cache_kernel", "use_cache_quantization"),
}
_VISION_NAMES = (
    "image_size",
    "patch_size",
    "width",
    "layers",
    "heads",
    "mlp_ratio",
    "n_queries",
    "output_dim",
)


class QwenVLTextConfig(Qwen2Config):
    """A Qwen2 text model plus the two rules Qwen (v1) applies beyond its training length `seq_length`."""

    model_type = "qwen_vl_text"
    base_config_key = "text_config"

    intermediate_size: int = 11008
    max_position_embeddings: int = 8192
    seq_length: int = 2048
    use_dynamic_ntk: bool = True
    use_logn_attn: bool = True


class QwenVLVisionConfig(PretrainedConfig):
    """ViT and resampler, under the published names; the usual transformers names are aliases."""

    model_type = "qwen_vl_vision"
    base_config_key = "vision_config"
    attribute_map = {"hidden_size": "width", "num_hidden_layers": "layers", "num_attention_heads": "heads"}  # noqa: RUF012

    image_size: int = 448
    patch_size: int = 14
    width: int = 1664
    layers: int = 48
    heads: int = 16
    mlp_ratio: float = 4.9231
    n_queries: int = 256
    output_dim: int = 4096
    resampler_head_dim: int = 128
    layer_norm_eps: float = 1e-6
    initializer_range: float = 0.02


class QwenVLConfig(PretrainedConfig):
    """`model_type` is the published one, "qwen", so that a hub directory is recognised as it is."""

    model_type = "qwen"
    sub_configs = {"text_config": QwenVLTextConfig, "vision_config": QwenVLVisionConfig}  # noqa: RUF012
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012

    text_config: Any = None  # QwenVLTextConfig or the values of one
    vision_config: Any = None
    image_start_id: int = 151857
    tie_word_embeddings: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        if self.text_config is None and ("visual" in kwargs or "hidden_size" in kwargs):
            self.text_config, self.vision_config, self.image_start_id, kwargs = _read_published(kwargs)
            self.architectures = ["QwenVLForConditionalGeneration"]
        if not isinstance(self.text_config, PretrainedConfig):
            self.text_config = QwenVLTextConfig(**_without_type(self.text_config))
        if not isinstance(self.vision_config, PretrainedConfig):
            self.vision_config = QwenVLVisionConfig(**_without_type(self.vision_config))
        super().__post_init__(**kwargs)

    @property
    def image_end_id(self) -> int:
        return self.image_start_id + 1

    @property
    def image_token_id(self) -> int:
        """The pad that fills the image span between the two tags."""
        return self.image_start_id + 2

    @property
    def image_seq_length(self) -> int:
        return self.vision_config.n_queries


def _without_type(values: dict | None) -> dict[str, Any]:
    return {key: value for key, value in (values or {}).items() if key != "model_type"}


def _read_published(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], int, dict[str, Any]]:
    """Split the published flat fields into text, vision, image tag id and the remaining common fields."""
    values = dict(values)
    if values.get("visual") is None:
        raise UnsupportedModel(
            'A configuration with model_type "qwen" but no "visual" part is a text-only Qwen (v1) model.',
            "Use a Qwen-VL or Qwen-VL-Chat checkpoint.",
        )
    heads, width = values.get("num_attention_heads", 32), values.get("hidden_size", 4096)
    if values.get("rotary_pct", 1.0) != 1.0 or values.get("kv_channels", width // heads) * heads != width:
        raise UnsupportedModel(
            "Partial rotary embeddings or head sizes other than hidden_size / heads are not supported.",
            "Published Qwen-VL checkpoints use neither; check config.json.",
        )
    text = {ours: values.pop(theirs) for theirs, ours in _TEXT_NAMES.items() if theirs in values}
    # The published figure counts both halves of the gated MLP.
    text["intermediate_size"] = values.pop("intermediate_size", 22016) // 2
    text["num_key_value_heads"] = heads
    text["rope_parameters"] = {
        "rope_type": "default",
        "rope_theta": float(values.pop("rotary_emb_base", 10000)),
    }
    visual = dict(values.pop("visual"))
    image_start_id = visual.pop("image_start_id", 151857)
    if "resampler_head_dim" in values:
        visual["resampler_head_dim"] = values.pop("resampler_head_dim")
    rest = {key: value for key, value in values.items() if key not in _DROPPED}
    return text, visual, image_start_id, rest


def published_config(config: QwenVLConfig) -> dict[str, Any]:
    """The flat `config.json` of the published checkpoints; `QwenVLConfig(**...)` reads it back."""
    text, vision = config.text_config, config.vision_config
    values: dict[str, Any] = {theirs: getattr(text, ours) for theirs, ours in _TEXT_NAMES.items()}
    values |= {
        "architectures": ["QWenLMHeadModel"],
        "model_type": "qwen",
        "intermediate_size": 2 * text.intermediate_size,
        "kv_channels": text.hidden_size // text.num_attention_heads,
        "rotary_emb_base": text.rope_parameters["rope_theta"],
        "rotary_pct": 1.0,
        "no_bias": True,
        "tie_word_embeddings": False,
        "visual": {name: getattr(vision, name) for name in _VISION_NAMES}
        | {"image_start_id": config.image_start_id},
    }
    if vision.resampler_head_dim != 128:  # fixed in the published code, so not a published field
        values["resampler_head_dim"] = vision.resampler_head_dim
    if config.dtype is not None:
        values["torch_dtype"] = str(config.dtype).removeprefix("torch.")
    return values
