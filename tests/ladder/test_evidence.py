"""What docs/evidence.md and the ladder's README say is what the committed results say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ladder import evidence, picture
from ladder.recovering import ENOUGH
from ladder.rungs import described, family
from ladder.stand_in import Response, choose
from scale.plan import filled

README = Path(evidence.__file__).with_name("README.md").read_text("utf-8")
PAGE = evidence.PAGE.read_text("utf-8")
SECTION = PAGE.partition("## When does it help? A ladder of small models")[2].partition("\n## ")[0]
RUNGS = evidence.read("ladder")["rungs"]
# Methods other than `confirm` and the controls, as the page counts them.
PUBLISHED = [name for name in evidence.CALLED if not name.startswith(("confirm", "cooler", "min-p"))]


def test_the_page_shows_the_tables_of_the_results() -> None:
    assert filled(PAGE, evidence.tables()) == PAGE
    assert all(SECTION.count(f"<!-- {name} -->") == 1 for name in evidence.tables())


def test_models_rungs_and_seeds_are_those_of_the_results() -> None:
    made = [rung for rung in RUNGS if rung["name"] != "packaged"]
    models, seeds = sum(len(rung["models"]) for rung in made), [len(rung["models"]) for rung in made]
    assert f"{models} small LLaVAs were trained in {len(made)} ways" in SECTION
    assert f"{models} of them were made in {len(made)} ways" in README
    assert (sum(each >= 3 for each in seeds), seeds.count(2), len(RUNGS)) == (11, 8, 20)
    assert "Eleven rungs have three or four seeds, eight have two." in SECTION
    assert "three or four for eleven rungs, two for eight" in README
    searched = [rung["asked"]["opera"] for rung in RUNGS if "opera" in rung["asked"]]
    assert {len(models) for models in searched} == {1}
    assert f"OPERA on one model each of {len(searched)} rungs" in SECTION


def test_counts_of_the_prose_are_those_of_the_results() -> None:
    contrast = evidence.counts(evidence.beside_cut(RUNGS, "contrast"))
    assert contrast == (17, 2) and "on 17 of 20 rungs, by 2.3 to 13.0 points" in SECTION
    text = " ".join(SECTION.split())
    f1 = {rung["name"]: rung["beyond"]["contrast"]["f1"] for rung in RUNGS}
    helped = {rung["name"] for rung in RUNGS if rung["beyond"]["contrast"]["chair_i"][2] < 0}
    assert f"and raises F1 on {sum(f1[name][1] > 0 for name in helped)} of these" in text
    assert {name for name, each in f1.items() if each[2] < 0} == {"many-strong-projector", "packaged"}
    blind = next(rung["beyond"]["contrast"] for rung in RUNGS if rung["name"] == "many-strong-projector")
    assert f"recall falls by {-blind['recall'][0]:.1f} points and F1 by {-blind['f1'][0]:.1f}" in text
    greedy = [each for name in PUBLISHED for each in evidence.over_rungs(RUNGS, name, "greedy", "chair_i")]
    lower, higher = evidence.counts(greedy)
    assert (
        f"Of {len(greedy)} differences (CAI and its parts included) {lower} lower CHAIR_i and {higher} raise it"
        in text
    )
    surely = [r["name"] for r in RUNGS if r["ceiling"]["greedy"]["recoverable"][1] > 0]
    assert len(surely) == 3 and all(name.endswith("embellished") for name in surely)
    tilt = [
        each[0] for way in ("greedy", "sampled") for each in evidence.over_rungs(RUNGS, "tilt", way, "chair_i")
    ]
    assert f"{min(tilt):+.1f} to {max(tilt):+.1f} points on all rungs" in SECTION


@pytest.mark.parametrize(
    ("share", "recall", "said"),
    [
        ([93, 86, 112], [-0.4, -1.4, 0.7], "reached"),
        ([73, 53, 102], [-0.1, -1.6, 1.3], "reached, not certain"),
        ([42, 32, 57], [-1.2, -2.0, -0.4], "missed"),
        ([13, -13, 400], [-0.2, -1.3, 0.9], "missed, not certain"),
        ([108, 98, 145], [-8.9, -11.2, -6.5], "reached, for 8.9 points of recall"),
    ],
)
def test_the_goal_is_reached_for_certain_or_not_and_at_a_price(
    share: list[float], recall: list[float], said: str
) -> None:
    assert evidence.verdict(share, recall) == said


def test_the_choice_follows_from_the_responses_it_was_made_from() -> None:
    kept = evidence.read("choice")
    choice = choose({name: Response(**response) for name, response in kept["responses"].items()})
    assert choice.chosen == kept["chosen"] == evidence.STAND_IN
    assert choice.distances == pytest.approx(kept["distances"]) and list(choice.used) == kept["used"]


def test_the_picture_shows_every_rung_in_one_family_and_what_its_titles_say() -> None:
    assert {family(rung["name"]) for rung in RUNGS} == set(picture.FAMILIES)
    names = [described(rung["name"]) for rung in RUNGS]
    assert len(set(names)) == len(names) == 20
    assert described("many-strong-brief-unaligned") == "skewed text, brief, not aligned"
    shown = set(picture.SHOWN) - {"tilt"}
    helps = {
        way: [
            low < 0 and high < 0
            for name in names
            for _, low, high in evidence.over_rungs(RUNGS, name, way, "chair_i")
        ]
        for way, names in (("greedy", shown & set(PUBLISHED)), ("sampled", shown))
    }
    share = {way: sum(found) / len(found) for way, found in helps.items()}
    assert "few published methods help" in picture.FOUND["greedy"] and share["greedy"] < 0.2
    assert "nearly every method helps" in picture.FOUND["sampled"] and share["sampled"] > 0.9


def test_the_distances_of_the_others_and_why_it_was_not_shipped() -> None:
    others = sorted(evidence.read("choice")["distances"].values())[1:]
    assert f"the three others {others[0]:.2f} to {others[-1]:.2f}" in SECTION and len(others) == 3
    own, packaged = (
        next(rung["regular"]["greedy"]["chair_i"][0] for rung in RUNGS if rung["name"] == name)
        for name in (evidence.STAND_IN, "packaged")
    )
    assert f"(CHAIR_i {own:.1f} against {packaged:.1f})" in SECTION


def test_every_prediction_has_an_outcome() -> None:
    made = re.findall(r"^(\d+)\. ", README.partition("## Predictions")[2], re.M)
    told = re.findall(r"^\| (\d+): ", README.partition("## What became of the predictions")[2], re.M)
    assert made == told == [str(number) for number in range(1, 19)]


def test_single_models_are_those_of_the_results() -> None:
    each = {name: found[0] for rung in RUNGS for name, found in rung["ceiling"]["greedy"]["each"].items()}
    medium = [f"{each[f'many-mild-medium.{seed}']:.1f}" for seed in (0, 1, 2, 3)]
    long = [f"{each[f'many-mild-long-embellished.{seed}']:.1f}" for seed in (2, 3)]
    assert "held: {1}, {2} and {3}; with its first seed ({0})".format(*medium) in README
    assert "first held: {} and {};".format(*long) in README
    rows = evidence.read("recovered")["models"]
    near = [row for row in rows if row["share"][0] >= evidence.GOAL]
    kept = [row for row in near if row["recall"][0] >= -evidence.ALLOWED]
    sure = {row["rung"].rpartition(".")[0] for row in near if row["share"][1] >= evidence.GOAL}
    enough = sum(found >= 100 * ENOUGH for found in each.values())
    assert (len(rows), len(near), len(kept), enough - len(rows)) == (10, 7, 4, 5)
    assert sure == {"packaged-brief-embellished"}
    assert "Of the ten single models with five points that were asked with four drafts, seven" in SECTION
