"""Verdicts on the page: struck words, odds, and sentences taken back that can be unfolded, in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seewhen.showing.viewer.object_words import Verdicts
from showing.viewer.browser import Browser
from showing.viewer.page_data import payload_of
from showing.viewer.test_browser import CONTRAST

METHODS = "regular,confirm:coco:threshold=1,confirm:coco:threshold=1:on_denied=mark"


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packaged model on a scene: regular, what is left when asked strictly, and the same only marked."""
    from seewhen.asking.one_picture import PictureQuestion
    from seewhen.asking.opening import open_model
    from seewhen.asking.options import DESCRIBE
    from seewhen.cli.options import DecodingFlags, ModelFlags
    from seewhen.cli.output import Shown, about
    from seewhen.methods.grammar import choose, split_methods
    from seewhen.scenes import render, sample
    from seewhen.showing.viewer.page import write_page

    image, model, decoding = render(sample("shifted", 3)), ModelFlags(), DecodingFlags(max_new_tokens=48)
    asked = PictureQuestion(open_model(model.model, model.loading()), image, DESCRIBE, decoding)
    replies = [asked.answer(chosen, full=True) for chosen in choose(split_methods(METHODS))]
    page = Shown(asked.asker, replies).page(
        image, "scene.png", about(model, decoding, asked.asker, "scene.png", DESCRIBE)
    )
    return write_page(tmp_path_factory.mktemp("judged") / "seen.html", page)


@pytest.fixture
def answers(judged: Path) -> list[dict[str, Any]]:
    regular, confirmed, marked = payload_of(judged)["answers"]
    assert regular["asked"] is None
    assert confirmed["asked"]["taken_back"] and not marked["asked"]["taken_back"]
    assert any(word.get("asked", {}).get("verdict") == "denied" for word in marked["words"])
    return [regular, confirmed, marked]


WORDS = st.lists(st.from_regex(r" ?[a-z]{1,4}", fullmatch=True), min_size=1)


@given(WORDS, st.data())
def test_characters_become_words(words: list[str], data: st.DataObject) -> None:
    text = "".join(words)
    lead = len(text) - len(text.lstrip())
    first = data.draw(st.integers(0, len(words) - 1))
    last = data.draw(st.integers(first, len(words) - 1))
    start = len("".join(words[:first])) + words[first].startswith(" ") - lead
    end = len("".join(words[: last + 1])) - lead
    after = max(len("".join(words[:first])) - lead, 0)
    said = {"object": "cat", "verdict": "denied", "odds": -1.0, "probability": 0.3}
    told = {
        "verdicts": [{**said, "start": start, "end": end}],
        "taken_back": [{"text": "No.", "after": after, "denied": []}],
    }
    found = Verdicts(words, {**told, "asked": 1, "steps": 9, "tokens": 5})
    assert found.of_words() == dict.fromkeys(range(first, last + 1), said)
    assert found.summary()["taken_back"] == [{"text": "No.", "before": first, "denied": []}]


def test_denied_words_are_struck_and_confirmed_ones_carry_their_odds(
    browser: Browser, judged: Path, answers: list[dict[str, Any]]
) -> None:
    browser.open(judged)
    assert browser.complaints() == [] and browser.requests() == []
    for number, answer in enumerate(answers):
        said = [word.get("asked", {}).get("verdict") for word in answer["words"]]
        struck = f"[...spans({number})].map((s) => getComputedStyle(s).textDecorationLine === 'line-through')"
        assert browser.run(struck) == [verdict == "denied" for verdict in said]
        if number == 0:
            continue
        index = next(i for i, verdict in enumerate(said) if verdict)
        word = answer["words"][index]["asked"]
        label = browser.run(f"spans({number})[{index}].getAttribute('aria-label')")
        chance = browser.run(f"percent({word['probability']})")
        assert f"“{word['object']}” is {said[index]}: {chance} likely to be there" in label
        browser.run(f"spans({number})[{index}].focus()")
        assert chance in browser.run("at('word-facts').textContent")


def test_a_sentence_taken_back_unfolds_at_its_place(
    browser: Browser, judged: Path, answers: list[dict[str, Any]]
) -> None:
    browser.open(judged)
    said = answers[1]["asked"]["taken_back"][0]
    fold = "at('answers').children[1].querySelector('.back')"
    assert browser.run(f"{fold}.querySelector('.unsaid').hidden") is True
    following = browser.run(f"{fold}.nextElementSibling && {fold}.nextElementSibling.textContent.trim()")
    rest = "".join(word["text"] for word in answers[1]["words"][said["before"] :]).strip()
    assert following == (rest or "(it ended here)") or (rest and rest.startswith(following))
    browser.run(f"{fold}.querySelector('button').focus()")
    browser.key("Enter")
    assert browser.run(f"{fold}.querySelector('button').getAttribute('aria-expanded')") == "true"
    text = browser.run(f"{fold}.querySelector('.said').textContent")
    assert text.startswith(f"It wanted to say: {said['text']} Denied: ")
    chances = [browser.run(f"percent({each['probability']})") for each in said["denied"]]
    assert all(chance in text for chance in chances)
    browser.run("spans(1)[0].focus()")
    browser.key("t")  # something is open, something may be closed
    browser.key("t")
    opened = "[...document.querySelectorAll('.back button')].map((b) => b.getAttribute('aria-expanded'))"
    assert len(set(browser.run(opened))) == 1


@pytest.mark.parametrize(("verdict", "odds", "said"), [("denied", 0.4, "yes"), ("confirmed", -0.3, "no")])
def test_what_it_said_is_told_by_its_odds_and_not_by_the_verdict(
    browser: Browser, judged: Path, verdict: str, odds: float, said: str
) -> None:
    """A fitted verdict, or a threshold, may deny what the model says yes to, and the other way round."""
    browser.open(judged)
    each = f"{{object: 'cat', verdict: '{verdict}', odds: {odds}, probability: 0.2}}"
    sign = "−" if odds < 0 else "+"
    told = f"20% likely to be there; asked, it said {said}, log-odds {sign}{abs(odds)}"
    assert browser.run(f"verdictNote({each})").replace(" %", "%") == f"“cat” is {verdict}: {told}"
    back = browser.run(f"backNote({{text: 'A cat.', denied: [{each}]}}).map((e) => e.textContent).join('')")
    assert back.replace(" %", "%") == f"It wanted to say: A cat. Denied: cat ({told})"
    drafted = browser.run(f"verdictNote({{...{each}, elsewhere: 0.75}})").replace(" %", "%")
    assert drafted == f"“cat” is {verdict}: {told}; in 75% of its drafts"
    marked = f"((span) => {{ verdictMark(span, {{asked: {each}}}); return span.outerHTML }})(element('b'))"
    html = browser.run(marked)
    assert f"said-{said}" in html and ("denied" in html) == (verdict == "denied")


def test_only_words_are_in_lists_of_words(browser: Browser, judged: Path) -> None:
    browser.open(judged)
    within = "[...document.querySelectorAll('[role=listbox] *')]"
    assert browser.run(f"{within}.filter((e) => !e.closest('[role=option]')).length") == 0
    assert browser.run("[...document.querySelectorAll('[role=option]')].every((e) => e.closest('[role=listbox]'))")
    for key in ("End", "Home"):  # keys walk across what was taken back
        browser.run("spans(1)[0].focus()")
        browser.key(key)
        last = "DATA.answers[1].words.length - 1"
        assert browser.run(f"wordOf(DATA.answers[1], state.token) === {last if key == 'End' else 0}")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("phone", [False, True])
def test_verdicts_are_readable_on_every_screen(browser: Browser, judged: Path, dark: bool, phone: bool) -> None:
    width = 360 if phone else 1280
    browser.open(judged, width=width, height=740, dark=dark, phone=phone)
    browser.run("unfoldAll(1)")
    assert browser.run("document.documentElement.scrollWidth") <= width
    least, where = browser.run(CONTRAST.replace("'.word,", "'.word, .said, .said del, .back button,"))
    assert least >= 4.5, where
    heights = "[...document.querySelectorAll('.back button')].map((b) => b.offsetHeight)"
    assert min(browser.run(heights)) >= 24


def test_averages_stand_under_the_answers(browser: Browser, judged: Path) -> None:
    browser.open(judged)
    assert browser.run("at('averages').hidden")
    row = "{method: 'confirm', mode: 'sampled', chair_i: 25.6, chair_i_low: 23, chair_i_high: 28.1, recall: 60.2"
    rows = f"[{row}, captions: 2210}}, {row}, captions: 442}}]"
    browser.run(f"DATA.averages = {{model: 'photo', rows: {rows}}}; buildAverages()")
    cells = "[...at('averages-rows').querySelectorAll('th, td')].map((cell) => cell.textContent)"
    line = ["confirm", "25.6 (23.0 to 28.1)", "", "60.2"]
    assert browser.run(cells) == ["sampled", *line, "2210", *line, "442"]
    assert browser.run("at('answers').getBoundingClientRect().y < at('averages').getBoundingClientRect().y")


def test_words_on_the_terminal(answers: list[dict[str, Any]]) -> None:
    from seewhen.cli.output import coloured, fired_line

    regular, confirmed, _ = answers
    back = len(confirmed["asked"]["taken_back"])
    assert fired_line(confirmed) == f"asked about {confirmed['asked']['asked']}, took back {back}"
    assert fired_line(regular) == "-"
    for answer in answers:
        text = coloured(answer)
        struck = "".join(text.plain[span.start : span.end] for span in text.spans if "strike" in str(span.style))
        denied = [w["text"] for w in answer["words"] if w.get("asked", {}).get("verdict") == "denied"]
        assert struck == "".join(denied).replace(" ", "")
