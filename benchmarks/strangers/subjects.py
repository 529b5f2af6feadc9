"""What is fuzzed: for each kind of file a small sound example, and the code that a user would read it with."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from seewhen import benchmarks
from seewhen.backbones.grids import ImageGrid
from seewhen.benchmarks.base import Options, Sample
from seewhen.benchmarks.chair import Chair
from seewhen.benchmarks.pope import Pope
from seewhen.decoding.trace import Trace
from seewhen.methods.calibration import Directions
from seewhen.verdicts.lexicon import read_lexicon
from seewhen.verdicts.reader import read_mentions
from seewhen.verdicts.verdict import Logistic, Signals, Verdict


@dataclass(frozen=True)
class Subject:
    """`write` makes sound files in a folder, `read` reads them as a command would."""

    name: str
    share: float  # of all mutated files
    write: Callable[[Path], None]
    read: Callable[[Path], Any]


def _lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def _json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


# -- benchmarks --------------------------------------------------------------------------------------------


def write_pope(folder: Path) -> None:
    asked = [
        {"question_id": i, "image": f"COCO_val2014_{i:012d}.jpg", "text": f"Is there a cat{i}?", "label": "yes"}
        for i in range(1, 7)
    ]
    _lines(folder / "coco_pope_random.json", asked)
    _json(folder / "coco_pope_popular.json", [{"image": "1.jpg", "text": ["a?", "b?"], "label": ["yes", "no"]}])
    _lines(folder / "answers.jsonl", [{"question_id": i, "text": "Yes, there is."} for i in range(1, 7)])


def read_pope(folder: Path) -> None:
    _score("pope", folder / "answers.jsonl", folder / "coco_pope_random.json")
    _ask(benchmarks.load("pope", folder, split="coco-popular"))


def _score(name: str, answers: Path, *truth: Path) -> None:
    """As `seewhen score` does."""
    asked, texts = benchmarks.benchmark_class(name).read(answers, list(truth), Options())
    asked.score(texts).to_json()
    _ask(asked)


def _ask(benchmark: Any) -> None:
    """What a run does with a benchmark before a model answers."""
    from seewhen.benchmarks.base import content_checksum
    from seewhen.benchmarks.files import find_image
    from seewhen.errors import InvalidInput

    samples = benchmark.samples()
    content_checksum(samples)
    for sample in samples:
        benchmark.prompt(sample)
        try:
            find_image(Path("nowhere"), sample.image)
        except InvalidInput:
            continue


def write_chair(folder: Path) -> None:
    images = [{"id": i, "file_name": f"{i}.jpg"} for i in range(1, 5)]
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    boxes = [{"image_id": i, "category_id": 1 + i % 2, "bbox": [0, 0, 1, 1]} for i in range(1, 5)]
    captions = [{"image_id": i, "caption": "A cat sits on a bench."} for i in range(1, 5)]
    for part in ("train", "val"):
        _json(
            folder / f"instances_{part}2014.json",
            {"images": images, "categories": categories, "annotations": boxes},
        )
        _json(folder / f"captions_{part}2014.json", {"images": images, "annotations": captions})
    _lines(folder / "answers.jsonl", [{"image_id": i, "caption": "A cat and a dog."} for i in range(1, 5)])
    (folder / "ids.txt").write_text("1\n2\n3\n")
    _lines(folder / "ids.jsonl", [{"image_id": 1}, {"image_id": 2}])
    table = {"categories": ["cat", "dog"], "images": {"1": [0], "2": [0, 1], "3": ["cat"]}}
    (folder / "table").mkdir()
    (folder / "table" / "coco_objects.json.gz").write_bytes(gzip.compress(json.dumps(table).encode(), mtime=0))


def read_chair(folder: Path) -> None:
    _score("chair", folder / "answers.jsonl", folder / "instances_val2014.json", folder / "captions_val2014.json")
    _ask(benchmarks.load("chair", folder, image_list=str(folder / "ids.txt")))
    _ask(benchmarks.load("chair", folder / "table", image_list=str(folder / "ids.jsonl")))


def write_mme(folder: Path) -> None:
    rows = [f"{i}.jpg\tIs this {i}?\tYes\tYes it is\n{i}.jpg\tIs this no?\tNo\tno" for i in range(3)]
    for task in ("existence", "count"):
        (folder / "results").mkdir(exist_ok=True)
        (folder / "results" / f"{task}.txt").write_text("\n".join(rows) + "\n")
    release = folder / "release" / "existence"
    release.mkdir(parents=True)
    (release / "1.txt").write_text("Is this a cat? Please answer yes or no.\tYes\nIs this a dog?\tNo\n")
    answers = [
        {"question_id": "existence/1.png", "prompt": "Is this a cat?", "text": "Yes"},
        {"question_id": "existence/1.png", "prompt": "Is this a dog?", "text": "No"},
    ]
    _lines(folder / "llava.jsonl", answers)


def read_mme(folder: Path) -> None:
    _score("mme", folder / "results")
    _score("mme", folder / "llava.jsonl", folder / "release")


def write_amber(folder: Path) -> None:
    kinds = {
        "generative": 1,
        "discriminative-attribute": 2,
        "discriminative-existence": 3,
        "discriminative-relation": 4,
    }
    for kind, number in kinds.items():
        query = {"id": number, "image": f"AMBER_{number}.jpg", "query": "Describe this image."}
        _json(folder / f"query_{kind}.json", [query])
    annotations = [{"id": 1, "type": "generative", "truth": ["cat", "grass"], "hallu": ["dog"]}]
    for number, kind in ((2, "attribute-state"), (3, "hallucination"), (4, "relation")):
        annotations.append({"id": number, "type": f"discriminative-{kind}", "truth": "yes"})
    _json(folder / "annotations.json", annotations)
    _json(folder / "relation.json", {"cat": ["kitten"], "dog": ["puppy"], "grass": ["lawn"]})
    (folder / "safe_words.txt").write_text("picture\nimage\n")
    _json(folder / "answers.json", [{"id": i, "response": "A cat on grass with a dog."} for i in range(1, 5)])


def read_amber(folder: Path) -> None:
    _score("amber", folder / "answers.json", folder)


# -- what the program itself wrote -------------------------------------------------------------------------


def write_trace(folder: Path) -> None:
    steps, layers, image = 3, 4, 6
    numbers = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.rand(steps, 1, *shape, generator=numbers)  # noqa: E731
    tensors = {
        "gate": draw(layers) > 0.5,
        "entropy": draw(layers),
        "threshold": draw(layers),
        "mass_before": draw(layers),
        "mass_after": draw(layers),
        "attention_before": draw(layers, image),
        "attention_after": draw(layers, image),
        "relevance": draw(image),
        "cosine_at_2": draw(image),
        "heads_before_at_1": draw(2, image),
        "top_ids": (draw(5) * 9).long(),
        "top_log_probs": -draw(5),
    }
    made = Trace(
        method={"method": "cai", "parameters": {"source_layer": 2}},
        level="full",
        num_layers=layers,
        softmax_layers=tuple(range(layers)),
        tilted_layers=(1, 2),
        prompt_length=9,
        lengths=(steps,),
        tokens=torch.tensor([[5], [6], [2]]),
        tensors=tensors,
        image_tokens=(image,),
        grids=((ImageGrid(0, 0, 2, 3, 3),),),
        texts=(("A", " cat", "</s>"),),
        runner_texts=((("A", "b", "c", "d", "e"),) * steps,),
        model="tiny",
        meta={"prompt": "What is it?", "label": "cai"},
    )
    made.save(folder / "trace.json")


def read_trace(folder: Path) -> None:
    from seewhen.showing.viewer.traces import traces_page

    trace = Trace.load(folder / "trace.json")
    trace.summary()
    json.dumps(traces_page([trace], ["cai"], [], []))


_ASKED = Pope(
    tuple(
        Sample(f"coco-random/{i}", f"{i // 3}.jpg", f"A thing {i}?", "yes" if i % 2 else "no", "coco-random")
        for i in range(18)
    )
)


_CAPTIONED = Chair({str(i): frozenset({"dog", "car"}) for i in range(6)}, tuple(map(str, range(6))))


def write_runs(folder: Path) -> None:
    from seewhen.runs.store import Record

    chance = np.random.default_rng(0)
    for label in ("regular", "cai"):
        answers = ["Yes" if chance.random() < 0.5 else "No" for _ in _ASKED.samples()]
        told = zip(_ASKED.samples(), answers, strict=True)
        records = [Record(s.id, 0, s.image, answer, 2, "", {"fired": 0.5}) for s, answer in told]
        _write_run(folder / label, _ASKED, {"split": "coco-random", "settings": {"parser": "C"}}, records)


def write_captions(folder: Path) -> None:
    """The regular run has cuts.json, and the other is shorter."""
    from seewhen.runs.store import Record

    for label, caption in (("regular", "A dog is here. A car too. There is a cat."), ("cai", "A dog is here.")):
        records = [Record(s.id, 0, s.image, caption, 9, "", {"fired": 0.5}) for s in _CAPTIONED.samples()]
        _write_run(folder / label, _CAPTIONED, {"split": "all", "settings": {}}, records)


def _write_run(folder: Path, benchmark: Any, asked: dict[str, Any], records: list[Any]) -> None:
    from seewhen.runs.cutting import write_cuts
    from seewhen.runs.scoring import result_of, score_records, write_counts
    from seewhen.runs.store import RunStore

    label = folder.name
    config = {
        "benchmark": {"name": benchmark.name, "data": "files", "style": "plain", "questions": "0" * 64, **asked},
        "model": {"name": "llava-1.5-7b-hf", "dtype": "float16"},
        "method": {"label": label, "fingerprint": label, "method": label, "parameters": {}},
        "decoding": {"mode": "greedy", "max_new_tokens": 8, "temperature": None},
        "versions": {"seewhen": "0"},
    }
    with RunStore.open(folder, config, {"device_name": "x"}) as store:
        store.append(records)
        store.note_timing({"samples": len(records), "tokens": 36, "seconds": 10.0})
        scored = score_records(benchmark, records, (0,))
        write_counts(folder, scored)
        if label == "regular":
            write_cuts(folder, benchmark, records, (0,))
        store.finish((), result_of(benchmark, scored, records))


def read_runs(folder: Path) -> None:
    from seewhen.runs.report import analyse, read_runs
    from seewhen.runs.report_files import write_report

    write_report(analyse(read_runs([folder])), folder.parent / "report")


def write_directions(folder: Path) -> None:
    origin = {"images": ["0" * 16], "layers": 4, "width": 8, "model": "tiny", "settings": {}}
    Directions("vti", {"text": torch.zeros(4, 8)}, origin).save(folder / "vti.safetensors")


def read_directions(folder: Path) -> None:
    Directions.load(folder / "vti.safetensors").seen([])


def write_others(folder: Path) -> None:
    _lines(folder / "told.jsonl", [{"image": "a.png", "faithful": "a cat", "hallucinated": "a dog"}] * 3)
    _lines(folder / "asked.jsonl", [{"image": "a.png", "question": "?", "answer": "yes", "box": [0, 0, 1, 1]}] * 3)
    entry = {"value": 0.5, "low": 0.4, "high": 0.6}
    points = [
        {"values": {"start_layer": s, "threshold": t}, "metrics": {"accuracy": entry}}
        for s in (0.5, 0.7)
        for t in (0.1, 0.2)
    ]
    grid = {"start_layer": [0.5, 0.7], "threshold": [0.1, 0.2]}
    sweep = {"format": 1, "method": "cai", "metric": "accuracy", "tuned_on": "val", "grid": grid, "points": points}
    _json(folder / "sweep.json", sweep | {"best": points[0]["values"]})
    Verdict(written=Logistic(0.1, {"odds": 1.0, "entropy": -0.5}, {"dog": 0.2})).save(folder / "verdict.json")
    (folder / "lexicon.txt").write_text("dog, puppy  # a comment\ntraffic light\nchaise longue\n", "utf-8")
    _json(folder / "sources.json", {"pope": [{"what": "questions", "revision": "1", "origin": "x", "files": []}]})


def read_others(folder: Path) -> None:
    from seewhen.benchmarks.getting import read_record
    from seewhen.methods.calibration_samples import demonstrations, questions
    from seewhen.showing.figures.ablations import ablation_gate, read_sweep

    demonstrations(folder, folder / "told.jsonl", 3)
    questions(folder, folder / "asked.jsonl", 3)
    read_record(folder)
    known = Verdict.load(folder / "verdict.json").probability(Signals(1.0, entropy=0.5), "dog")
    assert 0 <= known <= 1
    read_mentions("A puppy by the traffic light.", read_lexicon(folder / "lexicon.txt"))
    ablation_gate(read_sweep(folder))


# -- models ------------------------------------------------------------------------------------------------


def write_gguf(folder: Path) -> None:
    from photographs import tiny

    tiny.write_gguf(folder / "tiny.gguf")


def read_gguf(folder: Path) -> None:
    from seewhen.backbones.photo import gguf, language

    file = gguf.read(folder / "tiny.gguf")
    for name in file.entries:
        file.tensor(name)
    language.load(folder / "tiny.gguf")


def write_checkpoint(folder: Path) -> None:
    import shutil

    from seewhen.backbones.loading import PACKAGED_PATH

    shutil.copytree(PACKAGED_PATH, folder, dirs_exist_ok=True)
    for path in folder.iterdir():
        if not path.name.endswith((".json", ".safetensors", ".jinja")):
            path.unlink()


def read_checkpoint(folder: Path) -> None:
    import seewhen

    seewhen.load(folder, device="cpu")


SUBJECTS = (
    Subject("pope", 0.15, write_pope, read_pope),
    Subject("chair", 0.15, write_chair, read_chair),
    Subject("mme", 0.15, write_mme, read_mme),
    Subject("amber", 0.15, write_amber, read_amber),
    Subject("trace", 0.1, write_trace, read_trace),
    Subject("runs", 0.06, write_runs, read_runs),
    Subject("captions", 0.04, write_captions, read_runs),
    Subject("gguf", 0.1, write_gguf, read_gguf),
    Subject("directions", 0.05, write_directions, read_directions),
    Subject("others", 0.04, write_others, read_others),
    Subject("checkpoint", 0.01, write_checkpoint, read_checkpoint),
)
