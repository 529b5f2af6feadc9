"""A run directory: what was asked, every answer, and at the end the score.

    manifest.json   written first: the configuration (must never change) and the environment
    samples.jsonl   one line per answer, only ever appended to, forced to disk batch by batch
    result.json     written last, atomically: where it exists, the run is complete
    timing.jsonl    seconds and tokens per batch; kept apart so that the files above repeat exactly

A process killed at any moment leaves whole lines plus at most one torn one, which the next start cuts
off. Work is found again by key (sample id, seed), never by position, so nothing is lost or repeated.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from seewhen.atomic import sync, write
from seewhen.errors import InvalidInput, SeewhenError
from seewhen.reading import MIB, check_form, parse_json, read_bytes, read_json, read_text
from seewhen.runs import file_forms

FORMAT = 1
MANIFEST, SAMPLES, RESULT, TIMING, LOCK = (
    "manifest.json",
    "samples.jsonl",
    "result.json",
    "timing.jsonl",
    ".lock",
)

Key = tuple[str, int]
_SCORE_AGAIN = "Delete it and run `seewhen eval` again to score anew."
_CHECKSUM = re.compile(r"[0-9a-f]{64}")


class RunConflict(SeewhenError):
    """The run directory belongs to another configuration, or another process is writing to it."""


@dataclass(frozen=True)
class Record:
    """One answer. `error` is empty, or says why there is none (a broken image, memory)."""

    id: str
    seed: int
    image: str
    answer: str
    tokens: int = 0
    error: str = ""
    facts: Mapping[str, float] = field(default_factory=dict)  # e.g. how often the gate opened
    told: Mapping[str, Any] = field(default_factory=dict)  # of a method that asks: its verdicts, what it took back

    @property
    def key(self) -> Key:
        return self.id, self.seed

    def line(self) -> str:
        """The record as one line; empty fields are left out."""
        plain: dict[str, Any] = {"id": self.id, "seed": self.seed, "image": self.image}
        plain |= {"error": self.error} if self.error else {"answer": self.answer, "tokens": self.tokens}
        if self.facts:
            plain["facts"] = dict(self.facts)
        if self.told:
            plain["told"] = dict(self.told)
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":"), allow_nan=False) + "\n"

    @staticmethod
    def parse(line: str) -> Record:
        plain = parse_json(line, "the line")
        check_form(file_forms.SampleLine, plain, "the line", "")
        return Record(
            id=plain["id"],
            seed=plain["seed"],
            image=plain["image"],
            answer=plain.get("answer", ""),
            tokens=plain.get("tokens", 0),
            error=plain.get("error", ""),
            facts=plain.get("facts", {}),
            told=plain.get("told", {}),
        )


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def _read(path: Path, largest: int) -> Any:
    """What `to_json` can write again: a stranger's JSON may have numbers that are none."""
    found = read_json(path, largest=largest)
    try:
        to_json(found)
    except ValueError:
        raise InvalidInput(f"{path} has a number that is not finite.", "Restore the file.") from None
    return found


def read_samples(path: Path) -> tuple[list[Record], int]:
    """All whole records of a samples file, and how many bytes they take.

    Only the end can be torn (lines are appended in order), so a broken line anywhere else, or a key
    twice, means the file was changed by hand or by a broken disk: that is refused, not repaired.
    """
    if not path.exists():
        return [], 0
    data = read_bytes(path)
    records: list[Record] = []
    seen: set[Key] = set()
    position = 0
    while position < len(data):
        end = data.find(b"\n", position)
        if end < 0:
            break
        try:
            record = Record.parse(data[position:end].decode("utf-8"))
        except (InvalidInput, UnicodeDecodeError) as error:
            if end == len(data) - 1:
                break
            raise InvalidInput(
                f"{path}: line {len(records) + 1} is not a record ({error}).",
                "Only a last line can be torn by a crash. Restore the file or start a new directory.",
            ) from None
        if record.key in seen:
            raise InvalidInput(
                f"{path}: sample {record.id!r} with seed {record.seed} is there twice.",
                "Two files were put together? Remove one of the lines.",
            )
        seen.add(record.key)
        records.append(record)
        position = end + 1
    return records, position


def flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested mappings as dotted names: {"a": {"b": 1}} gives ("a.b", 1)."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from flatten(inner, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, value


_METHOD = "method."
_LABEL = f"{_METHOD}label"


def config_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Fields that differ, each as "name: old value there, new value now"."""
    # Through JSON, so that a tuple equals the list it was written as.
    a, b = (dict(flatten(json.loads(json.dumps(c)))) for c in (old, new))
    absent = object()

    def show(value: Any) -> str:
        if isinstance(value, str) and _CHECKSUM.fullmatch(value):
            return value[:8]  # nobody compares 64 digits by eye
        text = "nothing" if value is absent else json.dumps(value, ensure_ascii=False)
        return text if len(text) <= 80 else text[:77] + "..."

    names = [name for name in dict.fromkeys([*a, *b]) if a.get(name, absent) != b.get(name, absent)]
    if _LABEL in names:  # says all of what is different in a method
        names = [name for name in names if name == _LABEL or not name.startswith(_METHOD)]
    return [f"{name}: {show(a.get(name, absent))} there, {show(b.get(name, absent))} now" for name in names]


class RunStore:
    """A run directory opened for writing. Use as a context manager: the lock goes when it closes."""

    def __init__(self, path: Path, records: list[Record], samples: IO[bytes], lock: FileLock) -> None:
        self.path = path
        self._records = {record.key: record for record in records}
        self._samples = samples
        self._lock = lock

    @staticmethod
    def open(path: Path, config: Mapping[str, Any], environment: Mapping[str, Any]) -> RunStore:
        """Creates the directory, or takes it up again if it was made with the same configuration."""
        path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path / LOCK, blocking=False, thread_local=False)
        try:
            lock.acquire()
        except Timeout:
            raise RunConflict(
                f"Another process is writing to {path}.", "Wait for it, or name another directory."
            ) from None
        try:
            _check_manifest(path, config, environment)
            records, whole = read_samples(path / SAMPLES)
            samples = open(path / SAMPLES, "ab")  # noqa: SIM115 - held until close()
            if samples.tell() > whole:
                samples.truncate(whole)
                samples.seek(whole)
            os.fsync(samples.fileno())
            sync(path)  # a new name is only durable once its directory is on disk as well
        except BaseException:
            lock.release()
            raise
        return RunStore(path, records, samples, lock)

    @property
    def done(self) -> Set[Key]:
        """A view, not a copy: it is looked at for every answer."""
        return self._records.keys()

    @property
    def records(self) -> tuple[Record, ...]:
        return tuple(self._records.values())

    def append(self, records: Sequence[Record]) -> None:
        """Adds new records; returns when they are on disk. A key that is there already is an error."""
        keys = [record.key for record in records]
        if len(set(keys)) < len(keys) or any(key in self._records for key in keys):
            raise RunConflict(f"A sample would be recorded twice in {self.path}.")
        if not records:
            return
        self._check_there()
        # What was finished before is not the result of what is in the file now.
        (self.path / RESULT).unlink(missing_ok=True)
        self._samples.write("".join(record.line() for record in records).encode("utf-8"))
        self._samples.flush()
        os.fsync(self._samples.fileno())
        self._records.update(zip(keys, records, strict=True))

    def note_timing(self, entry: Mapping[str, Any]) -> None:
        """Timing is nice to have: written at once, not forced to disk."""
        with open(self.path / TIMING, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def forget_failures(self) -> int:
        """Drops recorded failures so that they are tried again; says how many."""
        kept = [record for record in self._records.values() if not record.error]
        dropped = len(self._records) - len(kept)
        if dropped:
            self._rewrite(kept)
        return dropped

    def finish(self, order: Iterable[Key], result: Mapping[str, Any]) -> None:
        """Puts the samples into the order given (others after them) and writes the result last."""
        self._check_there()
        rank = {key: position for position, key in enumerate(order)}
        ordered = sorted(self._records.values(), key=lambda record: rank.get(record.key, len(rank)))
        if ordered != list(self._records.values()):
            self._rewrite(ordered)
        write(self.path / RESULT, to_json(result), durable=True)

    def _check_there(self) -> None:
        """Writing to a file that was deleted or replaced succeeds, and what was written is lost."""
        ours = os.fstat(self._samples.fileno())
        try:
            there: os.stat_result | None = os.stat(self.path / SAMPLES)
        except OSError:
            there = None
        if there is None or not os.path.samestat(ours, there) or there.st_size != self._samples.tell():
            raise RunConflict(
                f"{self.path / SAMPLES} was deleted or changed while this run was writing to it.",
                "Restore it, or start again in another directory.",
            )

    def _rewrite(self, records: Sequence[Record]) -> None:
        self._samples.close()  # Windows replaces no file that is open
        try:
            write(self.path / SAMPLES, "".join(record.line() for record in records), durable=True)
        finally:
            self._samples = open(self.path / SAMPLES, "ab")  # noqa: SIM115
        self._records = {record.key: record for record in records}

    def close(self) -> None:
        self._samples.close()
        self._lock.release()

    def __enter__(self) -> RunStore:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def _check_manifest(path: Path, config: Mapping[str, Any], environment: Mapping[str, Any]) -> None:
    """Writes the manifest of a new run; refuses a directory that holds another configuration."""
    manifest = path / MANIFEST
    if not manifest.exists():
        if (path / SAMPLES).exists():
            raise RunConflict(
                f"{path} has samples but no manifest, so nobody knows how they were made.",
                "Name another directory.",
            )
        write(
            manifest,
            to_json({"format": FORMAT, "config": dict(config), "environment": dict(environment)}),
            durable=True,
        )
        return
    found = read_manifest(path)
    different = config_differences(found["config"], config)
    if different:
        shown = "; ".join(different[:6]) + (f"; and {len(different) - 6} more" if len(different) > 6 else "")
        raise RunConflict(
            f"{path} holds a run with another configuration: {shown}.",
            "Name another directory, or use the same options to go on with this one.",
        )


def read_manifest(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise InvalidInput(f"There is no directory {path}.", "Runs are made by `seewhen eval`.")
    if not (path / MANIFEST).exists():
        raise InvalidInput(
            f"{path} is not a run directory: it has no {MANIFEST}.",
            "Runs are made by `seewhen eval`.",
        )
    manifest: dict[str, Any] = _read(path / MANIFEST, 16 * MIB)
    if isinstance(manifest, dict) and manifest.get("format") != FORMAT:
        raise InvalidInput(
            f"{path} has format {manifest.get('format')!r:.40}; this version reads format {FORMAT}.",
            "Use the version of seewhen that wrote it.",
        )
    check_form(file_forms.Manifest, manifest, path / MANIFEST, "Restore the file or start a new directory.")
    return manifest


@dataclass(frozen=True)
class Run:
    """A run directory read for a report. `result` is None while the run is incomplete."""

    path: Path
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    records: tuple[Record, ...]
    result: Mapping[str, Any] | None
    timing: tuple[Mapping[str, Any], ...]

    @property
    def failures(self) -> tuple[Record, ...]:
        return tuple(record for record in self.records if record.error)

    def took(self, what: str) -> float:
        """The sum of what was noted of its batches: seconds, tokens or samples."""
        return sum(entry[what] for entry in self.timing)

    @property
    def ms_per_token(self) -> float | None:
        seconds, tokens = self.took("seconds"), self.took("tokens")
        return 1000 * seconds / tokens if seconds > 0 and tokens else None


def read_run(path: Path) -> Run:
    """Reads a run, finished or not, without touching it."""
    manifest = read_manifest(path)
    records, _ = read_samples(path / SAMPLES)
    result = None
    if (path / RESULT).exists():
        result = _read(path / RESULT, 64 * MIB)
        check_form(dict[str, Any], result, path / RESULT, _SCORE_AGAIN)
    timing = tuple(_timing(path / TIMING)) if (path / TIMING).exists() else ()
    return Run(path, manifest["config"], manifest["environment"], tuple(records), result, timing)


def check_run(run: Run) -> Run:
    """Refuse a run whose configuration or result is not what `seewhen eval` writes."""
    check_form(file_forms.Config, run.config, run.path / MANIFEST, "Runs are made by `seewhen eval`.")
    if run.result is not None:
        check_form(file_forms.Result, run.result, run.path / RESULT, _SCORE_AGAIN)
    return run


def _timing(path: Path) -> Iterator[Mapping[str, Any]]:
    for line in read_text(path).splitlines():
        try:
            entry = parse_json(line, str(path))
            check_form(file_forms.Timing, entry, path, "")
        except InvalidInput:  # a torn line of a killed process
            continue
        yield entry
