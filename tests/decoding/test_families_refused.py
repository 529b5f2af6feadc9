"""Models that cannot work say so, and are left as they were."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForSeq2SeqLM

import seewhen
import tiny
from every_family import ALWAYS, CONTRAST, state_of
from promises import STEPS, close, generate, logits_of
from seewhen.errors import UnsupportedModel


def other_model(kind: str) -> Any:
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 4, "vocab_size": 144}
    text = {"vocab_size": 144, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
    text |= {"num_attention_heads": 4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "image_size": 16,
        "patch_size": 4,
    }
    if kind == "llama":
        return AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **text))
    if kind == "t5":
        return AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model("t5", **sizes))
    if kind == "instructblip":
        towers = {
            "vision_config": {**vision, "num_attention_heads": 2},
            "text_config": {"model_type": "t5", **sizes},
        }
        towers["qformer_config"] = {**vision, "num_attention_heads": 2, "vocab_size": 144}
        return AutoModelForImageTextToText.from_config(AutoConfig.for_model(kind, image_token_index=130, **towers))
    assert kind == "mllama"
    vision |= {"attention_heads": 2, "num_global_layers": 1, "max_num_tiles": 1, "vision_output_dim": 32}
    vision |= {"intermediate_layers_indices": [0], "supported_aspect_ratios": [[1, 1]]}
    text |= {"num_key_value_heads": 4, "cross_attention_layers": [1]}
    config = AutoConfig.for_model(kind, vision_config=vision, text_config=text, image_token_index=130)
    return AutoModelForImageTextToText.from_config(config)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("llama", "names no image token"),
        ("t5", "encoder-decoder"),
        ("instructblip", "encoder-decoder"),
        ("mllama", "cross-attention"),
    ],
)
def test_models_that_cannot_be_supported(kind: str, reason: str) -> None:
    model = other_model(kind)
    before = state_of(model)
    with pytest.raises(UnsupportedModel, match=reason), seewhen.attach(model, ALWAYS):
        pass
    assert state_of(model) == before


def test_a_name_in_place_of_a_model_is_told_how_to_load_it() -> None:
    with pytest.raises(UnsupportedModel, match=r"seewhen\.load\('someone/model'\)"):
        seewhen.attach("someone/model", "cai")


def test_windows_only_is_not_supported() -> None:
    for family, options in (
        ("mistral3", {"sliding_window": 8}),
        ("qwen2_vl", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}),
    ):
        with pytest.raises(UnsupportedModel, match=r"sliding-window|full softmax"):
            seewhen.Backbone.of(tiny.model(family, **options))


def test_some_windows_leave_the_other_layers() -> None:
    """Qwen with windows in its upper half: methods act in the lower half, and rows stay independent."""
    options = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}
    model = tiny.model("qwen2_vl", **options)
    assert seewhen.Backbone.of(model).softmax_layers == (0, 1)
    with seewhen.attach(model, CONTRAST) as handle:
        batch = generate(model, tiny.inputs("qwen2_vl", rows=2))
        assert handle.trace.fired()[0].tolist() == [0, STEPS, 0, 0]
        close(logits_of(batch)[0], logits_of(generate(model, tiny.inputs("qwen2_vl", rows=2, only=0)))[0])


def test_layers_that_keep_keywords_from_attention_are_found_out() -> None:
    model = tiny.model("llava")
    layers = seewhen.Backbone.of(model).layers

    def swallow(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {name: value for name, value in kwargs.items() if name != "seewhen"}

    with seewhen.attach(model, ALWAYS):
        handles = [layer.register_forward_pre_hook(swallow, with_kwargs=True) for layer in layers]
        try:
            with pytest.raises(UnsupportedModel, match="keyword arguments"):
                generate(model, tiny.inputs("llava"))
        finally:
            for handle in handles:
                handle.remove()


def test_attention_with_masks_of_blocks_is_refused_in_a_line() -> None:
    """flex_attention says which blocks a row sees, not which columns; what leaves attention alone may attach."""
    model = copy.deepcopy(tiny.model("llava"))
    model.set_attn_implementation("flex_attention")
    before = state_of(model)
    with pytest.raises(UnsupportedModel, match="'flex_attention' cannot be hosted"), seewhen.attach(model, ALWAYS):
        pass
    with seewhen.attach(model, "vcd"):
        pass
    assert state_of(model) == before
