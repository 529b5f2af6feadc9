"""docs/command-line.md says what `--help` says, and `--help` says all of it on a narrow terminal."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from cli.every import commands
from seewhen import cli
from seewhen.cli.groups import is_example

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_up_to_date() -> None:
    if not DOCS.is_dir():
        pytest.skip("the documentation is not part of this installation")
    code = "import command_line; print(command_line.page(), end='')"
    done = subprocess.run([sys.executable, "-c", code], cwd=DOCS, capture_output=True, check=True)
    written = (DOCS / "command-line.md").read_text(encoding="utf-8")
    assert written == done.stdout.decode("utf-8"), "run: python docs/command_line.py"


def helped(name: str) -> str:
    """The help of a command on a terminal of 80 columns, white space gone: words are wrapped anywhere."""
    shown = CliRunner().invoke(cli.app, [*name.split(), "--help"], env={"COLUMNS": "80"})
    assert shown.exit_code == 0 and max(map(len, shown.output.splitlines())) <= 80
    return re.sub(r"\s", "", shown.output)


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_nothing_is_cut_off_at_80_columns(name: str) -> None:
    command, shown = dict(commands())[name], helped(name)
    paragraphs = [re.sub(r"\s", "", paragraph) for paragraph in command.help.split("\n\n")]
    assert [paragraph for paragraph in paragraphs if paragraph not in shown.replace("\\", "")] == []
    for parameter in command.params:
        texts = [parameter.help or ""]
        texts += [*parameter.opts, *parameter.secondary_opts] if parameter.param_type_name == "option" else []
        assert [text for text in texts if re.sub(r"\s", "", text) not in shown] == []


@pytest.mark.parametrize("group", ["", "scenes", "data", "calibrate"])
def test_the_sentence_of_every_command_is_whole(group: str) -> None:
    found = typer.main.get_command(cli.app)
    found = found.commands[group] if group else found  # type: ignore[attr-defined]
    shown = helped(group)
    sentences = [command.help.split("\n\n")[0].partition(". ")[0] for command in found.commands.values()]
    assert [each for each in sentences if re.sub(r"[\s.]", "", each) not in shown.replace(".", "")] == []


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_every_command_has_examples_of_which_each_stands_alone(name: str) -> None:
    paragraphs = dict(commands())[name].help.split("\n\n")
    examples = [each.strip() for each in paragraphs if re.match(rf"\s*(\w+=\S+ )?seewhen {name}\b", each)]
    assert examples and all(len(each.splitlines()) == 1 for each in examples)


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_examples_can_be_copied_from_a_narrow_terminal(name: str) -> None:
    command = dict(commands())[name]
    shown = CliRunner().invoke(cli.app, [*name.split(), "--help"], env={"COLUMNS": "80"}).output
    printed = re.search(r"^Examples:\n((?:  .*\n)+)", shown, re.MULTILINE)
    assert printed is not None
    joined = printed[1].replace(" \\\n", "").splitlines()
    examples = filter(is_example, inspect.cleandoc(command.help).split("\n\n"))
    assert [" ".join(line.split()) for line in joined] == [example.strip() for example in examples]


def test_kinds_of_values_are_words_not_types_of_a_language() -> None:
    for name, _ in commands():
        shown = CliRunner().invoke(cli.app, [*name.split(), "--help"]).output
        assert not re.search(r"<list|range>|\{", shown), name
        assert re.search(rf"Usage: \S+ {name} \[OPTIONS\](?: \[?[A-Z|_]+\]?(?:\.\.\.)?)*\n", shown), shown.split(
            "\n"
        )[0]
