"""What a server is asked, and what is told of one that tells little: bounds, questions at once, one prefix."""

from __future__ import annotations

import json
import math
import threading
from itertools import takewhile
from typing import Any

import pytest
from PIL import Image

import seewhen
from served.fault_server import Fault, Handler, completion, faulty, says

TEXT = "A dog beside a vase and two cats."
PICTURE = Image.new("RGB", (32, 32), "white")
CHANCES = {"Yes": 0.6, "Maybe": 0.05, "The": 0.05, "It": 0.05, "I": 0.05}


def likeliest(chances: dict[str, float]) -> list[dict[str, Any]]:
    return [{"token": token, "logprob": math.log(chance)} for token, chance in chances.items()]


def few(most: int, *, refuses: bool) -> Fault:
    """A server that tells at most so many tokens, and refuses to be asked for more, or says nothing of it."""

    def answer(handler: Handler) -> None:
        wanted = handler.body.get("top_logprobs", 0)
        if wanted > most and refuses:
            says({"error": f"top_logprobs must be at most {most}"}, 400)(handler)
            return
        words = ["Yes"] if handler.body["max_tokens"] == 1 else ["A", " dog", "."]
        told = likeliest(dict(list(CHANCES.items())[:most]))
        tokens = [{"token": word, "logprob": -0.5, "top_logprobs": told[: wanted or None]} for word in words]
        reply = completion("".join(words), **({"logprobs": {"content": tokens}} if wanted else {}))
        reply["usage"]["prompt_tokens"] += 90 * json.dumps(handler.body).count("image_url")
        handler.reply(json.dumps(reply).encode())

    return answer


@pytest.mark.parametrize("refuses", [True, False])
def test_five_likeliest_tokens_and_the_bound_they_leave(refuses: bool) -> None:
    """Yes has 0.6 and may have 0.15 more; no is not told and may have what is left, 0.2, or nothing."""
    with faulty(few(5, refuses=refuses)) as server:
        model = seewhen.remote(server.url, "any")
        checked = model.check(PICTURE, "A dog.")
        said = model.generate(PICTURE, "What is there?", "confirm")
        model.close()
    assert model.offers.likeliest == 5
    assert "The server does not offer more than 5 likeliest tokens: odds have wider bounds." in said.notes
    (mention,) = checked.to_json()["mentions"]
    assert mention["odds"] == pytest.approx(math.log(0.6 / 0.2), abs=1e-3)
    assert mention["range"] == (pytest.approx(math.log(0.6 / 0.2), abs=1e-3), None)
    assert said.told is not None
    (verdict,) = said.told["verdicts"]
    assert verdict["object"] == "dog" and verdict["range"] == list(mention["range"])


def test_all_questions_of_a_text_go_at_once() -> None:
    """The server answers none before it has all."""
    together, plain = threading.Barrier(3, timeout=100), few(5, refuses=False)

    def waits(handler: Handler) -> None:
        if handler.body["max_tokens"] == 1 and handler.body.get("top_logprobs"):
            together.wait()
        plain(handler)

    with faulty(plain) as server:
        model = seewhen.remote(server.url, "any")
        _ = model.offers
        server.faults[:] = [waits]
        checked = model.check(PICTURE, TEXT)
        model.close()
    assert [each.object for each in checked.mentions] == ["dog", "vase", "cat"] and not together.broken


def test_questions_share_all_but_their_last_words() -> None:
    """A server that keeps prompts finds nearly all of each again: the picture comes first, to the byte."""
    kept: list[str] = []
    lock, plain = threading.Lock(), few(5, refuses=False)
    shares: list[float] = []

    def caches(handler: Handler) -> None:
        prompt = json.dumps(handler.body["messages"])
        with lock:
            if handler.body["max_tokens"] == 1:
                shares.append(max((_common(prompt, other) for other in kept), default=0) / len(prompt))
            kept.append(prompt)
        plain(handler)

    noisy = Image.effect_noise((64, 64), 80).convert("RGB")  # as long as photographs are
    with faulty(plain) as server:
        model = seewhen.remote(server.url, "any")
        _ = model.offers
        server.faults[:] = [caches]
        model.check(noisy, TEXT)
        first, *others = shares
        assert first == 0 and len(others) == 2 and min(others) > 0.98
        shares.clear()
        model.generate(noisy, "What is there?", "confirm")
        assert shares and min(shares) > 0.98  # also with what the answer itself was asked with
        model.close()


def _common(one: str, other: str) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
