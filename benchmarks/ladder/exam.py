"""What every rung is asked: captions of drawn scenes and yes/no questions, all in one batch for each method.

Greedy and sampled captions are rows of the same call. Of a question only the first token's distribution is kept:
it decides, and gives the accuracy of greedy decoding and the expected one of sampling, without its noise.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from ladder.methods import Named
from ladder.rungs import Sizes
from seewhen.asking.asker import Asker
from seewhen.asking.attach import attach
from seewhen.asking.options import DESCRIBE
from seewhen.backbones.loading import resolve
from seewhen.backbones.prompts import model_inputs
from seewhen.decoding.method import Method
from seewhen.runs.captioning import Captions
from seewhen.runs.labelled import drawn
from seewhen.runs.noise import HashedNoise, stream_seed
from seewhen.runs.verdict_fitting import fitted
from seewhen.scenes import dataset, render
from seewhen.scenes.questions import KINDS, pope
from seewhen.scenes.scene import Scene
from seewhen.scenes.world import CATEGORIES
from seewhen.verdicts.lexicon import lexicon_named
from seewhen.verdicts.questions import YesNo, question

TEST, OTHER = 3, 7  # seeds of the tested scenes, and of those of verdicts and diagnostics; training has 0
SAMPLES = 2  # sampled captions of each scene and method
COOL = 1 / 3
ROWS = 640  # questions in one pass
TOGETHER = 3  # captions of each scene that are rows of one call: memory bounds them
MOST_ROWS = 480  # in one call, drafts included

Arrays = dict[str, NDArray[Any]]
Way = tuple[int | None, float]  # seed and temperature; greedy without a seed


@dataclass(frozen=True)
class Asked:
    """A yes/no question: its kind, the number of its scene, and the truth."""

    kind: str
    scene: int
    text: str
    there: bool


def questions(scenes: Sequence[Scene]) -> list[Asked]:
    """POPE's three settings."""
    number = {scene.image: n for n, scene in enumerate(scenes)}
    return [
        Asked(kind, number[record["image"]], record["text"], record["label"] == "yes")
        for kind in KINDS
        for record in pope(scenes, kind)
    ]


class Rows(LogitsProcessor):
    """Greedy rows first, then sampled ones, each with its own noise and temperature; notes how sure it was."""

    def __init__(self, greedy: int, seeds: Sequence[int], temperatures: Sequence[float]) -> None:
        self._greedy, self._noise = greedy, HashedNoise(seeds)
        self._temperature = torch.tensor(temperatures)[:, None]
        self.logprob: list[Tensor] = []
        self.entropy: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        chances = scores.float().log_softmax(-1)
        self.entropy.append(torch.special.entr(chances.exp()).sum(-1))
        noised = scores.float()
        if len(scores) > self._greedy:
            temperature = self._temperature.to(scores.device)
            drawn = self._noise(input_ids[self._greedy :], noised[self._greedy :] / temperature)
            noised = torch.cat([noised[: self._greedy], drawn])
        self.logprob.append(chances.gather(1, noised.argmax(-1, keepdim=True))[:, 0])
        return noised


def rows_together(method: Method) -> int:
    """How many captions are rows of one call: with drafts fewer, they are rows too."""
    return MOST_ROWS // max(1, int(getattr(method, "drafts", 0)))


class First(LogitsProcessor):
    """Keeps the first token's scores."""

    def __init__(self) -> None:
        self.scores: Tensor | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self.scores is None:
            self.scores = scores.float()
        return scores


@cache
def scenes_of(seed: int, count: int) -> list[Scene]:
    """The first shifted scenes of a seed."""
    return dataset("shifted", count, seed=seed)


@cache
def _pixels(seed: int, count: int) -> Tensor:
    """All rungs share the packaged model's processor: drawn and prepared once in a process."""
    from transformers import AutoProcessor

    processor = AutoProcessor.from_pretrained(resolve("packaged"), trust_remote_code=False)
    shown = processor.image_processor([render(scene) for scene in scenes_of(seed, count)], return_tensors="pt")
    return shown["pixel_values"]


class Exam:
    """A model and the scenes it is asked about."""

    def __init__(self, loaded: tuple[Any, Any], sizes: Sizes, verdict: Path) -> None:
        """`verdict`: a file for the fitted verdict of `confirm`."""
        self.asker, self.sizes, self.verdict = Asker(loaded), sizes, verdict
        self.model, self.tokenizer = self.asker.model, self.asker.tokenizer

    @property
    def scenes(self) -> list[Scene]:
        return scenes_of(TEST, self.sizes.tested)

    @cached_property
    def pixels(self) -> Tensor:
        """The tested pictures as the model takes them."""
        return self.shown(TEST, self.sizes.tested)

    def shown(self, seed: int, count: int) -> Tensor:
        """The first pictures of a seed as the model takes them."""
        return _pixels(seed, count).to(self.model.device, self.model.dtype)

    def prompts(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """Token ids of prompts about one picture, padded on the left."""
        picture = render(self.scenes[0])
        prompts = [self.asker.prompt(text) for text in texts]
        inputs = model_inputs(self.model, self.asker.processor, [[picture]] * len(texts), prompts)
        return {name: inputs[name] for name in ("input_ids", "attention_mask")}

    def captions(self, named: Named) -> Arrays:
        """Captions by a method: greedy, sampled; of regular decoding cooler ones, further draws, and doubt too."""
        regular, method = named.name == "regular", named.method(self)
        ways: list[Way] = [(None, 1.0)]
        if not method.beams_only:
            ways += [(seed, 1.0) for seed in range(SAMPLES + (self.sizes.draws if regular else 0))]
        ways += [(seed, COOL) for seed in range(SAMPLES)] if regular else []
        scenes = self.scenes[: self.sizes.beamed] if method.beams_only else self.scenes
        torch.manual_seed(0)  # of a method's own noise
        prepared = method.prepare(self.tokenizer)
        with torch.inference_mode(), attach(self.model, prepared, fast="off", backbone=self.asker.backbone):
            parts = [
                self._in_parts(prepared, scenes, self.pixels, ways[n : n + TOGETHER])
                for n in range(0, len(ways), TOGETHER)
            ]
        ids = np.concatenate([part for part, _ in parts])
        found: Arrays = {"greedy": ids[0], "sampled": ids[1 : 1 + SAMPLES]}
        if regular:
            more = 1 + SAMPLES + self.sizes.draws
            found |= {"further": ids[1 + SAMPLES : more], "cool": ids[more:]}
            for name in ("logprob", "entropy"):
                sure = torch.stack(getattr(parts[0][1], name), 1).view(TOGETHER, len(scenes), -1).cpu().numpy()
                found |= {f"greedy_{name}": sure[0], f"sampled_{name}": sure[1]}
        return found

    def greedy(self, method: Method, seed: int, count: int, skip: int = 0) -> NDArray[Any]:
        """Greedy captions of other scenes: (scenes, tokens)."""
        scenes, pixels = scenes_of(seed, count)[skip:], self.shown(seed, count)[skip:]
        prepared = method.prepare(self.tokenizer)
        torch.manual_seed(0)
        with torch.inference_mode(), attach(self.model, prepared, fast="off", backbone=self.asker.backbone):
            return self._in_parts(prepared, scenes, pixels, [(None, 1.0)])[0][0]

    def _in_parts(
        self, method: Method, scenes: Sequence[Scene], pixels: Tensor, ways: Sequence[Way]
    ) -> tuple[NDArray[Any], Rows]:
        """As many scenes at a time as memory has room for; how sure it was of the last of them."""
        some = max(1, rows_together(method) // len(ways))
        parts = [
            self._written(method, scenes[n : n + some], pixels[n : n + some], ways)
            for n in range(0, len(scenes), some)
        ]
        return np.concatenate([ids for ids, _ in parts], axis=1), parts[-1][1]

    def _written(
        self, method: Method, scenes: Sequence[Scene], pixels: Tensor, ways: Sequence[Way]
    ) -> tuple[NDArray[Any], Rows]:
        """(ways, scenes, tokens), and how sure they were."""
        count, tokens, padding = len(scenes), self.sizes.tokens, self.tokenizer.pad_token_id
        given = {name: t.expand(count * len(ways), -1) for name, t in self.prompts([DESCRIBE]).items()}
        drawn = [(seed, temperature) for seed, temperature in ways if seed is not None]
        seeds = [stream_seed(seed, scene.image) for seed, _ in drawn for scene in scenes]
        rows = Rows(
            count * (len(ways) - len(drawn)), seeds, [temperature for _, temperature in drawn for _ in scenes]
        )
        options: dict[str, Any] = {"num_beams": 5} if method.beams_only else {"num_beams": 1}
        if not method.beams_only:
            options["logits_processor"] = LogitsProcessorList([rows])
        output = self.model.generate(
            **given, pixel_values=pixels[:count].repeat(len(ways), 1, 1, 1), max_new_tokens=tokens,
            do_sample=False, pad_token_id=padding, **options,
        )  # fmt: skip
        ids = np.full((len(ways), count, tokens), padding, np.uint16)
        for row, own in enumerate(self.asker.new_tokens(output, given["input_ids"])):
            ids[row // count, row % count, : len(own)] = own
        return ids, rows

    def answers(self, named: Named) -> Arrays:
        """POPE by a method: the chance of No, whether it is the likeliest, and the chance at a third of the
        temperature."""
        asked = questions(self.scenes)
        no = self.tokenizer.encode(" No", add_special_tokens=False)[0]
        parts = []
        for scores in self._first_tokens(named, [each.text for each in asked], [each.scene for each in asked]):
            chances = [(scores / temperature).softmax(-1)[:, no] for temperature in (1.0, COOL)]
            parts.append(torch.stack([*chances, (scores.argmax(-1) == no).float()]))
        warm, cool, firm = torch.cat(parts, 1).cpu().numpy()
        return {"no": warm, "no_cool": cool, "no_firm": firm.astype(bool)}

    def odds(self, named: Named) -> NDArray[Any]:
        """Log-odds of yes for every category, asked about every tested scene: (scenes, categories)."""
        lexicon = lexicon_named("coco")
        texts = [question(name, lexicon) for name in CATEGORIES]
        scene = [n for n in range(len(self.scenes)) for _ in texts]
        yes_no = YesNo.of(self.tokenizer)
        parts = [yes_no.log_odds(s) for s in self._first_tokens(named, texts * len(self.scenes), scene)]
        return torch.cat(parts).cpu().numpy().reshape(len(self.scenes), len(CATEGORIES))

    def _first_tokens(self, named: Named, texts: Sequence[str], scenes: Sequence[int]) -> Iterator[Tensor]:
        method = named.method(self).prepare(self.tokenizer)
        torch.manual_seed(0)
        distinct = list(dict.fromkeys(texts))
        place = {text: n for n, text in enumerate(distinct)}
        ids = self.prompts(distinct)
        options = {"max_new_tokens": 1, "do_sample": False, "pad_token_id": self.tokenizer.pad_token_id}
        with torch.inference_mode(), attach(self.model, method, fast="off", backbone=self.asker.backbone):
            for start in range(0, len(texts), ROWS):
                chosen = torch.tensor([place[text] for text in texts[start : start + ROWS]])
                given = {name: tensor[chosen.to(tensor.device)] for name, tensor in ids.items()}
                first = First()
                self.model.generate(
                    **given, pixel_values=self.pixels[list(scenes[start : start + ROWS])],
                    logits_processor=LogitsProcessorList([first]), **options,
                )  # fmt: skip
                assert first.scores is not None
                yield first.scores

    def fit(self) -> None:
        """The verdict of `confirm`, from other scenes."""
        captions = Captions(self.asker, "coco", self.sizes.tokens, batch=self.sizes.fitted)
        verdict = fitted(captions, drawn(self.sizes.fitted), keep=0.97, offsets=False)
        self.verdict.parent.mkdir(parents=True, exist_ok=True)
        verdict.save(self.verdict)

    def sit(self, named: Named) -> Arrays:
        """All that a method is asked."""
        began = time.monotonic()
        found = self.captions(named)
        if named.questions:
            found |= self.answers(named)
        return found | {"seconds": np.array(time.monotonic() - began)}
