"""What the tests of the recipe for photographs share; the recipe itself is in benchmarks/."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def shared() -> Path:
    """The folder of benchmark files, where there is one."""
    folder = Path(os.environ.get("SEEWHEN_SHARED", ROOT.parent / "shared")) / "data"
    if not folder.is_dir():
        pytest.skip("the benchmarks' files are not here (SEEWHEN_SHARED)")
    return folder


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny store: random photographs, a tiny tower and a tiny language model."""
    from photographs.tiny import make_store

    folder = tmp_path_factory.mktemp("photographs") / "store"
    make_store(folder)
    return folder


@pytest.fixture(scope="session")
def packed(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tower, projector and updates of the tiny model in one file, as training leaves them; all random."""
    import torch
    from safetensors import safe_open

    from photographs import dino, lora
    from photographs.int8 import save_int8
    from seewhen.backbones.photo import language, llava
    from seewhen.backbones.photo.dino import stored

    torch.manual_seed(3)
    tower_file = store / "dinov2-small.int8.safetensors"
    tower = dino.load_tower(tower_file)
    spoken, tokenizer = language.load(store / "smollm2.gguf")
    projector = llava.assemble(tower, spoken, tokenizer).model.multi_modal_projector
    for update in lora.add(spoken.model.layers, 2):
        torch.nn.init.normal_(update, std=0.1)
    parts = {f"tower.{n}": t for n, t in stored(tower).items()}
    parts |= {f"projector.{n}": t for n, t in projector.state_dict().items()}
    parts |= {f"lora.{n}": t for n, t in lora.updates(spoken.model.layers).items()}
    path = tmp_path_factory.mktemp("packed") / "photo.int8.safetensors"
    with safe_open(tower_file, "pt") as file:
        save_int8(parts, path, {"tower": file.metadata()["config"]})
    return path
