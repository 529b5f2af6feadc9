"""The ladder from pictures to results, at a size that trains nothing but runs everything."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ladder.exam import First, Rows
from ladder.judging import choice
from ladder.material import make
from ladder.methods import CAI, GROUPS, RIVALS
from ladder.rungs import AGAIN, FOURTH, PACKAGED, RUNGS, SIZES, THIRD, TINY, Rung, kind_of
from ladder.tasks import CHOICE, all_tasks
from ladder.training import Bench
from seewhen.backbones.loading import load


def run(folder: Path, out: Path, seconds: float) -> str:
    command = [sys.executable, "-m", "ladder", str(folder), "--out", str(out), "--sizes", "tiny"]
    done = subprocess.run(
        [*command, "--processes", "1", "--training", "1", "--seconds", str(seconds)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_it_stops_in_time_goes_on_and_runs_cai_after_the_choice(tmp_path: Path) -> None:
    folder, out = tmp_path / "ladder", tmp_path / "out"
    assert "left: " in run(folder, out, 5)
    assert (out / "ladder.tar.xz").is_file()
    said = run(folder, out, 3600)
    bench = Bench(folder, TINY, "cpu")
    assert [task.name for task in all_tasks(bench) if not task.done] == [], said
    chosen = (folder / CHOICE).stat().st_mtime
    for model in (PACKAGED, *(rung.name for rung in TINY.rungs)):
        for named in (each for group in CAI.values() for each in group):
            assert (folder / "results" / model / f"{named.name}.npz").stat().st_mtime > chosen
    with tarfile.open(out / "ladder.tar.xz") as packed:
        names = packed.getnames()
    assert {"facts.json", CHOICE, f"results/{PACKAGED}/cai.npz", f"models/{TINY.rungs[0].name}.json"} <= set(names)
    assert json.loads((folder / CHOICE).read_text())["chosen"] == PACKAGED  # nothing else can answer


def test_what_is_of_cai_waits_for_the_choice(tmp_path: Path) -> None:
    bench = Bench(tmp_path, TINY, "cpu")
    for task in all_tasks(bench):
        group, _, _ = task.name.partition(" ")
        assert (tmp_path / CHOICE in task.needs) == (group in CAI)
    specs = [str(named.spec) for group in RIVALS.values() for named in group]
    assert not any(spec.startswith("cai") for spec in specs)
    assert all(str(named.spec).startswith("cai") for group in CAI.values() for named in group)


def test_every_stage_is_made_by_one_task_and_nothing_waits_for_ever(tmp_path: Path) -> None:
    tasks = all_tasks(Bench(tmp_path, TINY, "cpu"))
    made = [path for task in tasks for path in task.makes]
    assert len(set(made)) == len(made)
    outside = {tmp_path / "material", tmp_path / CHOICE}
    for task in tasks:
        assert all(path in made or path in outside or path.parent in outside for path in task.needs), task.name
    assert {task.name.split(" ")[0] for task in tasks} >= {"align", "language", "projector", "train", *GROUPS}


@pytest.mark.slow
def test_a_rung_may_begin_as_the_packaged_model(tmp_path: Path) -> None:
    rung = Rung("packaged", "mild", "brief", noise="embellished", seed=4)
    still = replace(TINY.steps["brief"], rate=0.0)  # learns nothing: it stays what it began as
    sizes = replace(TINY, rungs=(rung,), steps=TINY.steps | {"brief": still})
    bench = Bench(tmp_path, sizes, "cpu")
    make(bench.material, sizes, 1, "cpu")
    by_name = {task.name: task for task in all_tasks(bench)}
    assert not any(name.startswith(("language", "projector")) for name in by_name)
    task = by_name["train packaged-brief-embellished.4"]
    assert task.ready
    task.run()
    assert task.done
    trained, packaged = (
        load(where, device="cpu", dtype=torch.float32)[0] for where in (bench.model(rung), PACKAGED)
    )
    own, other = trained.state_dict(), packaged.state_dict()
    assert own.keys() == other.keys()
    assert all(torch.allclose(own[name], other[name], atol=1e-3) for name in own)


def test_the_third_run_makes_third_seeds_and_asks_what_was_left_open(tmp_path: Path) -> None:
    kinds = [kind_of(rung.name) for rung in THIRD]
    assert len({rung.name for rung in THIRD}) == len(THIRD)
    assert not {rung.name for rung in THIRD} & {rung.name for rung in RUNGS if rung.seed == 0}
    assert {"many-strong-long", "many-mild-medium", "many-strong-brief-noisy"} <= set(kinds)  # without CAI so far
    assert len(set(kinds) - {rung.kind for rung in (*RUNGS, *AGAIN)}) == 4
    tasks = all_tasks(Bench(tmp_path, SIZES["third"], "cpu"))
    names = [task.name for task in tasks]
    assert len(set(names)) == len(names)
    assert all(name.startswith("drafts") for name in names if name.endswith(" packaged"))
    assert sum(name.startswith("opera") for name in names) == len(set(kinds))
    assert all(f"{group} {rung.name}" in names for rung in THIRD for group in ("look", "cai", "parts", "drafts-4"))


def test_the_fourth_run_asks_the_rivals_where_they_are_missing(tmp_path: Path) -> None:
    made = {rung.name for rung in (*RUNGS, *AGAIN, *THIRD)}
    kinds = {rung.kind for rung in FOURTH}
    assert len({rung.name for rung in FOURTH}) == len(FOURTH) and kinds <= {kind_of(name) for name in made}
    # The second run had it in its list and did not reach it.
    assert {rung.name for rung in FOURTH} & made == {"many-strong-long.2"}
    assert {rung.kind for rung in THIRD if rung.noise == "embellished" or rung.texts} <= kinds  # without rivals
    assert {"many-strong-brief-noisy", "many-mild-medium", "many-strong-long"} <= kinds  # some are missing there
    names = [task.name for task in all_tasks(Bench(tmp_path, SIZES["fourth"], "cpu"))]
    groups = ("look", "base", "drafts-4", "rule", "more", "drafts-0")
    assert all(f"{group} {rung.name}" in names for rung in FOURTH for group in groups)
    assert sum(name.startswith("opera") for name in names) == len(kinds)
    assert not any(name.endswith(" packaged") for name in names)  # it was asked with all of them


def test_a_threshold_is_chosen_for_the_least_invented_at_equal_recall() -> None:
    regular = {"chair_i": 40.0, "recall": 60.0}
    levels = {
        -2.0: {"chair_i": 38.0, "recall": 60.5},
        -1.0: {"chair_i": 33.0, "recall": 59.0},
        0.0: {"chair_i": 25.0, "recall": 58.9},
    }
    assert choice(regular, levels) == -1.0
    assert choice({"chair_i": 40.0, "recall": 70.0}, levels) == -2.0  # none keeps it: the gentlest


def test_greedy_rows_stay_greedy_and_sampled_ones_follow_their_chances() -> None:
    scores = torch.log(torch.tensor([[0.5, 0.3, 0.2]])).repeat(4002, 1)
    rows = Rows(2, list(range(4000)), [1.0] * 2000 + [1 / 3] * 2000)
    chosen = rows(torch.zeros(4002, 1, dtype=torch.long), scores).argmax(-1)
    assert chosen[:2].tolist() == [0, 0]
    warm, cool = (np.bincount(part, minlength=3) / 2000 for part in (chosen[2:2002], chosen[2002:]))
    assert warm == pytest.approx([0.5, 0.3, 0.2], abs=0.05)
    assert cool == pytest.approx(np.array([125, 27, 8]) / 160, abs=0.05)
    assert rows.entropy[0][0] == pytest.approx(1.0297, abs=1e-3)
    assert rows.logprob[0][0] == pytest.approx(np.log(0.5))


def test_the_first_token_is_kept_and_no_other() -> None:
    first = First()
    one, other = torch.zeros(1, 3), torch.ones(1, 3)
    first(torch.zeros(1, 1), one)
    first(torch.zeros(1, 2), other)
    assert first.scores is not None and torch.equal(first.scores, one)


def test_the_stand_in_is_exported_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ladder = importlib.import_module("ladder.__main__")
    monkeypatch.setattr(ladder, "PART", 7000)
    bench = Bench(tmp_path / "ladder", TINY, "cpu")
    for name in ("many-mild-long.1", "many-mild-long.0", "other.0"):
        (bench.folder / "models" / name).mkdir(parents=True)
        (bench.folder / "models" / name / "model.safetensors").write_bytes(name.encode() * 1000)
        (bench.folder / "models" / f"{name}.json").write_text("{}")
    (bench.folder / CHOICE).write_text(json.dumps({"chosen": "many-mild-long"}))
    ladder.export_chosen(bench, tmp_path / "out")
    parts = sorted((tmp_path / "out").glob("stand-in.tar.*"))
    assert len(parts) > 1 and all(part.stat().st_size <= 7000 for part in parts)
    whole = tmp_path / "whole.tar"
    whole.write_bytes(b"".join(part.read_bytes() for part in parts))
    with tarfile.open(whole) as packed:
        packed.extractall(tmp_path / "there", filter="data")
    found = tmp_path / "there" / "many-mild-long.0" / "model.safetensors"
    assert found.read_bytes() == b"many-mild-long.0" * 1000


def test_what_an_earlier_run_found_stands_and_is_not_packed_again(tmp_path: Path) -> None:
    ladder = importlib.import_module("ladder.__main__")
    first, second = (Bench(tmp_path / name, TINY, "cpu") for name in ("first", "second"))

    def write(bench: Bench, *names: str) -> None:
        for name in names:
            (bench.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (bench.folder / name).write_text(bench.folder.name)

    write(
        first,
        CHOICE,
        "facts.json",
        "logs/run.log",
        "results/a.0/regular.npz",
        "models/a.0.json",
        "models/b.1.json",
    )
    ladder.pack(first, argparse.Namespace(out=tmp_path / "one", old=frozenset()))
    before = tmp_path / "one" / "ladder.tar.xz"
    second.folder.mkdir()
    assert ladder.unpack(first.folder / CHOICE, second.folder) == {CHOICE}
    assert (second.folder / CHOICE).read_text() == "first"
    old = ladder.unpack(before, second.folder)
    assert (second.folder / CHOICE).read_text() == "first"
    there = {str(path.relative_to(second.folder)) for path in second.folder.rglob("*") if path.is_file()}
    assert there == {CHOICE, "results/a.0/regular.npz", "models/a.0.json"} == old
    write(second, "facts.json", "results/a.0/cai.npz", "where/a.0/scenes.gz", "models/b.1/model.bin")
    write(second, "models/b.1.json", "results/a.0/vcd.npz.part")
    ladder.pack(second, argparse.Namespace(out=tmp_path / "two", old=old))
    with tarfile.open(tmp_path / "two" / "ladder.tar.xz") as packed:
        assert set(packed.getnames()) == {
            "facts.json", "results/a.0/cai.npz", "where/a.0/scenes.gz", "models/b.1.json",
        }  # fmt: skip
