"""Images and prompts for Qwen-VL: 448 x 448 bicubic pixels, image tags expanded to 256 pads.

A prompt holds one `<img>...</img>` per image; what stands between the tags (the published prompts put the
path there) is replaced by the pads that the image features will fill.
"""

from __future__ import annotations

import re
from typing import Any

from PIL.Image import Resampling
from transformers import BatchFeature, GenerationConfig
from transformers.image_processing_backends import PilBackend
from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD, make_flat_list_of_images
from transformers.processing_utils import ProcessingKwargs, ProcessorMixin

from seewhen.backbones.qwen_vl.configuration import QwenVLConfig
from seewhen.backbones.qwen_vl.tokenization import IMAGE_END, IMAGE_PAD, IMAGE_START, QWenTokenizer
from seewhen.errors import InvalidInput

IMAGE_TAG = re.compile(re.escape(IMAGE_START) + ".*?" + re.escape(IMAGE_END), re.DOTALL)

_CONTENT = (
    "{%- macro content_of(content, label) -%}"
    "{%- if content is string -%}{{ content }}"
    "{%- else -%}{%- for part in content -%}"
    "{%- if part.type == 'image' -%}{%- set pictures.seen = pictures.seen + 1 -%}"
    "{{ 'Picture ' ~ pictures.seen ~ ': ' if label }}<img></img>{{ '\n' if label }}"
    "{%- else -%}{{ part.text }}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}"
    "{%- endmacro -%}"
    "{%- set pictures = namespace(seen=0) -%}"
)
# Qwen-VL-Chat: ChatML turns, pictures numbered through the conversation.
CHAT_TEMPLATE = (
    _CONTENT + "{%- if messages[0].role != 'system' -%}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>' }}"
    "{%- endif -%}"
    "{%- for message in messages -%}"
    "{{ '' if loop.first and message.role == 'system' else '\n' }}"
    "{{ '<|im_start|>' ~ message.role ~ '\n' ~ content_of(message.content, true) ~ '<|im_end|>' }}"
    "{%- endfor -%}"
    "{{ '\n<|im_start|>assistant\n' if add_generation_prompt }}"
)
# Qwen-VL: the form of the published evaluations, image tags + question + " Answer:".
ANSWER_TEMPLATE = (
    _CONTENT + "{%- for message in messages -%}"
    "{{ content_of(message.content, false) }}"
    "{{ (' Answer:' if not loop.last or add_generation_prompt else '') if message.role == 'user' }}"
    "{%- endfor -%}"
)


def evaluation_prompt(question: str, images: int = 1) -> str:
    """The prompt of the published evaluations; with no image it is the text-only branch."""
    return f"{IMAGE_START}{IMAGE_END}" * images + f"{question} Answer:"


class QwenVLImageProcessor(PilBackend):
    """Squeeze to a square (the aspect ratio is not kept), bicubic, CLIP mean and deviation."""

    do_resize = True
    size = {"height": 448, "width": 448}  # noqa: RUF012
    resample = Resampling.BICUBIC
    do_rescale = True
    do_normalize = True
    image_mean = OPENAI_CLIP_MEAN
    image_std = OPENAI_CLIP_STD
    do_convert_rgb = True


class QwenVLProcessorKwargs(ProcessingKwargs, total=False):  # type: ignore[call-arg]
    _defaults = {"text_kwargs": {"padding": False}}  # noqa: RUF012


class QwenVLProcessor(ProcessorMixin):
    valid_processor_kwargs = QwenVLProcessorKwargs

    def __init__(
        self,
        image_processor: Any = None,
        tokenizer: Any = None,
        image_seq_length: int = 256,
        chat_template: str | dict[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        self.image_seq_length = image_seq_length
        self.image_token = IMAGE_PAD
        self.image_token_id = tokenizer.convert_tokens_to_ids(IMAGE_PAD)
        if chat_template is None:
            chat_template = {"default": CHAT_TEMPLATE, "answer": ANSWER_TEMPLATE}
        super().__init__(image_processor, tokenizer, chat_template=chat_template)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, **kwargs: Any) -> Any:
        """Also from the published layout, which has a vocabulary file and no processor files at all."""
        places = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder")
        where = {key: kwargs[key] for key in places if key in kwargs}
        settings, _ = cls.get_processor_dict(pretrained_model_name_or_path, **where)
        tokenizer = QWenTokenizer.from_pretrained(pretrained_model_name_or_path, **where)
        if "image_processor" in settings:
            image_processor = QwenVLImageProcessor(**settings["image_processor"])
            length, template = settings["image_seq_length"], settings.get("chat_template")
        else:
            vision = QwenVLConfig.from_pretrained(pretrained_model_name_or_path, **where).vision_config
            image_processor = QwenVLImageProcessor(size={"height": vision.image_size, "width": vision.image_size})
            length, template = vision.n_queries, _published_templates(pretrained_model_name_or_path, where)
        return cls(image_processor, tokenizer, image_seq_length=length, chat_template=template)

    def __call__(self, images: Any = None, text: Any = None, **kwargs: Any) -> BatchFeature:
        if text is None:
            raise InvalidInput("Qwen-VL needs a text.", f"Write one {IMAGE_START}{IMAGE_END} per image into it.")
        settings = self._merge_kwargs(
            self.valid_processor_kwargs, tokenizer_init_kwargs=self.tokenizer.init_kwargs, **_given(kwargs)
        )
        texts = [text] if isinstance(text, str) else list(text)
        pictures = [] if images is None else make_flat_list_of_images(self.image_processor.fetch_images(images))
        tags = sum(len(IMAGE_TAG.findall(line)) for line in texts)
        if tags != len(pictures):
            raise InvalidInput(
                f"The text has {tags} image tag(s), but {len(pictures)} image(s) were given.",
                f"Write one {IMAGE_START}{IMAGE_END} per image.",
            )
        if any(IMAGE_PAD in IMAGE_TAG.sub("", line) for line in texts):
            raise InvalidInput(f"The text contains {IMAGE_PAD} outside image tags.", "Remove it.")
        span = IMAGE_START + IMAGE_PAD * self.image_seq_length + IMAGE_END
        return_tensors = settings["text_kwargs"].pop("return_tensors", None)
        encoded = dict(self.tokenizer([IMAGE_TAG.sub(span, line) for line in texts], **settings["text_kwargs"]))
        if pictures:
            encoded |= self.image_processor(pictures, **settings["images_kwargs"])
        return BatchFeature(encoded, tensor_type=return_tensors)


def _given(kwargs: dict[str, Any]) -> dict[str, Any]:
    """`apply_chat_template` passes videos and audio as None; this model has neither."""
    return {key: value for key, value in kwargs.items() if key not in ("videos", "audio") or value is not None}


def _published_templates(name: Any, where: dict[str, Any]) -> dict[str, str]:
    """ChatML for the chat model, the evaluation form for the base model; either by name for both."""
    try:
        chat = getattr(GenerationConfig.from_pretrained(name, **where), "chat_format", None) == "chatml"
    except OSError:
        chat = False
    return {
        "default": CHAT_TEMPLATE if chat else ANSWER_TEMPLATE,
        "chat": CHAT_TEMPLATE,
        "answer": ANSWER_TEMPLATE,
    }
