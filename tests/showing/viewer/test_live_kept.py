"""The live page in a real browser: verdicts, files to keep, questions it refuses, pictures it warns of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import seewhen
from runs.tiny_checkpoint import write
from server.loopback import Running, running
from showing.viewer.axe import violations
from showing.viewer.browser import Browser
from showing.viewer.page_data import embedded, payload_of
from showing.viewer.test_live import MADE, WATCH, answered, opened

PASTE = "document.dispatchEvent(new ClipboardEvent('paste', { clipboardData: data }))"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(seewhen.load("packaged", device="cpu"), temperature=0.0) as started:
        yield started


@pytest.fixture(scope="module")
def judged(server: Running) -> Iterator[Browser]:
    """Two answers of `confirm`: what it denies is said differently in one, and struck in the other."""
    with Browser() as browser:  # its own: other tests leave the page
        yield _judged(opened(browser, server))


def _judged(browser: Browser) -> Browser:
    browser.run("at('max-tokens').value = 48")
    for row, on_denied in ((0, "again"), (1, "mark")):
        browser.run(f"choose(chooser.rows[{row}].box.querySelector('select'), 'confirm')")
        browser.run(f"choose(chooser.rows[{row}].box.querySelectorAll('select')[1], 'coco')")
        field = f"at('p-{row}-threshold')"
        browser.run(f"{field}.value = 1; {field}.dispatchEvent(new Event('input'))")
        browser.run(f"choose(at('p-{row}-on_denied'), '{on_denied}')")
    browser.run(WATCH)
    answered(browser)
    assert browser.run("DATA.answers.map((answer) => answer.problem || '')") == ["", ""]
    return browser


def test_verdicts_stand_on_the_live_page(judged: Browser) -> None:
    assert judged.run("seen.filter((each) => each[2] && each[1]).length") > 0, "words came before the end"
    for number in (0, 1):
        said = judged.run(f"DATA.answers[{number}].words.map((word) => word.asked ? word.asked.verdict : '')")
        assert any(said)
        struck = f"[...spans({number})].map((s) => getComputedStyle(s).textDecorationLine === 'line-through')"
        assert judged.run(struck) == [verdict == "denied" for verdict in said]
        assert ("denied" in said) == (number == 1)
        index = next(i for i, verdict in enumerate(said) if verdict)
        judged.run(f"spans({number})[{index}].click()")
        word = judged.run(f"DATA.answers[{number}].words[{index}].asked")
        assert f"“{word['object']}” is {word['verdict']}: " in judged.run("at('word-facts').textContent")
    assert "denied" in judged.run("at('legend').textContent")


def test_sentences_taken_back_unfold_on_the_live_page(judged: Browser) -> None:
    back = judged.run("DATA.answers[0].asked.taken_back")
    assert back and not judged.run("DATA.answers[1].asked.taken_back.length")
    judged.run("spans(0)[0].focus()")
    judged.key("t")
    said = judged.run("[...at('answers').children[0].querySelectorAll('.said')].map((e) => e.textContent)")
    assert len(said) == len(back)
    for text, each in zip(said, back, strict=True):
        assert text.startswith(f"It wanted to say: {each['text']} Denied: ")
    judged.key("t")
    assert judged.run("document.querySelector('.unsaid').hidden")
    assert judged.complaints() == []
    assert violations(judged) == []


def test_a_comparison_is_saved_as_a_page_that_needs_no_server(judged: Browser, tmp_path: Path) -> None:
    answers = judged.run("DATA.answers.map((answer) => answer.text)")
    saved = judged.downloaded("at('save').click()", tmp_path)
    (page,) = saved.iterdir()
    assert [answer["text"] for answer in payload_of(page)["answers"]] == answers
    with Browser() as other:
        other.open(page)
        assert other.complaints() == [] and other.requests() == []
        assert other.run("DATA.answers.map((answer) => answer.text)") == answers
        assert other.run("document.querySelectorAll('.word.denied').length") > 0
        assert other.run("at('prompt').textContent") == "Please describe this image in detail."


def test_shared_as_a_file_where_the_system_can(browser: Browser, server: Running) -> None:
    # Chromium without a desktop has no way to share; what the page hands over is looked at here.
    stub = "navigator.canShare = () => true; navigator.share = async (what) => { window.handed = what; };"
    found = browser.call("Page.addScriptToEvaluateOnNewDocument", source=stub)
    opened(browser, server)
    browser.call("Page.removeScriptToEvaluateOnNewDocument", identifier=found["identifier"])
    browser.run("at('max-tokens').value = 2")
    answered(browser)
    assert not browser.run("at('share').hidden")
    browser.run("at('share').click()")
    browser.wait("window.handed")
    assert browser.run("[handed.files.length, handed.files[0].type]") == [1, "text/html"]
    shared = json.loads(embedded(browser.run("handed.files[0].text()")))
    assert [answer["text"] for answer in shared["answers"]] == browser.run("DATA.answers.map((each) => each.text)")


def test_a_blank_question_is_refused(browser: Browser, server: Running) -> None:
    opened(browser, server)
    browser.run("at('question').value = '  \\n '")
    browser.run("at('go').click()")
    assert browser.run("at('problem').textContent") == "Write a question first."
    assert browser.run("[document.activeElement.id, DATA.answers.length]") == ["question", 0]
    assert not [url for url in browser.requests() if "completions" in url]


def test_a_photograph_for_the_packaged_model(browser: Browser, server: Running) -> None:
    opened(browser, server)
    assert browser.run("at('foreign').hidden")
    browser.run(MADE)
    browser.run(f"made(300, 200).then((data) => {PASTE})")
    browser.wait("!at('foreign').hidden")
    told = browser.run("at('foreign').innerText")
    assert browser.run("at('foreign').offsetHeight") <= 80, "a hint, not the largest thing on the page"
    assert "only knows drawn scenes" in told and "seewhen serve --model photo" in told
    assert browser.run("at('use-photo').hidden") and violations(browser) == []
    browser.run("document.querySelector('#scenes button').click()")
    assert browser.run("at('foreign').hidden")


def test_the_model_for_photographs_is_offered(browser: Browser, server: Running, tmp_path: Path) -> None:
    """Where it is served: told by the place it was loaded from, as the shipped verdicts are."""
    folder = tmp_path / "seewhen" / "photo-tiny"
    folder.mkdir(parents=True)
    photo = seewhen.load(write(folder), device="cpu")
    with running(seewhen.load("packaged", device="cpu"), others={"photo": photo}) as both:
        opened(browser, both)
        browser.run(MADE)
        browser.run(f"made(300, 200).then((data) => {PASTE})")
        browser.wait("!at('foreign').hidden")
        browser.run("at('use-photo').click()")
        assert browser.run("[at('model').value, at('foreign').hidden]") == ["photo", True]


@pytest.mark.parametrize(("dark", "phone"), [(False, False), (True, True)])
def test_nothing_for_axe_to_find(browser: Browser, server: Running, dark: bool, phone: bool) -> None:
    opened(browser, server, width=390 if phone else 1280, height=844, dark=dark, phone=phone)
    browser.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert violations(browser) == []
    browser.run("at('max-tokens').value = 5")
    answered(browser)
    assert violations(browser) == [] and browser.complaints() == []
