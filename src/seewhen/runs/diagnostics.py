"""What a model is like, apart from what it says: the facts by which methods help one model and not another.

Most of them need no labels: how much attention lies on the image, how far answers depend on it, how usual a prompt
without image is, what a tilt would do to attention. With labels: how well doubt finds inventions, what answers to
yes/no questions are worth. With boxes, which drawn scenes have: whether attention points at what is being named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seewhen.asking.asker import Asker
from seewhen.asking.check import Checker
from seewhen.backbones.grids import ImageGrid, placed_grids
from seewhen.runs.captioning import Advance, Captions
from seewhen.runs.labelled import Labelled, drawn
from seewhen.runs.probing import ATTENTION, BESIDE, SHAPE, Probe
from seewhen.verdicts.lexicon import Lexicon, lexicon_named
from seewhen.verdicts.reader import TokenSpans, read_mentions
from seewhen.verdicts.separation import auroc

if TYPE_CHECKING:
    from seewhen.decoding.method import Method
    from seewhen.decoding.trace import Trace

Array = NDArray[np.float64]
BINS = 10  # of probability, for the calibration error
_ASKED = 4  # objects of a picture that are asked about, and as many that are not there


@dataclass(frozen=True)
class TiltShape:
    """What a tilt does in the layers it acts in, means over tokens and heads, one number per layer."""

    method: str
    layers: tuple[int, ...]
    patches: float  # image tokens of a picture
    negative_scores: tuple[float, ...]  # share of image scores below zero: A + |A| w pulls these towards zero
    effective_before: tuple[float, ...]  # patches over which image attention is spread
    effective_after: tuple[float, ...]
    mass_before: tuple[float, ...]  # share of attention on the image
    mass_after: tuple[float, ...]
    to_regular: tuple[float, ...]  # total variation of the tilted row from the untilted one
    to_uniform: tuple[float, ...]  # and from the same tilt with all patches alike


@dataclass(frozen=True)
class Diagnostics:
    """What a model is like. None where there were no labels or boxes to tell it by."""

    pictures: int
    tokens: int  # of the model's own greedy answers
    image_attention: tuple[float | None, ...]  # by layer; None where a layer has no softmax attention
    divergence: float  # with and without image, Jensen-Shannon, nats per token
    divergence_at_objects: float | None  # only where an object's word begins
    tokens_changed: float  # share of tokens that would be others without the image
    answers_changed: float  # share of answers with at least one such
    entropy_with: float
    entropy_without: float
    perplexity_with: float  # of the model's own words
    perplexity_without: float
    tilt: TiltShape
    invented: float | None = None  # share of the objects it names
    entropy_auroc: float | None = None  # how well doubt tells invented from true
    logprob_auroc: float | None = None
    asked_auroc: float | None = None  # yes/no questions: as many about objects that are there as about others
    asked_accuracy: float | None = None
    calibration_error: float | None = None  # of the answers' probabilities
    pointing: tuple[float | None, ...] | None = None  # by layer: the most attended patch lies on the named object
    pointing_chance: float | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def diagnostics(
    model: Any,
    processor: Any,
    pictures: int | Sequence[Labelled] = 100,
    *,
    labels: bool = True,
    lexicon: str = "coco",
    tokens: int = 64,
    batch: int = 8,
    asked: int | None = None,
    method: str | Method = "cai",
    advance: Advance = lambda _: None,
) -> Diagnostics:
    """Describe pictures greedily, with a row without image beside each, and look.

    Args:
        model: A vision-language model of transformers, as `seewhen.load` gives it.
        processor: Its processor.
        pictures: A number of drawn scenes, or pictures.
        labels: Whether the pictures' objects are known.
        lexicon: Which words are objects: `"coco"`, or a file with one object per line.
        tokens: The longest answer.
        batch: Answers written together.
        asked: Pictures that yes/no questions are asked about; all unless given.
        method: Whose tilt is looked at.
        advance: Told after every batch how many pictures are done.
    """
    images = drawn(pictures) if isinstance(pictures, int) else list(pictures)
    asker, known = Asker((model, processor)), lexicon_named(lexicon)
    images = [image.named_by(known) for image in images]
    looked = _Looked.at(Captions(asker, lexicon, tokens, batch), images, Probe.on(method), advance)
    facts = looked.unlabelled()
    if labels:
        facts |= looked.labelled() | looked.pointed() | _asked(asker, images[:asked], lexicon, advance)
    return Diagnostics(**facts)


@dataclass(frozen=True)
class _Mention:
    """The first time that an answer names an object."""

    image: Labelled
    object: str
    step: int
    facts: Mapping[str, float]  # of that token
    attention: Tensor  # (layers, image tokens)
    grids: tuple[ImageGrid, ...]


@dataclass(frozen=True)
class _Looked:
    """What was seen along all answers."""

    per_token: Mapping[str, Array]
    answer: NDArray[np.int64]  # of each token
    mass: Array  # (layers,)
    shape: Mapping[str, Array]  # (layers,)
    patches: float
    mentions: tuple[_Mention, ...]
    tilt: tuple[str, tuple[int, ...]]
    softmax: tuple[int, ...]

    @staticmethod
    def at(captions: Captions, images: Sequence[Labelled], probe: Probe, advance: Advance) -> _Looked:
        asker, lexicon = captions.asker, lexicon_named(captions.lexicon)
        traces: list[tuple[Trace, int, Labelled]] = []
        for some, batches in captions.described(probe, images):
            rest = list(some)
            for done in batches:
                assert done.trace is not None
                part, rest = rest[: len(done.answers)], rest[len(done.answers) :]
                traces += [(done.trace, row, image) for row, image in enumerate(part)]
            advance(len(some))
        rows = [trace.row(row) for trace, row, _ in traces]
        layers = traces[0][0].tilted_layers
        return _Looked(
            per_token={name: _joined(row[name] for row in rows) for name in BESIDE},
            answer=np.repeat(np.arange(len(rows)), [len(row["differs"]) for row in rows]),
            mass=_joined(row[ATTENTION].sum(dim=-1) for row in rows).mean(axis=0),
            shape={name: _joined(row[name] for row in rows).mean(axis=0) for name in SHAPE},
            patches=float(np.mean([trace.image_tokens[row] for trace, row, _ in traces])),
            mentions=tuple(m for each in traces for m in _mentions(asker, lexicon, *each)),
            tilt=(probe.of.name, layers),
            softmax=asker.backbone.softmax_layers,
        )

    def unlabelled(self) -> dict[str, Any]:
        """All that needs no labels."""
        mean = {name: float(values.mean()) for name, values in self.per_token.items()}
        at_objects = [mention.facts["divergence"] for mention in self.mentions]
        changed = np.bincount(self.answer, weights=self.per_token["differs"])
        method, layers = self.tilt
        shape = {name: tuple(float(values[la]) for la in layers) for name, values in self.shape.items()}
        return {
            "pictures": len(changed),
            "tokens": len(self.answer),
            "image_attention": self._by_layer(self.mass),
            "divergence": mean["divergence"],
            "divergence_at_objects": float(np.mean(at_objects)) if at_objects else None,
            "tokens_changed": mean["differs"],
            "answers_changed": float((changed > 0).mean()),
            "entropy_with": mean["entropy_with"],
            "entropy_without": mean["entropy_without"],
            "perplexity_with": float(np.exp(-mean["logprob_with"])),
            "perplexity_without": float(np.exp(-mean["logprob_without"])),
            "tilt": TiltShape(method, layers, self.patches, **shape),
        }

    def labelled(self) -> dict[str, Any]:
        """How well doubt tells invented from true."""
        true = np.array([mention.object in mention.image.objects for mention in self.mentions], bool)
        if not len(true):
            return {}
        facts = {name: np.array([m.facts[name] for m in self.mentions]) for name in BESIDE}
        return {
            "invented": float(1 - true.mean()),
            "entropy_auroc": _separation(-facts["entropy_with"], true),
            "logprob_auroc": _separation(facts["logprob_with"], true),
        }

    def pointed(self) -> dict[str, Any]:
        """Whether the most attended patch lies on the object that is about to be named, by layer."""
        named = [m for m in self.mentions if m.object in m.image.boxes and placed_grids(m.grids)]
        if not named:
            return {}
        hits = np.zeros((len(named), len(self.mass)))
        chance = np.zeros(len(named))
        for number, mention in enumerate(named):
            inside = _inside(mention)  # of each placed token
            tokens = [token for token, _ in inside]
            on_object = np.array([hit for _, hit in inside])
            hits[number] = on_object[mention.attention[:, tokens].argmax(dim=-1).numpy()]
            chance[number] = on_object.mean()
        return {"pointing": self._by_layer(hits.mean(axis=0)), "pointing_chance": float(chance.mean())}

    def _by_layer(self, values: Array) -> tuple[float | None, ...]:
        return tuple(float(value) if layer in self.softmax else None for layer, value in enumerate(values))


def _joined(parts: Iterator[Tensor]) -> Array:
    return torch.cat(list(parts)).double().numpy()


def _mentions(asker: Asker, lexicon: Lexicon, trace: Trace, row: int, image: Labelled) -> Iterator[_Mention]:
    """First mentions, each at the token where its word begins."""
    tokens = trace.tokens[: trace.lengths[row], row].tolist()
    texts = [asker.tokenizer.decode(tokens[:end], skip_special_tokens=True) for end in range(1, len(tokens) + 1)]
    spans = TokenSpans(tuple(map(len, texts)))
    kept = trace.row(row)
    seen: set[str] = set()
    for mention in read_mentions(texts[-1] if texts else "", lexicon.with_variants):
        if mention.object in seen:
            continue
        seen.add(mention.object)
        step = min(spans.covering(mention.start, mention.end)[0], len(tokens) - 1)
        facts = {name: float(kept[name][step]) for name in BESIDE}
        yield _Mention(image, mention.object, step, facts, kept[ATTENTION][step].nan_to_num(0.0), trace.grids[row])


def _inside(mention: _Mention) -> list[tuple[int, bool]]:
    """Each image token that has a place, and whether its middle lies in a box of the object."""
    boxes = mention.image.boxes[mention.object]
    found = []
    for grid in placed_grids(mention.grids):
        for row, column in product(range(grid.height), range(grid.width)):
            x, y = grid.centre(row, column)
            hit = any(left <= x < right and top <= y < bottom for left, top, right, bottom in boxes)
            found.append((grid.start + row * grid.stride + column, hit))
    return found


def _asked(asker: Asker, images: Sequence[Labelled], lexicon: str, advance: Advance) -> dict[str, Any]:
    """Yes/no questions: objects that are there, and as many that are in the pictures after it."""
    checker = Checker(asker, lexicon, verdict="asking")
    odds: list[float] = []
    there: list[bool] = []
    for number, image in enumerate(images):
        own = sorted(image.objects)[:_ASKED]
        after = (name for other in (*images[number + 1 :], *images[:number]) for name in sorted(other.objects))
        absent = list(dict.fromkeys(name for name in after if name not in image.objects))[: len(own)]
        found = checker.odds(image.open(), [*own, *absent])
        odds += found.values()
        there += [name in image.objects for name in found]
        advance(1)
    if not odds:
        return {}
    values, true = np.array(odds), np.array(there)
    probability = 1 / (1 + np.exp(-np.clip(values, -700, 700)))
    return {
        "asked_auroc": _separation(values, true),
        "asked_accuracy": float(((values > 0) == true).mean()),
        "calibration_error": calibration_error(probability, true),
    }


def calibration_error(probability: Array, true: NDArray[np.bool_]) -> float:
    """Expected calibration error: how far probability and share lie apart in bins of probability, on average."""
    bins = np.minimum((probability * BINS).astype(int), BINS - 1)
    gap = np.bincount(bins, weights=probability - true, minlength=BINS)
    return float(np.abs(gap).sum() / len(probability))


def _separation(value: Array, true: NDArray[np.bool_]) -> float | None:
    found = auroc(value, true, None, np.ones(len(value)))
    return None if np.isnan(found) else float(found)
