"""The command line: `seewhen COMMAND`.

One file per command. Command modules import nothing heavy at the top (no torch, no transformers), so that
`seewhen --help` answers at once.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from typing import Annotated

import typer

from seewhen import __version__
from seewhen.cli.groups import Command, Commands
from seewhen.cli.options import flags
from seewhen.errors import SeewhenError

# File and function of each, or the group of its commands; in the order in which `seewhen --help` shows them.
COMMANDS = {
    "describe": "describe.describe",
    "ask": "ask.ask",
    "check": "check.check",
    "compare": "compare.compare",
    "try": "trying.try_command",
    "demo": "demo.demo",
    "scenes": "scenes.group",
    "methods": "methods.methods",
    "models": "models.models",
    "doctor": "doctor.doctor",
    "diagnose": "diagnose.diagnose",
    "score": "score.score",
    "data": "data.group",
    "eval": "eval.eval_command",
    "sweep": "sweep.sweep_command",
    "report": "report.report",
    "figure": "figure.figure",
    "view": "view.view",
    "calibrate": "calibrate.group",
    "bench": "bench.bench",
    "serve": "serve.serve",
}

app = typer.Typer(
    name="seewhen",
    cls=Commands,
    help="See only when needed: fewer hallucinations from vision-language models, without training.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # boxes of columns cut the names of options off on a terminal of 80 columns
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)

_debug = False


def _version(show: bool) -> None:
    if show:
        typer.echo(f"seewhen {__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    global _debug
    _debug = debug


for _name, _place in COMMANDS.items():
    _file, _, _member = _place.partition(".")
    _found = getattr(importlib.import_module(f"seewhen.cli.{_file}"), _member)
    if isinstance(_found, typer.Typer):
        app.add_typer(_found, name=_name)
    else:
        app.command(_name, cls=Command)(flags(_found))


def main() -> None:
    """Entry point: an error we raised on purpose is one line on stderr and exit code 2, Ctrl-C exit code 130."""
    # Threads that wait sleep. Spinning, torch's default, they take the time of whatever else runs on the machine,
    # themselves included: they took half of the processor time of a description. Read when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started this: nobody wants to read it
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - to the end
    if isinstance(sys.stdout, io.TextIOWrapper):  # answers and marks may hold letters that its encoding has not
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app()
    except SeewhenError as error:
        if _debug:
            raise
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(error.exit_code) from None
    except OSError as error:
        if _debug or error.errno is None:
            raise
        # A disk that filled up, a folder that was taken away: what could be checked before, was.
        what = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        hint = "Make room and give the same command again." if full else "--debug shows where."
        sys.stderr.write(f"error: {what}. {hint}\n")
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
