"""From answers to tables: counts, paired differences, what predicts them, the page and the map."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from results import SCENES, captions, tokenizer, write

from ladder import measures, page, predicting, recovering
from ladder.rungs import RUNGS, kind_of
from ladder.stand_in import choose
from ladder.summary import from_answers, summary
from seewhen.scenes import dataset
from seewhen.scenes.world import CATEGORIES

KINDS = ("a", "b", "c", "d", "e", "f", "g", "h", "packaged")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine rungs; what "vcd" does depends on the divergence, what "pai" does on nothing."""
    folder = tmp_path_factory.mktemp("found")
    for number, kind in enumerate(KINDS):
        model = kind if kind == "packaged" else f"{kind}.0"
        invented = {"regular": 1.5, "min-p": 1.2, "vcd": 0.4 + 0.2 * number, "pai": 1.3, "only": 1.0}
        write(folder, model, invented, divergence=0.1 * number, seed=100 * number)
    write(folder, "a.1", {"regular": 1.5, "vcd": 0.4, "pai": 1.3, "only": 1.0}, divergence=0.2, seed=7)
    (folder / "facts.json").write_text(json.dumps({"device": "none", "versions": {}}))
    return folder


def test_captions_that_say_what_is_there_invent_nothing() -> None:
    scenes = measures.scenes(SCENES)
    true = measures.counted(captions(tokenizer(), 0.0, 1)[None], scenes).sum(0)
    false = measures.counted(captions(tokenizer(), 2.0, 1)[None], scenes).sum(0)
    chair_s, chair_i, recall, f1, _, _ = measures.values(true)
    assert chair_s == chair_i == 0 and recall == f1 == 100
    assert measures.values(false)[0] == 100 and measures.values(false)[2] == 100


def test_differences_are_paired_by_scene() -> None:
    counts = measures.counted(captions(tokenizer(), 1.0, 1)[None], measures.scenes(SCENES))
    same = measures.effect(counts, counts)
    assert all(value == [0.0, 0.0, 0.0] for value in same.values())
    assert measures.level(counts)["chair_i"][1] < measures.level(counts)["chair_i"][2]


def test_expected_answers_count_chances() -> None:
    scenes = measures.scenes(SCENES)
    asked = measures.questions(scenes)
    sure = np.array([0.0 if each.there else 1.0 for each in asked])
    good, total = measures.asked(sure, scenes).sum(0)
    assert good == total == len(asked)
    assert measures.asked(np.full(len(asked), 0.5), scenes).sum(0)[0] == pytest.approx(len(asked) / 2)


def test_the_ceiling_sees_what_was_said_and_doubted(found: Path) -> None:
    pairs = measures.believed(found, "a.0", "greedy")
    assert len(pairs.true) == SCENES * len(CATEGORIES)
    assert pairs.true.sum() == sum(len(scene.names) for scene in dataset("shifted", SCENES, seed=measures.TEST))
    assert np.isfinite(pairs.doubt["entropy"][pairs.said]).all() and 0 < pairs.elsewhere.max() <= 1
    assert 0.5 < measures.signal(found, "a.0")["asking"] <= 1


def test_regular_captions_recover_nothing_and_true_ones_more_than_anything(tmp_path: Path) -> None:
    write(tmp_path, "a.0", {"regular": 3.0, "confirm chosen": 0.0}, divergence=0.1, seed=5)
    write(tmp_path, "a.1", {"regular": 3.0}, divergence=0.1, seed=6)
    assert recovering.promising(tmp_path, ("a.0", "a.1")) == {"a": ["a.0", "a.1"]}
    same = recovering.recovered(tmp_path, ("a.0", "a.1"), "regular", "greedy", replicates=20)
    assert same is not None and same.models == ("a.0", "a.1")
    assert same.taken.value == same.recall.value == same.share.high == 0 and same.ceiling.value > 5
    true = recovering.recovered(tmp_path, ("a.0", "a.1"), "confirm chosen", "greedy", replicates=20)
    now = measures.recoverable(tmp_path, "a.0", "greedy", replicates=20)
    assert true is not None and true.models == ("a.0",) and true.share.value >= 100
    assert true.taken.value == pytest.approx(100 * now.invented_now.value)
    assert true.ceiling.value == pytest.approx(100 * now.recoverable.value)
    assert recovering.recovered(tmp_path, ("a.1",), "confirm chosen", "greedy") is None


def test_captions_cut_off_say_less_and_whole_ones_the_same(tmp_path: Path) -> None:
    write(tmp_path, "a.0", {"regular": 3.0}, divergence=0.1, seed=5)
    whole, first = (measures.cut_off(tmp_path, ("a.0",), sentences) for sentences in (50, 1))
    assert all(value == [0.0, 0.0, 0.0] for name, value in whole.items() if name != "pope")
    with np.load(tmp_path / "results" / "a.0" / "regular.npz") as kept:
        texts = tokenizer().batch_decode(kept["greedy"], skip_special_tokens=True)
    less = [
        len(tokenizer().encode(" " + text.strip().split(".")[0] + ".", add_special_tokens=False)) for text in texts
    ]
    full = [len(tokenizer().encode(" " + text.strip(), add_special_tokens=False)) for text in texts]
    assert first["tokens"][0] == pytest.approx(np.mean(less) - np.mean(full), abs=0.01)
    assert first["recall"][0] <= 0


def test_the_rule_reads_rungs_and_averages_seeds(found: Path) -> None:
    responses = measures.responses(found)
    assert set(responses) == set(KINDS)
    one, other = (measures.responses(found, (name,))["a"] for name in ("a.0", "a.1"))
    both = responses["a"]
    assert both.pope == pytest.approx((one.pope + other.pope) / 2)
    assert both.quantities["chair_i vcd"] == pytest.approx(
        (one.quantities["chair_i vcd"] + other.quantities["chair_i vcd"]) / 2
    )
    assert choose(responses).chosen in KINDS


def test_an_effect_that_follows_a_diagnostic_is_predicted_by_it() -> None:
    rng = np.random.default_rng(0)
    same = {"recoverable_sampled": 3.0, "asked_auroc": 0.8}
    known = {f"r{n}": {"divergence": n / 10, "usual_without": float(rng.normal()), **same} for n in range(14)}
    follows = {name: 5 * each["divergence"] - 2 for name, each in known.items()}
    strongest = predicting.correlations(follows, known)[0]
    assert strongest.diagnostic == "divergence" and strongest.rho == pytest.approx(1) and strongest.p < 0.01
    told = predicting.leave_one_out(follows, known, "sampled")
    assert told is not None and told.error < told.error_of_mean / 3
    noise = dict(zip(known, rng.normal(size=14), strict=True))
    told = predicting.leave_one_out(noise, known, "sampled")
    assert told is not None and told.error > 0.8 * told.error_of_mean
    assert predicting.leave_one_out(dict(list(noise.items())[:5]), known, "sampled") is None


def test_ranks_share_ties_and_spearman_is_of_ranks() -> None:
    assert predicting.ranks(np.array([3.0, 1.0, 3.0])).tolist() == [2.5, 1.0, 2.5]
    x = np.array([1.0, 2.0, 3.0, 4.0])
    assert predicting.spearman(x, np.exp(x)) == pytest.approx(1)
    assert predicting.spearman(x, np.ones(4)) == 0


@pytest.mark.slow
def test_the_page_has_every_rung_and_the_map_is_drawn(
    found: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["page", str(found), "--out", str(tmp_path), "--package", str(tmp_path / "package.json")]
    monkeypatch.setattr("sys.argv", command)
    monkeypatch.setattr(page, "summary", partial(summary, replicates=50))
    page.main()
    text = (tmp_path / "tables.md").read_text()
    assert all(f"| {kind} |" in text for kind in KINDS) and "No stand-in was chosen." in text
    assert all((tmp_path / name).stat().st_size > 10_000 for name in ("map-sampled.png", "map-greedy.png"))
    rungs = {rung["name"]: rung for rung in json.loads((tmp_path / "package.json").read_text())["rungs"]}
    value, low, high = rungs["a"]["effects"]["vcd"]["sampled"]["chair_i"]
    assert low <= value <= high < 0
    assert rungs["a"]["diagnostics"]["divergence"] == pytest.approx(0.1)
    told = json.loads((tmp_path / "predictions.json").read_text())
    assert told["vcd sampled"]["correlations"][0]["diagnostic"] == "divergence"


def test_a_method_that_refused_is_left_out(found: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "confirm.npz", refused=np.array("too few objects"))
    assert measures.Answered.read(tmp_path / "confirm.npz", "confirm") is None
    assert "confirm" not in summary(found, replicates=50)[0]["effects"]


def test_what_the_answers_tell_stands_in_for_a_look(tmp_path: Path) -> None:
    """By hand: areas as shares of pairs in order, perplexity and entropy over the tokens that were written."""
    write(tmp_path, "a.0", {"regular": 1.5}, divergence=0.3, seed=3)
    (tmp_path / "results" / "a.0" / "diagnostics.json").unlink()
    told = from_answers(tmp_path, "a.0")
    with np.load(tmp_path / "results" / "a.0" / "regular.npz") as kept:
        words, sure, doubt, no = (kept[n] for n in ("greedy", "greedy_logprob", "greedy_entropy", "no"))
    with np.load(tmp_path / "results" / "a.0" / "asked.npz") as kept:
        odds = kept["odds"]
    scenes = dataset("shifted", SCENES, seed=measures.TEST)
    truth = np.array([[name in scene.names for name in CATEGORIES] for scene in scenes])
    in_order = odds[truth][:, None] > odds[~truth][None]
    assert told["asked_auroc"] == pytest.approx(in_order.mean())
    written = words != tokenizer().pad_token_id
    assert told["perplexity_with"] == pytest.approx(np.exp(-sure[written].mean()))
    assert told["entropy_with"] == pytest.approx(doubt[written].mean())
    first = measures.believed(tmp_path, "a.0", "greedy")
    assert told["invented"] == pytest.approx(1 - first.true[first.said].mean()) and 0 < told["invented"] < 1
    good, bad = (first.doubt["entropy"][first.said & each] for each in (first.true, ~first.true))
    assert told["entropy_auroc"] == pytest.approx((good[:, None] < bad[None]).mean())
    there = np.array([each.there for each in measures.questions(scenes)])
    tenths = [np.floor((1 - no) * 10) == tenth for tenth in range(10)]
    apart = [abs((1 - no)[own].mean() - there[own].mean()) * own.mean() for own in tenths if own.any()]
    assert told["calibration_error"] == pytest.approx(sum(apart), abs=1e-6)
    (entry,) = summary(tmp_path, replicates=20)
    assert {name: entry["diagnostics"][name] for name in told} == {n: round(v, 6) for n, v in told.items()}


def test_rungs_are_enough_and_told_apart() -> None:
    names = [rung.name for rung in RUNGS]
    assert len(set(names)) == len(names)
    kinds = [kind_of(name) for name in names]
    assert len(set(kinds)) >= 16
    assert sum(kinds.count(kind) == 3 for kind in set(kinds)) >= 4
