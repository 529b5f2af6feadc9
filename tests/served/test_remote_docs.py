"""The Python of docs/remote.md does what it says, with our own server; its words are those of the code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import seewhen
from seewhen.scenes import dataset, render
from seewhen.served.writing import DO_NOT_MENTION, GO_ON
from server import offered
from server.loopback import MODEL, running
from test_docs import ROOT, blocks

PAGE = ROOT / "docs/remote.md"


@pytest.mark.slow
def test_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    render(dataset("shifted", 4)[3]).save("scene.png")
    with running(seewhen.load("packaged", device="cpu"), method="regular") as server:
        for code in blocks(PAGE, "python"):
            here = code.replace("http://127.0.0.1:8000", server.url).replace('"packaged"', f'"{MODEL}"')
            names: dict[str, object] = {}
            exec(compile(here, str(PAGE), "exec"), names)
            names["model"].close()  # type: ignore[attr-defined]
    assert "Offers(likeliest=20" in capsys.readouterr().out


def test_the_table_of_what_is_offered_is_its_result() -> None:
    result, text = json.loads(offered.RESULT.read_text("utf-8")), PAGE.read_text(encoding="utf-8")
    assert offered.filled(text, offered.table(result)) == text and f"on {result['scenes']} drawn scenes" in text
    assert result["greedy"]["no forbidden words"]["same_answers"] == result["scenes"]
    assert result["greedy"]["no stop strings"]["same_answers"] == result["scenes"] - 1
    for mode in ("greedy", "sampled"):
        regular = result[mode]["regular"]["chair_i"]["value"]
        intervals = [each["chair_i"] for each in result[mode].values()]
        assert all(each["low"] < regular < each["high"] for each in intervals)


def test_what_is_said_in_words_is_documented() -> None:
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert GO_ON in text and DO_NOT_MENTION.partition("{")[0] in text
