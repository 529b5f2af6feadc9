"""From a score to its answers, to their words, and back: a report in a real browser."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seewhen.benchmarks.base import Sample
from seewhen.cli import main
from seewhen.runs.evaluate import Ask
from seewhen.runs.report import Group, analyse, read_runs
from seewhen.runs.report_files import write_report
from seewhen.showing.viewer.answers import write_answers
from seewhen.showing.viewer.page import write_page
from showing.viewer.axe import violations
from showing.viewer.browser import Browser
from showing.viewer.conftest import EVIL
from showing.viewer.made_runs import write_run
from showing.viewer.page_data import payload_of
from showing.viewer.test_browser import CONTRAST

CAPTIONS = Ask("chair", split="shifted", scenes=30)
QUESTIONS = Ask("pope", split="shifted", scenes=4)
IDS = "[...document.querySelectorAll('#samples .name')].map((e) => e.textContent)"
FOUND = "list.found.map((number) => PAGE.samples[number].id)"


def number(sample: Sample) -> int:
    return int(sample.image.removesuffix(".png").split("_")[-1])


def seen(sample: Sample) -> str:
    return f"The picture shows a {' and a '.join(sample.truth)}."


def invents(sample: Sample) -> bool:
    return number(sample) % 2 == 1 and "toilet" not in sample.truth


def inventing(sample: Sample) -> str:
    return seen(sample) + (" There is a toilet, too." if invents(sample) else "")


def evil(sample: Sample) -> str:
    return EVIL + seen(sample) if number(sample) == 7 else seen(sample)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder, CAPTIONS, "regular", inventing)
    write_run(folder, CAPTIONS, "cai", evil)
    write_run(folder, CAPTIONS, "confirm", seen, lambda sample: {"taken_back": float(number(sample) % 3 == 0)})
    write_run(folder, QUESTIONS, "regular", lambda sample: "Yes")
    write_run(folder, QUESTIONS, "cai", lambda sample: str(sample.truth))
    return folder


@pytest.fixture(scope="module")
def groups(runs: Path) -> list[Group]:
    return analyse(read_runs([runs]))


@pytest.fixture(scope="module")
def report(groups: list[Group], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report")
    write_report(write_answers(groups, out), out)
    return out


def follow(browser: Browser, link: str) -> None:
    """Click on the first link whose address holds this; wait for its page."""
    browser.run(f"document.querySelector('a[href*=\"{link}\"]').click()")
    browser.wait(f"location.href.includes('{link}') && document.readyState === 'complete'")


def choose(browser: Browser, id_: str, value: str) -> None:
    browser.run(f"at('{id_}').value = '{value}'; at('{id_}').dispatchEvent(new Event('change'))")


def asked(pattern: Callable[[Sample], bool]) -> list[str]:
    return [sample.id for sample in CAPTIONS.load().samples() if pattern(sample)]


def test_every_score_leads_to_its_run_and_back(browser: Browser, report: Path, groups: list[Group]) -> None:
    browser.open(report / "index.html")
    bare = "[...document.querySelectorAll('h3')].filter((e) => ['Scores', 'By part'].includes(e.textContent))"
    cells = f"{bare}.flatMap((e) => [...e.nextElementSibling.querySelectorAll('tbody td')])"
    assert browser.run(f"{cells}.every((cell) => cell.querySelector('a'))")
    assert browser.run(f"{cells}.length") > sum(len(group.lines) for group in groups)
    assert "Slips" not in browser.run("document.body.textContent"), "the paper has nothing to do with these runs"
    follow(browser, "answers-1.html#run=cai")
    assert browser.complaints() == [] and browser.requests() == []
    assert browser.run("at('run').value") == "cai"
    assert browser.run("at('run-note').textContent").startswith("CAI: CHAIR")
    assert browser.run("at('title').textContent") == groups[0].title
    assert browser.run("DATA.answers.map((answer) => answer.label)") == ["regular", "cai"]
    assert browser.run("at('home').offsetHeight") > 0
    follow(browser, "index.html#group-1")
    assert browser.run("document.querySelector(':target').textContent") == groups[0].title


def test_a_score_of_a_part_leads_to_the_answers_of_that_part(browser: Browser, report: Path) -> None:
    browser.open(report / "index.html")
    link = browser.run(
        "[...document.querySelectorAll('a[href*=\"part=\"]')].map((e) => e.getAttribute('href'))[0]"
    )
    part = link.rpartition("part=")[2]
    follow(browser, link)
    assert browser.run(f"list.found.every((number) => PAGE.samples[number].part === '{part}')")
    assert 0 < browser.run("list.found.length") < browser.run("PAGE.samples.length")


def test_filters_order_and_search(browser: Browser, report: Path) -> None:
    browser.open(f"{report.as_uri()}/answers-1.html#run=regular")
    assert browser.run("PAGE.samples.length") == 30
    invented = asked(invents)
    assert browser.run(FOUND)[: len(invented)] == invented, "mistakes first, in the order of the run"
    browser.run("at('only-wrong').click()")
    assert browser.run(FOUND) == invented
    assert browser.run("at('count').textContent") == f"1 to 12 of {len(invented)}"
    assert browser.run("at('only-wrong').parentElement.textContent").strip() == f"wrong ({len(invented)})"
    choose(browser, "run", "confirm")
    assert browser.run("at('count').textContent") == "nothing found", "it invents nothing"
    browser.run("at('only-wrong').click(); at('only-denied').click()")
    assert browser.run(FOUND) == asked(lambda sample: number(sample) % 3 == 0)
    browser.run("at('only-differs').click()")
    both = asked(lambda sample: number(sample) % 3 == 0 and invents(sample))
    assert browser.run(FOUND) == both, "what differs from regular and was denied"
    browser.run(f"at('search').value = '{both[1]}'; at('search').dispatchEvent(new Event('input'))")
    assert browser.run(IDS) == [both[1]]
    browser.run("at('search').value = ''; at('search').dispatchEvent(new Event('input'))")
    choose(browser, "order", "length")
    lengths = browser.run("list.found.map((number) => textOf(PAGE.samples[number].answers[2]).length)")
    assert lengths == sorted(lengths, reverse=True)
    assert browser.run("at('only-doubt').disabled"), "nobody looked at these answers again"
    assert browser.run("at('only-doubt').parentElement.textContent").strip() == "in doubt (not known)"
    assert "--look" in browser.run("at('only-doubt').parentElement.title")


def test_the_address_holds_what_is_looked_at(browser: Browser, report: Path) -> None:
    browser.open(report / "answers-1.html")
    browser.run("at('only-wrong').click()")
    choose(browser, "run", "regular")
    choose(browser, "order", "")
    browser.run("at('samples').querySelectorAll('button')[3].click()")
    browser.run("spans(0)[2].click(); cycle('map-look', 1)")
    shown = "[DATA.id, state.answer, state.token, state.pinned, state.look, ...list.found]"
    before, ids = browser.run(shown), browser.run(IDS)
    browser.wait("location.hash.includes('look=')")
    address = browser.run("location.href")
    browser.open(report / "index.html")
    browser.open(address)
    assert browser.run(shown) == before and browser.run(IDS) == ids
    assert browser.run("[at('run').value, at('only-wrong').checked, at('order').value]") == ["regular", True, ""]
    assert browser.run("document.querySelector('#samples [aria-current=true] .name').textContent") == before[0]


def test_back_goes_back(browser: Browser, report: Path) -> None:
    browser.open(f"{report.as_uri()}/answers-1.html#run=cai")
    first = browser.run("DATA.id")
    browser.click("#samples li:nth-child(2) button")
    second = browser.run("DATA.id")
    assert first != second
    assert browser.run("document.activeElement.querySelector('.name').textContent") == second, "the focus stays"
    browser.run("history.back()")
    browser.wait(f"DATA.id === '{first}'")
    assert browser.run("at('run').value") == "cai"
    browser.run("history.forward()")
    browser.wait(f"DATA.id === '{second}'")


def test_every_answer_opens_its_words(browser: Browser, report: Path) -> None:
    browser.open(report / "answers-1.html")
    samples = payload_of(report / "answers-1.html")["samples"]
    for place, sample in enumerate(samples):
        browser.run(f"openSample({place})")
        texts = ["".join(answer["words"]) for answer in sample["answers"]]
        read = "[0, 1, 2].map((number) => [...spans(number)].map((span) => span.textContent).join(''))"
        assert browser.run(read) == ["".join(text.split()) for text in texts]
        names = "[...document.querySelectorAll('#answers .absent')].map((e) => e.textContent)"
        assert browser.run(names) == (["toilet"] if "There is a toilet" in texts[0] else [])
        assert browser.run("document.querySelector('#frames img').naturalWidth") > 100
    assert browser.run("at('samples').querySelectorAll('img[loading=lazy]').length") > 0
    assert "seewhen view" in browser.run("at('map-note').textContent")
    assert browser.complaints() == [] and browser.requests() == []


def test_markup_in_an_answer_stays_text(browser: Browser, report: Path) -> None:
    browser.open(f"{report.as_uri()}/answers-1.html#run=cai&q=owned")
    assert browser.run("list.found.length") == 1
    assert "<script>document.title='owned'</script>" in browser.run("DATA.answers[1].text")
    assert browser.run("document.querySelectorAll('script').length") == 2
    assert browser.run("document.title") == browser.run("`${DATA.id}: ${PAGE.title} - seewhen`")
    assert browser.complaints() == []


def test_runs_over_files_that_are_not_here(browser: Browser, tmp_path: Path) -> None:
    from strangers.subjects import write_runs

    (tmp_path / "runs").mkdir()
    write_runs(tmp_path / "runs")
    paged = write_answers(analyse(read_runs([tmp_path / "runs"])), tmp_path / "out")
    write_report(paged, tmp_path / "out")
    browser.open(tmp_path / "out" / "answers-1.html")
    assert "--data" in browser.run("at('rest').textContent")
    assert browser.run("at('samples').children.length") == 12
    assert browser.run("at('samples').querySelectorAll('img').length") == 0
    wrong = sum(1 for right in paged[0].lines[0].scored.right.values() if right == (0,))
    browser.run("at('only-wrong').click()")
    choose(browser, "run", "regular")
    assert browser.run("list.found.length") == wrong
    assert browser.complaints() == []
    assert "Slips in the printed tables" in (tmp_path / "out" / "index.html").read_text(), (
        "the paper's own setting"
    )


def test_the_hint_for_maps_is_a_command_that_works(
    browser: Browser, runs: Path, report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the way to the runs as the report was given it, and the id of the answer that is shown."""
    browser.open(report / "answers-2.html")
    command = browser.run("at('map-note').querySelector('code').textContent")
    assert command.startswith("seewhen view ") and "`" not in browser.run("document.body.innerText")
    assert shlex.quote(browser.run("DATA.id")) in command
    page = tmp_path / "view.html"
    monkeypatch.setattr("sys.argv", [*shlex.split(command), "--no-open", "--out", str(page)])
    with contextlib.suppress(SystemExit):
        main()
    assert payload_of(page)["id"] == browser.run("DATA.id")


def test_answers_to_yes_no_questions(browser: Browser, report: Path) -> None:
    """One word: no list of things it names, nothing twice, and its place is told in words."""
    browser.open(report / "answers-2.html")
    first = browser.run("document.querySelector('#samples .entry').textContent")
    assert first.count("Yes") == 1, first
    assert "names" not in browser.run("at('answers').textContent")
    assert browser.run("at('word-facts').textContent").startswith("word 1 of 1")
    assert browser.run("document.title").startswith(browser.run("DATA.id"))


def test_what_confirm_told_is_with_its_answers(browser: Browser, tmp_path: Path) -> None:
    """A run keeps verdicts and what was taken back: they are on the page without a second look."""
    cat = {"object": "toilet", "odds": -2.0, "probability": 0.1}

    def told(sample: Sample) -> dict[str, Any]:
        at = {"start": 4, "end": 11}  # "picture", which no model would ask about
        verdicts = [{**cat, **at, "verdict": "denied"}]
        back = [{"text": "There is a toilet.", "after": 0, "denied": [cat]}]
        return {"verdicts": verdicts, "taken_back": back, "asked": 1, "steps": 9, "tokens": 5}

    write_run(tmp_path / "runs", CAPTIONS, "confirm", seen, told=told)
    paged = write_answers(analyse(read_runs([tmp_path / "runs"])), tmp_path / "out")
    browser.open(tmp_path / "out" / paged[0].page)
    assert browser.run("at('only-denied').disabled") is False
    assert browser.run("[...document.querySelectorAll('.word.denied')].map((e) => e.textContent)")[-1:] == [
        "picture"
    ]
    browser.run("unfoldAll(0)")
    assert "There is a toilet. Denied: toilet (10 %" in browser.run("at('answers').textContent")
    assert browser.complaints() == []


@pytest.mark.parametrize("page", ["index.html", "answers-1.html"])
def test_a_report_on_a_phone(browser: Browser, report: Path, page: str) -> None:
    """What stays in sight of a table leaves room for its figures."""
    browser.open(report / page, width=390, height=844, phone=True)
    assert browser.run("document.documentElement.scrollWidth") <= 390
    widths = browser.run("[...document.querySelectorAll('.wide td:first-child')].map((e) => e.offsetWidth)")
    assert not widths or 80 <= min(widths) <= max(widths) <= 0.5 * 390


def test_thousands_of_answers(browser: Browser, report: Path, tmp_path: Path) -> None:
    page: dict[str, Any] = payload_of(report / "answers-1.html")
    some = page["samples"]
    page["samples"] = [{**some[i % 30], "id": f"{i:05}"} for i in range(6000)]
    wrong = 200 * len(asked(invents))
    browser.open(write_page(tmp_path / "many.html", page))
    assert browser.run("[at('samples').children.length, at('count').textContent]") == [12, "1 to 12 of 6000"]
    browser.run("at('only-wrong').click()")
    assert browser.run("at('count').textContent") == f"1 to 12 of {wrong}"
    browser.run("at('later').click()")
    assert browser.run("at('count').textContent") == f"13 to 24 of {wrong}"
    browser.run("at('search').value = '04321'; at('search').dispatchEvent(new Event('input'))")
    assert browser.run(IDS) == ["04321"]


@pytest.mark.parametrize(("dark", "phone"), [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("page", ["index.html", "answers-1.html#run=cai", "answers-2.html"])
def test_usable_on_every_screen(browser: Browser, report: Path, page: str, dark: bool, phone: bool) -> None:
    width = 390 if phone else 1280
    browser.open(f"{report.as_uri()}/{page}", width=width, height=844, dark=dark, phone=phone)
    assert browser.run("document.documentElement.scrollWidth") <= width
    least, where = browser.run(CONTRAST.replace("'.word,", "'p, a, td, th, li, .word,"))
    assert least >= 4.5, where
    assert violations(browser) == []
    assert browser.complaints() == []
