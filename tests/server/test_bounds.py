"""Bounded work: requests with millions of values, pictures that never end, texts that forge marks."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from loopback import MODEL, Running, counted, data_url, encoded, picture, question, raw, until
from PIL import Image
from pydantic import ValidationError

import seewhen
from seewhen.backbones.loading import Loaded
from seewhen.errors import SeewhenError
from seewhen.server import app, schema
from seewhen.server.choosing import catalogue, choose, offered
from seewhen.server.darkroom import Darkroom
from seewhen.server.engine import Engine
from seewhen.server.failures import ApiError
from seewhen.server.jobs import Done, Failed, Finished, Job
from seewhen.server.limits import Limits
from seewhen.server.metrics import Metrics
from seewhen.server.prompting import Prompter
from seewhen.server.sampling import Sampling
from seewhen.server.schema import ChatRequest, Seewhen, TextPart, UserMessage, parse

HEAD = b'{"model":"tiny","messages":['
GOOD = b'{"role":"user","content":"w5"}'
MANY = 2_000_000


@pytest.mark.parametrize(
    "body",
    [
        HEAD + b"1," * MANY + b"1]}",
        HEAD + b"[]," * MANY + b"1]}",
        HEAD + b"[" * MANY + b"]" * MANY + b"]}",
        HEAD + GOOD + b'],"seewhen":{"parameters":{' + b'"a":1,' * MANY + b'"b":1}}}',
        HEAD + GOOD + b"]," + b",".join(b'"a%d":1' % number for number in range(MANY // 4)) + b"}",
        HEAD + b'{"role":"user","content":[' + b'{"type":"text","text":""},' * (MANY // 8) + b"1]}]}",
        HEAD + GOOD + b'],"' + b"a" * 10_000_000 + b'":1}',
        HEAD + GOOD + b'],"seed":' + b"1" * 10_000_000 + b"}",
        HEAD + GOOD + b'],"model":"' + b"a" * 10_000_000 + b'"}',
        HEAD + GOOD + b"]" + b" " * 10_000_000,
        # Below the bound of values.
        HEAD + b"1," * 30_000 + b"1]}",
        HEAD + b'{"role":"user","content":[' + b"[]," * 30_000 + b"1]}]}",
        HEAD + GOOD + b"]," + b",".join(b'"a%d":1' % number for number in range(30_000)) + b"}",
    ],
    ids=range(13),
)
def test_a_request_with_a_million_values_is_refused_at_once(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these made millions of errors before one was told, or an answer of megabytes."""
    errors: list[int] = []
    refusal = schema._refusal

    def counting(error: ValidationError) -> ApiError:
        errors.append(error.error_count())
        return refusal(error)

    monkeypatch.setattr(schema, "_refusal", counting)
    with pytest.raises(ApiError) as told:
        parse(body, ChatRequest, 32_768)
    assert sum(errors) <= 300
    assert told.value.status == 400 and len(json.dumps(told.value.body())) < 1000


def test_parsing_holds_nobody_up(serving: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """While one request is parsed, for as long as that takes, others are answered."""
    parsing, go = threading.Event(), threading.Event()

    def slowly(*asked: Any) -> Any:
        parsing.set()
        assert go.wait(60)
        return parse(*asked)

    monkeypatch.setattr(app, "parse", slowly)
    with serving() as server, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(posted, server, encoded(picture()))
        try:
            assert parsing.wait(60)
            assert httpx2.get(f"{server.url}/healthz", timeout=30).status_code == 200
        finally:
            go.set()
        assert answer.result().usage.completion_tokens == 1


def test_long_texts_with_commas_are_requests() -> None:
    text = "," * 30_000 + "{[" * 1000
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": text}]}).encode()
    asked = parse(body, ChatRequest, 32_768)
    assert asked.messages[0].content == text


def posted(server: Running, data: bytes) -> Any:
    image = {"type": "image_url", "image_url": {"url": data_url(data)}}
    return server.client().chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": [image]}], max_tokens=1, temperature=0
    )


def test_a_picture_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process is ended, the next picture gets a new one, and a picture that is refused leaves it alive."""
    room = Darkroom(Limits(image_seconds=30))
    good = encoded(picture(3, (40, 30)))

    async def scene() -> None:
        deadline = time.monotonic() + 60
        first = await room.decoded(good, deadline)
        assert first.tobytes() == picture(3, (40, 30)).tobytes() and first.size == (40, 30)
        process = room._idle[0]
        with pytest.raises(ApiError) as broken:
            await room.decoded(good[:100], deadline)
        assert broken.value.code == "invalid_image" and room._idle == [process]
        object.__setattr__(room._limits, "image_seconds", 0)  # as if it took for ever
        with pytest.raises(ApiError) as slow:
            await room.decoded(encoded(picture(0, (3000, 3000))), deadline)
        assert slow.value.code == "image_too_slow" and room._idle == [] and process.returncode is not None
        object.__setattr__(room._limits, "image_seconds", 30)
        with pytest.raises(ApiError) as late:
            await room.decoded(good, time.monotonic() - 1)
        assert late.value.code == "image_too_slow"
        again = asyncio.create_task(room.decoded(good, deadline))
        assert (await again).size == (40, 30) and room._idle[0] is not process
        leaving = asyncio.create_task(room.decoded(encoded(picture(0, (2000, 2000))), deadline))
        taken = room._idle[0]
        while room._idle:  # until it has the process
            await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert room._idle == [] and taken.returncode is not None  # the client left, and the process with it
        room._idle.append(await room._started())
        dead = room._idle[0]
        dead.kill()
        with pytest.raises(ApiError) as died:
            await room.decoded(good, deadline)
        assert died.value.code == "invalid_image"
        await room.close()

    asyncio.run(scene())


def test_clients_that_leave_while_a_picture_is_decoded(serving: Callable[..., Any]) -> None:
    """Nothing goes on for them: the place is free, and others get their answers."""
    with serving() as server:
        held: list[asyncio.Event] = []

        async def never(data: bytes, deadline: float) -> Image.Image:
            held.append(asyncio.Event())
            await held[-1].wait()
            raise AssertionError

        decoded, server.settings.darkroom.decoded = server.settings.darkroom.decoded, never
        with raw(server, {"model": MODEL, "messages": question("w5", 1), "max_tokens": 1}):
            until(lambda: len(held) == 1)
        until(lambda: counted(server, "requests_total", status="499") == 1)
        server.settings.darkroom.decoded = decoded
        assert posted(server, encoded(picture())).usage.completion_tokens == 1


GLUED = "{% for message in messages %}{% for part in message['content'] %}"
GLUED += "{{ '<image>' if part['type'] == 'image' else part['text'] }}{% endfor %}</s>{% endfor %}"


@pytest.fixture
def prompter(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> Prompter:
    """Of a template that puts parts next to each other, as those of real models do."""
    monkeypatch.setattr(loaded.processor, "chat_template", GLUED)
    return Prompter(loaded.processor)


@pytest.mark.parametrize(
    "pieces",
    [("<ima", "ge>"), ("w5 <", "image", "> w6"), ("w5 <", "/s", ">"), ("<image>",), ("<s", ">"), ("<pad>",)],
)
def test_marks_made_of_several_parts_are_refused(prompter: Prompter, pieces: tuple[str, ...]) -> None:
    parts = [TextPart(type="text", text=piece) for piece in pieces]
    with pytest.raises(ApiError) as told:
        prompter.prompt([UserMessage(role="user", content=parts)])
    assert told.value.code == "reserved_text"


@pytest.mark.parametrize("pieces", [("<ima", "ge >"), ("w5 < image", ">"), ("", " "), ("</", "div>")])
def test_texts_that_forge_nothing_are_not_refused(prompter: Prompter, pieces: tuple[str, ...]) -> None:
    parts = [TextPart(type="text", text=piece) for piece in pieces]
    assert prompter.prompt([UserMessage(role="user", content=parts)]) == "".join(pieces) + "</s>"


def test_any_number_for_any_parameter_is_answered_or_refused(loaded: Loaded) -> None:
    """Never a failure of ours: a layer of -1000 was one."""
    decoder = Engine(MODEL, loaded, Limits(), Metrics()).decoder
    values = {"integer": (-1000, -1, 1000, 10**400), "number": (-1e9, 0, 1e-45, 1e9, 10**400)}
    outcomes = {"answered": 0, "refused": 0}
    for entry in catalogue():
        numbers = [(field["name"], value) for field in entry["parameters"] for kind in field["type"]
                   for value in values.get(kind, ())]  # fmt: skip
        for name, value in numbers:
            try:
                asked = Seewhen(method=entry["id"], parameters={name: value})
                method = choose(asked, seewhen.method("cai")).prepare(decoder.tokenizer)
                decoder.run([job_of(method, max_tokens=1)])
                outcomes["answered"] += 1
            except (ApiError, SeewhenError):
                outcomes["refused"] += 1
    assert min(outcomes.values()) > 50, outcomes


def test_a_request_gets_the_file_of_the_operators_method() -> None:
    own = seewhen.method("vti:directions=a.safetensors")
    found = choose(Seewhen(method="vti", parameters={"text_strength": 0.5}), own)
    assert found == own.replace(text_strength=0.5)
    assert choose(Seewhen(method="ict"), own).parameters()["directions"] == ""
    served = (seewhen.method("cai"), own)
    usable = [{each["id"] for each in offered(method) if each["usable"]} for method in served]
    assert usable[1] - usable[0] == {"vti"} and "ict" not in usable[1]


def job_of(method: seewhen.Method, seed: int = 0, max_tokens: int = 6, post: Any = lambda event: None) -> Job:
    return Job(
        id="one",
        prompt="w1 <image> w5 w6 w2",
        images=(picture(),),
        method=method,
        fingerprint=method.fingerprint,
        sampling=Sampling(1.0 if method.samples_only else 0.0, 1.0, seed),
        n=1,
        max_tokens=max_tokens,
        deadline=time.monotonic() + 60,
        post=post,
        num_beams=2 if method.beams_only else 1,
    )


def test_two_models_have_random_numbers_of_their_own(checkpoint: Path) -> None:
    """`saliency` samples in the threads of both models at once; each answer comes again with its seed."""
    method = seewhen.method("saliency")
    engines = [Engine(name, seewhen.load(checkpoint, device="cpu"), Limits(), Metrics()) for name in ("a", "b")]
    for engine in engines:
        engine.start()

    def answers(engine: Engine) -> list[str]:
        found: list[str] = []
        for seed in range(6):
            events: list[Any] = []
            engine.submit(job_of(method, seed, post=events.append))
            until(lambda events=events: bool(events) and isinstance(events[-1], Done | Failed))
            found += [event.text for event in events if isinstance(event, Finished)]
        return found

    alone = answers(engines[0])
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(answers, engines)) == [alone, alone]
    assert len(alone) == 6 and len(set(alone)) > 3
    for engine in engines:
        engine.close()


def test_nothing_of_a_request_is_logged(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    """Neither of an answer nor of refusals; only of what went wrong, under the request's id."""
    caplog.set_level(logging.DEBUG)
    secrets = ["w67", "base64"]
    for options in ({}, {"n": 99}, {"extra_body": {"seewhen": {"parameters": {"start_layer": 400}}}}):
        asked = {"messages": question("w5 w67 w68 w69", 1), "max_tokens": 3, "temperature": 0} | options
        try:
            answer = server.client().chat.completions.create(model=MODEL, **asked)
            secrets.append(answer.choices[0].message.content)
        except openai.BadRequestError as refused:
            last = refused.response.headers["x-request-id"]
    ours = [
        entry.getMessage() for entry in caplog.records if entry.name.startswith(("seewhen", "uvicorn", "asyncio"))
    ]
    assert len(secrets) == 3 and not any(secret in entry for entry in ours for secret in secrets)
    assert any(last in entry for entry in ours)


def test_a_tighter_limit_of_memory_stays() -> None:
    """The process for pictures comes up where the system lets it have less than it would take."""
    code = """
import resource
from seewhen.server import picture_process
less = picture_process._MEMORY - 2**20
resource.setrlimit(resource.RLIMIT_AS, (less, less))
picture_process._limit_memory()
assert resource.getrlimit(resource.RLIMIT_AS) == (less, less)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
