"""The page in a real browser: hover, keys, comparison, phone, dark, and a model that writes markup."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from seewhen.showing.viewer.word_risk import SMALL
from showing.viewer.browser import Browser
from showing.viewer.conftest import EVIL
from showing.viewer.page_data import payload_of

Opened = Callable[..., Browser]
OVERLAY = "at('overlay').toDataURL()"
SELECTED = "[state.answer, wordOf(DATA.answers[state.answer], state.token)]"

# The lowest contrast of any text with what is behind it (WCAG's formula), and whose it is.
CONTRAST = """(() => {
  const linear = (v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  const found = [...document.querySelectorAll('.word, .quiet, h2, h3, kbd, label, button')].map((e) => {
    const both = [light(parse(getComputedStyle(e).color)), light(behind(e))];
    return [(Math.max(...both) + 0.05) / (Math.min(...both) + 0.05), e.className || e.tagName];
  });
  return found.sort((x, y) => x[0] - y[0])[0];
})()"""


def test_it_opens_without_a_request_or_a_complaint(opened: Opened) -> None:
    browser = opened()
    assert browser.requests() == []
    assert browser.complaints() == []
    assert browser.run("document.querySelectorAll('.answer').length") == 3


def test_hovering_a_word_shows_its_map(opened: Opened, page: Path) -> None:
    browser = opened()
    before = browser.run(OVERLAY)
    browser.hover(".answer:nth-child(2) .word:nth-of-type(5)")
    assert browser.run(SELECTED) == [1, 4]
    assert browser.run(OVERLAY) != before
    word = payload_of(page)["answers"][1]["words"][4]
    assert browser.run("at('word-title').textContent") == f"“{word['text'].strip()}”"
    assert word["text"].strip() in browser.run("at('overlay').getAttribute('aria-label')")


def test_the_overlay_is_darkest_where_the_map_is_lowest(opened: Opened, page: Path) -> None:
    import base64

    browser = opened()
    packed = payload_of(page)["answers"][0]["maps"]["similarity"][0]
    values = list(base64.b64decode(packed["bytes"]))
    alphas = browser.run(
        "(() => { const c = at('overlay'), x = c.getContext('2d'); const out = [];"
        "for (let r = 0; r < 4; r++) for (let k = 0; k < 4; k++)"
        " out.push(x.getImageData((k + 0.5) * c.width / 4, (r + 0.5) * c.height / 4, 1, 1).data[3]);"
        " return out; })()"
    )
    for value, alpha in zip(values, alphas, strict=True):
        assert alpha == pytest.approx(0.84 * (255 - value), abs=3)


def test_keys_walk_through_words_answers_and_maps(opened: Opened) -> None:
    browser = opened()
    for key, place in (
        ("ArrowRight", [0, 1]),
        ("ArrowRight", [0, 2]),
        ("ArrowLeft", [0, 1]),
        ("ArrowDown", [1, 1]),
        ("ArrowDown", [2, 1]),
        ("ArrowUp", [1, 1]),
        ("Home", [1, 0]),
    ):
        browser.key(key)
        assert browser.run(SELECTED) == place, key
    assert browser.run("document.activeElement.getAttribute('aria-selected')") == "true"
    assert browser.run("document.querySelectorAll('.answer .word[aria-selected=true]').length") == 1
    browser.key("End")
    assert browser.run(f"{SELECTED}[1] === DATA.answers[1].words.length - 1")
    kinds = []
    for _ in range(5):
        browser.key("m")
        kinds.append(browser.run("state.kind"))
    assert kinds == ["weights", "before", "after", "change", "evidence"]
    browser.key("]")
    assert browser.run("state.layer") == "2"


def test_attention_before_and_after_differ_where_it_fired(opened: Opened, page: Path) -> None:
    browser = opened()
    answer = payload_of(page)["answers"][1]
    step = next(step for step, token in enumerate(answer["tokens"]) if token["fired"])
    shown = {}
    for kind in ("before", "after"):
        browser.run(f"state.kind = '{kind}'; select(1, {step})")
        shown[kind] = browser.run(OVERLAY)
        assert "Share of attention on the picture" in browser.run("at('map-note').textContent")
    assert shown["before"] != shown["after"]


def test_the_grid_selects_and_marks(opened: Opened, page: Path) -> None:
    browser = opened()
    browser.run("select(1, 0)")
    browser.run(
        "(() => { const b = at('grid').getBoundingClientRect(); at('grid').dispatchEvent("
        "new MouseEvent('click', {clientX: b.x + GUTTER + CELL * 3 + 7, clientY: b.y + 7})); })()"
    )
    assert browser.run("[state.token, state.layer]") == [3, "3"]
    fired = payload_of(page)["answers"][1]["fired"]
    assert f"Tilted {fired['tokens']} of {fired['of']} tokens" in browser.run(
        "at('grid').getAttribute('aria-label')"
    )


def test_what_is_new_is_marked(opened: Opened, page: Path) -> None:
    browser = opened()
    texts = [[word["text"].strip().lower() for word in answer["words"]] for answer in payload_of(page)["answers"]]
    assert texts[0] != texts[2]
    marked = browser.run("DATA.answers.map((_, i) => [...spans(i)].map((s) => s.classList.contains('differs')))")
    assert any(marked[0]) or any(marked[2])
    for number, words in enumerate(texts):
        others = set(texts[0]) if number else {*texts[1], *texts[2]}
        new = [re.search(r"\w", text) is not None and text not in SMALL | others for text in words]
        assert marked[number] == new


def test_an_answer_without_words_is_not_what_others_are_held_against(opened: Opened) -> None:
    """As where the first method of the live page failed."""
    browser = opened()
    worded = "({ words: text.split(' ').filter(Boolean) })"
    told = f"(...all) => news(all.map((text) => {worded})).map((found) => [...found])"
    assert browser.run(f"({told})('', 'red dog', 'red cat')") == [[], [1], [1]]
    assert browser.run(f"({told})('red dog', '')") == [[], []] == browser.run(f"({told})('', 'red dog')")
    assert browser.run(f"({told})('red dog', 'red cat', '')") == [[1], [1], []]


def test_a_word_that_is_none_of_the_likeliest_has_a_bound(opened: Opened) -> None:
    browser = opened()
    browser.run(
        "Object.assign(DATA.answers[0].tokens[0], { probability: null, runners: "
        "[0.3, 0.2, 0.1, 0.05, 0.04].map((probability, id) => ({ id, text: 'x', probability })) })"
    )
    browser.run("select(0, 0)")
    assert "chosen with probability below 4 %" in browser.run("at('word-facts').textContent")
    browser.run("DATA.answers[0].tokens[0].runners.pop(); select(0, 0)")
    assert "chosen with" not in browser.run("at('word-facts').textContent")


def test_words_carry_labels(opened: Opened, page: Path) -> None:
    browser = opened()
    word = payload_of(page)["answers"][0]["words"][0]
    label = browser.run("spans(0)[0].getAttribute('aria-label')")
    assert label.startswith(word["text"].strip()) and "risk" in label
    unnamed = "[...document.querySelectorAll('button, select, canvas:not([aria-hidden]), img, [role=listbox]')]"
    unnamed += ".filter((e) => !(e.labels && e.labels.length) && !e.getAttribute('aria-label'))"
    unnamed += ".filter((e) => !e.alt && !e.textContent)"
    assert browser.run(f"{unnamed}.map((e) => e.outerHTML)") == []


def test_play_walks_by_itself(opened: Opened) -> None:
    browser = opened()
    browser.run("at('play').click()")
    moved = "if (state.token > 0) { clearInterval(timer); done(true); }"
    assert browser.run(f"new Promise((done) => {{ const timer = setInterval(() => {{ {moved} }}, 50); }})") is True
    browser.run("at('play').click()")
    assert browser.run("state.timer") == 0


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("phone", [False, True])
def test_readable_on_every_screen(opened: Opened, dark: bool, phone: bool) -> None:
    width = 360 if phone else 1280
    browser = opened(width=width, height=740, dark=dark, phone=phone)
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run("at('play').getBoundingClientRect().height") < 45, "its word is on one line"
    least, where = browser.run(CONTRAST)
    assert least >= 4.5, where


def test_markup_from_a_model_is_shown_as_text(browser: Browser, evil_page: Path) -> None:
    browser.open(evil_page)
    assert browser.complaints() == [] and browser.requests() == []
    assert browser.run("document.title.endsWith(': What the model saw - seewhen')")
    assert browser.run("document.querySelectorAll('img').length") == 1
    assert browser.run("document.querySelectorAll('script').length") == 2
    assert browser.run("at('prompt').textContent") == EVIL
    assert json.dumps(EVIL)[1:-1] in json.dumps(browser.run("at('answers').textContent"))
