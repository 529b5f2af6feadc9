"""Results of a ladder that nobody trained: captions made from the scenes, with as many inventions as asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ladder.exam import SAMPLES, TEST, questions
from seewhen.backbones.loading import resolve
from seewhen.runs.diagnostics import Diagnostics, TiltShape
from seewhen.scenes import dataset
from seewhen.scenes.captions import caption, expected
from seewhen.scenes.streams import Stream
from seewhen.scenes.world import CATEGORIES

SCENES, TOKENS = 12, 96


def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(resolve("packaged"))


def captions(encode: Any, invented: float, seed: int) -> np.ndarray:
    """One caption of each scene; `invented` things that are not there, on average."""
    out = np.full((SCENES, TOKENS), encode.pad_token_id, np.uint16)
    for row, scene in enumerate(dataset("shifted", SCENES, seed=TEST)):
        stream = Stream(seed, "test", row)
        more = int(invented) + stream.chance(invented - int(invented))
        ids = encode.encode(" " + caption(scene, stream, expected(scene, more, stream)), add_special_tokens=False)
        ids = [*ids, encode.eos_token_id][:TOKENS]
        out[row, : len(ids)] = ids
    return out


def write(folder: Path, model: str, invented: dict[str, float], divergence: float, seed: int) -> None:
    """A model with a file for each method: how much its captions invent."""
    encode, rng = tokenizer(), np.random.default_rng(seed)
    there = np.array([each.there for each in questions(dataset("shifted", SCENES, seed=TEST))])
    place = folder / "results" / model
    place.mkdir(parents=True)
    for number, (name, amount) in enumerate(invented.items()):
        no = np.clip(np.where(there, 0.2, 0.8) + rng.normal(0, 0.05, len(there)), 0, 1)
        drawn = [captions(encode, amount, seed + 10 * number + n) for n in range(SAMPLES)]
        arrays = {"greedy": captions(encode, amount / 2, seed + number), "sampled": np.stack(drawn)}
        arrays |= {"no": no, "no_cool": no, "no_firm": no > 0.5}
        if name == "regular":
            arrays |= {"cool": np.stack(drawn), "further": np.stack(drawn)}
            for way in ("greedy", "sampled"):
                arrays |= {f"{way}_{kind}": rng.normal(size=(SCENES, TOKENS)) for kind in ("logprob", "entropy")}
        np.savez(place / f"{name}.npz", **arrays)
    truth = np.array([[n in s.names for n in CATEGORIES] for s in dataset("shifted", SCENES, seed=TEST)])
    np.savez(place / "asked.npz", odds=np.where(truth, 1.5, -1.5) + rng.normal(size=truth.shape))
    shape = ("negative_scores", "effective_before", "effective_after", "mass_before", "mass_after", "to_regular")
    tilt = TiltShape("cai", (1,), 144.0, **{name: (0.5,) for name in (*shape, "to_uniform")})
    found = Diagnostics(
        2, 9, (0.2, 0.4), divergence, None, 0.5, 0.5, 1.0, 1.0, 2.0, 5.0 + seed % 3, tilt, pointing=(0.3, None),
        asked_auroc=0.8,
    )  # fmt: skip
    (place / "diagnostics.json").write_text(json.dumps(found.to_json()))
