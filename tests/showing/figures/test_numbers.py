"""The numbers behind the figures, recomputed in another way."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import made_up
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seewhen.errors import InvalidInput
from seewhen.scenes import dataset
from seewhen.scenes.world import SIZE
from seewhen.showing.figures import (
    auroc_by_layer,
    calibration,
    confident_hallucinations,
    failure,
    fired,
    median_entropy,
    pointing,
)
from seewhen.showing.figures.measured import tenths
from seewhen.showing.figures.resampling import auroc_estimate, drawn_scenes, median


def choosing_steps(case, scene):
    """The step that chose each object's name, straight from how the caption was put together."""
    texts = [text.strip() for text in case.trace.texts[0]]
    found = {}
    for name in scene.names:
        parts = name.split()
        found[name] = next(
            k for k in range(len(texts)) if texts[k : k + len(parts)] == parts and texts[k - 1] == "a"
        )
    wrong = max(k for k, text in enumerate(texts) if text == "a") + 1
    return found, wrong


@pytest.fixture(scope="session")
def scenes():
    return dataset("test", 12)


def test_auroc_by_layer_is_the_share_of_pairs_in_order(cases, scenes):
    data = auroc_by_layer(cases).data
    for layer in range(made_up.LAYERS):
        right, wrong = [], []
        for case, scene in zip(cases, scenes, strict=True):
            values = case.trace.tensors["entropy"][:, 0, layer].tolist()
            named, bad = choosing_steps(case, scene)
            right += [values[step] for step in named.values()]
            wrong.append(values[bad])
        pairs = [(a > b) + 0.5 * (a == b) for a in wrong for b in right]
        point = data["layers"][layer]
        assert point["value"] == pytest.approx(sum(pairs) / len(pairs), abs=1e-6)
        assert point["low"] <= point["value"] <= point["high"]
    assert data["hallucinated_words"] == 12
    assert data["correct_words"] == sum(len(scene.names) for scene in scenes)


def test_pointing_counts_patches_in_boxes(cases, scenes):
    data = pointing(cases).data
    patch = SIZE // made_up.SIDE

    def hit(weights, scene, name):
        best = int(weights.argmax())
        x, y = (best % made_up.SIDE + 0.5) * patch, (best // made_up.SIDE + 0.5) * patch
        return any(t.box[0] <= x < t.box[2] and t.box[1] <= y < t.box[3] for t in scene.of(name))

    for layer in (0, 4):
        own, before, looked = [], [], []
        for case, scene in zip(cases, scenes, strict=True):
            cosine = case.trace.tensors[f"cosine_at_{layer}"][:, 0]
            for name, step in choosing_steps(case, scene)[0].items():
                own.append(hit(cosine[step + len(name.split())], scene, name))
                before.append(hit(cosine[step], scene, name))
                looked.append(hit(case.trace.tensors["attention_before"][step, 0, layer], scene, name))
        for reading, hits in (("own", own), ("before", before), ("attention", looked)):
            point = data["curves"][reading]["layers"][layer]
            assert point["layer"] == layer and point["words"] == len(hits)
            assert point["value"] == pytest.approx(sum(hits) / len(hits), abs=1e-6)


def test_chance_is_the_share_of_patches_in_boxes(cases, scenes):
    shares = []
    centres = (np.arange(made_up.SIDE) + 0.5) * SIZE / made_up.SIDE
    for scene in scenes:
        for name in scene.names:
            inside = np.zeros((made_up.SIDE, made_up.SIDE), bool)
            for thing in scene.of(name):
                left, top, right, bottom = thing.box
                across, down = (centres >= left) & (centres < right), (centres >= top) & (centres < bottom)
                inside |= down[:, None] & across[None]
            shares.append(inside.mean())
    assert pointing(cases).data["chance"]["value"] == pytest.approx(np.mean(shares), abs=1e-6)


def test_maps_that_point_at_the_object_have_accuracy_one(cases, scenes):
    sure = []
    for case, scene in zip(cases, scenes, strict=True):
        cosine = torch.zeros_like(case.trace.tensors["cosine_at_0"])
        for name, step in choosing_steps(case, scene)[0].items():
            x, y = scene.of(name)[0].center
            cosine[step + len(name.split()), 0, int(y // 16) * made_up.SIDE + int(x // 16)] = 1.0
        tensors = {**case.trace.tensors, "cosine_at_0": cosine}
        sure.append(replace(case, trace=replace(case.trace, tensors=tensors)))
    assert pointing(sure).data["curves"]["own"]["layers"][0]["value"] == 1.0


def test_fired_counts_gates(cases):
    data = fired(cases).data
    gates = [case.trace.tensors["gate"][:, 0].numpy() for case in cases]
    total = sum(len(gate) for gate in gates)
    assert data["tokens"] == total
    assert [entry["layer"] for entry in data["layers"]] == list(made_up.TILTED)
    for entry in data["layers"]:
        tokens = sum(int(gate[:, entry["layer"]].sum()) for gate in gates)
        assert entry["tokens"] == tokens
        assert entry["share"]["value"] == pytest.approx(tokens / total, abs=1e-6)
        assert entry["share"]["low"] < tokens / total < entry["share"]["high"]
    assert data["in_any_layer"]["tokens"] == sum(int(gate.any(axis=1).sum()) for gate in gates)


def test_median_entropy_by_kind(cases, scenes):
    data = median_entropy(cases).data
    for layer in (0, 5):
        kinds = {"grounded": [], "hallucinated": [], "function": []}
        for case, scene in zip(cases, scenes, strict=True):
            values = case.trace.tensors["entropy"][:, 0, layer].tolist()
            named, wrong = choosing_steps(case, scene)
            kinds["grounded"] += [values[step] for step in named.values()]
            kinds["hallucinated"].append(values[wrong])
            texts = case.trace.texts[0]
            kinds["function"] += [values[k] for k, t in enumerate(texts) if t in (" a", " The", " and")]
        for kind, values in kinds.items():
            assert data["kinds"][kind]["words"] == len(values)
            found = data["kinds"][kind]["median"][layer]["value"]
            assert found == pytest.approx(statistics.median(values), abs=1e-6)
    # The gate of layer l reads the entropy of layer l - 1.
    assert [(t["layer"], t["value"]) for t in data["threshold"]] == [
        (layer - 1, pytest.approx(made_up.THRESHOLD)) for layer in made_up.TILTED
    ]


def test_calibration_bins(cases, scenes):
    data = calibration(cases).data
    words = []
    for case, scene in zip(cases, scenes, strict=True):
        logs = case.trace.tensors["chosen_log_probs"][:, 0].tolist()
        named, wrong = choosing_steps(case, scene)
        texts = case.trace.texts[0]
        end = next(k for k in range(wrong, len(texts)) if texts[k] == ".")
        words.append((math.exp(sum(logs[wrong:end])), 0))
        words += [(math.exp(sum(logs[s : s + len(name.split())])), 1) for name, s in named.items()]
    assert data["words"] == len(words) == sum(b["words"] for b in data["bins"])
    error = 0.0
    for entry in data["bins"]:
        inside = [(p, t) for p, t in words if entry["from"] - 1e-6 <= p <= entry["to"] + 1e-6]
        assert len(inside) == entry["words"]
        confidence, accuracy = (sum(column) / len(inside) for column in zip(*inside, strict=True))
        assert entry["confidence"] == pytest.approx(confidence, abs=1e-5)
        assert entry["accuracy"]["value"] == pytest.approx(accuracy, abs=1e-5)
        error += abs(confidence - accuracy) * len(inside) / len(words)
    assert data["calibration_error"]["value"] == pytest.approx(error, abs=1e-5)


@settings(max_examples=50)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=200))
def test_every_probability_is_in_one_bin(chances):
    groups = tenths(np.asarray(chances))
    assert sorted(index for group in groups for index in group.tolist()) == list(range(len(chances)))
    assert len(groups) == 1 or all(len(group) >= 10 for group in groups)
    tops = [max(chances[k] for k in group) for group in groups]
    assert tops == sorted(tops)


def with_entropy(case, step, values):
    entropy = case.trace.tensors["entropy"].clone()
    entropy[step, 0] = torch.tensor(values)
    return replace(case, trace=replace(case.trace, tensors={**case.trace.tensors, "entropy": entropy}))


def test_the_failure_figure_finds_hallucinations_the_gate_missed(cases, scenes):
    quiet, loud = [2.0, 2.0, 0.1, 0.2, 0.1, 2.0], [0.1, 0.1, 0.1, 0.7, 0.1, 0.1]
    given_cases = []
    for number, (case, scene) in enumerate(zip(cases, scenes, strict=True)):
        named, wrong = choosing_steps(case, scene)
        case = with_entropy(case, wrong, quiet if number in (2, 5) else loud)
        # A word for what is there may be as sure as it likes.
        given_cases.append(with_entropy(case, next(iter(named.values())), quiet))
    data = failure(given_cases).data
    assert (data["hallucinated_words"], data["confident"]) == (12, 2)
    assert {entry["image"] for entry in data["cases"]} == {cases[2].name, cases[5].name}
    assert data["share"]["value"] == pytest.approx(2 / 12, abs=1e-6)
    assert all(entry["peak"] == pytest.approx(0.2) for entry in data["cases"])
    with pytest.raises(InvalidInput, match="opened the gate"):
        failure([case for k, case in enumerate(given_cases) if k not in (2, 5)])


def test_without_a_gate_the_papers_threshold_counts(cases, scenes):
    step = choosing_steps(cases[0], scenes[0])[1]
    for high, found in ((0.2, 1), (0.3, 0)):  # 0.1 to base 10 is 0.23 nats; it reads layer 4 of 6 only
        case = with_entropy(cases[0], step, [2, 2, 2, 2, high, 2])
        tensors = {k: v for k, v in case.trace.tensors.items() if k not in ("threshold", "gate")}
        case = replace(case, trace=replace(case.trace, tensors=tensors))
        assert len(confident_hallucinations([case])) == found


def auroc(positive, negative):
    """How often a positive value is above a negative one; ties count half."""
    pairs = [(a > b) + 0.5 * (a == b) for a in positive for b in negative]
    return statistics.fmean(pairs) if pairs else math.nan


grouped = st.lists(st.tuples(st.floats(0, 5), st.booleans(), st.integers(0, 3)), min_size=1, max_size=25)


@settings(max_examples=25)
@given(grouped)
def test_bootstrap_of_scenes_equals_repeating_their_words(words):
    """Weights instead of repeated lists: the same medians and AUROCs, resample by resample."""
    values, labels, scene = (list(column) for column in zip(*words, strict=True))
    medians, areas = [], []
    for counts in drawn_scenes(4, 60):
        repeated = [word for word in words for _ in range(int(counts[word[2]]))]
        medians.append(statistics.median([w[0] for w in repeated]) if repeated else math.nan)
        areas.append(auroc([w[0] for w in repeated if w[1]], [w[0] for w in repeated if not w[1]]))
    found, area = median(values, scene, 4, 60), auroc_estimate(values, labels, scene, 4, 60)
    for told, drawn in ((found, medians), (area, areas)):
        known = [value for value in drawn if not math.isnan(value)]
        if math.isnan(told["value"]) or not known:
            continue
        low, high = np.quantile(known, [0.025, 0.975])
        assert (told["low"], told["high"]) == (pytest.approx(low), pytest.approx(high))


def test_labels_are_needed_where_words_are_judged(cases):
    blind = [replace(cases[0], truth=None)]
    for figure in (auroc_by_layer, pointing, calibration, median_entropy, failure):
        with pytest.raises(InvalidInput, match="which words are hallucinated"):
            figure(blind)
