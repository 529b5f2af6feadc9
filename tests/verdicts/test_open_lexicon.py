"""The packaged lexicon of concrete nouns: what it reads, how it was made, what was measured."""

from __future__ import annotations

import importlib.util
import json
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

from seewhen.verdicts.inflections import plurals
from seewhen.verdicts.lexicon import Lexicon, chair_lexicon, open_lexicon
from seewhen.verdicts.questions import question
from seewhen.verdicts.reader import read_mentions

ROOT = Path(__file__).parents[2]
OPEN = open_lexicon()


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / "lexicon" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def objects(text: str, lexicon: Lexicon = OPEN) -> list[str]:
    return [each.object for each in read_mentions(text, lexicon)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A wolf eats an avocado beside two ladders.", ["wolf", "avocado", "ladder"]),
        ("The image shows the left side of the scene in the background.", []),
        ("A bathroom sink and a clock tower.", ["sink", "tower"]),  # of nouns in a row the last
        ("Two hot dogs, a fire truck and a teddy bear.", ["hot dog", "fire truck", "teddy bear"]),
        ("People watch a man who watches the watch.", ["person", "man", "watch"]),
        ("A car can be seen; a trash can too.", ["car", "trash can"]),
        ("He wants to park near a park.", ["park"]),
        ("An orange cat eats an orange.", ["cat", "orange"]),
        ("Men, women, children, geese and knives.", ["man", "woman", "child", "goose", "knife"]),
        ("Apples and oranges, a keyboard and mouse.", ["apple", "orange", "keyboard", "mouse"]),
        ("A snow-covered slope without people and no dogs.", ["slope"]),
        ("A sofa, a couch and a TV, a television.", ["couch", "couch", "television", "television"]),
        ("The seating is comfortable and he is seated.", []),
        ("A man drew a cat.", ["man", "cat"]),  # Drew is the name of a person, too
        ("Paul from Ontario sees the moon above the Eiffel Tower.", ["moon", "eiffel tower"]),
        ("DOGS, horses and two hot dogs.", ["dog", "horse", "hot dog"]),  # no "dogs led", no "horses hoe"
        ("A black bird on her ring and a red coat.", ["bird", "ring", "coat"]),  # no blackbird, herring, redcoat
        ("An old-fashioned, brown clock.", ["clock"]),  # no cocktail
        ("Tables/benches near a bus… and a sofa/chair.", ["table", "bench", "bus", "couch", "chair"]),
        ("A mug and a pineapple lie before the church.", ["mug", "pineapple", "church"]),
        ("A firefighter reads a newspaper.", ["firefighter", "newspaper"]),
    ],
)
def test_reading(text: str, expected: list[str]) -> None:
    """With other spellings, too: so `confirm` and `check` read."""
    assert objects(text) == objects(text, OPEN.with_variants) == expected


def test_every_term_finds_itself() -> None:
    for term, name in OPEN.node.items():
        assert objects(f"There is the {term}.") == [name], term


def test_plurals_lead_to_their_word() -> None:
    words = [term for term in OPEN.node if " " not in term and term not in OPEN.plural and term[-1] != "s"]
    lost = [word for word in words if objects(f"There are the {plurals(word)[0]}.") != [OPEN.node[word]]]
    assert len(words) > 2000 and len(lost) < 0.005 * len(words), lost  # jeans, stairs and a few others


@pytest.mark.parametrize("lexicon", [OPEN, chair_lexicon()])
def test_other_spellings_cost_no_plural(lexicon: Lexicon) -> None:
    """A word split in two ("dogs led") may not make a word of its own of what is a plural."""
    forms = lexicon.with_variants.forms
    assert {form: forms.nouns.get(form) for form in lexicon.forms.nouns} == lexicon.forms.nouns


def test_questions_read_well() -> None:
    assert question("avocado", OPEN) == "Is there an avocado in the image?"
    assert question("snow", OPEN) == "Is there snow in the image?"
    assert question("jeans", OPEN) == "Are there jeans in the image?"


def test_a_long_text_takes_a_moment() -> None:
    found = read_mentions("A man on a bicycle near 3.5 cats, e.g. two dogs. " * 1000, OPEN)
    assert len(found) == 4000 and found[-1].sentence == 999


@pytest.mark.slow
def test_the_packaged_file_is_what_the_script_makes(shared: Path, tmp_path: Path) -> None:
    with tarfile.open(shared / "nltk_data.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    build = script("build_open")
    packaged = json.loads(build.TARGET.read_text(encoding="utf-8"))
    assert build.build(tmp_path / "nltk_data" / "corpora" / "wordnet") == packaged


def test_measured_numbers_come_out_again(shared: Path) -> None:
    measured = json.loads((ROOT / "benchmarks" / "lexicon" / "measured.json").read_text())["by_file"]
    name = "llava-1.5_ours.jsonl"
    lines = (shared / "chair" / "captions" / name).read_text().splitlines()
    again = script("measure").measure([json.loads(line)["caption"] for line in lines], tagged=0)
    assert {kind: again[kind] for kind in ("recall", "precision")} == measured[name]


def test_the_page_quotes_what_was_measured() -> None:
    page = (ROOT / "docs" / "confirm.md").read_text(encoding="utf-8")
    measured = json.loads((ROOT / "benchmarks" / "lexicon" / "measured.json").read_text())
    for name in ("recall", "precision", "nouns_by_nltk"):
        assert f"| {100 * measured[name]:.1f} % |" in page
    eye = json.loads((ROOT / "benchmarks" / "lexicon" / "read_by_eye.json").read_text())
    assert [sum(column) for column in zip(*eye["wrong"].values(), strict=True)] == [
        eye["first"]["wrong"],
        eye["fresh"]["wrong"],
    ]
    assert sum(eye["missed"].values()) == eye["fresh"]["missed"]
    assert all(f"| {what} | {first} | {fresh} |" in page for what, (first, fresh) in eye["wrong"].items())
    assert all(f"| {what} | {count} |" in page for what, count in eye["missed"].items())
    terms = [term for term, name in OPEN.node.items() if term == name]
    assert f"{len(terms):,} concrete nouns" in page
    assert f"{sum(' ' in term for term in terms):,} of them of two words" in page
