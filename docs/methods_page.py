"""Writes docs/methods.md from the registry: `python docs/methods_page.py`. A test compares the two."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from pathlib import Path

PAGE = Path(__file__).with_name("methods.md")

HEAD = """# Methods

Written from the registry by `docs/methods_page.py`; `seewhen methods NAME` shows the same, and the presets.

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
    "saliency": "one forward per token and one backward per draw, without cache",
    "vti": "none; directions fitted once (`seewhen calibrate vti`)",
    "ict": "none; directions fitted once (`seewhen calibrate ict`)",
    "vcd": "the noised image is encoded once",
    "agla": "the masked image is encoded once",
    "cai": "one head product per gated layer",
    "cai-gla": "one head product per gated layer",
    "memvr": "one head product per layer of its window",
    "dola": "one head product per candidate layer",
    "only": "one MLP and one head product",
}


def rows_of(name: str) -> str:
    """Extra rows at the default parameters, as the method itself says on a tiny model."""
    from seewhen.methods import method_class
    from seewhen.methods.base import make

    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    import tiny
    from seewhen.backbone import Backbone
    from seewhen.errors import SeewhenError

    family = "qwen3_5" if name == "cai-gla" else "llava"
    try:
        return str(len(make(method_class(name)).parts(Backbone.of(tiny.model(family))).branches))
    except SeewhenError:  # needs directions or a tokenizer first
        return "1" if name == "icd" else "0"


def parameters_of(cls: type) -> str:
    """A table of the parameters, as each is declared."""
    from seewhen.methods.base import meanings

    if not dataclasses.fields(cls):
        return ""
    meaning = meanings(cls)
    lines = ["", "| parameter | default | meaning |", "|---|---|---|"]
    for field in dataclasses.fields(cls):
        default = f"{field.default:.4g}" if isinstance(field.default, float) else repr(field.default)
        told = meaning[field.name].replace("|", "\\|")
        lines.append(f"| `{field.name}` | {default} | {told} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """The page as it should be now."""
    from seewhen.methods import method_class, method_names

    lines = ["| method | what it does | greedy | sampling | beams | batches | compile | rows | passes |"]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    notes = []
    for name in method_names():
        cls = method_class(name)
        modes = [
            not cls.beams_only and not cls.samples_only,
            not cls.beams_only,
            cls.beams,
            cls.batches,
            cls.compiles,
        ]
        marks = " | ".join("yes" if mode else "—" for mode in modes)
        passes = PASSES.get(name, "none")
        lines.append(f"| `{name}` | {cls.summary} | {marks} | {rows_of(name)} | {passes} |")
        text = inspect.cleandoc(inspect.getmodule(cls).__doc__ or "")
        if name in ("min-p", "locore"):
            text = inspect.cleandoc(cls.__doc__ or "")
        notes.append(f"## {name}\n\nSource: {cls.source}.\n\n{text}\n{parameters_of(cls)}")
    return HEAD + "\n".join(lines) + "\n\n" + "\n".join(notes)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
