"""Captions and answers with tilts to known places: `python -m where.study scenes|photo --out DIR [--store STORE]`.

One gzip file of JSON lines for each setting, and for the questions; resumes. Read by `python -m where.score DIR`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
import transformers
from PIL import Image
from torch import Tensor

import seewhen
from seewhen.backbones.backbone import Backbone
from seewhen.backbones.prompts import chat_prompt, model_inputs
from seewhen.decoding.tilted_attention import Relevance
from seewhen.equations import where
from seewhen.verdicts.lexicon import chair_lexicon
from seewhen.verdicts.questions import QUESTION, YesNo, question
from where.pointed import Place, Pointed

DESCRIBE = "Please describe this image in detail."
STRENGTHS, STARTS = (4.0, 2.0, 6.0), (0.85, 0.5)  # in the order of the runs, which may be cut off
PLACES = ("boxes", "other boxes", "elsewhere", "uniform")
POINTING = {"scenes": 9, "photo": 4}  # whose attention points best of those below the tilt (docs/evidence.md)
TOKENS = 64
Box = tuple[float, float, float, float]
Setting = Mapping[str, Any]


@dataclass(frozen=True)
class Picture:
    """A picture, what it shows, and where."""

    name: str
    image: Image.Image
    objects: tuple[str, ...]
    boxes: tuple[tuple[str, Box], ...]  # as fractions of the picture


def scenes(count: int, first: int = 5100) -> list[Picture]:
    """Drawn scenes that no other study uses."""
    from seewhen.scenes import render, sample
    from seewhen.scenes.world import SIZE

    found = []
    for index in range(first, first + count):
        scene = sample("shifted", index)
        boxes = tuple((t.name, tuple(side / SIZE for side in t.box)) for t in scene.things)
        found.append(Picture(scene.image, render(scene), tuple({t.name: 0 for t in scene.things}), boxes))  # type: ignore[arg-type]
    return found


def photographs(store: Path, count: int) -> list[Picture]:
    """Annotated photographs, none of them trained on."""
    from photographs.look import cases

    found = []
    for case in cases(store, "", count):
        assert case.image is not None and case.truth is not None
        boxes = tuple((name, box) for name, several in case.boxes.items() for box in several)
        found.append(Picture(case.name, case.image, case.truth, boxes))
    return found


def patches(boxes: Sequence[Box], tokens: int) -> Tensor:
    """1 on patches whose middle lies in a box of a square picture; of a box without any, on that of its middle."""
    side = round(tokens**0.5)
    middle = (torch.arange(side) + 0.5) / side
    weights = torch.zeros(side, side)
    for left, top, right, bottom in boxes:
        inside = ((middle >= top) & (middle < bottom))[:, None] & ((middle >= left) & (middle < right))[None]
        if not inside.any():
            inside[int((top + bottom) / 2 * side * 0.999), int((left + right) / 2 * side * 0.999)] = True
        weights[inside] = 1.0
    return weights.flatten()


def elsewhere(weights: Tensor) -> Tensor:
    """The same patches half a picture to the right and down, around the edges: as many, in another place."""
    side = round(len(weights) ** 0.5)
    return weights.view(side, side).roll((side // 2, side // 2), (0, 1)).flatten()


@dataclass(frozen=True)
class Asked:
    """A question about an object, and the patches that a tilt is told to look at."""

    picture: Picture
    object: str
    there: bool
    place: Tensor


def settings(
    kind: str,
    strengths: Sequence[float] = STRENGTHS,
    few: bool = False,
    only: Sequence[str] = PLACES,
    starts: Sequence[float] = STARTS,
) -> dict[str, Setting]:
    """Every setting by name; `few`: those of the first hypothesis alone, `only` those of some places, from
    `starts` on. Without a tilt only beside the first strength."""
    looks: dict[str, Setting] = {
        f"similarity x {scale:g}": {"relevance": Relevance(scale=scale, floor=0.0)} for scale in (10.0, 20.0)
    }
    looks[f"attention of layer {POINTING[kind]}"] = {"pointing": POINTING[kind]}
    looks["the next word"] = {"next": True}
    places = {name: {"place": name} for name in only}
    found: dict[str, Setting] = {"regular": {}} if STRENGTHS[0] in strengths else {}
    for strength in strengths:
        for start, wanted in (*((each, places) for each in starts), *(() if few else ((0.85, looks),))):
            for name, how in wanted.items():
                found[f"{name}, {strength:g} from {start:g}"] = {**how, "strength": strength, "start": start}
    return found


def file_of(kind: str, setting: str) -> str:
    """The name of the file with a setting's captions."""
    return f"{kind}.{setting.replace(' ', '_').replace(',', '')}.jsonl.gz"


class Study:
    """One model with its pictures."""

    def __init__(self, kind: str, pictures: Sequence[Picture], out: Path, batch: int, model: str | None) -> None:
        self.kind, self.pictures, self.out, self.batch = kind, pictures, out, batch
        self.name = Path(model or "").name
        device = "cuda" if torch.cuda.is_available() else "cpu"
        own = "packaged" if kind == "scenes" else "photo"
        self.model, self.processor = seewhen.load(model or own, dtype="float32", device=device)
        self.backbone = Backbone.of(self.model)
        self.tokens = 144 if kind == "scenes" else 256
        self.prompt = chat_prompt(self.processor, DESCRIBE, 1)
        self.describing: dict[range, dict[str, Any]] = {}  # inputs, which all settings share

    def sign(self, command: str) -> None:
        """Write down what makes the files."""
        save(self.out / f"{self.kind}.about.jsonl.gz", [{**about(command), "model": self.name}])

    def next(self, number: int) -> Picture:
        """The picture after this one, whose boxes are somewhere else."""
        return self.pictures[(number + 1) % len(self.pictures)]

    def place(self, name: str, number: int) -> Tensor:
        """The weights of one picture's patches."""
        shown = patches([box for _, box in self.pictures[number].boxes], self.tokens)
        if name == "other boxes":
            return patches([box for _, box in self.next(number).boxes], self.tokens)
        return {"boxes": shown, "elsewhere": 1 - shown, "uniform": torch.ones_like(shown)}[name]

    # -- captions ------------------------------------------------------------------------------------------------

    def captions(self, wanted: Mapping[str, Setting], until: float = math.inf) -> None:
        """All settings that are not there yet, as long as there is time."""
        for name, setting in wanted.items():
            if time.monotonic() > until:
                return
            path = self.out / file_of(self.kind, name)
            if path.exists():
                continue
            lines: list[dict[str, Any]] = [{"setting": name, "pictures": len(self.pictures), "tokens": TOKENS}]
            for numbers in self.batches():
                lines += self._batch(numbers, setting)
            save(path, lines)
            print(path.name, flush=True)

    def batches(self) -> list[range]:
        """The numbers of the pictures, in parts."""
        every = range(len(self.pictures))
        return [every[start : start + self.batch] for start in every[:: self.batch]]

    def _batch(self, numbers: range, setting: Setting) -> list[dict[str, Any]]:
        pictures = [self.pictures[number] for number in numbers]
        if numbers not in self.describing:
            self.describing[numbers] = self._inputs([(p, self.prompt) for p in pictures])
        inputs = self.describing[numbers]
        tokenizer = self.processor.tokenizer
        with torch.inference_mode():
            if not setting:
                output = self._generated(inputs)
            elif setting.get("next"):
                output = self._one_ahead(inputs, setting)
            else:
                with seewhen.attach(self.model, self._method(numbers, setting), fast="off"):
                    output = self._generated(inputs)
        new = output[:, inputs["input_ids"].shape[1] :]
        texts = tokenizer.batch_decode(new, skip_special_tokens=True)
        return [{"image": p.name, "text": text.strip()} for p, text in zip(pictures, texts, strict=True)]

    def _inputs(self, asked: Sequence[tuple[Picture, str]]) -> dict[str, Any]:
        pictures = [[picture.image] for picture, _ in asked]
        return model_inputs(self.model, self.processor, pictures, [prompt for _, prompt in asked])

    def _generated(self, inputs: dict[str, Any]) -> Tensor:
        pad = self.processor.tokenizer.pad_token_id
        return self.model.generate(**inputs, max_new_tokens=TOKENS, do_sample=False, pad_token_id=pad)

    def _method(self, numbers: range, setting: Setting) -> Pointed:
        place = None
        if "place" in setting:
            weights = torch.stack([self.place(setting["place"], number) for number in numbers])
            place = Place(weights.to(self.model.device))
        elif "pointing" in setting:
            place = Place(torch.zeros(len(numbers), self.tokens, device=self.model.device))
        rest = {name: value for name, value in setting.items() if name != "place"}
        return Pointed(place=place, **rest)

    def _one_ahead(self, inputs: dict[str, Any], setting: Setting) -> Tensor:
        """Each step is made twice: untilted, which gives the word that the model wants to say, then tilted to
        where that word's own vector points at layer 0."""
        ids, rows = inputs["input_ids"], len(inputs["input_ids"])
        nowhere = torch.zeros(rows, self.tokens, device=ids.device)
        everywhere = torch.ones_like(nowhere).bool()
        place = Place(nowhere)
        method = Pointed(setting["start"], setting["strength"], place)
        table = self.backbone.decoder.get_input_embeddings()
        ends = torch.tensor(sorted({*_ids(self.model.generation_config.eos_token_id)}), device=ids.device)
        over = torch.zeros(rows, dtype=torch.bool, device=ids.device)
        pad = self.processor.tokenizer.pad_token_id
        with seewhen.attach(self.model, method, fast="off") as handle:
            out = self.model(**inputs, use_cache=True, logits_to_keep=1)
            assert handle.session.last is not None
            recorded = handle.session.last.recorder.step
            cache, logits = out.past_key_values, out.logits[:, -1]
            for step in range(TOKENS):
                if step:
                    given = {"input_ids": ids[:, -1:], "past_key_values": cache, "use_cache": True}
                    place.weights = nowhere
                    wanted = self.model(**given).logits[:, -1].argmax(dim=-1)
                    cache.crop(-1)  # that step never was
                    recorded.sub_(1)
                    assert place.units is not None
                    cos = where.cosine_to_units(table(wanted), place.units, everywhere)
                    place.weights = where.shifted_relevance(cos, everywhere, 20.0, 0.0)
                    logits = self.model(**given).logits[:, -1]
                chosen = torch.where(over, pad, logits.argmax(dim=-1))
                over = over | torch.isin(chosen, ends)
                ids = torch.cat([ids, chosen[:, None]], dim=1)
                if bool(over.all()):
                    break
        return ids

    # -- questions -----------------------------------------------------------------------------------------------

    def questions(self) -> None:
        """Odds of yes for two objects that are there and two that are not, with the tilt here or there."""
        path = self.out / f"{self.kind}.questions.jsonl.gz"
        if path.exists():
            return
        lines: list[dict[str, Any]] = []
        for numbers in self.batches():
            asked = [each for number in numbers for each in self._about(number)]
            lines += self._asked(asked)
        save(path, lines)
        print(path.name, flush=True)

    def _about(self, number: int) -> list[Asked]:
        """Two objects that are there and two that are not."""
        picture, others = self.pictures[number], self.next(number).boxes
        dice = Random(picture.name)
        with_boxes = sorted({name for name, _ in picture.boxes} & set(picture.objects))
        absent = sorted(set(chair_lexicon().objects) - set(picture.objects))
        found = []
        for name in dice.sample(with_boxes, min(2, len(with_boxes))):
            own = [box for named, box in picture.boxes if named == name]
            found.append(Asked(picture, name, True, patches(own, self.tokens)))
        for name in dice.sample(absent, 2):  # it has no place: any
            found.append(Asked(picture, name, False, patches([dice.choice(others)[1]], self.tokens)))
        return found

    def _asked(self, asked: Sequence[Asked]) -> list[dict[str, Any]]:
        prompts = [chat_prompt(self.processor, question(a.object, chair_lexicon(), QUESTION), 1) for a in asked]
        inputs = self._inputs([(each.picture, prompt) for each, prompt in zip(asked, prompts, strict=True)])
        right = torch.stack([each.place for each in asked])
        places = {
            "right": right,
            "wrong": torch.stack([elsewhere(each.place) for each in asked]),
            "uniform": torch.ones_like(right),
        }
        found: dict[str, list[float]] = {"regular": self._odds(inputs, None)}
        for start in STARTS:
            for strength in STRENGTHS:
                for name, weights in places.items():
                    method = Pointed(start, strength, Place(weights.to(self.model.device)))
                    found[f"{name}, {strength:g} from {start:g}"] = self._odds(inputs, method)
        return [
            {
                "image": each.picture.name,
                "object": each.object,
                "there": each.there,
                **{name: round(odds[number], 4) for name, odds in found.items()},
            }
            for number, each in enumerate(asked)
        ]

    @torch.inference_mode()
    def _odds(self, inputs: dict[str, Any], method: Pointed | None) -> list[float]:
        answers = YesNo.of(self.processor.tokenizer)
        if method is None:
            return answers.log_odds(self.model(**inputs, logits_to_keep=1).logits[:, -1].float()).tolist()
        with seewhen.attach(self.model, method, fast="off"):
            return answers.log_odds(self.model(**inputs, logits_to_keep=1).logits[:, -1].float()).tolist()


def _ids(eos: Any) -> list[int]:
    return [eos] if isinstance(eos, int) else list(eos or ())


def about(command: str) -> dict[str, Any]:
    """What made a file."""
    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    known = {"torch": torch.__version__, "transformers": transformers.__version__, "seewhen": seewhen.__version__}
    return {"command": f"python -m {command}", "machine": machine, "dtype": "float32", **known}


def save(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    """Gzip JSON lines, in place only when whole."""
    temporary = path.with_suffix(".part")
    text = "\n".join(json.dumps(line) for line in lines) + "\n"
    temporary.write_bytes(gzip.compress(text.encode(), mtime=0))
    temporary.rename(path)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m where.study", description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=["scenes", "photo"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--store", type=Path, help="of the photographs: see ../photographs")
    parser.add_argument("--model", help="another one than the packaged, or the photographs' model")
    parser.add_argument("--first", type=int, default=5100, help="number of the first drawn scene")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--few", action="store_true", help="only the places, at strength 4")
    alone = parser.add_mutually_exclusive_group()
    alone.add_argument(
        "--places", nargs="+", choices=PLACES, help="captions with a tilt to these, and nothing else"
    )
    alone.add_argument(
        "--relevances", action="store_true", help="captions of the third hypothesis, and nothing else"
    )
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no further setting after so long")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    pictures = (
        scenes(given.count, given.first) if given.kind == "scenes" else photographs(given.store, given.count)
    )
    study = Study(given.kind, pictures, given.out, given.batch, given.model)
    part = f" --places {shlex.join(given.places)}" if given.places else " --relevances" * given.relevances
    study.sign(f"where.study {given.kind} --first {given.first} --count {given.count} --batch {given.batch}{part}")
    until = time.monotonic() + given.seconds
    strengths = STRENGTHS[:1] if given.few else STRENGTHS
    if given.places:
        wanted = settings(given.kind, strengths, few=True, only=given.places)
    elif given.relevances:
        wanted = settings(given.kind, strengths, only=("boxes",), starts=STARTS[:1])
    else:
        study.questions()
        wanted = settings(given.kind, strengths, given.few)
    study.captions(wanted, until)


if __name__ == "__main__":
    main()
