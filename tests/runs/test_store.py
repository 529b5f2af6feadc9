"""The run directory: torn lines, resume by key, refusals, locks, atomic results."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seewhen.atomic import write
from seewhen.errors import InvalidInput
from seewhen.runs.store import (
    RESULT,
    SAMPLES,
    Record,
    RunConflict,
    RunStore,
    config_differences,
    read_run,
    read_samples,
)

CONFIG = {"model": {"name": "m", "revision": "r1"}, "method": {"name": "cai", "gamma": 0.1}}


def record(k, seed=0, **changes):
    return Record(**{"id": f"q{k}", "seed": seed, "image": f"i{k // 3}", "answer": "yes\n“ja” ", **changes})


def fresh(path):
    return RunStore.open(path, CONFIG, {"host": "here"})


def test_round_trip_and_resume(tmp_path):
    with fresh(tmp_path) as store:
        store.append([record(0, tokens=3, facts={"gate": 0.25}), record(1, answer="", error="broken image")])
    with fresh(tmp_path) as store:
        assert store.done == {("q0", 0), ("q1", 0)}
        store.append([record(0, seed=1)])
        with pytest.raises(RunConflict, match="twice"):
            store.append([record(0, seed=1)])
        with pytest.raises(RunConflict, match="twice"):
            store.append([record(7), record(7)])
    run = read_run(tmp_path)
    assert [r.key for r in run.records] == [("q0", 0), ("q1", 0), ("q0", 1)]
    assert run.records[0] == record(0, tokens=3, facts={"gate": 0.25})
    assert [r.error for r in run.failures] == ["broken image"]
    assert run.result is None


def test_what_is_done_is_looked_at_and_not_copied(tmp_path):
    """Every answer looks it up, so that a copy each time would make long runs quadratic."""
    with fresh(tmp_path) as store:
        done = store.done
        store.append([record(0)])
        assert done == store.done == {("q0", 0)}


def test_a_torn_last_line_is_cut_off_at_every_byte(tmp_path):
    whole = [record(0).line().encode(), record(1).line().encode()]
    for cut in range(len(whole[1])):
        path = tmp_path / str(cut)
        with fresh(path):
            pass
        (path / SAMPLES).write_bytes(whole[0] + whole[1][:cut])
        assert [r.id for r in read_run(path).records] == ["q0"]  # a reader does not mind
        with fresh(path) as store:
            assert store.done == {("q0", 0)}
            store.append([record(1)])
        assert (path / SAMPLES).read_bytes() == b"".join(whole)


def test_a_line_of_garbage_at_the_end_is_cut_off_but_not_in_the_middle(tmp_path):
    with fresh(tmp_path) as store:
        store.append([record(0)])
    good = (tmp_path / SAMPLES).read_bytes()
    (tmp_path / SAMPLES).write_bytes(good + b"\0\0\0\n")
    with fresh(tmp_path) as store:
        assert store.done == {("q0", 0)}
    assert (tmp_path / SAMPLES).read_bytes() == good
    (tmp_path / SAMPLES).write_bytes(b"\0\0\n" + good)
    with pytest.raises(InvalidInput, match="line 1 is not a record"):
        fresh(tmp_path)
    (tmp_path / SAMPLES).write_bytes(good + good)
    with pytest.raises(InvalidInput, match="twice"):
        fresh(tmp_path)


text = st.text(max_size=12)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(text, st.integers(0, 3), text), unique_by=lambda r: r[:2], max_size=8), st.data())
def test_any_prefix_of_bytes_resumes(tmp_path_factory, rows, data):
    """Whatever byte the disk stopped at: whole records survive, the rest is asked for again."""
    path = tmp_path_factory.mktemp("run")
    records = [Record(id=i, seed=s, image="x", answer=a) for i, s, a in rows]
    with fresh(path) as store:
        store.append(records)
    content = (path / SAMPLES).read_bytes()
    cut = data.draw(st.integers(0, len(content)))
    (path / SAMPLES).write_bytes(content[:cut])
    with fresh(path) as store:
        assert store.done == {r.key for r in records[: content[:cut].count(b"\n")]}
        store.append([r for r in records if r.key not in store.done])
    assert (path / SAMPLES).read_bytes() == content
    assert read_samples(path / SAMPLES)[0] == records


def test_another_configuration_is_refused_and_named(tmp_path):
    with fresh(tmp_path):
        pass
    other = {"model": {"name": "m", "revision": "r2"}, "method": {"name": "cai", "layers": [1, 2]}}
    with pytest.raises(RunConflict) as caught:
        RunStore.open(tmp_path, other, {})
    message = str(caught.value)
    assert 'model.revision: "r1" there, "r2" now' in message
    assert "method.gamma: 0.1 there, nothing now" in message
    assert "method.layers: nothing there, [1, 2] now" in message
    assert "model.name" not in message
    RunStore.open(tmp_path, CONFIG, {"host": "elsewhere"}).close()  # the environment may change


def test_checksums_are_told_briefly():
    assert config_differences({"a": "ab" * 32}, {"a": "cd" * 32}) == ["a: abababab there, cdcdcdcd now"]


def test_tuples_and_lists_are_the_same_configuration():
    cai = {"method": {"label": "cai", "parameters": {"contrast": 1.0, "tilt": "score"}}, "model": "a"}
    vcd = {"method": {"label": "vcd", "parameters": {"alpha": 1.0}}, "model": "a"}
    assert config_differences(cai, vcd) == ['method.label: "cai" there, "vcd" now'], "which says all of it"
    assert config_differences({"a": (1, 2), "b": {}}, {"a": [1, 2], "b": {}}) == []


def test_samples_without_manifest_are_refused(tmp_path):
    (tmp_path / SAMPLES).write_text(record(0).line())
    with pytest.raises(RunConflict, match="no manifest"):
        fresh(tmp_path)
    with pytest.raises(InvalidInput, match="not a run directory"):
        read_run(tmp_path)


def _hold(path, ready, release):
    with fresh(Path(path)):
        ready.set()
        release.wait(20)


def test_two_writers_are_refused_and_a_dead_one_does_not_block(tmp_path):
    context = multiprocessing.get_context("spawn")
    ready, release = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(str(tmp_path), ready, release))
    process.start()
    assert ready.wait(30)
    with pytest.raises(RunConflict, match="Another process"):
        fresh(tmp_path)
    assert read_run(tmp_path).records == ()  # reading is always allowed
    process.kill()
    process.join()
    fresh(tmp_path).close()


def test_the_store_works_where_there_is_no_fcntl(tmp_path):
    code = (
        "import sys; sys.modules['fcntl'] = None\n"
        "from pathlib import Path; from seewhen.runs.store import RunStore, read_run\n"
        "with RunStore.open(Path(sys.argv[1]), {}, {}): pass\n"
        "print(len(read_run(Path(sys.argv[1])).records))"
    )
    found = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert found.stdout == "0\n", found.stderr


def test_finish_orders_and_comes_last(tmp_path):
    with fresh(tmp_path) as store:
        store.append([record(2), record(0), record(1)])
        store.finish([("q0", 0), ("q1", 0), ("q2", 0)], {"accuracy": 50.0})
        assert [r.id for r in store.records] == ["q0", "q1", "q2"]
        assert json.loads((tmp_path / RESULT).read_text()) == {"accuracy": 50.0}
        store.append([record(3)])  # more was asked for: the old result no longer holds
        assert not (tmp_path / RESULT).exists()
    assert [r.id for r in read_run(tmp_path).records] == ["q0", "q1", "q2", "q3"]
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".result")]


def test_failures_can_be_tried_again(tmp_path):
    with fresh(tmp_path) as store:
        store.append([record(0), record(1, answer="", error="out of memory")])
        assert store.forget_failures() == 1
        store.append([record(1)])
    assert [(r.id, r.error) for r in read_run(tmp_path).records] == [("q0", ""), ("q1", "")]


def test_atomic_write_leaves_the_old_file_when_it_fails(tmp_path):
    path = tmp_path / "f.json"
    write(path, "old", durable=True)
    with pytest.raises(UnicodeEncodeError):
        write(path, "new \ud800", durable=True)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["f.json"]


def test_unknown_format_is_refused(tmp_path):
    write(tmp_path / "manifest.json", json.dumps({"format": 99}))
    with pytest.raises(InvalidInput, match="format 99"):
        read_run(tmp_path)


@pytest.mark.parametrize("spoil", ["deleted", "replaced", "cut"])
@pytest.mark.parametrize("then", ["append", "finish"])
def test_samples_that_vanish_during_a_run_are_an_error(tmp_path, spoil, then):
    with fresh(tmp_path) as store:
        store.append([record(0), record(1)])
        path = tmp_path / SAMPLES
        if spoil == "cut":
            os.truncate(path, 10)
        else:
            path.unlink()
        if spoil == "replaced":
            path.write_text(record(0).line() + record(1).line())
        with pytest.raises(RunConflict, match="deleted or changed"):
            store.append([record(2)]) if then == "append" else store.finish([], {"format": 1})
    assert not (tmp_path / "result.json").exists()
