"""Lexicons: the packaged ones and files of the user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from seewhen.errors import InvalidInput
from seewhen.verdicts.lexicon import lexicon_named, read_lexicon
from seewhen.verdicts.reader import read_mentions


def written(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "words.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def objects(text: str, path: Path) -> list[str]:
    return [each.object for each in read_mentions(text, read_lexicon(path))]


def test_a_list_has_synonyms_comments_and_compounds(tmp_path: Path) -> None:
    path = written(tmp_path, "\ufeffsofa, couch , Settee\n# furniture\n\nfloor lamp  # stands\r\nlamp\n")
    assert objects("Two Couches, a settee and floor lamps beside a lamp.", path) == [
        "sofa",
        "sofa",
        "floor lamp",
        "lamp",
    ]
    assert read_lexicon(path).synonyms == {
        "sofa": ("sofa", "couch", "settee"),
        "floor lamp": ("floor lamp",),
        "lamp": ("lamp",),
    }


def test_a_list_in_another_language(tmp_path: Path) -> None:
    path = written(tmp_path, "Bär, Bären\n自行车\nchaise longue\n")
    assert objects("Zwei Bären, ein BÄR. 一辆自行车在街上", path) == ["bär", "bär", "自行车"]


def test_a_word_twice_stands_for_its_first_object(tmp_path: Path) -> None:
    assert objects("a couch, a bench", written(tmp_path, "sofa, couch\ncouch, bench\n")) == ["sofa", "sofa"]


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        ("", "names no object"),
        ("# nothing\n , ,\n", "names no object"),
        (b"caf\xe9\n", "UTF-8"),
        ("dog\na\x00b\n", "line 2"),
        ("dog\n12\n", "no letters"),
        ("one two three four five six seven eight nine\n", "more than 8 words"),
        ("dog\n" + "a-" * 300, "line 2.*more than 500 letters"),
        ("dog\n" * 200_001, "more than 200000 words"),
    ],
)
def test_odd_files_are_refused_in_one_line(tmp_path: Path, content: str | bytes, cause: str) -> None:
    with pytest.raises(InvalidInput, match=cause) as caught:
        read_lexicon(written(tmp_path, content))
    assert caught.value.hint and "\n" not in str(caught.value)


def test_a_hundred_thousand_words(tmp_path: Path) -> None:
    path = written(tmp_path, "\n".join(f"thing{number:06}x" for number in range(100_000)))
    assert objects("A thing000007x and two thing099999xes.", path) == ["thing000007x", "thing099999x"]


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="coco or open"):
        lexicon_named(str(tmp_path / "missing"))


@pytest.mark.parametrize(
    "text",
    [
        "这张图片里有一只狗和一只猫",
        "Auf dem Bild sieht man einen Hund und eine Katze in einem Korb",
        "Der Hund liegt auf dem Sofa.",
        "Un perro y un gato en la mesa.",
        "Le chien est sur la table.",
        "Il cane è sul tavolo vicino al gatto.",
        "Een hond is op de tafel naast een kat.",
        "Um cachorro em uma mesa.",
        "Hund Katze Maus Tisch Stuhl Baum Blume Haus Wolke Himmel",
    ],
)
def test_other_languages_need_a_list(text: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="English"):
        lexicon_named("coco").check_language(text)
    read_lexicon(written(tmp_path, "狗\n")).check_language(text)


def test_a_list_in_another_language_of_plain_letters(tmp_path: Path) -> None:
    own = read_lexicon(written(tmp_path, "cane\ngatto\n"))
    text = "Il cane nero sta seduto sul tavolo vicino al gatto e alla lampada rossa"
    own.check_language(text)
    assert own.note_if_foreign(text) is None
    assert [mention.object for mention in read_mentions(text, own)] == ["cane", "gatto"]
    assert lexicon_named("open").note_if_foreign(text) is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Yes Yes Yes Yes train couch Yes Yes ball phone Yes Yes",
        "dog, cat",
        "The café is open and a man sits in front of it with a dog.",
        "🐶",
        "dog, cat, mouse, table, chair, lamp, car, tree, bird, fish",
        "An El Camino de la Costa poster is on the wall.",
        "A van en route",
    ],
)
def test_english_is_not_refused(text: str) -> None:
    lexicon_named("coco").check_language(text)
