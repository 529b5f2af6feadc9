"""Prompts prepared one by one, and text sent in pieces, are what they would be otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from loopback import MODEL, Running, question
from PIL import Image

from seewhen.backbones.loading import Loaded
from seewhen.backbones.prompts import host_inputs
from seewhen.server import replies
from seewhen.server.completing import ChatReply
from seewhen.server.limits import Limits
from seewhen.server.preparing import Unprocessable, processing, together

PICTURES = [Image.new("RGB", size, colour) for size, colour in (((40, 30), "red"), ((16, 16), "blue"))]


def test_prompts_prepared_one_by_one_are_those_prepared_together(loaded: Loaded) -> None:
    model, processor = loaded
    pictures = [[PICTURES[0]], [PICTURES[1]], [PICTURES[0], PICTURES[1]]]
    prompts = ["<image> w5", "<image> w6 w7 w8 w9", "<image> <image> w5"]
    parts = [host_inputs(model, processor, [p], [t]) for p, t in zip(pictures, prompts, strict=True)]
    found = together(parts, processor.tokenizer.pad_token_id)
    expected = host_inputs(model, processor, pictures, prompts)
    assert found is not None and set(found) == set(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_prompts_of_different_forms_are_not_put_together(loaded: Loaded) -> None:
    model, processor = loaded
    with_picture = host_inputs(model, processor, [[PICTURES[0]]], ["<image> w5"])
    assert together([with_picture, host_inputs(model, processor, [[]], ["w5"])], 0) is None
    larger = {**with_picture, "pixel_values": torch.zeros(1, 3, 32, 32)}
    assert together([with_picture, larger], 0) is None


@pytest.mark.parametrize("error", [StopIteration(), ValueError("of theirs")])
def test_a_processor_refuses_in_one_way(error: Exception) -> None:
    with pytest.raises(Unprocessable), processing():
        raise error


@pytest.mark.parametrize("text", ["", " a", 'quo"te \\ and\nline\u2028\x1f', "\U0001f600 é", '"content":""'])
def test_a_piece_as_it_is_sent_is_the_piece_as_it_is_described(text: str) -> None:
    reply = ChatReply.__new__(ChatReply)
    reply.id, reply.created, reply.model = 'x"content":""', 7, 'a "model"'
    reply.job = type("Job", (), {"fingerprint": "f"})()
    sent = json.dumps(text, ensure_ascii=False).join(reply._around(2))
    described = reply._chunk(2, replies.DeltaMessage(content=text)).model_dump(exclude_none=True)
    assert json.loads(sent.encode()) == described


def test_text_of_many_streams_comes_in_pieces_and_whole(
    server: Running, serving: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many answers at once text is held back for a moment; nothing is lost or out of order."""
    from seewhen.server import company

    monkeypatch.setattr(company, "_MANY", 2)
    cases = [{"messages": question(f"w{n}", 1), "max_tokens": 30, "temperature": 0} for n in range(5, 11)]

    def streamed(running: Running, case: dict[str, Any]) -> tuple[str, int]:
        pieces = running.client().chat.completions.create(model=MODEL, **case, stream=True)
        texts = [piece.choices[0].delta.content for piece in pieces if piece.choices]
        return "".join(text or "" for text in texts), sum(bool(text) for text in texts)

    expected = [streamed(server, case)[0] for case in cases]
    with serving(fast="graph", limits=Limits(slots=8, n=1)) as joining, ThreadPoolExecutor(6) as pool:
        monkeypatch.setattr(company, "_PAUSE", 60.0)
        found = list(pool.map(lambda case: streamed(joining, case), cases))
    assert [text for text, _ in found] == expected
    assert min(pieces for _, pieces in found) < 15, "while others are there, pieces are longer than a token"
