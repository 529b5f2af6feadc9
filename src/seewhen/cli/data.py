"""`seewhen data`: are the benchmarks' files there, are they the published ones, and getting them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seewhen.benchmarks import BENCHMARKS, benchmark_class, benchmark_names
from seewhen.cli.groups import Command, Commands
from seewhen.cli.options import BenchName, check_folder

if TYPE_CHECKING:
    from seewhen.benchmarks.checking import Finding
    from seewhen.benchmarks.sources import SourcePart


group = typer.Typer(help="The benchmarks' files in a folder of yours.", no_args_is_help=True, cls=Commands)


@group.command(cls=Command)
def check(
    folder: Annotated[Path, typer.Argument(help="Folder with the benchmarks' files, as published.")],
    benchmark: Annotated[
        list[str] | None,
        typer.Option(
            "--bench", help=f"Only this one (may be repeated): {', '.join(BENCHMARKS.built_in)}, or your own."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Lists every expected file: there or not, the published content or another, and where to get it.

    Exits with 1 if a file is broken or differs, or one that was asked for with --bench is missing,
    or if there is none at all.

    seewhen data check ~/benchmarks --bench pope
    """
    from seewhen.benchmarks.checking import check as look

    for name in benchmark or ():
        BENCHMARKS.check(name)
    findings = look(folder, benchmark or benchmark_names())
    if as_json:
        from dataclasses import asdict

        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _print_table(findings)
    bad = {"broken", "differs"} | ({"missing"} if benchmark else set())
    if any(f.state in bad for f in findings) or all(f.state == "missing" for f in findings):
        raise typer.Exit(1)


@group.command(cls=Command)
def get(
    benchmark: BenchName,
    to: Annotated[Path, typer.Option("--to", help="Folder to put the files into; may hold others already.")],
    image_list: Annotated[
        str | None, typer.Option("--image-list", help="CHAIR: pictures of a packaged list, or of a file of ids.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be downloaded.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before downloading.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Also what was brought before.")] = False,
    mirror: Annotated[
        str | None,
        typer.Option("--mirror", help="Take https://HOST/PATH from MIRROR/HOST/PATH; the hub's is HF_ENDPOINT."),
    ] = None,
) -> None:
    """Download a benchmark: says what, from where, how large, under which licence, and asks first.

    Files are compared with their published checksums and laid out as `seewhen data check` expects. Stopped at
    any moment, the same command goes on where it was. Exits with 1 if something differs or is missing in the end.

    seewhen data get pope --to ~/benchmarks

    seewhen data get mme --to ~/benchmarks --yes

    HF_ENDPOINT=https://hub.example.org seewhen data get amber --to ~/benchmarks
    """
    from seewhen.benchmarks.download import DownloadFailed, need_room, refuse_offline
    from seewhen.benchmarks.getting import bring, is_here

    kind = benchmark_class(benchmark)
    check_folder(to)
    try:
        refuse_offline()
        parts = [part.mirrored(mirror) for part in kind.downloads(image_list)]
        wanted = [part for part in parts if again or not is_here(to, benchmark, part)]
        for part in parts:
            state = f"{part.size / 1e6:.0f} MB" if part in wanted else "here already"
            typer.echo(f"{part.what}: {state}, from {part.origin}. Licence: {part.licence}.")
        need_room(to, [part.size for part in wanted])
        if dry_run:
            return
        if wanted and not yes:
            _ask(f"Download {sum(part.size for part in wanted) / 1e6:.0f} MB to {to}?")
        for part in wanted:
            with _Bar(part) as bar:
                bring(benchmark, part, to, bar.bytes, bar.one)
    except DownloadFailed as error:
        raise DownloadFailed(error.message, f"{error.hint} {_manual(benchmark, to)}") from None
    _after(benchmark, to, image_list)


def _ask(question: str) -> None:
    """Go on after a yes. Not `typer.confirm`, for which Ctrl-C is a no."""
    typer.echo(f"{question} [y/N]: ", err=True, nl=False)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        typer.echo("Nothing was downloaded.", err=True)
        raise typer.Exit(1)


def _manual(benchmark: str, to: Path) -> str:
    sources = dict.fromkeys(file.source for file in benchmark_class(benchmark).files if not file.instead)
    return f"By hand: put {' and '.join(sources)} into {to}, then `seewhen data check {to} --bench {benchmark}`."


class _Bar:
    """Megabytes of a few large files, or how many of the small ones."""

    def __init__(self, part: SourcePart) -> None:
        from seewhen.runs.progress import Progress

        self._bytes = 0
        self._bar = Progress(f"{part.what} (MB)", max(1, round(part.size / 1e6)))

    def __enter__(self) -> _Bar:
        self._bar.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._bar.__exit__(*error)

    def bytes(self, size: int) -> None:
        before, self._bytes = self._bytes, self._bytes + size
        self._bar.advance(round(self._bytes / 1e6) - round(before / 1e6))

    def one(self) -> None:
        from seewhen.benchmarks.sources import PICTURE_SIZE

        self.bytes(PICTURE_SIZE)


def _after(benchmark: str, to: Path, image_list: str | None) -> None:
    """What is there now, and whether it is right."""
    from seewhen.benchmarks.checking import check as look
    from seewhen.benchmarks.getting import RECORD, pictures

    findings = look(to, [benchmark])
    _print_table(findings)
    seen = pictures(benchmark, to, image_list)
    lacking = f"; {seen.example} is missing" if seen.found < seen.wanted else ""
    typer.echo(f"Pictures: {seen.found} of {seen.wanted}{lacking}. {benchmark_class(benchmark).by_hand}".strip())
    typer.echo(f"What came from where: {to / RECORD}. Next: seewhen eval {benchmark} --data {to}")
    if any(finding.state in ("broken", "differs", "missing") for finding in findings):
        raise typer.Exit(1)


def _print_table(findings: list[Finding]) -> None:
    from rich.table import Table
    from rich.text import Text

    from seewhen.cli.tables import table_console

    console = table_console()
    colors = {"ok": "green", "present": "green", "differs": "yellow", "broken": "red"}
    table = Table(box=None, pad_edge=False)
    table.add_column("state", no_wrap=True)
    # The note, which is words, gives way to names; longer ones than a line are cut anywhere.
    longest = max((len(each.path) for each in findings if each.state != "missing"), default=0)
    table.add_column("file", overflow="fold", no_wrap=longest + 30 < console.width)
    table.add_column("note", overflow="fold")
    missing: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.state == "missing":
            missing.setdefault(finding.source, []).append(finding)
        else:
            state = Text(finding.state, style=colors[finding.state])
            table.add_row(state, Text(finding.path), Text(finding.note))
    if table.rows:
        console.print(table)
    for source, files in missing.items():
        names = ", ".join(file.key for file in files)
        console.print(Text(f"missing: {names}\n  expected for example as {files[0].path}, from {source}"))
