"""Every command, and the server, understand the same names of methods, and print them back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import seewhen
import tiny
from seewhen.errors import SeewhenError
from seewhen.methods.grammar import label

SPEC = "CAI:start_layer=1,threshold=0.2:attention + vcd:noise_step=400"
LABEL = label(seewhen.method(SPEC))


@pytest.fixture
def tiny_llava() -> tuple[Any, dict[str, Any]]:
    return tiny.model("llava"), tiny.inputs("llava", rows=1)


RUN = ("pope", "--scenes", 4, "--limit", 2, "--max-new-tokens", 2, "--no-controls")


def test_the_label_is_short() -> None:
    assert LABEL == "cai:start_layer=1,threshold=0.2:attention+vcd:noise_step=400"


@pytest.mark.parametrize("command", ["describe", "ask", "compare"])
def test_commands_about_a_picture(command: str, run: Callable[..., Any], checkpoint: Path, scene: Path) -> None:
    more = ["Why?"] if command == "ask" else []
    ran = run(command, scene, *more, "--model", checkpoint, "-n", 2, "--json", "-M", SPEC)
    assert [said["label"] for said in ran.json["answers"]] == [LABEL]


def test_runs_and_sweeps(run: Callable[..., Any], checkpoint: Path, tmp_path: Path) -> None:
    ran = run("eval", *RUN, "--model", checkpoint, "--method", f"regular,{SPEC}", "--out", tmp_path, "--json")
    assert [each["method"] for each in json.loads(ran.out)] == ["regular", LABEL]
    ran = run(
        "sweep",
        *RUN,
        "--model",
        checkpoint,
        "--method",
        SPEC,
        "--out",
        tmp_path / "s",
        "--grid",
        "noise_step=300,400",
    )
    assert ran.code == 0, ran.err
    assert json.loads((tmp_path / "s" / "sweep.json").read_text())["method"] == LABEL


def test_bench(run: Callable[..., Any], checkpoint: Path) -> None:
    flags = ("--tokens", 2, "--repeats", 1, "--device", "cpu", "--json")
    ran = run("bench", checkpoint, "--method", SPEC, "--set", "alpha=0.5", *flags)
    assert [cost["method"] for cost in ran.json["costs"]] == ["regular", f"{LABEL[:-14]}alpha=0.5,noise_step=400"]


def test_methods(run: Callable[..., Any]) -> None:
    ran = run("methods", SPEC)
    assert ran.code == 0 and "cai: " in ran.out and "vcd: " in ran.out
    assert "as asked for: its attention alone, start_layer = 1, threshold = 0.2" in ran.out
    assert "as asked for: noise_step = 400" in ran.out
    assert [each["name"] for each in run("methods", SPEC, "--json").json] == ["cai", "vcd"]
    for wrong in ("cai:nowhere", "cai:contrasts=3", "cai+nothing"):
        assert run("methods", wrong).code == 2


def test_try(run: Callable[..., Any], checkpoint: Path, scene: Path, tmp_path: Path) -> None:
    flags = ("--no-open", "-n", 2, "--words", 0, "--out", tmp_path / "tried", "--json")
    ran = run("try", checkpoint, scene, "--methods", f"regular,{SPEC}", *flags)
    assert ran.code == 0, ran.err
    assert LABEL in ran.out


def test_what_a_method_is_called_can_be_pasted(tiny_llava: Any) -> None:
    """Handles, summaries and errors call a combination by its members."""
    made = seewhen.method("cai:attention+vcd")
    assert made.name == "cai:attention+vcd" and seewhen.method(made.name) == made
    model, inputs = tiny_llava
    with seewhen.attach(model, made) as handle:
        model.generate(**inputs, max_new_tokens=2, do_sample=False)
        assert repr(handle).startswith("Handle(cai:attention+vcd,")
        assert handle.summary().startswith("cai:attention+vcd: 2 tokens")
        assert repr(handle.trace).startswith("Trace(cai:attention+vcd,")
        with pytest.raises(SeewhenError, match=r"cai:attention\+vcd cannot run with"):
            model.generate(**inputs, use_cache=False)


def test_figure(run: Callable[..., Any], checkpoint: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "fired.png"
    ran = run("figure", "fired", "--scenes", 1, "--model", checkpoint, "-M", SPEC, "--out", out)
    assert ran.code == 0, ran.err


@pytest.mark.parametrize(
    "spec",
    ["cai", "CAI:paper", "cai:contrast=3,threshold=0.2", "cai:paper:contrast=5:attention", "cai+vcd", SPEC],
)
def test_the_server_takes_what_python_takes(spec: str) -> None:
    pytest.importorskip("fastapi")
    from seewhen.server.choosing import choose
    from seewhen.server.schema import Seewhen

    assert choose(Seewhen(method=spec), seewhen.method("regular")) == seewhen.method(spec)
    assert choose(Seewhen(method=label(seewhen.method(spec))), seewhen.method("regular")) == seewhen.method(spec)


@pytest.mark.parametrize("spec", ["cai", "cai:contrast=3", "cai:attention", "cai:paper+vcd:alpha=0.5", "confirm"])
def test_what_the_server_tells_of_a_method_can_be_sent_back(spec: str) -> None:
    pytest.importorskip("fastapi")
    from seewhen.server.choosing import choose, public
    from seewhen.server.schema import Seewhen

    made = seewhen.method(spec)
    assert choose(Seewhen(**public(made)), seewhen.method("regular")) == made
    assert "open" not in str(public(seewhen.method("confirm+cai")))  # what only the operator may set


def test_a_preset_of_a_default_that_is_combined_is_refused() -> None:
    pytest.importorskip("fastapi")
    from seewhen.server.choosing import choose
    from seewhen.server.failures import ApiError
    from seewhen.server.schema import Seewhen

    with pytest.raises(ApiError, match=r"The default here is cai\+vcd"):
        choose(Seewhen(preset="paper"), seewhen.method("cai+vcd"))


@pytest.mark.parametrize(
    "spec",
    [
        "vti:directions=/etc/passwd",
        "cai+vti:directions=x",
        "icd:sentence=Hello",
        "icd:sentence_ids=[1]",
        "opera:candidates=99",
        "vcd:noise_seed=none",
        "cai+vcd+dola+min-p+regular",
    ],
)
def test_the_server_keeps_its_limits_within_a_name(spec: str) -> None:
    pytest.importorskip("fastapi")
    from seewhen.server.choosing import choose
    from seewhen.server.failures import ApiError
    from seewhen.server.schema import Seewhen

    with pytest.raises((ApiError, SeewhenError)) as refused:
        choose(Seewhen(method=spec), seewhen.method("regular"))
    assert isinstance(refused.value, ApiError)
