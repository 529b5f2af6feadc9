"""The model from its parts: what was trained, packed in int8, and the language model's GGUF file."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import safe_open
from torch import Tensor
from transformers import Dinov2Config, Dinov2Model
from transformers.initialization import no_init_weights

from seewhen.backbones.photo import dino, language, llava, lora
from seewhen.backbones.photo.int8 import load_int8


def build(packed: Path, gguf: Path, folder: Path) -> None:
    """A checkpoint directory that transformers and `seewhen --model` load."""
    weights = load_int8(packed)

    def under(start: str) -> dict[str, Tensor]:
        return {n.removeprefix(start): t for n, t in weights.items() if n.startswith(start)}

    with safe_open(packed, "pt") as file:
        shape = json.loads(file.metadata()["tower"])
    with no_init_weights():  # all of them are filled; drawing them first would take half the time
        tower = Dinov2Model(Dinov2Config(**shape))
        dino.fill(tower, under("tower."))
        spoken, tokenizer = language.load(gguf)
        lora.merge(spoken.model.layers, under("lora."))
        model = llava.assemble(tower, spoken, tokenizer)
        model.model.multi_modal_projector.load_state_dict(under("projector."))
    llava.save(model, llava.processor_for(tower, tokenizer), folder)
