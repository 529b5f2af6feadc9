"""Tokenizer, processor and the untrained model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from embedded.train.recipe import Shape
from seewhen.scenes.captions import DESCRIBE, caption, expected
from seewhen.scenes.questions import KINDS, SUBTASKS, SUFFIX, mme, pope, statistics
from seewhen.scenes.scene import dataset
from seewhen.scenes.streams import Stream
from seewhen.scenes.world import CATEGORIES, COLORS, PATCH, SIZE, plural

IMAGE_TOKENS = (SIZE // PATCH) ** 2
BOS, EOS, PAD, UNK, IMAGE = "<s>", "</s>", "<pad>", "<unk>", "<image>"
# USER: <image>\nquestion ASSISTANT: answer</s>, as LLaVA-1.5 has it.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}USER: {% else %}ASSISTANT: {% endif %}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'image') %}<image>\n{% endfor %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{{ part['text'] }}{% endfor %}"
    "{% endif %}"
    "{% if message['role'] == 'user' %} {% else %}</s>{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)


def corpus(n: int = 6000) -> Iterator[str]:
    """Text with every word the model will meet."""
    statistics()
    scenes = dataset("train", n)
    for scene in scenes:
        stream = Stream(0, "corpus", scene.index)
        yield " " + caption(scene, stream, expected(scene, 1, stream))
    for kind in KINDS:
        yield from (record["text"] for record in pope(scenes[:800], kind))
    for subtask in SUBTASKS:
        yield from (record["question"] for record in mme(scenes[:800], subtask))
    names = [*CATEGORIES, *(plural(name) for name in CATEGORIES), *COLORS]
    frame = f"USER: Notes: one. ASSISTANT: Yes</s> ASSISTANT: No{SUFFIX} " + " ".join(DESCRIBE)
    for name in names:  # often enough that every name becomes one token a word
        yield from [f"{frame} {name} {name}, {name}."] * 40


def build_tokenizer(shape: Shape) -> Any:
    """Byte-level BPE: any text can be encoded, every word of the scenes is one token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=shape.vocabulary,
        special_tokens=[UNK, BOS, EOS, PAD, IMAGE],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        unk_token=UNK,
        padding_side="left",
        model_max_length=1024,
        extra_special_tokens={"image_token": IMAGE},
    )


def build_processor(tokenizer: Any) -> Any:
    """The scenes are drawn at the model's resolution: resizing only matters for other pictures."""
    from transformers import LlavaProcessor
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    images = CLIPImageProcessorPil(
        size={"shortest_edge": SIZE}, crop_size={"height": SIZE, "width": SIZE}, do_convert_rgb=True
    )
    return LlavaProcessor(
        image_processor=images,
        tokenizer=tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        image_token=IMAGE,
        chat_template=CHAT_TEMPLATE,
    )


def build_model(tokenizer: Any, shape: Shape, seed: int) -> Any:
    """An untrained LLaVA of that shape."""
    import torch
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    torch.manual_seed(seed)
    vision = CLIPVisionConfig(
        hidden_size=shape.tower_width,
        intermediate_size=4 * shape.tower_width,
        num_hidden_layers=shape.tower_layers,
        num_attention_heads=shape.tower_heads,
        image_size=SIZE,
        patch_size=PATCH,
        projection_dim=shape.tower_width,
    )
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=1024,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=tokenizer.convert_tokens_to_ids(IMAGE),
        image_seq_length=IMAGE_TOKENS,
        vision_feature_select_strategy="default",
        vision_feature_layer=-1,
        tie_word_embeddings=False,
    )
    return LlavaForConditionalGeneration(config)


def save(model: Any, processor: Any, folder: Path) -> None:
    """A standard checkpoint directory, in bfloat16."""
    import copy

    import torch

    rounded = copy.deepcopy(model).to(torch.bfloat16)
    tokenizer = processor.tokenizer
    rounded.generation_config.update(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        max_new_tokens=64,
    )
    rounded.save_pretrained(folder)
    processor.save_pretrained(folder)
