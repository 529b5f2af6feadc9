"""Quick looks at validation photographs while training: yes/no by the first token, CHAIR by greedy text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from photographs.speaking import Speaker
from seewhen.benchmarks.chair import Chair
from seewhen.benchmarks.chair.caption_reader import CaptionReader
from seewhen.benchmarks.pope.build import build_questions
from seewhen.benchmarks.pope.questions import KINDS

DESCRIBE = "Please describe this image in detail."


@dataclass(frozen=True)
class Exam:
    """Validation photographs: projected from these features, with these objects (names), in this order."""

    features: Tensor  # (n, patches, width)
    objects: Mapping[str, frozenset[str]]


def prompt_ids(tokenizer: Any, question: str) -> list[int]:
    text = f"\n{question}<|im_end|>\n<|im_start|>assistant\n"
    return tokenizer.encode(text, add_special_tokens=False)


@torch.inference_mode()
def pope(speaker: Speaker, tokenizer: Any, exam: Exam, batch: int = 256) -> dict[str, float]:
    """Accuracy of each kind, and how often the answer is yes."""
    places = {image: place for place, image in enumerate(exam.objects)}
    yes, no = (tokenizer.encode(word, add_special_tokens=False)[0] for word in ("Yes", "No"))
    found: dict[str, float] = {}
    said: list[Tensor] = []
    for kind in KINDS:
        asked = build_questions(exam.objects, kind, name="validation", images=len(places))
        right: list[Tensor] = []
        for start in range(0, len(asked), batch):
            part = asked[start : start + batch]
            photo = torch.tensor([places[q.image] for q in part], device=exam.features.device)
            answers = _first(speaker, tokenizer, exam, photo, [q.question for q in part], yes, no)
            truth = torch.tensor([q.truth == "yes" for q in part], device=answers.device)
            right.append(answers == truth)
            said.append(answers)
        found[kind] = round(100 * float(torch.cat(right).float().mean()), 1)
    return {**found, "yes": round(100 * float(torch.cat(said).float().mean()), 1)}


def _first(
    speaker: Speaker, tokenizer: Any, exam: Exam, photo: Tensor, asked: Sequence[str], yes: int, no: int
) -> Tensor:
    """Whether yes is likelier than no as the first token."""
    rows = [prompt_ids(tokenizer, question) for question in asked]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=photo.device)
    states = speaker.hidden(speaker.embedded(ids, project(speaker, exam.features[photo])))
    last = torch.tensor([len(row) - longest - 1 for row in rows], device=photo.device)  # counted from the end
    logits = speaker.model.lm_head(states[torch.arange(len(rows), device=photo.device), last])
    return logits[:, yes] > logits[:, no]


def project(speaker: Speaker, features: Tensor) -> Tensor:
    projector = speaker.model.model.multi_modal_projector
    return projector(features.to(projector.linear_1.weight.dtype)).to(speaker.dtype)


@torch.inference_mode()
def chair(speaker: Speaker, tokenizer: Any, exam: Exam, tokens: int = 64) -> tuple[dict[str, float], str]:
    """CHAIR of greedy descriptions, and the first of them to read."""
    images = list(exam.objects)
    ids = torch.tensor([prompt_ids(tokenizer, DESCRIBE)], device=exam.features.device).expand(len(images), -1)
    inputs = speaker.embedded(ids, project(speaker, exam.features))
    mask = torch.ones(inputs.shape[:2], dtype=torch.long, device=inputs.device)
    made = speaker.model.generate(
        inputs_embeds=inputs, attention_mask=mask, max_new_tokens=tokens, do_sample=False, pad_token_id=0
    )
    told = [tokenizer.decode(row, skip_special_tokens=True).strip() for row in made]
    bench = Chair(exam.objects, tuple(images), CaptionReader())
    score = bench.score({s.id: text for s, text in zip(bench.samples(), told, strict=True)})
    kept = ("chair_s", "chair_i", "recall", "length")
    return {name: round(float(score.metrics[name]), 1) for name in kept if name in score.metrics}, told[0]
