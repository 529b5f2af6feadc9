"""What the recipe aims at, measured: a quick look during training, not the benchmark.

Yes/no questions are decided by the first token; captions are sampled (or greedy) for 64 tokens, with the
entropy of every layer's logit lens on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from seewhen.scenes.captions import DESCRIBE
from seewhen.scenes.questions import KINDS, SUBTASKS, mme, pope
from seewhen.scenes.rendering import pixels
from seewhen.scenes.sampling import Scene
from seewhen.scenes.train.stages import Words, in_front, tower_features
from seewhen.scenes.world import CATEGORIES, PATCH, SIZE

TARGETS = {"random": 85.5, "popular": 81.2, "adversarial": 75.9}  # LLaVA-1.5, sampled, as published


@dataclass(frozen=True)
class Exam:
    """Scenes with their features and questions, ready to be asked again and again."""

    scenes: list[Scene]
    seen: Tensor
    pope: dict[str, list[tuple[int, str, bool]]]  # setting -> (scene number, text, truth)
    mme: dict[str, list[tuple[int, str, bool]]]


def prepare(model: Any, scenes: Sequence[Scene], device: str) -> Exam:
    """Draw the scenes and write the questions. Features depend on the tower only."""
    number = {scene.image: i for i, scene in enumerate(scenes)}
    seen = tower_features(model, np.stack([pixels(scene) for scene in scenes]), device)
    return Exam(
        list(scenes),
        seen,
        {k: [(number[q["image"]], q["text"], q["label"] == "yes") for q in pope(scenes, k)] for k in KINDS},
        {s: [(number[q["image"]], q["question"], q["answer"] == "Yes") for q in mme(scenes, s)] for s in SUBTASKS},
    )


def measure(model: Any, tokenizer: Any, known: Words, exam: Exam, device: str, seed: int = 0) -> dict[str, Any]:
    """All figures of one model, sampled at temperature 1 and greedy."""
    generator = torch.Generator(device).manual_seed(seed)
    cuda = device == "cuda"
    with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=cuda):
        out: dict[str, Any] = {"pope": {}, "mme": {}}
        for kind, asked in exam.pope.items():
            out["pope"][kind] = _yes_no(model, tokenizer, known, exam.seen, asked, generator)
        for subtask, asked in exam.mme.items():
            out["mme"][subtask] = _yes_no(model, tokenizer, known, exam.seen, asked, generator)
        out["sampled"] = _captions(model, tokenizer, known, exam, generator)
        out["greedy"] = _captions(model, tokenizer, known, exam, None)
        out["relevance"] = _relevance(model, known, exam)
    out["distance"] = distance(out)
    return out


def distance(figures: dict[str, Any]) -> float:
    """How far from the targets: 1 is one tolerance away in one of them."""
    total = sum(abs(figures["pope"][k]["sampled"] - target) / 5 for k, target in TARGETS.items())
    sampled = figures["sampled"]
    total += max(0.0, 43 - sampled["chair_s"], sampled["chair_s"] - 62) / 5
    total += max(0.0, 64 - sampled["recall"]) / 5
    total += 20 * max(0.0, 0.72 - min(sampled["auroc"][-(len(sampled["auroc"]) // 4) :]))
    return float(total + 20 * max(0.0, 0.55 - figures["relevance"]["name"] / 100))


def _yes_no(
    model: Any, tokenizer: Any, known: Words, seen: Tensor, asked: list[tuple[int, str, bool]], generator: Any
) -> dict[str, float]:
    """Accuracy in percent, sampled and greedy, with the rates of yes for both truths."""
    if not asked:
        return {}
    no = tokenizer.encode(" No", add_special_tokens=False)[0]
    rows = [tokenizer.encode(f"\n{text} ASSISTANT:", add_special_tokens=False) for _, text, _ in asked]
    room = max(len(row) for row in rows)
    device = seen.device
    ids = torch.tensor([row + [0] * (room - len(row)) for row in rows], device=device)
    last = torch.tensor([len(row) - 1 for row in rows], device=device)
    which = torch.tensor([number for number, _, _ in asked], device=device)
    yes = torch.tensor([truth for _, _, truth in asked], device=device)
    logits = []
    for at in range(0, len(rows), 1000):
        part = slice(at, at + 1000)
        front = in_front(model, seen[which[part]], known)
        embedded = model.model.language_model.embed_tokens(ids[part]).to(front.dtype)
        inputs = torch.cat([front, embedded], dim=1)
        hidden = model.model.language_model(inputs_embeds=inputs, use_cache=False).last_hidden_state
        spot = front.shape[1] + last[part]
        logits.append(model.lm_head(hidden[torch.arange(len(spot), device=device), spot]).float())
    scores = torch.cat(logits)
    drawn = torch.multinomial(scores.softmax(-1), 1, generator=generator)[:, 0]
    said, firm = drawn != no, scores.argmax(-1) != no

    def percent(hits: Tensor) -> float:
        return round(100 * hits.float().mean().item(), 2)

    return {
        "sampled": percent(said == yes),
        "greedy": percent(firm == yes),
        "yes_if_true": percent(said[yes]),
        "yes_if_false": percent(said[~yes]),
    }


def generate(
    model: Any, tokenizer: Any, known: Words, seen: Tensor, generator: Any, tokens: int = 64
) -> tuple[Tensor, Tensor]:
    """Captions as ids (n, tokens) and the entropy of each layer's lens (n, tokens, layers)."""
    from transformers import DynamicCache

    inner = model.model.language_model
    prompt = tokenizer.encode(f"\n{DESCRIBE[0]} ASSISTANT:", add_special_tokens=False)
    front = in_front(model, seen, known)
    embedded = inner.embed_tokens(torch.tensor(prompt, device=seen.device)).expand(len(seen), -1, -1)
    inputs = torch.cat([front, embedded.to(front.dtype)], dim=1)
    cache = DynamicCache(config=model.config.text_config)
    ids, entropies = [], []
    done = torch.zeros(len(seen), dtype=torch.bool, device=seen.device)
    for _ in range(tokens):
        out = inner(inputs_embeds=inputs, past_key_values=cache, use_cache=True, output_hidden_states=True)
        states = [h[:, -1] for h in out.hidden_states[1:-1]]
        lens = torch.stack([*(inner.norm(h) for h in states), out.last_hidden_state[:, -1]], dim=1)
        scores = model.lm_head(lens).float()
        chances = scores.log_softmax(-1)
        entropies.append(-(chances.exp() * chances).sum(-1))
        final = chances[:, -1]
        token = (
            final.argmax(-1) if generator is None else torch.multinomial(final.exp(), 1, generator=generator)[:, 0]
        )
        token = torch.where(done, tokenizer.eos_token_id, token)
        done |= token == tokenizer.eos_token_id
        ids.append(token)
        inputs = inner.embed_tokens(token[:, None]).to(front.dtype)
    return torch.stack(ids, 1), torch.stack(entropies, 1)


def mentions(ids: Sequence[int], known: Words) -> list[tuple[int, int]]:
    """(position, category) of every object named, longest names first ("hot dog" is no dog)."""
    forms: dict[tuple[int, ...], int] = {}
    for table in (known.singular, known.plural):
        forms.update({name: number for number, name in enumerate(table)})
    longest = max(len(form) for form in forms)
    found, at = [], 0
    while at < len(ids):
        step = 1
        for length in range(longest, 0, -1):
            category = forms.get(tuple(ids[at : at + length]))
            if category is not None:
                found.append((at, category))
                step = length
                break
        at += step
    return found


def _captions(model: Any, tokenizer: Any, known: Words, exam: Exam, generator: Any) -> dict[str, Any]:
    ids, entropies = generate(model, tokenizer, known, exam.seen, generator)
    table, entropy = ids.tolist(), entropies.float().cpu().numpy()
    bad_captions = bad = total = right = there = 0
    grounded: list[Any] = []
    invented: list[Any] = []
    for number, (scene, row) in enumerate(zip(exam.scenes, table, strict=True)):
        named = mentions(row, known)
        truth = {CATEGORIES.index(name) for name in scene.names}
        wrong = [(at, c) for at, c in named if c not in truth]
        bad_captions += bool(wrong)
        bad += len(wrong)
        total += len(named)
        right += len({c for _, c in named} & truth)
        there += len(truth)
        for at, c in named:
            (grounded if c in truth else invented).append(entropy[number, at])
    length = (ids != tokenizer.eos_token_id).sum(1).float()
    layers = entropy.shape[-1]
    high, low = np.array(invented).reshape(-1, layers), np.array(grounded).reshape(-1, layers)
    return {
        "chair_s": round(100 * bad_captions / len(table), 2),
        "chair_i": round(100 * bad / max(1, total), 2),
        "recall": round(100 * right / there, 2),
        "tokens": round(length.mean().item(), 1),
        "ended": round(100 * (length < ids.shape[1]).float().mean().item(), 1),
        "auroc": [round(auroc(high[:, n], low[:, n]), 3) for n in range(layers)],
        "examples": [tokenizer.decode(row, skip_special_tokens=True).strip() for row in table[:4]],
    }


def auroc(high: Any, low: Any) -> float:
    """Chance that a value of `high` exceeds one of `low` (ties count half); 0.5 where one is empty."""
    if len(high) == 0 or len(low) == 0:
        return 0.5
    ordered = np.sort(low)
    below = np.searchsorted(ordered, high, "left") + np.searchsorted(ordered, high, "right")
    return float(below.mean() / (2 * len(low)))


def _relevance(model: Any, known: Words, exam: Exam) -> dict[str, float]:
    """How often the image token most similar to an object's name lies in one of its boxes (percent)."""
    table = model.model.language_model.embed_tokens.weight.float()
    patches = F.normalize(model.model.multi_modal_projector(exam.seen).float(), dim=-1)
    grid = SIZE // PATCH
    name = torch.stack([table[list(ids)].mean(0) for ids in known.singular])
    last = torch.stack([table[ids[-1]] for ids in known.singular])
    hits = {"name": 0, "last_token": 0}
    asked, chance = 0, 0.0
    queries = {"name": F.normalize(name, dim=-1), "last_token": F.normalize(last, dim=-1)}
    best = {key: (patches @ query.T).argmax(1).cpu().numpy() for key, query in queries.items()}
    for number, scene in enumerate(exam.scenes):
        for category in scene.names:
            asked += 1
            boxes = [thing.box for thing in scene.of(category)]
            chance += sum(thing.area for thing in scene.of(category)) / SIZE**2
            for key, spots in best.items():
                spot = int(spots[number, CATEGORIES.index(category)])
                x, y = (spot % grid + 0.5) * PATCH, (spot // grid + 0.5) * PATCH
                hits[key] += any(b[0] <= x < b[2] and b[1] <= y < b[3] for b in boxes)
    figures = {key: round(100 * value / asked, 2) for key, value in hits.items()}
    return {**figures, "chance": round(100 * chance / asked, 2)}
