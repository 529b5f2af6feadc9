"""A checkpoint directory of a tiny random LLaVA with a word-level tokenizer and a processor, for real servers."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlavaProcessor, PreTrainedTokenizerFast
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

import tiny

WORDS = [f"w{number}" for number in range(tiny.WORDS)]
TEMPLATE = (
    "{% for message in messages %}{{ 'w1 ' if message['role'] == 'user' else 'w2 ' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image> {% else %}{{ part['text'] }} {% endif %}"
    "{% endfor %}{% endif %}{% endfor %}{% if add_generation_prompt %}w2{% endif %}"
)


def build(folder: Path, layers: int = 4) -> Path:
    """Write the checkpoint into `folder`."""
    names = {tiny.PAD: "<pad>", tiny.BOS: "<s>", tiny.EOS: "</s>", tiny.IMAGE: "<image>"}
    names |= {tiny.FIRST_WORD + index: word for index, word in enumerate(WORDS)}
    vocabulary = {names.get(index, f"<extra{index}>"): index for index in range(tiny.VOCABULARY)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        extra_special_tokens={"image_token": "<image>"},
    )
    images = CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    processor = LlavaProcessor(
        image_processor=images,
        tokenizer=tokenizer,
        patch_size=4,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        image_token="<image>",
        chat_template=TEMPLATE,
    )
    tiny.model("llava", num_hidden_layers=layers).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder
