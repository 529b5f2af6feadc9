"""Qwen-VL and Qwen-VL-Chat (v1): not in transformers, ported here, loaded from the published files.

from seewhen.backbones import qwen_vl
qwen_vl.register()
model = AutoModelForImageTextToText.from_pretrained("path/to/Qwen-VL-Chat")
"""

from __future__ import annotations

from seewhen.backbones.qwen_vl.configuration import QwenVLConfig, QwenVLTextConfig, QwenVLVisionConfig
from seewhen.backbones.qwen_vl.conversion import save_original
from seewhen.backbones.qwen_vl.modeling import QwenVLForConditionalGeneration, QwenVLModel
from seewhen.backbones.qwen_vl.processing import QwenVLImageProcessor, QwenVLProcessor, evaluation_prompt
from seewhen.backbones.qwen_vl.tokenization import QWenTokenizer

__all__ = [
    "QWenTokenizer",
    "QwenVLConfig",
    "QwenVLForConditionalGeneration",
    "QwenVLImageProcessor",
    "QwenVLModel",
    "QwenVLProcessor",
    "QwenVLTextConfig",
    "QwenVLVisionConfig",
    "evaluation_prompt",
    "register",
    "save_original",
]


def register() -> None:
    """Teach the Auto classes the published `model_type` "qwen"; safe to call again."""
    from transformers import (
        AutoConfig,
        AutoModel,
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
        AutoProcessor,
        AutoTokenizer,
    )

    AutoConfig.register(QwenVLConfig.model_type, QwenVLConfig, exist_ok=True)
    AutoModel.register(QwenVLConfig, QwenVLModel, exist_ok=True)
    AutoModelForImageTextToText.register(QwenVLConfig, QwenVLForConditionalGeneration, exist_ok=True)
    # The published configuration names this class for the whole model, image part included.
    AutoModelForCausalLM.register(QwenVLConfig, QwenVLForConditionalGeneration, exist_ok=True)
    AutoTokenizer.register(QwenVLConfig, tokenizer_class=QWenTokenizer, exist_ok=True)
    AutoProcessor.register(QwenVLConfig, QwenVLProcessor, exist_ok=True)
