"""`confirm` and `check` through a real server: the library's verdicts, streamed or whole, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from loopback import KEY, MODEL, Running, data_url, held, picture, question, running, until

import seewhen
from runs.tiny_checkpoint import write
from seewhen.server.limits import Limits

TEXT = "A dog and two cats. A car near an apple."
ASK = "Please describe this image ."
CONFIRM = {"seewhen": {"method": "confirm", "preset": "coco", "parameters": {"threshold": 0.5}}}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose words name objects; the others of these tests have numbers for words."""
    return write(tmp_path_factory.mktemp("objects"))


@pytest.fixture(scope="module")
def loaded(checkpoint: Path) -> Any:
    return seewhen.load(checkpoint, device="cpu")


@pytest.fixture(scope="module")
def server(checkpoint: Path) -> Iterator[Running]:
    with running(seewhen.load(checkpoint, device="cpu")) as started:
        yield started


def post(server: Running, body: Any = None, **fields: Any) -> httpx2.Response:
    body = body or {"model": MODEL, "image_url": {"url": data_url(picture(1))}, "text": TEXT, **fields}
    return httpx2.post(f"{server.url}/v1/check", json=body, timeout=60)


def ask(server: Running, shown: int = 1, **options: Any) -> Any:
    options = {"temperature": 0, "max_tokens": 24, "extra_body": CONFIRM, **options}
    return server.client().chat.completions.create(model=MODEL, messages=question(ASK, shown), **options)


def test_check_is_the_librarys(server: Running, loaded: Any) -> None:
    reply = post(server, lexicon="coco")
    expected = seewhen.check(*loaded, picture(1), TEXT, lexicon="coco").to_json()
    assert reply.status_code == 200
    assert {name: reply.json()[name] for name in expected} == expected
    assert reply.json()["model"] == MODEL and reply.json()["object"] == "check"
    strict = post(server, lexicon="coco", threshold=100).json()
    assert strict["denied"] == ["dog", "cat", "car", "apple"]


def test_a_text_without_objects(server: Running) -> None:
    assert post(server, text="It is nice.").json()["mentions"] == []
    assert post(server, text="It is nice.", image_url={"url": "data:image/png;base64,AAAA"}).status_code == 400


@pytest.mark.parametrize(("seed", "drafts"), [(1, 0), (2, 0), (3, 0), (1, 3), (2, 2)])
def test_confirm_is_the_librarys(server: Running, loaded: Any, seed: int, drafts: int) -> None:
    method = seewhen.method("confirm", "coco", threshold=0.5, drafts=drafts)
    asked = {"method": "confirm", "preset": "coco", "parameters": {"threshold": 0.5, "drafts": drafts}}
    body = {"extra_body": {"seewhen": asked}}
    expected = seewhen.generate(*loaded, picture(seed), ASK, method, max_new_tokens=24, do_sample=False)
    answer = ask(server, seed, **body).choices[0]
    told = answer.seewhen["told"]
    assert answer.message.content == expected.text
    assert told["verdicts"] == expected.trace.told[0]["verdicts"]
    assert told["taken_back"] == expected.trace.told[0]["taken_back"]
    assert all((verdict.get("elsewhere") is not None) == (drafts > 0) for verdict in told["verdicts"])
    chunks = list(ask(server, seed, stream=True, **body))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == expected.text
    assert chunks[-1].choices[0].seewhen["told"] == told


@pytest.mark.parametrize("drafts", [0, 3])
def test_sampled_answers_of_a_batch(server: Running, drafts: int) -> None:
    asked = {"method": "confirm", "preset": "coco", "parameters": {"threshold": 0.5, "drafts": drafts}}
    options: dict[str, Any] = {"temperature": 1.0, "seed": 7, "n": 4, "max_tokens": 32}
    options["extra_body"] = {"seewhen": asked}
    whole = ask(server, **options)
    texts = {choice.index: "" for choice in whole.choices}
    for chunk in ask(server, stream=True, **options):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert {choice.index: choice.message.content for choice in whole.choices} == texts
    assert len(set(texts.values())) > 1
    told = {choice.index: choice.seewhen["told"] for choice in whole.choices}
    assert any(each["taken_back"] for each in told.values()) and any(each["verdicts"] for each in told.values())
    for index, each in told.items():
        for verdict in each["verdicts"]:
            assert texts[index][verdict["start"] : verdict["end"]] == verdict["text"]


COMPANY = [
    {"method": "cai+confirm:coco", "parameters": {"threshold": 0.5}, "tokens": 24},
    {"method": "regular", "tokens": 24},
    {"method": "confirm", "preset": "coco", "parameters": {"threshold": 0.5}, "tokens": 7},
    {"method": "confirm", "preset": "coco", "parameters": {"threshold": 0.5}, "tokens": 40},
    {"method": "confirm", "preset": "coco", "parameters": {"threshold": 0.5, "drafts": 3}, "tokens": 9},
    {"method": "confirm", "preset": "coco", "parameters": {"threshold": 0.5, "drafts": 3}, "tokens": 32},
]


def test_confirmed_answers_do_not_depend_on_who_asks_at_the_same_time(server: Running) -> None:
    """Nobody else's length or method decides whether a sentence is judged, and what drafts say."""

    def one(place: int) -> Any:
        asked = dict(COMPANY[place])
        body = {"max_tokens": asked.pop("tokens"), "extra_body": {"seewhen": asked}}
        choice = ask(server, place + 1, temperature=1.0, seed=place, **body).choices[0]
        return choice.message.content, choice.seewhen["told"]

    single = [one(place) for place in range(len(COMPANY))]
    assert [told is None for _, told in single] == [asked["method"] == "regular" for asked in COMPANY]
    with ThreadPoolExecutor(len(COMPANY)) as pool:
        with held(server.engine):
            answers = pool.map(one, range(len(COMPANY)))
            until(lambda: len(server.engine._running) + server.engine.waiting == len(COMPANY))
        assert list(answers) == single


def test_a_stop_string_ends_the_answer_and_its_verdicts(server: Running) -> None:
    options: dict[str, Any] = {"temperature": 1.0, "seed": 7, "max_tokens": 32}
    options["extra_body"] = {"seewhen": {"method": "confirm", "preset": "mark"}}
    full = ask(server, **options).choices[0]
    stop = full.message.content.split()[8]
    cut = ask(server, stop=[stop], **options).choices[0]
    assert full.message.content.startswith(cut.message.content) and stop not in cut.message.content
    assert cut.finish_reason == "stop"
    kept = [v for v in full.seewhen["told"]["verdicts"] if v["end"] <= len(cut.message.content)]
    assert cut.seewhen["told"]["verdicts"] == kept


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"logprobs": True}, "logprobs"),
        ({"extra_body": {"seewhen": {"method": "confirm", "num_beams": 2}}}, "seewhen.num_beams"),
        ({"extra_body": {"seewhen": {"method": "confirm", "parameters": {"lexicon": "/etc/passwd"}}}}, "seewhen"),
        ({"extra_body": {"seewhen": {"method": "confirm:lexicon=/etc/passwd"}}}, "seewhen"),
        ({"extra_body": {"seewhen": {"method": "confirm", "parameters": {"budget": 1e6}}}}, "seewhen"),
        ({"extra_body": {"seewhen": {"method": "confirm", "parameters": {"drafts": 9}}}}, "seewhen"),
        ({"extra_body": {"seewhen": {"method": "confirm:drafts=16"}}}, "seewhen"),
        ({"extra_body": {"seewhen": {"method": "confirm", "parameters": {"drafts": -1}}}}, "seewhen"),
        ({"extra_body": {"seewhen": {"method": "confirm:drafts=2", "num_beams": 2}}}, "seewhen.num_beams"),
    ],
)
def test_what_confirm_cannot_do(server: Running, options: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as told:
        ask(server, **options)
    assert told.value.param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"lexicon": "/etc/passwd"},
        {"verdict": "fit.json"},
        {"threshold": 1e9},
        {"text": 5},
        {"text": "a dog " * 10_000},
        {"question": "Is there a {object}?"},
        {"image_url": {"url": "file:///etc/passwd"}},
        {"image_url": None},
        {"text": "На фото собака и кошка рядом с большой красной машиной у дома."},
    ],
)
def test_what_check_refuses(server: Running, fields: dict[str, Any]) -> None:
    reply = post(server, **fields)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["hint"] and "passwd" not in error["message"]


def test_the_same_guards(checkpoint: Path, server: Running) -> None:
    assert post(server, body={"model": "another"}).status_code == 400
    assert post(server, model="another").status_code == 404
    plain = httpx2.post(
        f"{server.url}/v1/check", content=b"{}", headers={"Content-Type": "text/plain"}, timeout=60
    )
    assert plain.status_code == 415
    with running(seewhen.load(checkpoint, device="cpu"), key=KEY, limits=Limits(text_characters=10)) as guarded:
        assert post(guarded).status_code == 401
        body = {"model": MODEL, "image_url": {"url": data_url(picture(1))}, "text": TEXT}
        reply = httpx2.post(
            f"{guarded.url}/v1/check", json=body, headers={"Authorization": f"Bearer {KEY}"}, timeout=60
        )
        assert reply.status_code == 400 and reply.json()["error"]["code"] == "limit_exceeded"


def test_its_schema_is_published(server: Running) -> None:
    described = httpx2.get(f"{server.url}/openapi.json", timeout=60).json()
    assert "CheckRequest" in described["components"]["schemas"]
    assert described["components"]["schemas"]["CheckRequest"]["additionalProperties"] is False
