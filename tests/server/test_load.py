"""The load script, in small: many clients, streamed and not, none gets another's answer."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from loopback import MODEL, Here, Running, running

import seewhen
from seewhen.backbones.loading import PACKAGED_PATH

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks" / "server"))
import load


def test_many_clients(server: Running) -> None:
    async def measured() -> load.Tally:
        here = Here(server.url)
        bodies = [{**body, "max_tokens": 8} for body in load.questions(MODEL, 9, ["cai", "regular"])]
        expected = await load.alone(here, bodies)
        assert len(set(expected)) > 4
        return await load.phase(here, bodies, expected, clients=16, seconds=2)

    tally = asyncio.run(measured())
    assert set(tally.statuses) == {200} and len(tally.seconds) >= 16
    assert tally.wrong == []
    assert tally.summary()["tokens_per_second"] > 0


@pytest.mark.skipif(not (PACKAGED_PATH / "model.safetensors").exists(), reason="no packaged model here")
def test_packaged_model_describes_a_scene() -> None:
    """The real small model: a streamed caption equals the library's."""
    from seewhen.scenes import render, sample

    scene = render(sample("shifted", 3))
    with running(seewhen.load(device="cpu")) as started:
        from loopback import data_url

        image = {"type": "image_url", "image_url": {"url": data_url(scene)}}
        text = "Please describe this image in detail."
        chunks = started.client().chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": [image, {"type": "text", "text": text}]}],
            temperature=0,
            max_tokens=64,
            stream=True,
            extra_body={"seewhen": {"method": "cai"}},
        )
        pieces = list(chunks)
    told = "".join(piece.choices[0].delta.content or "" for piece in pieces)
    assert pieces[-1].choices[0].finish_reason == "stop"
    answer = seewhen.generate(*seewhen.load(device="cpu"), scene, text, "cai", max_new_tokens=64, do_sample=False)
    assert told == answer.text and len(told.split()) > 8
