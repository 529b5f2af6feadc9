"""`seewhen view`: pages of saved traces and of runs, made with the packaged model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import seewhen
from cli.command import Ran, in_process
from seewhen import cli
from seewhen.decoding.trace import Trace
from seewhen.runs.evaluate import Ask, evaluate
from showing.viewer.axe import violations
from showing.viewer.browser import Browser
from showing.viewer.page_data import payload_of


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """The command in this process; a page that would be opened is noted in stdout."""
    monkeypatch.setattr("webbrowser.open", lambda address: print("opened", address) or True)
    return in_process(monkeypatch, capsys)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of traces, as `seewhen compare --trace` makes it, and the picture."""
    from seewhen.scenes import render, sample

    folder = tmp_path_factory.mktemp("traces")
    render(sample("shifted", 3)).save(folder / "scene.png")
    command = ["compare", folder / "scene.png", "--methods", "regular,cai", "-n", 12, "--trace", folder / "both"]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as exit_:
        patch.setattr(sys, "argv", ["seewhen", *map(str, command)])
        cli.main()
    assert not exit_.value.code
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Captions of two methods, and yes/no questions."""
    folder = tmp_path_factory.mktemp("runs")
    captions = Ask("chair", split="shifted", scenes=4, max_new_tokens=28)
    questions = Ask("pope", split="shifted-adversarial", scenes=3)
    return (
        evaluate(captions, seewhen.method("regular"), folder)[0],
        evaluate(captions, seewhen.method("cai", contrast=3.0), folder)[0],
        evaluate(questions, seewhen.method("cai"), folder)[0],
    )


def test_traces_side_by_side(run: Callable[..., Ran], traces: Path) -> None:
    ran = run("view", traces / "both")
    page = traces / "both" / "view.html"
    assert ran == Ran(0, f"{page}\nopened {page.as_uri()}\n", "")
    data = payload_of(page)
    assert [answer["label"] for answer in data["answers"]] == ["regular", "cai"]
    assert data["prompt"] == "Please describe this image in detail." and data["model"] == "packaged"
    assert data["images"][0]["name"] == "scene.png" and data["truth"] is None
    for name, answer in zip(("regular", "cai"), data["answers"], strict=True):
        trace = Trace.load(traces / "both" / name)
        assert [token["id"] for token in answer["tokens"]] == trace.tokens[:, 0].tolist()
        assert {"similarity", "relevance", "before", "entropy"} <= answer["maps"].keys()


def test_one_trace_with_what_its_picture_shows(run: Callable[..., Ran], traces: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "page.html"
    ran = run("view", traces / "both" / "cai", "--out", out, "--no-open", "--objects", "frisbee, person")
    assert ran == Ran(0, f"{out}\n", "")
    data = payload_of(out)
    assert data["truth"] == ["frisbee", "person"] and len(data["answers"]) == 1


def test_a_trace_without_its_picture(run: Callable[..., Ran], traces: Path, tmp_path: Path) -> None:
    import dataclasses

    trace = Trace.load(traces / "both" / "cai.json")
    dataclasses.replace(trace, meta={}, pictures=()).save(tmp_path / "bare")
    ran = run("view", tmp_path / "bare.json", "--no-open")
    assert ran.code == 0 and "give it with --image" in ran.err
    image = payload_of(tmp_path / "bare.html")["images"][0]
    assert image["width"] == image["height"], "grey, in the shape of the patch grid"
    assert run("view", tmp_path / "bare.json", "--no-open", "--image", traces / "scene.png").err == ""
    assert payload_of(tmp_path / "bare.html")["images"][0]["name"] == "scene.png"
    dataclasses.replace(trace, texts=()).save(tmp_path / "mute")
    assert "does not know its words" in run("view", tmp_path / "mute.json", "--no-open").err


def test_a_batch_of_traces(run: Callable[..., Ran], tmp_path: Path) -> None:
    from seewhen.scenes import render, sample

    pictures = [render(sample("shifted", index)) for index in (3, 8)]
    model, processor = seewhen.load("packaged", device="cpu")
    words = ["Please describe this image in detail."] * 2
    found = seewhen.generate(model, processor, pictures, words, trace=True, max_new_tokens=6, do_sample=False)
    found.trace.save(tmp_path / "two")
    for index, picture in enumerate(pictures):
        picture.save(tmp_path / f"{index}.png")
    files = ["--image", tmp_path / "0.png", "--image", tmp_path / "1.png"]
    assert run("view", tmp_path / "two.json", "--no-open", *files).code == 0
    samples = payload_of(tmp_path / "two.html")["samples"]
    assert [sample["images"][0]["name"] for sample in samples] == ["0.png", "1.png"]
    assert [sample["answers"][0]["text"] for sample in samples] == [answer.text for answer in found.answers]
    assert "2 pictures, not 1" in run("view", tmp_path / "two.json", "--no-open", *files[:2]).err


@pytest.mark.slow
def test_runs_side_by_side_mistakes_first(
    run: Callable[..., Ran], runs: tuple[Path, Path, Path], browser: Browser, tmp_path: Path
) -> None:
    from seewhen.runs.store import read_run
    from seewhen.scenes import sample

    out = tmp_path / "runs.html"
    ran = run("view", runs[0], runs[1], "--out", out, "--no-open")
    assert (ran.code, ran.out) == (0, f"{out}\n")
    samples = payload_of(out)["samples"]
    assert len(samples) == 4
    wrong = [each["wrong"] for each in samples]
    assert wrong == sorted(wrong, reverse=True) and wrong[0] > 0
    stored = [{record.id: record for record in read_run(path).records} for path in runs[:2]]
    for each in samples:
        assert [answer["label"] for answer in each["answers"]] == ["regular", "cai:contrast=3"]
        for place, answer in enumerate(each["answers"]):
            record = stored[place][each["id"]]
            assert (answer["text"], len(answer["tokens"])) == (record.answer, record.tokens)
            # Decoding was greedy: fed through its own method again, each token is the likeliest one.
            assert [token["runners"][0]["id"] for token in answer["tokens"]] == [t["id"] for t in answer["tokens"]]
        index = int(each["id"].split("_")[-1].removesuffix(".png"))
        assert each["truth"] == list(sample("shifted", index).names)
        assert (each["note"] == "invents nothing") == (each["wrong"] == 0)

    browser.open(out)
    assert browser.complaints() == [] and browser.requests() == []
    assert browser.run("at('samples').children.length") == 4
    assert browser.run("at('samples').querySelector('.mark').textContent") == "✗"
    first = browser.run("at('answers').textContent")
    assert violations(browser) == []
    browser.run("document.activeElement.blur()")
    browser.key("n")
    assert browser.run("list.current") == 1 and browser.run("at('answers').textContent") != first
    browser.key("N")
    assert browser.run("[list.current, at('answers').textContent]") == [0, first]
    browser.run(f"at('search').value = '{samples[3]['id']}'; at('search').dispatchEvent(new Event('input'))")
    assert browser.run("[at('samples').children.length, at('count').textContent]") == [1, "1 to 1 of 1"]
    browser.run("at('samples').querySelector('button').click()")
    assert browser.run("DATA.id") == samples[3]["id"]
    assert browser.run("document.querySelector('#samples [aria-current=true]') !== null")


def test_a_report_whose_answers_were_looked_at_again(
    run: Callable[..., Ran], runs: tuple[Path, Path, Path], browser: Browser, tmp_path: Path
) -> None:
    out = tmp_path / "report"
    ran = run("report", runs[0], runs[1], "--look", 2, "--out", out)
    assert ran.code == 0 and "index.html, answers-1.html to" in ran.out
    page = payload_of(out / "answers-1.html")
    assert len(page["samples"]) == 4
    looked = [each["id"] for each in page["samples"] if "maps" in each["answers"][0]]
    wrong = {each["id"]: sum(answer["wrong"] for answer in each["answers"]) for each in page["samples"]}
    assert sorted(wrong.values())[-2:] == sorted(wrong[id_] for id_ in looked), "those with the most mistakes"
    browser.open(f"{out.as_uri()}/answers-1.html#id={looked[0]}")
    assert "evidence for the word" in browser.run("at('map-note').textContent")
    browser.run("at('only-doubt').click()")
    assert sorted(browser.run("list.found.map((number) => PAGE.samples[number].id)")) == sorted(looked)
    assert browser.run("at('order').querySelector('[value=doubt]') !== null")
    place, light = next((i, each) for i, each in enumerate(page["samples"]) if each["id"] not in looked)
    browser.run(f"at('only-doubt').click(); openSample({place})")
    assert browser.run("DATA.answers.map((answer) => answer.text)") == [
        "".join(answer["words"]) for answer in light["answers"]
    ]
    assert browser.run("[at('traced').hidden, at('layers').hidden, at('controls').hidden]") == [True] * 3
    assert violations(browser) == [] and browser.complaints() == []


def test_chosen_samples_of_a_run(run: Callable[..., Ran], runs: tuple[Path, Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "one.html"
    ids = ["shifted-adversarial/2", "shifted-adversarial/1"]
    flags = [part for id_ in ids for part in ("--sample", id_)]
    assert run("view", runs[2], "--out", out, "--no-open", *flags).code == 0
    samples = payload_of(out)["samples"]
    assert [each["id"] for each in samples] == ids
    assert samples[0]["prompt"] == "Is there a person in the image?"
    assert run("view", runs[2], "--out", out, "--no-open", "--sample", ids[0]).code == 0
    assert payload_of(out)["prompt"] == samples[0]["prompt"]
    assert run("view", runs[2], "--out", out, "--no-open", "--limit", 2).code == 0
    data = payload_of(out)
    assert len(data["samples"]) == 2 and "--sample" in data["rest"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("nowhere",), "nowhere does not exist."),
        (("{folder}",), "holds 3 runs. Name one or some of them"),
        (("{run}", "{trace}"), "Traces and runs do not go together."),
        (("{run}", "--sample", "none"), "There is no answer to 'none'. Ids look like"),
        (("{run}", "--objects", "dog"), "--objects says nothing about a run."),
        (("{run}", "--seed", "3"), "no answer with seed 3"),
        (("{run}", "{pope}"), "asked different questions"),
        (("{pope}", "--scenes", "2"), "cannot be made again. Give the number of scenes"),
        (("{trace}", "--limit", "3", "--sample", "x"), "--sample says nothing about a trace."),
        (("{trace}", "--out", "{folder}"), "cannot be written"),
    ],
)
def test_what_cannot_be_shown(
    run: Callable[..., Ran], runs: tuple[Path, Path, Path], traces: Path, arguments: tuple[str, ...], told: str
) -> None:
    places = {"folder": runs[0].parent, "run": runs[0], "pope": runs[2], "trace": traces / "both" / "cai.json"}
    ran = run("view", *(argument.format(**places) for argument in arguments), "--no-open")
    assert ran.code == 2 and told in ran.err and ran.err.count("\n") == 1
