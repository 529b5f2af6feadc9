"""The whole model as one `LlavaForConditionalGeneration`, with its processor."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    BitImageProcessorPil,
    Dinov2Model,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

from seewhen.backbones.photo.dino import MEAN, STD, fill, stored
from seewhen.backbones.photo.language import IMAGE

# SmolLM2's own marks, without its system prompt: <|im_start|>user, the image, the question, <|im_end|>.
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'image') %}<image>\n{% endfor %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}{{ part['text'] }}{% endfor %}"
    "{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def assemble(
    tower: Dinov2Model, language: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> LlavaForConditionalGeneration:
    """A model with the given parts and a fresh projector. Patches come from the tower's last layer."""
    config = LlavaConfig(
        vision_config=tower.config,
        text_config=language.config,
        image_token_index=tokenizer.convert_tokens_to_ids(IMAGE),
        image_seq_length=image_tokens(tower),
        projector_hidden_act="gelu",
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        tie_word_embeddings=True,
    )
    model = LlavaForConditionalGeneration(config)
    fill(model.model.vision_tower, stored(tower))
    model.model.language_model.load_state_dict(language.model.state_dict())
    model.tie_weights()
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.bos_token_id = tokenizer.bos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model.eval()


def image_tokens(tower: Dinov2Model) -> int:
    return (tower.config.image_size // tower.config.patch_size) ** 2


def processor_for(tower: Dinov2Model, tokenizer: PreTrainedTokenizerFast) -> LlavaProcessor:
    """Squashes a picture to a square, as all training photographs were; needs Pillow alone."""
    side = tower.config.image_size
    pictures = BitImageProcessorPil(
        do_resize=True,
        size={"height": side, "width": side},
        resample=3,
        do_center_crop=False,
        do_convert_rgb=True,
        image_mean=list(MEAN),
        image_std=list(STD),
    )
    return LlavaProcessor(
        image_processor=pictures,
        tokenizer=tokenizer,
        patch_size=tower.config.patch_size,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,  # the tower's class token, which is left out again
        image_token=IMAGE,
        chat_template=CHAT,
    )


def save(model: LlavaForConditionalGeneration, processor: LlavaProcessor, folder: Path) -> None:
    """A standard checkpoint directory, in bfloat16."""
    model.to(torch.bfloat16).save_pretrained(folder)
    processor.save_pretrained(folder)
