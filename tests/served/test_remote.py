"""A model behind a real server answers, confirms and checks as the same model does here."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest

import seewhen
from seewhen.errors import InvalidMethod, UnsupportedMode
from seewhen.scenes import dataset, render
from seewhen.served.offers import Offers
from served.fault_server import faulty
from served.numbering_server import numbering
from served.recording import recorded
from server.loopback import MODEL, Running, running

ASK = "Please describe this image in detail."
CONFIRM = "confirm:verdict=asking,lexicon=coco"
LENGTH = 40  # two sentences and more
TEXT = "A dog beside a vase. Two cars are near the bed."


@pytest.fixture(scope="module")
def loaded() -> Any:
    return seewhen.load("packaged", device="cpu")


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(seewhen.load("packaged", device="cpu"), method="regular") as started:
        yield started


@pytest.fixture(scope="module")
def offered(server: Running) -> Offers:
    """What the server offers, found out once for all tests."""
    made = seewhen.remote(server.url, MODEL)
    found = made.offers
    made.close()
    return found


@pytest.fixture
def model(server: Running, offered: Offers) -> Iterator[seewhen.Remote]:
    made = seewhen.remote(server.url, MODEL)
    made._offers = offered
    yield made
    made.close()


def scene(number: int) -> Any:
    return render(dataset("shifted", 12)[number])


@functools.cache
def local(loaded: Any, number: int, method: str) -> Any:
    return seewhen.generate(*loaded, scene(number), ASK, method, max_new_tokens=LENGTH, do_sample=False)


def with_offers(model: seewhen.Remote, **offers: Any) -> seewhen.Remote:
    """As if the server offered less."""
    model._offers = Offers(**{**vars(model.offers), **offers})
    return model


def same_verdicts(here: dict[str, Any], there: dict[str, Any]) -> None:
    assert len(here["verdicts"]) == len(there["verdicts"])
    for one, other in zip(here["verdicts"], there["verdicts"], strict=True):
        names = ("object", "text", "start", "end", "verdict")
        assert [one[name] for name in names] == [other[name] for name in names]
        assert one["odds"] == pytest.approx(other["odds"], abs=1e-3)
    assert [each["text"] for each in here["taken_back"]] == [each["text"] for each in there["taken_back"]]


def test_what_our_own_server_offers(model: seewhen.Remote) -> None:
    assert model.offers == Offers(likeliest=20, continues=True, spaces=True, stops=True, bans="logit_bias")
    assert model.offers.notes == ()


# Scene 3, below, has sentences taken back; with threshold 1 others have, too.
@pytest.mark.parametrize(("number", "threshold"), [(0, 0.0), (1, 1.0)])
@pytest.mark.slow
def test_confirm_is_that_of_the_local_model(
    model: seewhen.Remote, loaded: Any, number: int, threshold: float
) -> None:
    method = f"{CONFIRM},threshold={threshold}"
    here = local(loaded, number, method)
    there = model.generate(scene(number), ASK, method, max_new_tokens=LENGTH)
    assert there.text == here.text
    assert there.told is not None
    same_verdicts(here.trace.told[0], there.told)


@pytest.mark.parametrize("offers", [{"bans": ""}, {"bans": "", "stops": False}])
@pytest.mark.slow
def test_a_server_that_offers_less_gives_the_same_answer(
    model: seewhen.Remote, loaded: Any, offers: dict[str, Any]
) -> None:
    here = local(loaded, 3, CONFIRM)
    there = with_offers(model, **offers).generate(scene(3), ASK, CONFIRM, max_new_tokens=LENGTH)
    assert here.trace.told[0]["taken_back"]
    assert there.text == here.text
    assert there.told is not None
    same_verdicts(here.trace.told[0], there.told)


def test_words_are_forbidden_by_the_numbers_of_tokens(
    server: Running, loaded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer stays that of the local model, and what was forbidden does not come back."""
    method = f"{CONFIRM},threshold=1"
    here = local(loaded, 3, method)
    with faulty(numbering(server.url, loaded[1].tokenizer)) as engine:
        model = seewhen.remote(engine.url, MODEL)
        assert model.offers.bans == "logit_bias" and model.offers.notes == ()
        found = recorded(model, monkeypatch)
        there = model.generate(scene(3), ASK, method, max_new_tokens=LENGTH)
        model.close()
    assert here.trace.told[0]["taken_back"] and there.text == here.text
    assert there.told is not None
    same_verdicts(here.trace.told[0], there.told)
    forbidding = [(set(asked["logit_bias"]), said) for asked, said in found if "logit_bias" in asked]
    assert forbidding and not any("bad_words" in asked for asked, _ in found)
    for numbers, said in forbidding:
        assert numbers.isdisjoint(str(piece.number) for piece in said.pieces)


def test_numbers_that_do_not_fit_the_tokens_are_not_believed(server: Running, loaded: Any) -> None:
    with faulty(numbering(server.url, loaded[1].tokenizer, one_short=True)) as engine:
        model = seewhen.remote(engine.url, MODEL)
        assert model.offers.bans == "" and "logit_bias" in " ".join(model.offers.notes)
        model.close()


def test_without_continuing_every_object_still_has_its_verdict(model: seewhen.Remote) -> None:
    less = with_offers(model, continues=False, bans="", stops=False)
    found = less.generate(scene(3), ASK, CONFIRM, max_new_tokens=LENGTH)
    assert found.told is not None and found.told["taken_back"]
    assert all(each["verdict"] == "confirmed" for each in found.told["verdicts"])
    assert any("go on in words" in note for note in found.notes)


def test_an_answer_in_another_language_has_a_note(model: seewhen.Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not model.generate(scene(0), ASK, CONFIRM, max_new_tokens=16).notes
    monkeypatch.setattr("seewhen.verdicts.lexicon._may_be_english", lambda text: False)
    (note,) = model.generate(scene(0), ASK, CONFIRM, max_new_tokens=16).notes
    assert "not English, but the lexicon is" in note


@pytest.mark.parametrize("number", [2, 3])
def test_without_continuing_only_a_first_sentence_stays_denied(model: seewhen.Remote, number: int) -> None:
    """The packaged model heeds no words, and to the open lexicon the place it names first is an object."""
    less = with_offers(model, continues=False, bans="", stops=False)
    found = less.generate(scene(number), ASK, "confirm:verdict=asking,lexicon=open", max_new_tokens=LENGTH)
    assert found.told is not None and found.told["taken_back"]
    assert any(each["verdict"] == "denied" for each in found.told["verdicts"])
    assert found.text.count(".") == 1


def test_mark_and_stop_change_no_word_that_stays(model: seewhen.Remote, loaded: Any) -> None:
    regular = local(loaded, 3, "regular").text
    marked = model.generate(scene(3), ASK, f"{CONFIRM},on_denied=mark", max_new_tokens=LENGTH)
    stopped = model.generate(scene(3), ASK, f"{CONFIRM},on_denied=stop", max_new_tokens=LENGTH)
    assert marked.text == regular and regular.startswith(stopped.text)
    assert stopped.text == local(loaded, 3, f"{CONFIRM},on_denied=stop").text


def test_check_is_that_of_the_local_model(model: seewhen.Remote, loaded: Any) -> None:
    here = seewhen.check(*loaded, scene(2), TEXT, lexicon="coco", verdict="asking")
    there = model.check(scene(2), TEXT, lexicon="coco")
    assert [each.object for each in there.mentions] == [each.object for each in here.mentions]
    for one, other in zip(here.mentions, there.mentions, strict=True):
        assert one.verdict == other.verdict
        assert one.odds == pytest.approx(other.odds, abs=1e-3)
    assert model.check(scene(2), "It is nice.").mentions == ()


def test_regular_greedy_and_sampled(model: seewhen.Remote, loaded: Any) -> None:
    assert model.generate(scene(1), ASK, max_new_tokens=LENGTH).text == local(loaded, 1, "regular").text
    hot: dict[str, Any] = {"do_sample": True, "temperature": 1.5, "max_new_tokens": 24}
    one, two, again = (model.generate(scene(1), ASK, seed=seed, **hot).text for seed in (1, 2, 1))
    assert one == again != two


def test_min_p_is_sent(model: seewhen.Remote) -> None:
    hot: dict[str, Any] = {"do_sample": True, "temperature": 2.0, "max_new_tokens": 24}
    greedy = model.generate(scene(1), ASK, max_new_tokens=24).text
    assert model.generate(scene(1), ASK, "min-p:min_p=1.0", **hot).text == greedy


def test_sampled_confirm_repeats_and_keeps_its_promise(model: seewhen.Remote) -> None:
    hot: dict[str, Any] = {"do_sample": True, "temperature": 1.2, "max_new_tokens": 64, "seed": 5}
    one, again = (model.generate(scene(3), ASK, CONFIRM, **hot) for _ in range(2))
    assert one.text == again.text and one.told == again.told
    assert one.told is not None and one.told["verdicts"]


def test_settled_text_comes_sentence_by_sentence(model: seewhen.Remote) -> None:
    pieces: list[str] = []
    found = model.generate(scene(3), ASK, CONFIRM, max_new_tokens=LENGTH, settled=pieces.append)
    assert "".join(pieces) == found.text and len(pieces) > 1


def test_what_it_costs_is_counted(model: seewhen.Remote) -> None:
    before = model.usage
    found = model.generate(scene(0), ASK, max_new_tokens=8)
    assert found.usage.requests == 1 and found.usage.completion_tokens == found.tokens == 8
    assert found.usage.prompt_tokens > 0
    assert model.usage == before + found.usage


@pytest.mark.parametrize("method", ["cai", "vcd", "opera"])
def test_methods_inside_the_model_are_refused(model: seewhen.Remote, method: str) -> None:
    with pytest.raises(UnsupportedMode, match="inside the model"):
        model.generate(scene(0), ASK, method)


def test_when_needs_entropies(model: seewhen.Remote) -> None:
    with pytest.raises(UnsupportedMode, match="entropies"):
        model.generate(scene(0), ASK, "confirm:when=0.5")
    with pytest.raises(InvalidMethod):
        model.generate(scene(0), ASK, "nothing")


def test_drafts_are_refused(model: seewhen.Remote) -> None:
    with pytest.raises(UnsupportedMode, match="served model") as refused:
        model.generate(scene(0), ASK, "confirm:drafts=4")
    assert "drafts=0" in str(refused.value)
