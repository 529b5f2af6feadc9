"""What the recipe aims at, measured: a quick look during training, not the benchmark.

    python -m embedded.train.measure MODEL_DIRECTORY --split shifted --n 500 --out figures.json

Yes/no questions are decided by the first token; "sampled" is the expected accuracy of sampling it. Captions are
sampled at temperature 1 (and greedy) for 64 tokens, with the entropy of every layer's logit lens on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from embedded.train.stages import Words, in_front, tower_features, words
from seewhen.scenes.captions import DESCRIBE
from seewhen.scenes.questions import KINDS, SUBTASKS, mme, pope
from seewhen.scenes.rendering import pixels
from seewhen.scenes.scene import Scene, dataset
from seewhen.scenes.world import CATEGORIES, PATCH, SIZE, SPLITS

_SCENES_AT_ONCE = {"cpu": 16, "cuda": 256}  # of a cache that fits
TARGETS = {"random": 85.5, "popular": 81.2, "adversarial": 75.9}  # LLaVA-1.5, sampled, as published


Question = tuple[str, int, str, bool]  # group, scene number, text, truth


@dataclass(frozen=True)
class Exam:
    """Scenes with their features and questions, ready to be asked again and again."""

    scenes: list[Scene]
    seen: Tensor
    questions: list[Question]  # in the order of the scenes


def prepare(model: Any, scenes: Sequence[Scene], device: str) -> Exam:
    """Draw the scenes and write the questions. Features depend on the tower only."""
    number = {scene.image: i for i, scene in enumerate(scenes)}
    seen = tower_features(model, np.stack([pixels(scene) for scene in scenes]), device)
    asked: list[Question] = []
    for kind in KINDS:
        asked += [(kind, number[q["image"]], q["text"], q["label"] == "yes") for q in pope(scenes, kind)]
    for subtask in SUBTASKS:
        asked += [(subtask, number[q["image"]], q["question"], q["answer"] == "Yes") for q in mme(scenes, subtask)]
    return Exam(list(scenes), seen, sorted(asked, key=lambda question: question[1]))


def measure(model: Any, tokenizer: Any, known: Words, exam: Exam, device: str, seed: int = 0) -> dict[str, Any]:
    """All figures of one model."""
    generator = torch.Generator(device).manual_seed(seed)
    with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        answers = _yes_no(model, tokenizer, known, exam)
        out: dict[str, Any] = {
            "pope": {kind: answers[kind] for kind in KINDS if kind in answers},
            "mme": {subtask: answers[subtask] for subtask in SUBTASKS if subtask in answers},
            "sampled": _captions(model, tokenizer, known, exam, generator),
            "greedy": _captions(model, tokenizer, known, exam, None),
            "relevance": _relevance(model, known, exam),
        }
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


def _yes_no(model: Any, tokenizer: Any, known: Words, exam: Exam) -> dict[str, dict[str, float]]:
    """Per group of questions: accuracy in percent, expected when sampling and greedy; rates of yes.

    A picture is read once for all questions about it.
    """
    from transformers import DynamicCache

    inner, device = model.model.language_model, exam.seen.device
    no = tokenizer.encode(" No", add_special_tokens=False)[0]
    results: dict[str, list[tuple[bool, float, bool]]] = {}
    for first in range(0, len(exam.scenes), _SCENES_AT_ONCE[device.type]):
        numbers = range(first, min(first + _SCENES_AT_ONCE[device.type], len(exam.scenes)))
        asked = [question for question in exam.questions if question[1] in numbers]
        if not asked:
            continue
        rows = [tokenizer.encode(f"\n{text} ASSISTANT:", add_special_tokens=False) for _, _, text, _ in asked]
        room = max(len(row) for row in rows)
        ids = torch.tensor([row + [0] * (room - len(row)) for row in rows], device=device)
        cache = DynamicCache(config=model.config.text_config)
        front = in_front(model, exam.seen[numbers.start : numbers.stop], known)
        inner(inputs_embeds=front, past_key_values=cache, use_cache=True)
        cache.batch_select_indices(torch.tensor([number - first for _, number, _, _ in asked], device=device))
        embedded = inner.embed_tokens(ids).to(front.dtype)
        hidden = inner(inputs_embeds=embedded, past_key_values=cache, use_cache=True).last_hidden_state
        last = torch.tensor([len(row) - 1 for row in rows], device=device)
        scores = model.lm_head(hidden[torch.arange(len(rows), device=device), last]).float()
        chances, firm = scores.softmax(-1)[:, no].tolist(), (scores.argmax(-1) != no).tolist()
        for (group, _, _, truth), chance, yes in zip(asked, chances, firm, strict=True):
            results.setdefault(group, []).append((truth, 1 - chance, yes))
    return {group: _accuracy(found) for group, found in results.items()}


def _accuracy(found: list[tuple[bool, float, bool]]) -> dict[str, float]:
    def mean(values: list[float]) -> float:
        return round(100 * sum(values) / max(1, len(values)), 2)

    return {
        "sampled": mean([yes if truth else 1 - yes for truth, yes, _ in found]),
        "greedy": mean([float(firm == truth) for truth, _, firm in found]),
        "yes_if_true": mean([yes for truth, yes, _ in found if truth]),
        "yes_if_false": mean([yes for truth, yes, _ in found if not truth]),
        "questions": len(found),
    }


def generate(
    model: Any, tokenizer: Any, known: Words, seen: Tensor, generator: Any, tokens: int = 64
) -> tuple[Tensor, Tensor]:
    """Captions as ids (n, length) and the entropy of each layer's lens (n, length, layers)."""
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
        if bool(done.all()):
            break
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
    at_once = _SCENES_AT_ONCE[exam.seen.device.type]
    bad_captions = bad = total = right = there = 0
    grounded: list[Any] = []
    invented: list[Any] = []
    lengths: list[int] = []
    examples: list[str] = []
    for first in range(0, len(exam.scenes), at_once):
        ids, entropies = generate(model, tokenizer, known, exam.seen[first : first + at_once], generator)
        entropy = entropies.float().cpu().numpy()
        for number, (scene, row) in enumerate(
            zip(exam.scenes[first : first + at_once], ids.tolist(), strict=True)
        ):
            named = mentions(row, known)
            truth = {CATEGORIES.index(name) for name in scene.names}
            wrong = [c for _, c in named if c not in truth]
            bad_captions += bool(wrong)
            bad += len(wrong)
            total += len(named)
            right += len({c for _, c in named} & truth)
            there += len(truth)
            for at, c in named:
                (grounded if c in truth else invented).append(entropy[number, at])
            lengths.append(sum(token != tokenizer.eos_token_id for token in row))
            examples.append(tokenizer.decode(row, skip_special_tokens=True).strip())
    layers = model.config.text_config.num_hidden_layers
    high, low = np.array(invented).reshape(-1, layers), np.array(grounded).reshape(-1, layers)
    return {
        "chair_s": round(100 * bad_captions / len(lengths), 2),
        "chair_i": round(100 * bad / max(1, total), 2),
        "recall": round(100 * right / there, 2),
        "tokens": round(sum(lengths) / len(lengths), 1),
        "auroc": [round(auroc(high[:, n], low[:, n]), 3) for n in range(layers)],
        "examples": examples[:4],
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


def main() -> None:
    import argparse
    import json
    from pathlib import Path

    from seewhen.backbones.loading import load

    parser = argparse.ArgumentParser(prog="python -m embedded.train.measure", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--split", choices=SPLITS, default="shifted")
    parser.add_argument("--artwork", default=None)
    parser.add_argument("--n", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="of the scenes and of sampling")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, processor = load(options.model, device=device, dtype=torch.float32)
    tokenizer = processor.tokenizer
    scenes = dataset(options.split, options.n, seed=options.seed, artwork=options.artwork)
    with torch.no_grad():
        exam = prepare(model, scenes, device)
    figures = measure(model, tokenizer, words(tokenizer), exam, device, options.seed)
    asked = {"split": options.split, "artwork": options.artwork, "scenes": options.n, "seed": options.seed}
    options.out.write_text(json.dumps({**asked, **figures}, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({**asked, **figures}, indent=1))


if __name__ == "__main__":
    main()
