"""Servers that do wrong: a clear error within a bounded time, retries where they help, the key nowhere."""

from __future__ import annotations

import copy
import email.utils
import logging
import socket
import threading
import time
from typing import Any
from urllib.parse import quote

import pytest
from PIL import Image

import seewhen
from seewhen.errors import InvalidInput, SeewhenError, UnsupportedModel
from seewhen.served.offers import request
from seewhen.served.server import (
    Meter,
    Patience,
    RequestRefused,
    Server,
    ServerFailed,
    Unreadable,
    _retry_after,
    _Status,
    _wait,
)
from served.fault_server import (
    Fault,
    Handler,
    completion,
    cuts_off,
    drips,
    drips_body,
    drops,
    faulty,
    floods,
    floods_error,
    hangs,
    says,
    sees,
)
from server.loopback import until

KEY = "sk-very-secret-0123456789"
ASK = request([{"role": "user", "content": "What is there?"}], model="any")
OK = says(completion())
HASTY: dict[str, Any] = {"timeout": 2.0, "tries": 2, "deadline": 60.0}
TIMEOUTS = {floods: 30.0, floods_error: 30.0, hangs: 0.5, drips: 0.5, drips_body: 0.5}


@pytest.fixture(autouse=True)
def hardly_any_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two tries, unless the server asks for one."""

    def short(number: int, cause: BaseException) -> float:
        asks = isinstance(cause, _Status) and cause.headers.get("retry-after")
        return _wait(number, cause) if asks else 0.01

    monkeypatch.setattr("seewhen.served.server._wait", short)


def ask(url: str, **patience: Any) -> Any:
    server = Server(url, patience=Patience(**{**HASTY, **patience}))
    try:
        return server.ask([ASK], Meter())[0]
    finally:
        server.close()


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (hangs, "no answer within"),
        (drips, "no answer within"),
        (drips_body, "no answer within"),
        (drops, "broke off"),
        (cuts_off, "broke off"),
        (floods, "more than 16 MB"),
        (floods_error, "answered 400: no no no"),
        (says(b"<html>hello</html>", content_type="text/html"), "not JSON"),
        (says(b"[" * 100_000), "nests more than"),
        (says([]), "valid dictionary"),
        (says({"error": {"message": "overloaded"}}), "is an error: .*overloaded"),
        (says({"choices": []}), "choices"),
        (says({"choices": [{"message": {"content": 5}}]}), "choices.0.message.content"),
        (says(completion(logprobs={"content": [{"token": "A", "logprob": "high"}]})), "logprob"),
        (says(completion(logprobs={"content": [{"token": "A", "logprob": float("nan")}]})), "logprob"),
        (says(b"x", content_encoding="gzip"), "packed"),
        (says(b"", 307, location="http://example.com/v1/chat/completions"), "redirects to http://example.com"),
        (says({"error": {"message": "no such key"}}, 401), "answered 401"),
        (says(b"not here", 404), "answered 404"),
        (says(b"broken", 500), "answered 500: broken. It may pass"),
        (says(b"", 503), "answered 503. It may pass"),
        (says(b"too long", 413), "answered 413"),
    ],
)
def test_every_fault_is_one_clear_error(fault: Fault, said: str) -> None:
    with faulty(fault) as server, pytest.raises(SeewhenError, match=said) as told:
        ask(server.url, timeout=TIMEOUTS.get(fault, 2.0))
    assert told.value.hint and len(str(told.value)) < 1000
    assert "Traceback" not in str(told.value)


def test_a_redirect_is_not_followed() -> None:
    with faulty(OK) as other:
        moved = says(b"", 308, location=f"{other.url}/chat/completions")
        with faulty(moved) as server, pytest.raises(ServerFailed, match="Redirects are not followed"):
            ask(server.url)
        assert len(server.asked) == 1 and other.asked == []


@pytest.mark.parametrize(
    "fault", [drops, cuts_off, says(b"", 429), says(b"", 503, retry_after="0"), says(b"", 500), hangs]
)
def test_what_passes_is_tried_again(fault: Fault) -> None:
    with faulty(fault, OK) as server:
        found = ask(server.url)
    assert found.text == "A dog." and len(server.asked) == 2
    assert server.asked[0] == server.asked[1]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_what_does_not_pass_is_not_tried_again(status: int) -> None:
    with faulty(says(b"no", status), OK) as server, pytest.raises(SeewhenError) as told:
        ask(server.url)
    assert len(server.asked) == 1
    assert isinstance(told.value, RequestRefused) == (status in (400, 413, 422))


def test_tries_are_counted_and_end() -> None:
    with faulty(says(b"", 503)) as server:
        asked = Server(server.url, patience=Patience(tries=3))
        meter = Meter()
        with pytest.raises(ServerFailed, match="503"):
            asked.ask([ASK], meter)
        asked.close()
    assert len(server.asked) == meter.usage.requests == asked.meter.usage.requests == 3


def test_waiting_grows_and_obeys_the_server() -> None:
    plain = [_wait(number, ValueError()) for number in range(1, 12)]
    assert all(0.25 * 2**n <= wait <= 0.375 * 2**n for n, wait in enumerate(plain[:7], 1))
    assert plain[-1] <= 90
    assert _retry_after("7") == 7 and _retry_after("soon") == _retry_after("") == _retry_after("nan") == 0
    assert _retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0  # long ago


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_a_server_that_asks_to_wait_is_obeyed(form: str) -> None:
    """It asks for more than there is time for, so that nothing but the first try is made."""
    said = "50" if form == "seconds" else email.utils.formatdate(time.time() + 3600, usegmt=True)
    with (
        faulty(says(b"busy", 429, retry_after=said), OK) as server,
        pytest.raises(ServerFailed, match="as it asks"),
    ):
        ask(server.url, deadline=45.0, timeout=30.0)
    assert len(server.asked) == 1
    assert _wait(1, _Status(503, {"retry-after": "999999"}, b"")) <= 90  # nobody is obeyed for ever


def test_one_unreadable_answer_is_tried_again() -> None:
    with faulty(says(b"<html>"), OK) as server:
        assert ask(server.url).text == "A dog."
    with faulty(says(b"<html>")) as server, pytest.raises(Unreadable):
        ask(server.url, tries=6)
    assert len(server.asked) == 2


def test_closing_gives_up_what_is_asked() -> None:
    with faulty(hangs) as server:
        asked, failed = Server(server.url), threading.Event()

        def wait() -> None:
            with pytest.raises(ServerFailed, match="were closed"):
                asked.ask([ASK], Meter())
            failed.set()

        threading.Thread(target=wait, daemon=True).start()
        until(lambda: len(server.asked) == 1)
        assert asked.busy
        asked.close()
        assert failed.wait(60) and not asked.busy
        with pytest.raises(ServerFailed, match="were closed"):
            asked.ask([ASK], Meter())


def test_what_the_server_counts() -> None:
    with faulty(OK) as server:
        asked, meter = Server(server.url), Meter()
        assert len(asked.ask([ASK] * 20, meter)) == 20
        asked.close()
    assert vars(meter.usage) == {
        "requests": 20,
        "prompt_tokens": 200,
        "cached_tokens": 160,
        "completion_tokens": 40,
    }


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ServerFailed, match="cannot be reached"):
        ask(f"http://127.0.0.1:{port}")


@pytest.mark.parametrize(
    "url",
    ["", "photo.jpg", "ftp://host/v1", "http://", "http://me:word@host/v1", "http://host/v1?key=1", "http://h:x"],
)
def test_addresses_that_are_refused(url: str) -> None:
    with pytest.raises(InvalidInput) as told:
        Server(url)
    assert "word" not in str(told.value)


def test_the_key_is_sent_and_seen_nowhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    echo = says({"error": f"{KEY} is a wrong key, {KEY}"}, 401)
    with faulty(echo) as server:
        model = seewhen.remote(server.url, "any", key_from="MY_KEY")
        with pytest.raises(ServerFailed) as told:
            model.generate(Image.new("RGB", (8, 8)), "What is there?")
        model.close()
    assert server.keys == [f"Bearer {KEY}"]
    seen = [str(told.value), repr(told.value), repr(model), repr(model.server), str(vars(model)), caplog.text]
    assert not any(KEY in text for text in seen)
    with pytest.raises(TypeError):
        copy.copy(model.server)  # nor packed to be sent elsewhere


@pytest.mark.parametrize("wrong", ["sk-secret\nsecond", "sk-secret\r\nX: y", "sk-secrét-1234", "sk\x00secret"])
def test_a_key_that_cannot_be_sent_is_not_told(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "\0" not in wrong:
        monkeypatch.setenv("MY_KEY", wrong)
        with pytest.raises(InvalidInput, match="The key in MY_KEY") as told:
            seewhen.remote("http://127.0.0.1:1", "any", key_from="MY_KEY")
        assert "sk" not in str(told.value).replace("ask", "")
    with pytest.raises(InvalidInput) as told:
        Server("http://127.0.0.1:1", key=wrong)
    assert "secr" not in repr(told.value)


def test_a_key_that_comes_back_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "sk/very-secret+0123456789"
    monkeypatch.setenv("MY_KEY", key)
    spellings = [
        key,
        key.upper(),
        key.replace("/", "\\/"),
        quote(key, safe=""),
        key.replace("s", "\\u0073"),
        key[:20],
    ]
    for spelled in spellings:
        with faulty(says(f'{{"error": "no {spelled}"}}'.encode(), 400)) as server:
            asked = Server(server.url, "MY_KEY")
            with pytest.raises(RequestRefused, match=r"no \[key\]") as told:
                asked.ask([ASK], Meter())
            asked.close()
        assert "secret" not in str(told.value).lower()
    with faulty(says(completion(f"A dog and {key}."))) as server:
        asked = Server(server.url, "MY_KEY")
        assert asked.ask([ASK], Meter())[0].text == "A dog and [key]."
        asked.close()


def test_a_key_that_is_a_word_leaves_answers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "content")
    with faulty(OK) as server:
        assert ask(server.url).text == "A dog."


def test_a_named_key_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(InvalidInput, match="NO_SUCH_KEY"):
        Server("http://127.0.0.1:1", "NO_SUCH_KEY")


def test_a_key_in_place_of_its_name_is_not_told() -> None:
    with pytest.raises(InvalidInput, match="the variable's name") as told:
        Server("http://127.0.0.1:1", KEY)
    assert KEY not in repr(told.value)


def test_a_server_without_log_probabilities_cannot_be_asked() -> None:
    with faulty(sees) as server:
        model = seewhen.remote(server.url, "any")
        with pytest.raises(SeewhenError, match="no log-probabilities"):
            model.check(Image.new("RGB", (8, 8)), "A dog.")
        model.close()


def test_a_model_without_vision_is_found_out() -> None:
    blind = completion("I see.", logprobs={"content": [{"token": "I", "logprob": -0.1, "top_logprobs": []}]})
    with faulty(says(blind)) as server:
        model = seewhen.remote(server.url, "any")
        with pytest.raises(SeewhenError, match="takes no images"):
            model.check(Image.new("RGB", (8, 8)), "A dog.")
        model.close()


def test_a_model_that_refuses_images_is_told_as_such() -> None:
    """Where a request without a picture is answered."""

    def refuses(handler: Handler) -> None:
        if "image_url" in str(handler.body):
            says({"error": "any is not a multimodal model"}, 400)(handler)
        else:
            OK(handler)

    with faulty(refuses) as server:
        model = seewhen.remote(server.url, "any")
        with pytest.raises(UnsupportedModel, match=r"takes no images.*not a multimodal model"):
            model.check(Image.new("RGB", (8, 8)), "A dog.")
        server.faults[:] = [says(b"nothing today", 400)]
        with pytest.raises(RequestRefused, match="nothing today"):
            model.check(Image.new("RGB", (8, 8)), "A dog.")
        model.close()


def test_a_server_that_was_never_heard_of_is_soon_given_up() -> None:
    """A wrong address is told after two tries; one that has answered before is waited for."""
    with faulty(hangs) as server, pytest.raises(ServerFailed, match="no answer"):
        ask(server.url, tries=3, timeout=0.5)
    assert len(server.asked) == 2
    with faulty(OK, hangs, hangs, OK) as server:
        asked = Server(server.url, patience=Patience(timeout=2.0, tries=4))
        for _ in range(2):
            asked.ask([ASK], Meter())
        asked.close()
    assert len(server.asked) == 4


@pytest.mark.parametrize("options", [{"api_key": "x"}, {"Authorization": "x"}, {"password": "x"}, {"user": KEY}])
def test_a_secret_goes_along_with_no_request(options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What does is part of manifests and pages."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with pytest.raises(InvalidInput, match="stored with runs") as told:
        seewhen.remote("http://127.0.0.1:1", "any", options=options)
    assert KEY not in str(told.value)


def test_patience_has_names() -> None:
    for wrong in ({"speed": 1}, {"timeout": 0}, {"tries": 0}):
        with pytest.raises(InvalidInput):
            seewhen.remote("http://127.0.0.1:1", "any", **wrong)
