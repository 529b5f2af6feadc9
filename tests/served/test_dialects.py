"""Other engines' dialects: the same verdicts where they tell enough, one clear error where they do not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from PIL import Image

import seewhen
from seewhen.errors import SeewhenError, UnsupportedModel
from seewhen.scenes import dataset, render
from seewhen.served.server import RequestRefused
from served.dialects import dialect, elsewhere, in_parts, llama_cpp, sglang, silent, tgi
from served.fault_server import Handler, completion, faulty, says, sees
from server.loopback import MODEL, Running, running

ASK = "Please describe this image in detail."
TEXT = "A dog beside a vase."


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(seewhen.load("packaged", device="cpu"), method="regular") as started:
        yield started


@pytest.fixture(scope="module")
def expected(server: Running) -> tuple[Any, Any]:
    """Our own server's verdicts and words."""
    model = seewhen.remote(server.url, MODEL)
    found = model.check(scene(), TEXT), model.generate(scene(), ASK, "regular", max_new_tokens=16)
    model.close()
    return found


def scene() -> Any:
    return render(dataset("shifted", 4)[3])


@pytest.mark.parametrize("change", [llama_cpp, tgi, sglang, in_parts])
def test_every_dialect_is_understood(
    server: Running, expected: tuple[Any, Any], change: Callable[[dict[str, Any]], None]
) -> None:
    checked, plain = expected
    with faulty(dialect(server.url, change)) as engine:
        model = seewhen.remote(engine.url, MODEL)
        there = model.check(scene(), TEXT)
        written = model.generate(scene(), ASK, "regular", max_new_tokens=16)
        confirmed = model.generate(scene(), ASK, "confirm:verdict=asking,lexicon=coco", max_new_tokens=16)
        model.close()
    assert [m.verdict for m in there.mentions] == [m.verdict for m in checked.mentions]
    assert [m.odds for m in there.mentions] == pytest.approx([m.odds for m in checked.mentions], abs=1e-3)
    assert written.text == plain.text
    assert confirmed.told is not None and confirmed.told["verdicts"]
    assert model.offers.continues is model.offers.stops is False and model.offers.bans == ""


@pytest.mark.parametrize("change", [silent, elsewhere])
def test_without_log_probabilities_it_answers_and_is_not_asked(
    server: Running, expected: tuple[Any, Any], change: Callable[[dict[str, Any]], None]
) -> None:
    with faulty(dialect(server.url, change)) as engine:
        model = seewhen.remote(engine.url, MODEL)
        assert model.generate(scene(), ASK, "regular", max_new_tokens=16).text == expected[1].text
        with pytest.raises(SeewhenError, match="tells no log-probabilities"):
            model.check(scene(), TEXT)
        model.close()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"error": "Unexpected endpoint or method. Returning 200 anyway"}, "Unexpected endpoint"),
        ({"detail": "Not Found"}, "Not Found"),
        ({"object": "error", "message": "no such model", "code": 404}, "no such model"),
        ({"choices": None, "error": {"message": "overloaded", "code": 429}}, "overloaded"),
    ],
)
def test_an_error_with_the_status_of_a_success_is_told(body: dict[str, Any], said: str) -> None:
    with faulty(says(body)) as engine:
        model = seewhen.remote(engine.url, "any", tries=1)
        with pytest.raises(SeewhenError, match=f"is an error: .*{said}.*Check the address"):
            model.generate(Image.new("RGB", (8, 8)), ASK)
        model.close()


def test_empty_lines_that_keep_a_connection_alive_are_no_part_of_the_answer() -> None:
    with faulty(says(b"\n\n \n" + json.dumps(completion()).encode())) as engine:
        model = seewhen.remote(engine.url, "any", tries=1)
        assert model.generate(Image.new("RGB", (8, 8)), ASK).text == "A dog."
        model.close()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"error": {"message": "too long.", "type": "invalid_request_error"}}, "too long."),
        ({"object": "error", "message": "too long", "code": 400}, "too long."),
        ({"error": "too long", "error_type": "validation"}, "too long."),
        ({"detail": "too long"}, "too long."),
        (
            {"detail": [{"loc": ["body"], "msg": "too long"}]},
            '{"detail": [{"loc": ["body"], "msg": "too long"}]}.',
        ),
        (b"too long", "too long."),
        (b'{"error": {"message": "too lo', '{"error": {"message": "too lo.'),
    ],
)
def test_a_servers_own_words_are_told(body: Any, said: str) -> None:
    with faulty(says(body, 422)) as engine:
        model = seewhen.remote(engine.url, "any")
        with pytest.raises(RequestRefused) as told:
            model.generate(Image.new("RGB", (8, 8)), ASK)
        model.close()
    assert told.value.message == f"{engine.url} answered 422: {said}"


def test_a_failure_that_says_what_is_not_supported_is_no_failure() -> None:
    """llama.cpp without its part for pictures: told at once, as asking again changes nothing."""

    def blind(handler: Handler) -> None:
        if "image_url" in json.dumps(handler.body):
            error = {"code": 500, "message": "image input is not supported - hint: mmproj", "type": "server_error"}
            says({"error": error}, 500)(handler)
        else:
            says(completion())(handler)

    with faulty(blind) as engine:
        model = seewhen.remote(engine.url, "any")
        with pytest.raises(UnsupportedModel, match=r"takes no images.*mmproj"):
            model.check(Image.new("RGB", (8, 8)), "A dog.")
        model.close()
    assert len(engine.asked) == 4  # with 20 log-probabilities, with 5, with none, without a picture


def test_what_a_server_fails_at_is_not_offered(server: Running, expected: tuple[Any, Any]) -> None:
    """Where a template breaks at an answer that was begun."""
    as_usual = dialect(server.url, sglang)

    def breaks(handler: Handler) -> None:
        if handler.body["messages"][-1]["role"] == "assistant":
            says({"error": {"code": 500, "message": "No user query found in messages."}}, 500)(handler)
        else:
            as_usual(handler)

    with faulty(breaks) as engine:
        model = seewhen.remote(engine.url, MODEL, tries=2)
        there = model.check(scene(), TEXT)
        model.close()
    assert [m.verdict for m in there.mentions] == [m.verdict for m in expected[0].mentions]


def test_a_server_that_fails_at_everything_is_told_as_such() -> None:
    with faulty(sees, says({"error": "out of memory"}, 500)) as engine:
        model = seewhen.remote(engine.url, "any", tries=1)
        with pytest.raises(SeewhenError, match="answered 500"):
            model.check(Image.new("RGB", (8, 8)), "A dog.")
        model.close()
