"""`seewhen data check`: every expected file of a benchmark, there or not, the published one or another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from seewhen.benchmarks import benchmark_class
from seewhen.benchmarks.files import Expected, State
from seewhen.errors import InvalidInput, SeewhenError


@dataclass(frozen=True)
class Finding:
    """What is known about one expected file."""

    key: str
    state: State
    path: str  # where it is, or where it was expected first
    note: str
    source: str  # where to get it


def check(folder: Path, benchmarks: Sequence[str]) -> list[Finding]:
    """Looks at every expected file of these benchmarks."""
    if not folder.is_dir():
        raise InvalidInput(f"There is no folder {folder}.", "Name the folder that holds the benchmarks' files.")
    return [finding for name in benchmarks for finding in _check(folder, name)]


def _check(folder: Path, name: str) -> list[Finding]:
    expected = benchmark_class(name).files
    findings = {file: _look(folder, file) for file in expected}
    # A file that replaces the others is enough, and is not missed where it is the only one missing.
    lacking = {file for file, finding in findings.items() if finding.state == "missing"}
    replacing = {file for file in expected if file.instead}
    if replacing and (not replacing & lacking or lacking <= replacing):
        findings = {file: finding for file, finding in findings.items() if file not in lacking}
    return list(findings.values())


def _look(folder: Path, expected: Expected) -> Finding:
    path = expected.find(folder)
    if path is None:
        return Finding(expected.key, "missing", expected.names[0], "", expected.source)
    state: State
    try:
        state, note = benchmark_class(expected.benchmark).look(expected, path)
    except SeewhenError as error:
        state, note = "broken", str(error)
    return Finding(expected.key, state, str(path.relative_to(folder)), note, expected.source)
