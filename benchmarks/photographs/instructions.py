"""Text-only instructions, so that the language model keeps what it knows: its own answers to these prompts."""

from __future__ import annotations

import json
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch

from photographs.texts import Turn
from seewhen.atomic import replacing

TOPICS = (  # noqa: SIM905
    "bread,volcanoes,the moon,photosynthesis,bicycles,chess,rain,tea,libraries,elephants,the French Revolution,"
    "gravity,honey bees,jazz,recycling,the human heart,maps,winter,mountains,good sleep,public parks,computers,"
    "friendship,painting,rivers,running,soup,the alphabet,trains,money,vaccines,deserts,gardening,history,"
    "oceans,clouds,stars,music lessons,small towns,reading"
).split(",")
FORMS = (
    "Explain {} in two sentences.",
    "Why does {} matter?",
    "Write a short poem about {}.",
    "Give me three facts about {}.",
    "How would you explain {} to a child?",
    "Write one question about {} and answer it.",
    "Summarise what most people know about {}.",
    "What is a common mistake people make about {}?",
)
# The language model answers as it was taught to: after its own system prompt.
_ASKED = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)


def prompts() -> list[str]:
    return [form.format(topic) for topic in TOPICS for form in FORMS]


@torch.inference_mode()
def answer_all(language: Any, tokenizer: Any, asked: list[str], tokens: int, batch: int) -> list[Turn]:
    """The model's own answers; those that did not end in time are left out."""
    turns = []
    for start in range(0, len(asked), batch):
        part = asked[start : start + batch]
        inputs = tokenizer(
            [_ASKED.format(p) for p in part], return_tensors="pt", padding=True, return_token_type_ids=False
        )
        inputs = inputs.to(language.device)
        made = language.generate(
            **inputs, max_new_tokens=tokens, do_sample=True, temperature=0.7, top_p=0.95, pad_token_id=0
        )
        for prompt, row in zip(part, made[:, inputs["input_ids"].shape[1] :].tolist(), strict=True):
            if tokenizer.eos_token_id in row:
                text = tokenizer.decode(row[: row.index(tokenizer.eos_token_id)], skip_special_tokens=True).strip()
                turns.append((prompt, text))
    return turns


def make(path: Path, language: Any, tokenizer: Any, count: int, tokens: int, batch: int = 320) -> None:
    """Answers to `count` prompts, over and over if need be, as JSON lines."""
    torch.manual_seed(0)
    turns = answer_all(language, tokenizer, list(islice(cycle(prompts()), count)), tokens, batch)
    with replacing(path) as part:
        lines = [json.dumps({"prompt": prompt, "answer": answer}) for prompt, answer in turns]
        Path(part).write_text("\n".join(lines) + "\n", encoding="utf-8")


def read(path: Path) -> list[Turn]:
    records = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
    return [(record["prompt"], record["answer"]) for record in records]
