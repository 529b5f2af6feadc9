"""A real engine: the same model served and here say the same, and its prefix cache serves the questions."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

import seewhen
from seewhen.scenes import dataset, render
from served.recording import recorded

ASK = "Please describe this image in detail."
TEXT = "A cow stands beside a bus. A dog sits on a table near a bicycle and a laptop."
SCENES = 4
METHODS = ("confirm:coco:verdict=asking", "confirm:coco:verdict=asking,threshold=1")


@pytest.fixture(scope="module")
def pictures() -> list[Any]:
    return [render(scene) for scene in dataset("shifted", SCENES)]


def test_what_it_offers(remote: Any) -> None:
    assert remote.offers.likeliest == 20 and remote.offers.continues and remote.offers.stops
    assert remote.offers.bans == "logit_bias" and remote.offers.notes == ()


def test_check_gives_the_same_odds(remote: Any, loaded: Any, pictures: list[Any]) -> None:
    for picture in pictures:
        here = seewhen.check(*loaded, picture, TEXT, verdict="asking")
        there = remote.check(picture, TEXT, verdict="asking")
        assert [each.odds for each in there.mentions] == pytest.approx([m.odds for m in here.mentions], abs=1e-3)
        assert there.denied == here.denied and len(here.mentions) > 4


@pytest.mark.parametrize("method", METHODS)
def test_confirm_gives_the_same_answer(remote: Any, loaded: Any, pictures: list[Any], method: str) -> None:
    taken_back = 0
    for picture in pictures:
        here = seewhen.generate(*loaded, picture, ASK, method, max_new_tokens=48, do_sample=False)
        there = remote.generate(picture, ASK, method, max_new_tokens=48)
        told = here.trace.told[0]
        assert there.text == here.text
        assert [v["verdict"] for v in there.told["verdicts"]] == [v["verdict"] for v in told["verdicts"]]
        odds = [[verdict["odds"] for verdict in each["verdicts"]] for each in (there.told, told)]
        assert odds[0] == pytest.approx(odds[1], abs=1e-3)
        taken_back += len(told["taken_back"])
    assert taken_back or "threshold" not in method


def test_denied_words_are_forbidden_by_number(
    remote: Any, pictures: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = recorded(remote, monkeypatch)
    for picture in pictures:
        remote.generate(picture, ASK, METHODS[1], max_new_tokens=48)
    forbidding = [(set(asked["logit_bias"]), said) for asked, said in found if "logit_bias" in asked]
    assert forbidding
    for numbers, said in forbidding:
        assert all(piece.number is not None for piece in said.pieces)
        assert numbers.isdisjoint(str(piece.number) for piece in said.pieces)


def test_an_answer_goes_on_where_it_stops(engine: str, remote: Any, pictures: list[Any]) -> None:
    whole = remote.generate(pictures[0], ASK, "regular", max_new_tokens=40).text
    half = whole[: whole.index(".") + 1]
    from seewhen.served.pictures import image_part

    with openai.OpenAI(base_url=engine, api_key="none", max_retries=0) as client:
        messages: list[Any] = [
            {"role": "user", "content": [image_part(pictures[0]), {"type": "text", "text": ASK}]},
            {"role": "assistant", "content": half},
        ]
        options = {"continue_final_message": True, "add_generation_prompt": False, "add_special_tokens": True}
        rest = client.chat.completions.create(
            model=remote.model, messages=messages, max_tokens=40, temperature=0, extra_body=options
        )
    assert f"{half}{rest.choices[0].message.content}".startswith(whole)


def test_questions_stand_on_the_cached_image(remote: Any, pictures: list[Any]) -> None:
    before = remote.usage
    remote.check(pictures[-1], TEXT, verdict="asking")
    asked = remote.usage.prompt_tokens - before.prompt_tokens
    cached = remote.usage.cached_tokens - before.cached_tokens
    remote.check(pictures[-1], TEXT, verdict="asking")
    again = remote.usage.cached_tokens - before.cached_tokens - cached
    assert asked and again > asked / 2  # the second time nearly all of it


def test_several_at_once(remote: Any, pictures: list[Any]) -> None:
    alone = [remote.generate(picture, ASK, METHODS[0], max_new_tokens=32).text for picture in pictures]
    with ThreadPoolExecutor(SCENES) as pool:
        answers = pool.map(lambda p: remote.generate(p, ASK, METHODS[0], max_new_tokens=32).text, pictures)
        assert list(answers) == alone


def test_a_proxy_in_front_of_it(engine: str, remote: Any, pictures: list[Any]) -> None:
    from seewhen.served.pictures import image_part
    from server.proxies import proxying

    expected = remote.generate(pictures[1], ASK, METHODS[1], max_new_tokens=48)
    content: Any = [image_part(pictures[1]), {"type": "text", "text": ASK}]
    with proxying(engine, method=METHODS[1]) as proxy, proxy.client() as client:
        chunks = client.chat.completions.create(
            model=remote.model,
            messages=[{"role": "user", "content": content}],
            max_tokens=48,
            temperature=0,
            stream=True,
            extra_body={"add_special_tokens": True},
        )
        pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == expected.text
