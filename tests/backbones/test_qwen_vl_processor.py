"""Tokenizer and processor of Qwen-VL: against a slow byte-pair encoder, PIL, and prompts written out."""

from __future__ import annotations

import base64
import json
import unicodedata
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import regex
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
)

from seewhen.backbones import qwen_vl
from seewhen.backbones.qwen_vl import (
    QWenTokenizer,
    QwenVLConfig,
    QwenVLForConditionalGeneration,
    QwenVLProcessor,
)
from seewhen.backbones.qwen_vl.tokenization import SPECIAL_TOKENS, WORDS, read_ranks
from seewhen.errors import InvalidInput

TEXT = (
    "The cat sat on the mat. The other cats, they're thin; it's 2024 and there're 17 hats!\n\n"
    "Is there a cat in the image? Please answer this question with one word.   Thanks\r\n"
    "图中有一只猫吗？图中的猫在哪里？ Où est le chat? naïve café — “quoted”"
)


def slow_encode(text: str, ranks: dict[bytes, int]) -> list[int]:
    """Byte-pair encoding as the tiktoken format defines it: always join the leftmost pair of lowest rank."""
    ids = []
    for word in regex.findall(WORDS, unicodedata.normalize("NFC", text)):
        raw = word.encode()
        pieces = [raw] if raw in ranks else [raw[i : i + 1] for i in range(len(raw))]
        while True:
            options = [(ranks[a + b], at) for at, (a, b) in enumerate(pairwise(pieces)) if a + b in ranks]
            if not options:
                break
            at = min(options)[1]
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
        ids += [ranks[piece] for piece in pieces]
    return ids


def train(text: str, merges: int) -> dict[bytes, int]:
    """A byte-pair vocabulary learnt from `text`, in the order of joining."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    words = [[bytes([byte]) for byte in word.encode()] for word in regex.findall(WORDS, text)]
    for _ in range(merges):
        pairs = Counter(pair for word in words for pair in pairwise(word))
        if not pairs:
            break
        (left, right), _count = max(pairs.items(), key=lambda item: (item[1], item[0]))
        ranks.setdefault(left + right, len(ranks))
        for word in words:
            for at in range(len(word) - 2, -1, -1):
                if word[at : at + 2] == [left, right]:
                    word[at : at + 2] = [left + right]
    return ranks


def write(path: Path, ranks: dict[bytes, int]) -> Path:
    path.write_text("".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()))
    return path


@pytest.fixture(scope="module")
def ranks() -> dict[bytes, int]:
    return train(TEXT, 150)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, ranks: dict[bytes, int]) -> Path:
    """The files of the published repository; the remote code that they name must not run."""
    directory = tmp_path_factory.mktemp("published")
    first = len(ranks)
    torch.manual_seed(0)
    visual = {"image_size": 28, "patch_size": 14, "width": 16, "layers": 1, "heads": 2, "mlp_ratio": 2.0}
    config = QwenVLConfig(
        vocab_size=first + len(SPECIAL_TOKENS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.2,
        resampler_head_dim=16,
        visual=visual | {"n_queries": 9, "output_dim": 32, "image_start_id": first + 214},
    )
    qwen_vl.save_original(QwenVLForConditionalGeneration(config), directory)
    published = json.loads((directory / "config.json").read_text())
    published["auto_map"] = {
        "AutoConfig": "configuration_qwen.QWenConfig",
        "AutoModelForCausalLM": "modeling_qwen.QWenLMHeadModel",
    }
    dump(directory / "config.json", published)
    auto_map = {"AutoTokenizer": ["tokenization_qwen.QWenTokenizer", None]}
    dump(
        directory / "tokenizer_config.json",
        {"model_max_length": 8192, "tokenizer_class": "QWenTokenizer", "auto_map": auto_map},
    )
    write_generation_config(directory, first, "chatml")
    for name in ("configuration_qwen.py", "modeling_qwen.py", "tokenization_qwen.py"):
        (directory / name).write_text("raise RuntimeError('remote code ran')\n")
    write(directory / "qwen.tiktoken", ranks)
    return directory


def dump(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values))


def write_generation_config(directory: Path, end: int, chat_format: str) -> None:
    values = {"chat_format": chat_format, "eos_token_id": end, "pad_token_id": end, "max_new_tokens": 512}
    dump(
        directory / "generation_config.json",
        values | {"do_sample": True, "max_window_size": 6144, "top_k": 0, "top_p": 0.3},
    )


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path) -> QWenTokenizer:
    return QWenTokenizer.from_pretrained(checkpoint)


@pytest.fixture(scope="module")
def processor(checkpoint: Path) -> QwenVLProcessor:
    return QwenVLProcessor.from_pretrained(checkpoint)


# --- tokenizer -----------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(text=st.one_of(st.text(max_size=40), st.text(alphabet="thecasi n'图中 \n\r\t1!", max_size=60)))
def test_encodes_like_the_slow_encoder(tokenizer: QWenTokenizer, ranks: dict[bytes, int], text: str) -> None:
    assume(not any(mark in text for mark in tokenizer.get_added_vocab()))  # marks of the prompt are one token each
    ids = tokenizer(text).input_ids
    assert ids == slow_encode(text, ranks)
    assert tokenizer.decode(ids) == unicodedata.normalize("NFC", text)


def test_encodes_its_training_text(tokenizer: QWenTokenizer, ranks: dict[bytes, int]) -> None:
    ids = tokenizer(TEXT).input_ids
    assert ids == slow_encode(TEXT, ranks) and len(ids) < len(TEXT.encode()) / 2


@settings(max_examples=60)
@example(joins=[(1, 1), (2, 1), (4, 13), (1, 3)], texts=["acbbb"])
@given(
    joins=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=25),
    texts=st.lists(st.text(alphabet="abc", max_size=14), min_size=1, max_size=8),
)
def test_any_vocabulary_of_joins(
    tmp_path_factory: pytest.TempPathFactory, joins: list[tuple[int, int]], texts: list[str]
) -> None:
    """Vocabularies nobody trained, with overlapping tokens, encode alike as well; as in training, each token can
    be built from those before it."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    pool = [b"a", b"b", b"c"]
    for left, right in joins:
        token = pool[left % len(pool)] + pool[right % len(pool)]
        if len(token) <= 12 and token not in ranks and len(slow_encode(token.decode(), ranks)) == 2:
            ranks[token] = len(ranks)
            pool.append(token)
    tokenizer = QWenTokenizer(str(write(tmp_path_factory.mktemp("joins") / "qwen.tiktoken", ranks)))
    for text in texts:
        assert tokenizer(text).input_ids == slow_encode(text, ranks)


def test_special_tokens_follow_the_vocabulary(tokenizer: QWenTokenizer, ranks: dict[bytes, int]) -> None:
    """With the published 151,643 tokens the same offsets give the published ids."""
    published = {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645, "<|extra_0|>": 151646}
    published |= {"<|extra_204|>": 151850, "<ref>": 151851, "</ref>": 151852, "<box>": 151853}
    published |= {"</box>": 151854, "<quad>": 151855, "</quad>": 151856, "<img>": 151857, "</img>": 151858}
    published |= {"<imgpad>": 151859}
    for token, number in published.items():
        expected = number - 151643 + len(ranks)
        assert tokenizer.convert_tokens_to_ids(token) == expected
        assert tokenizer(f"cat{token}cat").input_ids[len(tokenizer("cat").input_ids)] == expected
    assert len(tokenizer) == len(ranks) + 217
    assert tokenizer.eos_token == tokenizer.pad_token == "<|endoftext|>"
    assert (
        tokenizer.decode(tokenizer("<ref>the cat</ref><|im_end|>").input_ids, skip_special_tokens=True)
        == "the cat"
    )


def test_save_and_load(tokenizer: QWenTokenizer, ranks: dict[bytes, int], tmp_path: Path) -> None:
    """As tokenizer.json, and back as the published file."""
    tokenizer.save_pretrained(tmp_path)
    assert (tmp_path / "tokenizer.json").exists()
    again = QWenTokenizer.from_pretrained(tmp_path)
    assert again(TEXT + "<img>").input_ids == tokenizer(TEXT + "<img>").input_ids
    assert again.padding_side == "left" and len(again) == len(tokenizer)
    (path,) = again.save_vocabulary(str(tmp_path))
    assert read_ranks(path) == ranks


@pytest.mark.parametrize("content", ["", "YQ== 1\n", "not base64! 0\n", "YQ==\n", "YQ== x\n"])
def test_a_broken_vocabulary_file_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "qwen.tiktoken"
    path.write_text(content or "YQ== 0\nYg== 0\n")
    with pytest.raises(InvalidInput, match=r"qwen\.tiktoken"):
        QWenTokenizer(str(path))
    with pytest.raises(InvalidInput, match="No vocabulary"):
        QWenTokenizer()


# --- processor -----------------------------------------------------------------------------------------


def picture(mode: str = "RGB", size: tuple[int, int] = (50, 33)) -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(noise).convert(mode)


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P"])
def test_pixels(processor: QwenVLProcessor, mode: str) -> None:
    """Squeezed to the square with PIL's bicubic filter, then CLIP's mean and deviation."""
    image = picture(mode)
    found = processor(images=image, text="<img></img>", return_tensors="pt").pixel_values
    square = np.asarray(image.convert("RGB").resize((28, 28), Image.Resampling.BICUBIC)) / 255
    mean, deviation = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    expected = ((square - mean) / deviation).transpose(2, 0, 1)
    np.testing.assert_allclose(found[0].numpy(), expected, atol=1e-5)


def test_image_tags_become_slots(processor: QwenVLProcessor, tokenizer: QWenTokenizer) -> None:
    start, end, pad = tokenizer.convert_tokens_to_ids(["<img>", "</img>", "<imgpad>"])
    span = [start, *[pad] * 9, end]
    question, before = tokenizer("Is there a cat? Answer:").input_ids, tokenizer("the ").input_ids
    for tag in ("<img></img>", "<img>COCO_val2014_000000310196.jpg</img>"):
        one = processor(images=picture(), text=f"{tag}Is there a cat? Answer:")
        assert one["input_ids"] == [span + question]
    assert qwen_vl.evaluation_prompt("Is there a cat?") == "<img></img>Is there a cat? Answer:"
    assert qwen_vl.evaluation_prompt("Is there a cat?", images=0) == "Is there a cat? Answer:"
    batch = processor(
        images=[[picture()], [picture(), picture()]],
        text=["the <img>a</img>", "<img>a\nb</img><img>b</img>Is there a cat? Answer:"],
        padding=True,
        return_tensors="pt",
    )
    assert batch.pixel_values.shape == (3, 3, 28, 28)
    assert batch.input_ids[1].tolist() == span + span + question
    assert batch.input_ids[0][batch.attention_mask[0].bool()].tolist() == before + span
    assert batch.attention_mask[0, 0] == 0, "padding goes to the left"
    assert "pixel_values" not in processor(text="Is there a cat? Answer:")


def test_mismatched_images_are_refused(processor: QwenVLProcessor) -> None:
    for text, images in (
        ("no tag", picture()),
        ("<img></img>", None),
        ("<img></img>", [picture(), picture()]),
    ):
        with pytest.raises(InvalidInput, match="image tag"):
            processor(images=images, text=text)
    with pytest.raises(InvalidInput, match="<imgpad>"):
        processor(text="a <imgpad> b")
    with pytest.raises(InvalidInput, match="needs a text"):
        processor(images=picture())


CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Is there a cat?"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]},
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "And here?"}]},
]


def test_chat_template(processor: QwenVLProcessor) -> None:
    expected = (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nPicture 1: <img></img>\nIs there a cat?<|im_end|>\n"
        "<|im_start|>assistant\nYes.<|im_end|>\n"
        "<|im_start|>user\nPicture 2: <img></img>\nAnd here?<|im_end|>\n"
    )
    plain = processor.apply_chat_template(CONVERSATION)
    assert plain == expected.removesuffix("\n")
    assert processor.apply_chat_template(CONVERSATION, add_generation_prompt=True) == (
        expected + "<|im_start|>assistant\n"
    )
    with_system = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    assert processor.apply_chat_template(with_system) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>"
    )


def test_answer_template_by_name_and_by_default_for_the_base_model(
    processor: QwenVLProcessor, checkpoint: Path, ranks: dict[bytes, int], tmp_path: Path
) -> None:
    turn = CONVERSATION[:1]
    expected = qwen_vl.evaluation_prompt("Is there a cat?")
    assert processor.apply_chat_template(turn, chat_template="answer", add_generation_prompt=True) == expected
    for name in ("config.json", "tokenizer_config.json", "qwen.tiktoken"):
        (tmp_path / name).write_bytes((checkpoint / name).read_bytes())
    write_generation_config(tmp_path, len(ranks), "raw")
    base = QwenVLProcessor.from_pretrained(tmp_path)
    assert base.apply_chat_template(turn, add_generation_prompt=True) == expected
    assert "Picture 1: " in base.apply_chat_template(turn, chat_template="chat")


def test_processor_save_and_load(processor: QwenVLProcessor, checkpoint: Path, tmp_path: Path) -> None:
    processor.save_pretrained(tmp_path)
    again = QwenVLProcessor.from_pretrained(tmp_path)
    first, second = (
        each(images=picture(), text="<img></img>cat", return_tensors="pt") for each in (processor, again)
    )
    assert torch.equal(first.input_ids, second.input_ids)
    assert torch.equal(first.pixel_values, second.pixel_values)
    assert again.chat_template == processor.chat_template


# --- everything through the Auto classes ---------------------------------------------------------------


@torch.no_grad()
def test_auto_classes_on_the_published_layout(checkpoint: Path) -> None:
    qwen_vl.register()
    qwen_vl.register()
    assert type(AutoConfig.from_pretrained(checkpoint)) is QwenVLConfig
    assert type(AutoTokenizer.from_pretrained(checkpoint)) is QWenTokenizer
    assert type(AutoModelForCausalLM.from_pretrained(checkpoint)) is QwenVLForConditionalGeneration
    processor = AutoProcessor.from_pretrained(checkpoint)
    model = AutoModelForImageTextToText.from_pretrained(checkpoint).eval()
    assert type(processor) is QwenVLProcessor and type(model) is QwenVLForConditionalGeneration
    end = processor.tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    assert model.generation_config.eos_token_id == end, "a chat model stops at the end of its turn"
    turn = [{"role": "user", "content": [{"type": "image", "image": picture()}, {"type": "text", "text": "cat?"}]}]
    inputs = processor.apply_chat_template(
        turn, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
    )
    assert (inputs.input_ids == model.config.image_token_id).sum() == model.config.image_seq_length
    answer = model.generate(**inputs, max_new_tokens=5, do_sample=False)[0, inputs.input_ids.shape[1] :]
    ids, expected = inputs.input_ids, []
    for _ in range(len(answer)):
        logits = model(input_ids=ids, pixel_values=inputs.pixel_values).logits[0, -1]
        expected.append(int(logits.argmax()))
        ids = torch.cat([ids, logits.argmax().view(1, 1)], dim=1)
    assert answer.tolist() == expected
