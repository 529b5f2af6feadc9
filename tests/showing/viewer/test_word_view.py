"""The word view in a real browser: keys anywhere, pins, what is new, links and files that show the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from seewhen.showing.viewer.checked import write_checked
from seewhen.showing.viewer.page import page_html, write_page
from seewhen.showing.viewer.word_risk import SMALL, differing
from showing.viewer.axe import violations
from showing.viewer.browser import Browser
from showing.viewer.page_data import payload_of
from showing.viewer.test_browser import SELECTED

Opened = Callable[..., Browser]
SHOWN = "[state.answer, state.token, state.pinned, state.kind, state.layer, state.look]"


def test_keys_work_on_the_whole_page(opened: Opened) -> None:
    browser = opened()
    browser.run("document.activeElement.blur()")
    for key, place in (("ArrowRight", [0, 1]), ("ArrowDown", [1, 1]), ("Home", [1, 0])):
        browser.run("document.activeElement.blur()")
        browser.key(key)
        assert browser.run(SELECTED) == place, key
    browser.run("at('play').focus()")
    browser.key("ArrowRight")
    assert browser.run(SELECTED) == [1, 1]
    for field in ("map-look", "map-kind"):
        browser.run(f"at('{field}').focus()")
        browser.key("End")
        assert browser.run(SELECTED) == [1, 1], "the keys of a field are its own"


def test_a_click_pins_and_escape_lets_go(opened: Opened) -> None:
    browser = opened()
    browser.click(".answer:nth-child(1) .word:nth-of-type(3)")
    assert browser.run("document.querySelectorAll('.word.pinned').length") == 1
    assert browser.run(SELECTED) == [0, 2]
    browser.hover(".answer:nth-child(2) .word:nth-of-type(5)")
    assert browser.run(SELECTED) == [0, 2], "pinned"
    browser.key("ArrowRight")
    assert browser.run(SELECTED) == [0, 3] and browser.run("spans(0)[3].classList.contains('pinned')")
    browser.key("Escape")
    assert browser.run("document.querySelectorAll('.word.pinned').length") == 0
    browser.hover(".answer:nth-child(2) .word:nth-of-type(4)")
    assert browser.run(SELECTED) == [1, 3]
    for _ in range(2):
        browser.click(".answer:nth-child(1) .word:nth-of-type(2)")
    assert not browser.run("state.pinned"), "a second click lets go, too"
    browser.click(".answer:nth-child(1) .word:nth-of-type(2)")
    browser.run("at('unpin').click()")
    assert not browser.run("state.pinned") and browser.run("at('unpin').hidden")


def test_new_words_are_those_of_the_terminal(opened: Opened) -> None:
    browser = opened()
    assert set(browser.run("[...SMALL]")) == SMALL
    first = ["A", " dog", " sits", " on", " the", " mat", ".", " Two", " cats"]
    second = ["The", " mat", ",", " a", " Dog", " and", " two", " birds", " are", " 3"]
    words = [json.dumps([{"text": text} for text in each]) for each in (first, second)]
    found = browser.run(f"[...fresh({words[1]}, new Set({words[0]}.map(bare)))]")
    assert set(found) == differing(first, second) == {7, 9}


def test_a_copied_link_shows_the_same(opened: Opened, page: Path) -> None:
    browser = opened()
    browser.run("spans(1)[4].click(); cycle('map-kind', 2); cycle('map-layer', 1); cycle('map-look', 1)")
    before = browser.run(SHOWN)
    assert before[2:] == [True, "before", "2", "heat"]
    browser.call("Browser.grantPermissions", permissions=["clipboardReadWrite"])
    browser.click("#copy")
    browser.wait("at('announce').textContent === 'The link is copied.'")
    link = browser.run("location.href")
    assert link.startswith(page.as_uri() + "#")
    browser.open("about:blank#")
    browser.open(link)
    assert browser.run(SHOWN) == before and browser.complaints() == []
    browser.open(page.as_uri() + "#answer=77&token=9999&map=nonsense&layer=x&look=y&run=none")
    assert browser.complaints() == [] and browser.run("DATA.answers.length") == 3, "a broken link is no harm"


@pytest.mark.parametrize("several", [False, True])
def test_saved_as_one_file(browser: Browser, page: Path, tmp_path: Path, several: bool) -> None:
    payload = payload_of(page)
    if several:
        samples = [{**payload, "id": f"no {number}", "note": "", "wrong": None} for number in (1, 2)]
        page = write_page(tmp_path / "several.html", {"format": 1, "samples": samples, "rest": ""})
    browser.open(page)
    browser.run("spans(1)[0].click()")
    name = "seen-no-1.html" if several else "seen-scene.html"
    saved = browser.downloaded("at('save').click()", tmp_path / "saved") / name
    browser.open(saved)
    assert browser.complaints() == [] and browser.requests() == []
    assert browser.run("document.querySelectorAll('.answer').length") == 3
    found = payload_of(saved)
    assert {key: found[key] for key in payload} == payload
    assert browser.run("at('browse').hidden") and browser.run("at('map-kind').options.length") == 5
    again = browser.downloaded("at('save').click()", tmp_path / "again") / name
    assert payload_of(again) == found, "a saved page saves itself"


def test_evidence_is_offered_where_there_is_some(browser: Browser, page: Path, tmp_path: Path) -> None:
    """Traces of the library have none: the map that is named is the map that is drawn."""
    payload = payload_of(page)
    for answer in payload["answers"]:
        answer["maps"].pop("similarity", None)
    browser.open(write_page(tmp_path / "library.html", payload))
    browser.run("spans(1)[0].click()")
    assert browser.run("[...at('map-kind').options].map((each) => each.value)[0]") == "weights"
    assert browser.run("[state.kind, at('map-kind').value]") == ["weights", "weights"]


def test_the_file_without_an_answer_does_nothing(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "empty.html"
    path.write_text(page_html(None))
    browser.open(path)
    assert browser.complaints() == []


@pytest.mark.parametrize(("dark", "phone"), [(False, False), (True, True)])
def test_nothing_for_axe_to_find(opened: Opened, dark: bool, phone: bool) -> None:
    browser = opened(width=390 if phone else 1280, height=844, dark=dark, phone=phone)
    browser.run("spans(1)[1].click(); document.querySelector('details').open = true")
    assert violations(browser) == []


@pytest.mark.parametrize("dark", [False, True])
def test_nothing_for_axe_to_find_on_a_checked_text(browser: Browser, tmp_path: Path, dark: bool) -> None:
    said = {"denied": (-1.2, 0.2), "confirmed": (1.2, 0.8), "not asked": (None, None)}
    path, picture = tmp_path / "checked.html", Image.new("RGB", (300, 200), "red")
    for verdict, (odds, chance) in said.items():
        mention = {"object": "dog", "text": "dog", "start": 2, "end": 5, "verdict": verdict}
        mentions = [{**mention, "odds": odds, "probability": chance}]
        checked = {"text": "A dog.", "notes": ["A note."], "mentions": mentions}
        write_checked(path, checked, picture, "red", "a model")
        browser.open(path, width=390 if dark else 1280, height=844, dark=dark, phone=dark)
        assert violations(browser) == [] and browser.complaints() == []
