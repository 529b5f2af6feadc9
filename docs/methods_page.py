"""Writes docs/methods.md, and the catalogue that `seewhen methods` reads, from the registry: `python
docs/methods_page.py`. Tests compare them."""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from pathlib import Path

PAGE = Path(__file__).with_name("methods.md")
CATALOGUE = Path(__file__).resolve().parents[1] / "src/seewhen/methods/catalogue.json"

HEAD = """# Methods

**Which one for your model?** `seewhen try MODEL photos/` compares them on [your own pictures](try.md), and
`seewhen diagnose MODEL` tells
[what asking is worth](confirm.md#the-ceiling-what-a-model-knows-better-than-it-says)
for it. On [the one model for photographs that was measured at length](evidence.md): decoded greedily, no
published method at its published setting makes it invent measurably less; sampled, a lower temperature, `min-p`
and `confirm` do.

Written from the registry by `docs/methods_page.py`; `seewhen methods NAME` shows the same. How names,
presets and parameters are written: [the command line](command-line.md).

| column | meaning |
|---|---|
| greedy, sampling, beams, batches | decoding modes; a dash means an error that says why |
| compile | runs with a static cache and `torch.compile(fullgraph=True)` |
| rows | extra rows per sequence in the same batch, at the default parameters |
| passes | forward passes beside the ordinary one |

"""

# What a method computes beyond its rows; the registry does not know it.
PASSES = {
    "opera": "candidates as rows of a second pass per token",
    "saliency": "one forward over the newest token, after a cache of its own, and one backward per draw",
    "vti": "none; directions fitted once (`seewhen calibrate vti`)",
    "ict": "none; directions fitted once (`seewhen calibrate ict`)",
    "vcd": "the noised image is encoded once",
    "agla": "the masked image is encoded once",
    "cai": "one head product per gated layer",
    "cai-gla": "one head product per gated layer",
    "memvr": "one head product per layer of its window",
    "dola": "one head product per candidate layer",
    "only": "one MLP and one head product",
    "confirm": "a question per new object, and the steps of what is taken back",
}


def rows_of(name: str) -> str:
    """Extra rows at the default parameters, as the method itself says on a tiny model."""
    from seewhen.decoding.method import make
    from seewhen.methods import method_class

    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    import tiny
    from seewhen.backbones.backbone import Backbone
    from seewhen.errors import SeewhenError

    family = "qwen3_5" if name == "cai-gla" else "llava"
    try:
        return str(len(make(method_class(name)).parts(Backbone.of(tiny.model(family))).branches))
    except SeewhenError:  # needs directions or a tokenizer first
        return "1" if name == "icd" else "0"


def parameters_of(cls: type) -> str:
    """A table of the parameters, as each is declared."""
    from seewhen.decoding.method import meanings

    if not dataclasses.fields(cls):
        return ""
    meaning = meanings(cls)
    lines = ["", "| parameter | default | meaning |", "|---|---|---|"]
    for field in dataclasses.fields(cls):
        default = f"{field.default:.4g}" if isinstance(field.default, float) else repr(field.default)
        told = meaning[field.name].replace("|", "\\|")
        lines.append(f"| `{field.name}` | {default} | {told} |")
    return "\n".join(lines) + "\n"


def presets_of(cls: type) -> str:
    """A table of the presets; those for one model and data set are many and alike, and only counted."""
    main = {name: preset for name, preset in cls.presets.items() if "/" not in name}
    more = len(cls.presets) - len(main)
    lines = ["", "| preset | values | from |", "|---|---|---|"] if main else []
    for name, preset in main.items():
        values = ", ".join(f"{key}={value!r}" for key, value in preset.values.items())
        told = f"`{values}`" if values else "the defaults"
        lines.append(f"| `{cls.name}:{name}` | {told} | {preset.source} |")
    if more:
        lines += ["", f"{more} more presets are for a model and a data set: `seewhen methods {cls.name}`."]
    return "\n".join(lines) + "\n" if lines else ""


def modes_of(cls: type) -> dict[str, bool]:
    """Which ways of decoding it can do."""
    return {
        "greedy": not cls.beams_only and not cls.samples_only,
        "sampling": not cls.beams_only,
        "beams": cls.beams,
        "batches": cls.batches,
        "compile": cls.compiles,
    }


def _made(cls: type) -> str:
    """A method that reads the model's words is given its tokenizer first."""
    from seewhen.decoding.method import Method

    if cls.prepare is Method.prepare:
        return f'"{cls.name}"'
    return f'seewhen.method("{cls.name}").prepare(processor.tokenizer)'


def section(cls: type, rows: str, passes: str) -> str:
    """What there is to say of one method."""
    text = inspect.cleandoc(inspect.getmodule(cls).__doc__ or "")
    if cls.name in ("min-p", "locore"):
        text = inspect.cleandoc(cls.__doc__ or "")
    able = ", ".join(name for name, mode in modes_of(cls).items() if mode)
    facts = [
        f"- Written: `--method {cls.name}`, `seewhen.attach(model, {_made(cls)})`",
        f"- Source: {cls.source}",
        f"- Decoding: {able}; extra rows: {rows}; extra passes: {passes}",
    ]
    return f"## {cls.name}\n\n" + "\n".join(facts) + f"\n\n{text}\n{parameters_of(cls)}{presets_of(cls)}"


def page() -> str:
    """The page as it should be now."""
    from seewhen.methods import method_class, method_names

    lines = ["| method | what it does | greedy | sampling | beams | batches | compile | rows | passes |"]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    sections = []
    for name in method_names():
        cls, rows, passes = method_class(name), rows_of(name), PASSES.get(name, "none")
        marks = " | ".join("yes" if mode else "—" for mode in modes_of(cls).values())
        lines.append(f"| [`{name}`](#{name}) | {cls.summary} | {marks} | {rows} | {passes} |")
        sections.append(section(cls, rows, passes))
    return HEAD + "\n".join(lines) + "\n\n" + "\n".join(sections)


def catalogue() -> str:
    """What the methods of this package say of themselves, as JSON."""
    from seewhen.methods import METHODS, method_class
    from seewhen.methods.catalogue import describe

    entries = [describe(method_class(name)) for name in METHODS.built_in]
    return json.dumps(entries, ensure_ascii=False, indent=1, default=str) + "\n"


if __name__ == "__main__":
    CATALOGUE.write_text(catalogue(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
