"""What rungs are trained on, made once: dialogues, pictures, and what the tower makes of them.

python -m ladder.material DIR --sizes full
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from embedded.train import data, stages
from embedded.train.data import Dials, Rows
from ladder.rungs import DIALS, NOTES, SIZES, SKEWS, Sizes
from seewhen.backbones.loading import load, resolve

SEED = 11  # of dialogues; those of the packaged model had 0 and 1
FEATURES, PICTURES = "features.safetensors", "patches.safetensors"


def texts_file(skew: str) -> str:
    return f"texts-{skew}.safetensors"


def told_file(noise: str) -> str:
    return f"told-{noise}.safetensors"


def save(tensors: dict[str, Tensor], path: Path) -> None:
    """Whole or not at all."""
    part = path.with_suffix(".part")
    save_file(tensors, part)
    part.replace(path)


def _tensor(array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


def _of(rows: Rows, name: str) -> dict[str, Tensor]:
    return {f"{name}.{part}": _tensor(getattr(rows, part)) for part in ("ids", "start", "end")}


def dialogues(path: Path, name: str, device: str) -> stages.Dialogues:
    """Dialogues of a file, on the device."""
    found = load_file(path)
    return stages.Dialogues(Rows(*(found[f"{name}.{part}"].numpy() for part in ("ids", "start", "end"))), device)


def make(folder: Path, sizes: Sizes, workers: int, device: str) -> None:
    """All files that are not there yet, what is needed first first."""
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()

    def log(line: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {line}", flush=True)

    with data.pool(workers, Path(resolve("packaged")) / "tokenizer.json") as executor:
        for skew, unseen in SKEWS.items():
            if not (folder / texts_file(skew)).is_file():
                dials = Dials(unseen, 0.2, 0.4, 0.0)
                noted = data.texts(executor, sizes.texts, dials, NOTES, SEED)
                plain = data.texts(executor, sizes.scenes, dials, 0.0, SEED + 1)  # to go on with in a fine-tune
                save(_of(noted, "noted") | _of(plain, "plain"), folder / texts_file(skew))
                log(f"texts, {skew}")
        if not (folder / FEATURES).is_file():
            pictures = data.draw(executor, sizes.scenes)
            log(f"{sizes.scenes} pictures")
            model, _ = load("packaged", device=device, dtype=torch.float32)
            seen = stages.tower_features(model, pictures.pixels, device).cpu()
            save({"labels": _tensor(pictures.labels), "colors": _tensor(pictures.colors)}, folder / PICTURES)
            save({"seen": seen}, folder / FEATURES)
            log("features")
        for noise, dials in DIALS.items():
            if not (folder / told_file(noise)).is_file():
                captions = data.captions(executor, sizes.scenes, dials, SEED)
                asked = data.questions(executor, sizes.scenes, dials, SEED)
                save(_of(captions, "captions") | _of(asked, "questions"), folder / told_file(noise))
                log(f"captions and questions, {noise}")


def main() -> None:
    """Make what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sizes", choices=SIZES, default="full")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    make(options.folder, SIZES[options.sizes], options.workers, device)


if __name__ == "__main__":
    main()
