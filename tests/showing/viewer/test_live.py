"""The page of a running server in a real browser, with the packaged model behind it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import seewhen
from runs.tiny_checkpoint import write
from seewhen.server.limits import Limits
from server.loopback import MODEL, Running, held, question, running, until
from showing.viewer.browser import Browser
from showing.viewer.test_browser import CONTRAST, OVERLAY, SELECTED

KEY = "a-key-of-some-length"
SCENE = 3  # of the shifted part: the packaged model invents things there, and methods differ
WATCH = """
  window.seen = [];
  const stock = refresh;
  refresh = (number) => {
    stock(number);
    const answer = DATA.answers[number];
    seen.push([number, answer.tokens.length, Boolean(answer.busy), at("overlay").toDataURL()]);
    if (window.onToken) onToken(answer);
  };
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(seewhen.load("packaged", device="cpu"), temperature=0.0) as started:
        yield started


def opened(browser: Browser, server: Running, **options: bool | int) -> Browser:
    browser.open(f"{server.url}/", **options)  # type: ignore[arg-type]
    browser.wait("at('scenes').children.length === 6 && live.pictures.length")
    browser.run(f"document.querySelectorAll('#scenes button')[{SCENE}].click()")
    browser.run("window.choose = (e, value) => { e.value = value; e.dispatchEvent(new Event('change')); }")
    return browser


def answered(browser: Browser) -> None:
    """Ask by the button, and wait for the end."""
    browser.run("at('go').click()")
    browser.wait("DATA.answers.length && !live.abort")


def test_words_arrive_one_by_one_with_their_maps(browser: Browser, server: Running) -> None:
    opened(browser, server)
    browser.run("chooser.rows[0].box.querySelector('.choice button').click()")
    browser.run(WATCH)
    answered(browser)
    seen = browser.run("seen.filter((each) => each[2]).map((each) => each.slice(1))")
    counts = [count for count, _, _ in seen if count]
    assert counts == list(range(1, len(counts) + 1)) and len(counts) > 20
    assert len({overlay for count, _, overlay in seen if count}) > 10, "each word has a map of its own"
    url = browser.run("live.pictures[0].src")
    content = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": browser.run("DATA.prompt")},
    ]
    body = {"seewhen": {"method": "cai", "parameters": {"start_layer": 1}}}
    alone = server.client().chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": content}], max_tokens=96, temperature=0, extra_body=body
    )
    assert browser.run("DATA.answers[0].text") == alone.choices[0].message.content
    # The whole trace is there now: runners-up, attention, evidence, what is not in the picture.
    assert browser.run("at('runners').children.length") == 5
    assert "evidence for the word" in browser.run("at('map-note').textContent")
    assert browser.run("document.querySelectorAll('.word.there').length") > 0
    assert browser.run("document.querySelectorAll('.word.absent').length") > 0
    assert browser.run("DATA.answers[0].method.parameters.start_layer") == 1, "the operator's default"
    assert browser.complaints() == []
    assert {request.split("/")[2] for request in browser.requests()} == {f"127.0.0.1:{server.port}"}


def test_methods_side_by_side_and_keys(browser: Browser, server: Running) -> None:
    opened(browser, server)
    browser.run("at('question').focus()")
    browser.key("Enter")  # asks
    browser.wait("DATA.answers.length && !live.abort")
    assert browser.run("DATA.answers.map((answer) => answer.label)") == ["regular", "cai start_layer=1"]
    one, two = browser.run("DATA.answers.map((answer) => answer.text)")
    assert one != two
    assert browser.run(
        "DATA.answers.map((_, i) => [...spans(i)].some((s) => s.classList.contains('differs')))"
    ) == [
        True,
        True,
    ]
    browser.run("spans(0)[0].focus()")
    for key, place in (("ArrowRight", [0, 1]), ("ArrowDown", [1, 1]), ("Home", [1, 0])):
        before = browser.run(OVERLAY)
        browser.key(key)
        assert browser.run(SELECTED) == place
    assert browser.run(OVERLAY) != before
    browser.hover(".answer:nth-child(1) .word:nth-of-type(4)")
    assert browser.run(SELECTED) == [0, 3]


def test_stopping(browser: Browser, server: Running) -> None:
    opened(browser, server)
    browser.run(WATCH)
    browser.run("window.onToken = (answer) => { if (answer.tokens.length === 3) at('halt').click(); }")
    answered(browser)
    assert browser.run("DATA.answers.map((answer) => answer.ending)") == [" … (stopped)"] * 2
    assert browser.run("Math.max(...DATA.answers.map((answer) => answer.tokens.length))") == 3
    assert browser.run("[at('go').disabled, at('halt').disabled]") == [False, True]
    browser.run("window.onToken = null; at('max-tokens').value = 4")
    answered(browser)
    assert browser.run("DATA.answers.map((answer) => answer.tokens.length)") == [4, 4]
    assert "cut at the token limit" in browser.run("at('answers').textContent")


def test_sliders_and_presets_change_what_is_asked(browser: Browser, server: Running) -> None:
    opened(browser, server)
    browser.run("at('max-tokens').value = 3")
    box = "chooser.rows[1].box"
    browser.run(f"{box}.querySelector('details').open = true")
    field = (
        f"[...{box}.querySelectorAll('.parameters label')].find((e) => e.textContent === 'contrast').parentElement"
    )
    browser.run(f"{field}.querySelector('input[type=range]').focus()")
    for _ in range(4):
        browser.key("ArrowRight")
    value = browser.run(f"{field}.querySelector('input[type=number]').valueAsNumber")
    assert value > 1
    assert browser.run(f"{field}.querySelector('label').classList.contains('changed')")
    answered(browser)
    assert browser.run("DATA.answers[1].method.parameters.contrast") == value
    assert browser.run("DATA.answers[1].label") == f"cai start_layer=1 contrast={value:g}"
    browser.run(f"choose({box}.querySelectorAll('select')[1], 'paper')")
    assert browser.run(f"{field}.querySelector('input[type=number]').valueAsNumber") == 3
    answered(browser)
    parameters = browser.run("DATA.answers[1].method.parameters")
    assert parameters == {**parameters, "contrast": 3, "relevance": "sigmoid", "threshold": 0.1}


def test_a_third_method_and_one_without_a_trace(browser: Browser, server: Running) -> None:
    opened(browser, server)
    browser.run("at('max-tokens').value = 6; at('add-method').click()")
    browser.run("choose(chooser.rows[2].box.querySelector('select'), 'opera')")
    answered(browser)
    assert browser.run("DATA.answers.map((answer) => answer.problem || answer.words.length > 2)") == [True] * 3
    browser.run("select(2, 0)")
    assert "no maps" in browser.run("at('map-note').textContent")
    assert browser.complaints() == []


# A picture as a browser hands it over when it is dropped or pasted.
MADE = """
  window.handed = (parts) => {
    const data = new DataTransfer();
    data.items.add(new File(parts, "own", { type: "image/png" }));
    return data;
  };
  window.made = (width, height) => new Promise((done) => {
    const canvas = element("canvas", { width, height });
    canvas.getContext("2d").fillRect(0, 0, width / 2, height);
    canvas.toBlob((blob) => done(handed([blob])), "image/png");
  });
"""


def test_pictures_of_ones_own(browser: Browser, server: Running) -> None:
    opened(browser, server)
    browser.run(MADE)
    drop = "document.dispatchEvent(new DragEvent('drop', { dataTransfer: data, cancelable: true }))"
    browser.run(f"made(3000, 900).then((data) => {drop})")
    browser.wait("live.scene === null")
    assert browser.run("[live.pictures[0].width, live.pictures[0].height]") == [2048, 614]
    assert browser.run("live.pictures[0].src.startsWith('data:image/jpeg')"), "made smaller"
    paste = "document.dispatchEvent(new ClipboardEvent('paste', { clipboardData: data }))"
    browser.run(f"made(64, 48).then((data) => {paste})")
    browser.wait("live.pictures.length === 2")
    assert browser.run("live.pictures[1].src.startsWith('data:image/png')"), "as it was"
    browser.run("at('max-tokens').value = 3")
    answered(browser)
    assert browser.run("DATA.answers.map((answer) => answer.problem || answer.tokens.length)") == [3, 3]
    assert browser.run("document.querySelectorAll('#frames canvas').length") == 2
    assert "picture " in browser.run("at('map-note').textContent")
    assert browser.run("at('truth').hidden"), "nobody knows what is in it"
    browser.run("at('chosen').querySelector('button').click()")
    assert browser.run("live.pictures.length") == 1
    browser.run("take(handed(['no picture']).files)")
    browser.wait("at('problem').textContent.includes('not a picture')")


def test_refusals_are_told_with_their_hint(browser: Browser, server: Running) -> None:
    opened(browser, server)
    browser.run("at('question').value = 'What is <image> here?'")
    answered(browser)
    problem = browser.run("document.querySelector('.answer [role=alert]').textContent")
    assert "mark of the model's prompt" in problem and "Write it differently." in problem
    browser.run("live.pictures = []")
    browser.run("at('go').click()")
    assert browser.run("at('problem').textContent") == "Choose a picture first."


def test_a_busy_server(browser: Browser, tmp_path: Path) -> None:
    limits = Limits(queue=1, batch_rows=1, n=1)
    with running(seewhen.load(write(tmp_path), device="cpu"), limits=limits) as server:
        opened(browser, server)
        body = {"model": MODEL, "messages": question("image", 1), "temperature": 0, "max_tokens": 2}
        with ThreadPoolExecutor(1) as pool, held(server.engine):
            pool.submit(server.client().chat.completions.create, **body)
            until(lambda: bool(server.engine._running))
            # One of the two methods waits in the queue, the other finds it full.
            browser.run("at('go').click()")
            browser.wait("DATA.answers.some((answer) => answer.problem)")
            problem = browser.run("DATA.answers.find((answer) => answer.problem).problem")
        assert "as many requests as it can take. Try again later. (in " in problem
        browser.wait("!live.abort")


def test_a_key_is_asked_for_and_kept_nowhere(browser: Browser, tmp_path: Path) -> None:
    with running(seewhen.load(write(tmp_path), device="cpu"), key=KEY) as server:
        browser.open(f"{server.url}/")
        browser.wait("!at('key-form').hidden")
        assert browser.run("[at('ask').hidden, document.activeElement.id]") == [True, "key"]

        def enter(key: str) -> None:
            browser.run(f"at('key').value = '{key}'; at('key-form').requestSubmit()")

        enter("wrong")
        browser.wait("at('status').textContent.includes('missing or wrong')")
        enter(KEY)
        browser.wait("!at('ask').hidden && at('scenes').children.length === 6")
        browser.run("at('max-tokens').value = 2")
        answered(browser)
        assert browser.run("DATA.answers.map((answer) => answer.problem || answer.tokens.length)") == [2, 2]
        assert browser.run("[document.cookie, localStorage.length, sessionStorage.length, at('key').value]") == [
            "",
            0,
            0,
            "",
        ]
        assert KEY not in browser.run("document.documentElement.outerHTML")


@pytest.mark.parametrize(("dark", "phone"), [(False, True), (True, False)])
def test_readable_on_every_screen(browser: Browser, server: Running, dark: bool, phone: bool) -> None:
    width = 360 if phone else 1280
    opened(browser, server, width=width, height=740, dark=dark, phone=phone)
    browser.run(
        "at('max-tokens').value = 12; document.querySelectorAll('details').forEach((e) => { e.open = true; })"
    )
    answered(browser)
    assert browser.run("document.documentElement.scrollWidth") <= width
    least, where = browser.run(CONTRAST)
    assert least >= 4.5, where
    unnamed = "[...document.querySelectorAll('button, select, input, textarea, canvas:not([aria-hidden]), img')]"
    unnamed += ".filter((e) => !(e.labels && e.labels.length) && !e.getAttribute('aria-label'))"
    unnamed += ".filter((e) => !e.alt && !e.textContent && !(e.querySelector && e.querySelector('img[alt]')))"
    assert browser.run(f"{unnamed}.map((e) => e.outerHTML)") == []


def test_the_page_is_closed(server: Running) -> None:
    import httpx2

    answer = httpx2.get(f"{server.url}/", timeout=60)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy and "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy and answer.headers["x-frame-options"] == "DENY"
    for way in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "http://w",
    ):
        assert way not in answer.text.replace("http://www.w3.org/2000/svg", "")
    assert httpx2.get(f"{server.url}/v1/scenes/shifted/3", timeout=60).json()["objects"][0] == "frisbee"
    for wrong in ("shifted/-1", "shifted/10000", "train/1", "shifted/x"):
        refused = httpx2.get(f"{server.url}/v1/scenes/{wrong}", timeout=60)
        assert refused.status_code == 400 and refused.json()["error"]["code"] == "invalid_request"
