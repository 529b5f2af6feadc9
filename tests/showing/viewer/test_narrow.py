"""On a phone: no word of a table is broken, more behind an edge is seen to be there, plots can be read."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

import seewhen
from runs.test_sweep import made_up
from seewhen.runs.sweep import write_sweep
from seewhen.runs.tried import Said
from seewhen.showing.viewer.checked import write_checked
from seewhen.showing.viewer.tried import _taken_back
from showing.viewer.axe import violations
from showing.viewer.browser import Browser
from showing.viewer.test_report_pages import groups, report, runs  # noqa: F401  fixtures
from showing.viewer.test_tried_page import tried  # noqa: F401  a fixture

# Words of tables that stand on two lines; a hyphen and a bracket may end a line.
BROKEN = """[...document.querySelectorAll('th, td')].flatMap((cell) => {
  const walk = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), found = [];
  for (let node; (node = walk.nextNode());) for (const word of node.data.matchAll(/[\\p{L}\\p{N}]+/gu)) {
    const range = document.createRange();
    range.setStart(node, word.index);
    range.setEnd(node, word.index + word[0].length);
    if (new Set([...range.getClientRects()].map((box) => Math.round(box.y))).size > 1) found.push(word[0]);
  }
  return found;
})"""


def edge(browser: Browser, selector: str) -> tuple[int, ...]:
    """The colour that most of a column of pixels at the right edge of a box has."""
    browser.run(f"document.querySelector('{selector}').scrollIntoView()")
    browser.run("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    place = f"(() => {{ const b = document.querySelector('{selector}').getBoundingClientRect();"
    x, y, width, height = browser.run(f"{place} return [b.x + scrollX, b.y + scrollY, b.width, b.height]; }})()")
    clip = {"x": x + width - 4, "y": y, "width": 1, "height": height, "scale": 1}
    found = browser.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
    picture = Image.open(io.BytesIO(base64.b64decode(found["data"]))).convert("RGB")
    return max(picture.getcolors() or [])[1]  # type: ignore[return-value]


def phone(browser: Browser, page: Path, dark: bool = False) -> None:
    browser.open(page, width=390, height=844, dark=dark, phone=True)


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checked") / "checked.html"
    mention = {"object": "dining table", "text": "table", "start": 2, "end": 7, "verdict": "confirmed"}
    denied = {"object": "dog", "text": "dog", "start": 9, "end": 12, "verdict": "denied", "odds": -2.0}
    mentions = [{**mention, "odds": -1.2, "probability": 0.2}, {**denied, "probability": 0.1}]
    text = {"text": "A table, dog.", "notes": [], "mentions": mentions}
    write_checked(path, text, Image.new("RGB", (30, 20), "red"), "red", "a model")
    return path


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six curves that lie on one another."""
    folder = tmp_path_factory.mktemp("swept")
    grid = {"start_layer": (1, 2, 3), "threshold": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)}
    write_sweep(made_up(grid, lambda start, gate: float(start)), folder)
    return folder / "sweep.html"


def test_a_checked_text(browser: Browser, checked: Path) -> None:
    phone(browser, checked)
    assert browser.run(BROKEN) == []
    assert "no, log-odds −1.20" in browser.run("document.body.innerText")
    lines = browser.run("[...document.querySelectorAll('td .whole')].map((e) => e.getClientRects().length)")
    assert lines == [1, 1], "a number stands beside its name"
    assert browser.run("document.documentElement.scrollWidth") <= 390


def test_a_denied_word_is_struck_and_its_verdict_is_not(browser: Browser, checked: Path) -> None:
    browser.open(checked)
    struck = """[...document.querySelectorAll('.words *, td')]
      .filter((e) => getComputedStyle(e).textDecorationLine === 'line-through').map((e) => e.textContent)"""
    assert browser.run(struck) == ["dog"]
    assert "denied" in browser.run("[...document.querySelectorAll('td')].map((e) => e.textContent)")


def test_a_report(browser: Browser, report: Path) -> None:  # noqa: F811
    phone(browser, report / "index.html")
    assert browser.run(BROKEN) == []


def test_methods_tried(browser: Browser, tried: seewhen.Tryout) -> None:  # noqa: F811
    phone(browser, tried.page)
    browser.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    methods = browser.run("[...document.querySelectorAll('tbody th')].map((e) => e.textContent).join(' ')")
    assert [word for word in browser.run(BROKEN) if word not in methods] == [], "only long names of methods are"


@pytest.fixture(params=["report", "tried"])
def scrolled(request: pytest.FixtureRequest) -> Iterator[tuple[Path, str]]:
    made = request.getfixturevalue(request.param)
    yield (
        (made / "index.html", '.wide[aria-label^="Scores"]')
        if request.param == "report"
        else (made.page, ".scroll")
    )


@pytest.mark.parametrize("dark", [False, True])
def test_what_goes_on_behind_the_edge_is_seen_to(browser: Browser, scrolled: tuple[Path, str], dark: bool) -> None:
    """A shadow lies at the right edge until the end is reached."""
    page, box = scrolled
    phone(browser, page, dark)
    assert browser.run(f"(b => b.scrollWidth - b.clientWidth)(document.querySelector('{box}'))") > 20
    goes_on = edge(browser, box)
    browser.run(f"document.querySelector('{box}').scrollLeft = 9999")
    ends = edge(browser, box)
    assert max(abs(a - b) for a, b in zip(goes_on, ends, strict=True)) >= 24, (goes_on, ends)


@pytest.mark.parametrize("dark", [False, True])
def test_curves_can_be_told_apart(browser: Browser, swept: Path, dark: bool) -> None:
    """By dashes too, and each stands out from the page; on a phone their letters are not small print."""
    phone(browser, swept, dark)
    style = "[...document.querySelectorAll('polyline.curve')].map((e) => getComputedStyle(e))"
    dashes = browser.run(f"{style}.map((s) => s.strokeDasharray)")
    assert len(dashes) == 6 == len(set(dashes))
    assert len(set(browser.run(f"{style}.map((s) => s.stroke)"))) == 6
    contrasts = browser.run(f"""(() => {{
      const linear = (v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
      const light = (text) => {{ const [r, g, b] = text.match(/[\\d.]+/g).map((v) => linear(Number(v)));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; }};
      const page = light(getComputedStyle(document.body).backgroundColor);
      const ratio = (l) => (Math.max(l, page) + 0.05) / (Math.min(l, page) + 0.05);
      return {style}.map((s) => ratio(light(s.stroke)));
    }})()""")
    assert min(contrasts) >= 3.0
    letters = "[...document.querySelectorAll('svg text')].map((e) => e.getBoundingClientRect().height)"
    assert min(browser.run(letters)) >= 9
    assert browser.run("document.documentElement.scrollWidth") <= 390
    assert "`" not in browser.run("document.body.innerText")
    assert violations(browser) == [] and browser.complaints() == []


def test_a_sentence_that_two_methods_took_back_is_told_once() -> None:
    class Record:
        def __init__(self, *texts: str) -> None:
            self.told = {"taken_back": [{"text": text, "denied": []} for text in texts]}

    def said(method: str, *texts: str) -> Said:
        return Said(method, Record(*texts), ())  # type: ignore[arg-type]

    found = _taken_back([said("confirm", "A cat.", "A dog.", "A cat."), said("cai+confirm", "A cat.", "An owl.")])
    assert [(each["text"], each["by"]) for each in found] == [
        ("A cat.", ["confirm", "cai+confirm"]),
        ("A dog.", ["confirm"]),
        ("A cat.", ["confirm"]),
        ("An owl.", ["cai+confirm"]),
    ]
