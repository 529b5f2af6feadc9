"""The page of `seewhen try` in a real browser: choosing pictures, keys, a phone, markup in names and questions."""

from __future__ import annotations

from pathlib import Path

import pytest

import seewhen
from runs.tiny_checkpoint import write
from seewhen.runs.tried import AskedObject
from seewhen.scenes import render, sample
from seewhen.showing.viewer.tried import _title
from showing.viewer.axe import violations
from showing.viewer.browser import Browser
from showing.viewer.test_browser import CONTRAST

EVIL = "<script>document.title='owned'</script><img src=x onerror=alert(1)>&amp;{{SCRIPT}}"
NAME = "<img src=x onerror=alert(1)>{{.png"
SHOWN = "[...document.querySelectorAll('#pictures > li')].filter((e) => !e.hidden).length"
PRESSED = "document.querySelector('[aria-pressed=true]').dataset.show"


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> seewhen.Tryout:
    """Three methods on six scenes, one of them with a name that is markup."""
    folder = tmp_path_factory.mktemp("tried")
    (folder / "photos").mkdir()
    for number in range(6):
        render(sample("test", number)).save(folder / "photos" / (NAME if number == 3 else f"{number}.png"))
    checkpoint = str(write(tmp_path_factory.mktemp("model")))
    methods = "min-p:min_p=0.9,cai:start_layer=1"
    options = {"out": folder / "out", "question": EVIL, "seed": 1, "max_new_tokens": 14, "words": 1}
    return seewhen.try_methods(checkpoint, folder / "photos", methods, lexicon="coco", **options)  # type: ignore[arg-type]


def test_no_request_no_complaint_and_nothing_of_others_runs(browser: Browser, tried: seewhen.Tryout) -> None:
    browser.open(tried.page)
    assert browser.requests() == [] and browser.complaints() == []
    assert browser.run("document.title") == "Which method helps? - seewhen"
    assert EVIL in browser.run("document.querySelector('header').textContent")
    names = browser.run("[...document.querySelectorAll('#pictures h3')].map((e) => e.textContent)")
    assert names == [seen.photo.name for seen in tried.outcome.pictures] and NAME in names
    assert browser.run("document.querySelectorAll('script').length") == 1


def test_the_summary_and_every_answer_are_there(browser: Browser, tried: seewhen.Tryout) -> None:
    browser.open(tried.page)
    told = browser.run("[...document.querySelectorAll('.summary li')].map((e) => e.textContent)")
    assert told == [sentence.replace("`", "") for sentence in tried.summary]
    for number, seen in enumerate(tried.outcome.pictures):
        shown = browser.run(
            f"[...document.querySelectorAll('#picture-{number + 1} dd')].map((e) => e.textContent)"
        )
        assert shown == list(dict.fromkeys(said.record.answer for said in seen.said))


def test_pictures_are_chosen_with_the_keyboard_and_by_the_address(browser: Browser, tried: seewhen.Tryout) -> None:
    denied = sum(bool(seen.denied) for seen in tried.outcome.pictures)
    assert denied > 0
    browser.open(tried.page)
    assert browser.run(SHOWN) == 6
    browser.run("document.querySelector('[data-show=denied]').focus()")
    browser.key("Enter")
    assert browser.run(SHOWN) == denied and browser.run("location.hash") == "#show=denied"
    assert browser.run("at('count').textContent") == f"{denied} of 6 pictures"
    browser.open(f"{tried.page.as_uri()}#show=denied")
    browser.wait(f"{PRESSED} === 'denied'")
    assert browser.run(SHOWN) == denied
    browser.run("location.hash = '#show=nothing'")
    browser.wait(f"{PRESSED} === ''")
    browser.run("at('search').focus()")
    for letter in "onerror":
        browser.key(letter)
    assert browser.run(SHOWN) == 1


def test_marks_say_what_is_known_of_a_word(browser: Browser, tried: seewhen.Tryout) -> None:
    browser.open(tried.page)
    seen = next(seen for seen in tried.outcome.pictures if set(seen.denied) & seen.regular.objects)
    number = tried.outcome.pictures.index(seen) + 1
    first = f"document.querySelector('#picture-{number} dd')"
    struck = browser.run(f"[...{first}.querySelectorAll('.denied')].map((e) => e.textContent)")
    said = [mention.text for mention in seen.regular.mentions if mention.object in seen.denied]
    assert struck == said
    new = browser.run("document.querySelectorAll('dl dd:first-of-type .differs').length")
    assert new == 0  # the first answer is the one that others are held against


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone(browser: Browser, tried: seewhen.Tryout, dark: bool) -> None:
    browser.open(tried.page, width=390, height=844, phone=True, dark=dark)
    assert browser.run("document.documentElement.scrollWidth") <= 390
    assert browser.complaints() == []
    lowest, whose = browser.run(CONTRAST.replace("'.word,", "'p, a, td, th, li, dt, code, strong, .word,"))
    assert lowest >= 4.5, whose


def test_the_most_telling_picture_opens_word_by_word(browser: Browser, tried: seewhen.Tryout) -> None:
    browser.open(tried.page)
    links = browser.run("[...document.querySelectorAll('#pictures a[href^=words]')].map((e) => e.href)")
    assert len(links) == 1
    browser.open(links[0])
    assert browser.complaints() == []
    first: Path = tried.outcome.pictures[0].photo.path
    assert browser.run("DATA.answers.map((answer) => answer.label)") == list(tried.outcome.tries.runs)
    assert browser.run("DATA.images[0].name") == first.name


@pytest.mark.parametrize("phone", [False, True])
def test_nothing_for_axe_to_find(browser: Browser, tried: seewhen.Tryout, phone: bool) -> None:
    browser.open(tried.page, width=390 if phone else 1280, height=844, dark=phone, phone=phone)
    browser.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert violations(browser) == []


@pytest.mark.parametrize(
    ("verdict", "odds", "said"), [("denied", 0.4, "yes, +0.4"), ("confirmed", -0.3, "no, -0.3")]
)
def test_what_the_model_said_is_told_by_its_odds(verdict: str, odds: float, said: str) -> None:
    """A fitted verdict, or a threshold, may deny what the model says yes to, and the other way round."""
    told = _title(AskedObject("cat", verdict, odds, 0.2))
    assert told == f"cat: {verdict}, 20 % likely to be there; asked, it said {said}"


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> seewhen.Tryout:
    """The packaged model on scenes, with a method that takes sentences back."""
    folder = tmp_path_factory.mktemp("asked")
    for number in (2, 3):
        render(sample("shifted", number)).save(folder / f"{number}.png")
    methods, options = (
        "regular,confirm:coco:threshold=1",
        {"out": folder / "out", "max_new_tokens": 48, "words": 2},
    )
    return seewhen.try_methods("packaged", sorted(folder.glob("*.png")), methods, lexicon="coco", **options)  # type: ignore[arg-type]


def test_the_words_of_one_picture_agree_with_the_page_and_lead_back(
    browser: Browser, asked: seewhen.Tryout
) -> None:
    """Struck words are the same on both, what `confirm` took back is there, and so is the way back."""
    taken = 0
    for number, seen in enumerate(asked.outcome.pictures, 1):
        browser.open(asked.page)
        link = f"document.querySelector('#picture-{number} a[href^=words]')"
        struck = "[...document.querySelectorAll('%s .denied')].map((e) => e.textContent.trim())"
        shown = browser.run(struck % f"#picture-{number} dd:nth-of-type(1)")
        told = browser.run(f"document.querySelector('#picture-{number}').textContent")
        browser.open(f"{asked.page.parent.as_uri()}/{browser.run(link + '.getAttribute(`href`)')}")
        assert browser.complaints() == [] and browser.run("document.title") == f"{seen.photo.name} - seewhen"
        assert " ".join(browser.run(struck % "#answers > :nth-child(1)")) == " ".join(shown)
        back = seen.said[1].record.told["taken_back"]
        assert browser.run("DATA.answers[1].asked.taken_back.map((each) => each.text)") == [
            b["text"] for b in back
        ]
        assert all(each["text"] in told for each in back)
        taken += len(back)
        assert browser.run("at('home').textContent") == "← All pictures" and not browser.run("at('home').hidden")
        assert browser.run("at('home').href") == asked.page.as_uri()
    assert taken


def test_the_page_is_there_before_the_words_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow part may be stopped: what was found stays, and the same call goes on."""
    render(sample("shifted", 3)).save(tmp_path / "scene.png")
    options = {"out": tmp_path / "out", "max_new_tokens": 6, "words": 1, "lexicon": "coco"}

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("seewhen.showing.trying.RunPages", stopped)
        with pytest.raises(KeyboardInterrupt):
            seewhen.try_methods("packaged", tmp_path / "scene.png", "regular", **options)  # type: ignore[arg-type]
    page = tmp_path / "out" / "index.html"
    assert "scene.png" in page.read_text() and "Word by word" not in page.read_text()
    seewhen.try_methods("packaged", tmp_path / "scene.png", "regular", **options)  # type: ignore[arg-type]
    assert "Word by word" in page.read_text()
