"""Makes docs/gallery.md and its pictures from the packaged model: `python benchmarks/figures/gallery.py`.

Takes some minutes on two cores. Sweeps and their runs go to WORK (default: a temporary folder); give a folder
to keep them between calls.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import textwrap
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from PIL import Image

import seewhen
from seewhen.runs.evaluate import Ask, Machine
from seewhen.runs.progress import Progress
from seewhen.runs.sweep import parse_grid, sweep, typed_grid, write_sweep
from seewhen.scenes import dataset
from seewhen.showing import figures
from seewhen.showing.figures.catalogue import FIGURES, most_telling
from seewhen.showing.figures.style import Drawing
from seewhen.showing.figures.tracing import Tracer, answered, replayed, trace_scenes

DOCS = Path(__file__).resolve().parents[2] / "docs"
RESULT = Path(__file__).with_name("gallery.json")  # the numbers that the page tells
SPLIT = "shifted"
EARLY = "cai:start_layer=0.5"  # layers 7 to 11 of 12: the adaptive default leaves only the last one


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--scenes", type=int, default=60)
    options.add_argument("--sweep-scenes", type=int, default=24)
    options.add_argument("--work", type=Path, default=None)
    given = options.parse_args()
    work = given.work or Path(tempfile.mkdtemp())
    tracer = Tracer.of(seewhen.load(), head_layers=(11,), batch=10)
    drawn = draw_all(tracer, given.scenes) | draw_sweeps(work, given.sweep_scenes)
    target = DOCS / "images" / "gallery"
    data = {}
    for name, drawing in drawn.items():
        path = target / f"{name}.png"
        figures.save(drawing, path, work / f"{name}.json", dpi=120)
        small = Image.open(path).convert("RGB").quantize(256, kmeans=2, dither=Image.Dither.NONE)
        small.save(path, optimize=True)
        data[name] = drawing.data
    told = {name: data[name] for name, _, _, text in SECTIONS if callable(text)}
    versions = {package: version(package) for package in ("torch", "transformers", "numpy", "pillow")}
    result = {"machine": platform.machine(), "versions": versions, "scenes": given.scenes, "figures": told}
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (DOCS / "gallery.md").write_text(page(data, given.scenes), encoding="utf-8")
    print(f"{len(drawn)} figures, {sum(f.stat().st_size for f in target.glob('*.png')) / 1e6:.2f} MB")


def draw_all(tracer: Tracer, count: int) -> dict[str, Drawing]:
    """All figures that start from answers."""
    scenes = dataset(SPLIT, count)
    early = seewhen.method("cai", start_layer=0.5)
    found = {}
    for name, method in (("regular", "regular"), ("early", early), ("cai", "cai")):
        with Progress(name, count) as bar:
            found[name] = trace_scenes(tracer, scenes, method, tick=bar.advance)
    regular, tilted, default = found["regular"], found["early"], found["cai"]

    def telling(name: str) -> Any:
        return most_telling(FIGURES[name], tilted if name == "case" else regular)

    case, long = telling("case"), telling("caption")
    draw: dict[str, Callable[[], Drawing]] = {
        "similarity": lambda: figures.similarity(telling("similarity")),
        "layers": lambda: figures.source_layers(telling("layers")),
        "entropy": lambda: figures.entropy(telling("entropy")),
        "median-entropy": lambda: figures.median_entropy(tilted),
        "case": lambda: figures.case_study(case, baseline=replayed(tracer, case, "regular"), head=0, layer=11),
        "caption": lambda: figures.caption([long, *answered(tracer, [long], early)]),
        "fired": lambda: figures.fired(tilted),
        "failure": lambda: figures.failure(default),
        "pointing": lambda: figures.pointing(regular),
        "auroc": lambda: figures.auroc_by_layer(regular),
        "calibration": lambda: figures.calibration(regular),
    }
    return {name: make() for name, make in draw.items()}


def draw_sweeps(work: Path, count: int) -> dict[str, Drawing]:
    """The two ablations: POPE, adversarial, tuned on validation scenes."""
    made = {}
    base = seewhen.method("cai", entropy_base=10.0)
    for name, method, grid in (
        ("gate", base, ["l_s=5,6,7,8,9,10", "gamma=0.05,0.1,0.15"]),
        ("contrast", base.replace(threshold=0.1, start_layer=7), ["lambda=1,2,3,4,5"]),
    ):
        out = work / name
        if not (out / "sweep.json").exists():
            ask = Ask("pope", split=f"{SPLIT}-adversarial", scenes=count)
            values = typed_grid(method, parse_grid(grid))
            write_sweep(sweep(ask, method, values, out, Machine(), controls=False, say=print), out)
        draw = figures.ablation_gate if name == "gate" else figures.ablation_contrast
        made[f"ablation-{name}"] = draw(figures.read_sweep(out))
    return made


def page(data: dict[str, Any], count: int) -> str:
    """The gallery, with the numbers that the figures show."""
    pieces = [INTRODUCTION.format(scenes=count)]
    for name, title, command, text in SECTIONS:
        told = text(data[name]) if callable(text) else text
        lines = "\n".join(textwrap.wrap(told, 115, break_long_words=False, break_on_hyphens=False))
        picture = f"![{title}](images/gallery/{name}.png)"
        pieces.append(f"## {title}\n\n{picture}\n\n{lines}\n\n```\nseewhen figure {command}\n```\n")
    return "\n".join(pieces)


def interval(entry: dict[str, float], digits: int = 2) -> str:
    value, low, high = (f"{entry[part]:.{digits}f}" for part in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def _pointing(data: dict[str, Any]) -> str:
    first = {name: curve["layers"][0] for name, curve in data["curves"].items()}
    last = {name: curve["layers"][-1] for name, curve in data["curves"].items()}
    best = max(data["curves"]["attention"]["layers"], key=lambda point: point["value"])
    return (
        "How often the patch with the highest weight lies in a box of the object that is named "
        f"({first['own']['words']} words). The paper shows one picture for this; here it is measured. A word's "
        f"own token points at its object with accuracy {interval(first['own'])} at layer 0 and "
        f"{interval(last['own'])} at the last one, which speaks for the paper's choice of the lowest layer. But "
        "while a word is being chosen, the newest token is the one before it (“a”, “blue”), and that is what CAI "
        f"looks with: {interval(first['before'])} at layer 0. Chance is {data['chance']['value']:.2f}. "
        f"The model's own attention, mean of heads, points best at layer {best['layer']} ({interval(best)})."
    )


def _auroc(data: dict[str, Any]) -> str:
    best = max(data["layers"], key=lambda point: point["value"])
    return (
        f"How well the entropy after each layer tells {data['hallucinated_words']} hallucinated from "
        f"{data['correct_words']} correct object words; best after layer {best['layer']}: {interval(best)}. The "
        "probability of the chosen word, which needs no lens, reaches "
        f"{interval(data['improbability'])}. The shaded band is the 95 % interval over scenes."
    )


def _median(data: dict[str, Any]) -> str:
    deep = {kind: curve["median"][-2] for kind, curve in data["kinds"].items()}
    return (
        "Median entropy after each layer while hallucinated, correctly named and function words are chosen, with "
        "95 % intervals over scenes. The threshold is that of the adaptive rule, its median over tokens. After "
        f"layer {len(data['kinds']['grounded']['median']) - 2}: "
        + ", ".join(f"{kind} {interval(point)}" for kind, point in deep.items())
        + " nats."
    )


def _failure(data: dict[str, Any]) -> str:
    return (
        f"Hallucinated words of which the model was sure: the gate stays closed. The figure finds them by itself; "
        f"here {data['confident']} of {data['hallucinated_words']} hallucinated words "
        f"({interval(data['share'])} of them) never opened the gate of the default method. "
        "The JSON beside the figure lists them all."
    )


def _fired(data: dict[str, Any]) -> str:
    return (
        f"Tokens tilted at each layer, of {data['tokens']}; shares above the bars. In any layer: "
        f"{interval(data['in_any_layer']['share'])} of all tokens."
    )


def _calibration(data: dict[str, Any]) -> str:
    return (
        "Of the object words said with a given probability, the share that is really in the picture. "
        f"Calibration error {interval(data['calibration_error'], 3)} over {data['words']} words."
    )


def _gate(data: dict[str, Any]) -> str:
    return (
        f"{data['metric'].capitalize()} on POPE (adversarial, validation scenes) by start layer and threshold "
        "(base 10). The ring marks the setting that was chosen. The intervals (95 %, over images) show how little "
        "a sweep of this size can tell."
    )


INTRODUCTION = """# Gallery

Every figure of the paper, made with the small model inside the package on {scenes} drawn scenes (part `shifted`,
whose objects are often out of place, so that the model invents some). `benchmarks/figures/gallery.py` makes this
page; it is the same for any model: give `--model`, or a trace, or a run.

A figure is one command and one function of `seewhen.showing.figures`. It writes PNG, SVG or PDF by the ending of
`--out`, and the numbers it shows as JSON beside it (`--data`). Hallucinated words are red, correct ones blue, by
CHAIR's reading of the answer; blue boxes are the ground truth.

| made from | how |
|---|---|
| scenes, on the spot | `--scenes 60 --split shifted --method cai` (the default) |
| a trace | `seewhen describe photo.jpg --trace t`, then `--trace t.json --image photo.jpg --objects dog,person` |
| a run of CHAIR | `seewhen eval chair ...`, then `--run runs/NAME`: its captions are fed through the model again |
| a sweep | `seewhen sweep ...`, then `--run sweep` (the two ablations) |

```python
from seewhen.showing.figures import case_of, save, similarity

answer = seewhen.generate(model, processor, image, "What is in the image?", trace=True)
save(similarity(case_of(answer.trace, image), ["dog"]), "dog.pdf")
```
"""

SECTIONS: list[tuple[str, str, str, Any]] = [
    (
        "similarity",
        "Where the evidence for a word lies",
        "similarity --words dog,person",
        "The cosine of each word's own token with every image token at layer 0, from lowest to highest.",
    ),
    (
        "layers",
        "Similarity at several source layers",
        "layers --words dog --layers 0,4,7,11",
        "The same word's map read from deeper layers, which lose the object; measured in the next figure.",
    ),
    ("pointing", "Does relevance point at the object?", "pointing --scenes 60", _pointing),
    (
        "entropy",
        "Entropy across layers",
        "entropy --words vase,frisbee,where",
        "Entropy of the logit lens after each layer, while each word is chosen.",
    ),
    ("median-entropy", "Median entropy by kind of word", f"median-entropy --method {EARLY}", _median),
    ("auroc", "How well entropy finds hallucinations", "auroc --scenes 60", _auroc),
    (
        "case",
        "Case study",
        f"case --method {EARLY} --head 0 --layers 11",
        "One token: the entropies that opened the gate (large dots; the layer after each is tilted), what the "
        "method looks with, and one head's attention on the image before and after. Dashed grey: regular "
        "decoding of the same words.",
    ),
    (
        "caption",
        "The whole caption",
        f"caption --against {EARLY}",
        "A caption by regular decoding and by CAI, and, for the words of the first, similarity and attention.",
    ),
    ("fired", "How often it acts", f"fired --method {EARLY}", _fired),
    ("failure", "Confident hallucinations", "failure --scenes 60", _failure),
    ("calibration", "Calibration", "calibration --scenes 60", _calibration),
    ("ablation-gate", "Ablation: start layer and threshold", "ablation-gate --run sweep", _gate),
    (
        "ablation-contrast",
        "Ablation: contrast",
        "ablation-contrast --run sweep",
        "The same by the coefficient of the contrast with a text-only row; 1 is none.",
    ),
]


if __name__ == "__main__":
    main()
