"""Folders, patterns, lists and files of pictures, and the labels that belong to them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from seewhen.errors import InvalidInput
from seewhen.runs.folders import photos_of
from seewhen.runs.labels import labels_of, reader_for


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "photos"
    (root / "inside").mkdir(parents=True)
    for name in ("b.png", "a.JPG", "inside/a.png", ".hidden.png"):
        Image.new("RGB", (4, 4)).save(root / name, "PNG")
    (root / "notes.md").write_text("not a picture")
    return root


def names(*given: object, limit: int | None = None) -> list[str]:
    return [photo.name for photo in photos_of([str(each) for each in given], limit)]


def test_a_folder_holds_what_is_called_a_picture(folder: Path) -> None:
    assert names(folder) == ["a.JPG", "b.png", "inside/a.png"]
    assert names(folder, limit=2) == ["a.JPG", "b.png"]


def test_patterns_and_files(folder: Path) -> None:
    assert names(f"{folder}/*.png") == ["b.png"]
    assert names(folder / "b.png", f"{folder}/**/*.png") == ["b.png", "a.png"]  # each picture once
    assert names(folder / "notes.md") == ["notes.md"]  # what is named is tried, whatever it is called


def test_the_same_name_in_two_folders(folder: Path) -> None:
    (folder.parent / "b.png").write_bytes(b"")
    found = photos_of([folder / "b.png", folder.parent / "b.png"])
    assert [photo.name for photo in found] == [str(photo.path) for photo in found]


def test_lists_are_relative_to_themselves(folder: Path) -> None:
    lines = folder / "list.txt"
    lines.write_text("b.png\r\n\ninside/a.png\ngone.png\n")
    assert names(lines) == ["b.png", "inside/a.png", "gone.png"]
    assert photos_of([lines])[1].path == folder / "inside/a.png"
    records = folder / "list.jsonl"
    records.write_text('{"image": "b.png", "objects": ["dog"]}\n{"file_name": "a.JPG"}\n')
    assert names(records) == ["b.png", "a.JPG"]


def test_an_id_changes_with_the_content(folder: Path) -> None:
    (before,) = photos_of([folder / "b.png"])
    assert before.id == photos_of([folder / "b.png"])[0].id
    old = before.id
    Image.new("RGB", (5, 5)).save(folder / "b.png")
    assert photos_of([folder / "b.png"])[0].id != old
    (folder / "list.txt").write_text("gone.png")
    assert photos_of([folder / "list.txt"])[0].id == "gone.png#unreadable"


@pytest.mark.parametrize("given", ["nowhere", "photos/*.gif", "photos/inside/nothing", "empty"])
def test_what_holds_no_picture_is_refused(folder: Path, given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    (folder.parent / "empty").mkdir()
    with pytest.raises(InvalidInput, match="There is no"):
        photos_of([given])


# -- labels ---------------------------------------------------------------------------------------------------

COCO = {
    "images": [{"id": 7, "file_name": "a.jpg"}, {"id": 391895, "file_name": "COCO_val2014_000000391895.jpg"}],
    "categories": [{"id": 1, "name": "dog"}, {"id": 2, "name": "couch"}],
    "annotations": [{"image_id": 7, "category_id": 1}, {"image_id": 7, "category_id": 2}],
}
FORMS = {
    "plain.json": json.dumps({"a.jpg": ["Dogs", "sofa"], "COCO_val2014_000000391895.jpg": []}),
    "lines.jsonl": '{"image": "x/a.jpg", "objects": ["dog", "sofa"]}\n{"image": "391895", "objects": []}\n',
    "array.json": json.dumps(
        [{"file_name": "a.jpg", "objects": ["dog", "couch"]}, {"image": "391895.jpg", "objects": []}]
    ),
    "titled.csv": "image,objects\na.jpg,dog;couch\n391895,\n",
    "bare.csv": "a.jpg,dog,couch\n000000391895.jpg\n",
    "rows.csv": "a.jpg,dog\na.jpg,sofa\n391895,\n",
    "instances.json": json.dumps(COCO),
    "table.json": json.dumps({"categories": ["dog", "couch"], "images": {"a.jpg": [0, 1], "391895": []}}),
}


@pytest.mark.parametrize("name", FORMS)
def test_labels_in_every_form(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(FORMS[name])
    pictures = ["a.jpg", "COCO_val2014_000000391895.jpg", "unlabelled.jpg"]
    found, unknown = labels_of(tmp_path / name, pictures, reader_for("open"))
    assert found == {"a.jpg": {"dog", "couch"}, "COCO_val2014_000000391895.jpg": frozenset()}
    assert unknown == []


def _labels(path: Path, text: str, *pictures: str) -> dict[str, frozenset[str]]:
    path.write_text(text)
    return labels_of(path, list(pictures), reader_for("open"))[0]


def test_lines_of_one_picture_are_put_together(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"image": "a.jpg", "objects": [each]}) + "\n" for each in ("dog", "cat"))
    assert _labels(tmp_path / "labels.jsonl", lines, "a.jpg") == {"a.jpg": {"dog", "cat"}}


def test_pictures_of_one_name_in_two_folders(tmp_path: Path) -> None:
    """None is judged by what another shows."""
    path, labels = tmp_path / "labels.json", {"cats/1.jpg": ["cat"], "dogs/1.jpg": ["dog"]}
    found = _labels(
        path, json.dumps(labels), "cats/1.jpg", "photos/dogs/1.jpg", "birds/1.jpg", "/there/cats/001.png"
    )
    assert found == {"cats/1.jpg": {"cat"}, "photos/dogs/1.jpg": {"dog"}, "/there/cats/001.png": {"cat"}}
    with pytest.raises(InvalidInput, match=r"1\.jpg may be cats/1\.jpg or dogs/1\.jpg of the labels"):
        _labels(path, json.dumps(labels), "1.jpg")
    assert _labels(path, '{"1.jpg": ["dog"]}', "cats/1.jpg") == {"cats/1.jpg": {"dog"}}


def test_labels_outside_the_words_that_are_judged(tmp_path: Path) -> None:
    path = tmp_path / "labels.json"
    path.write_text(json.dumps({"a.jpg": ["dog", "samovar"]}))
    assert labels_of(path, ["a.jpg"], reader_for("open")) == ({"a.jpg": {"dog"}}, ["samovar"])
    (tmp_path / "words.txt").write_text("samovar\n")
    assert labels_of(path, ["a.jpg"], reader_for(str(tmp_path / "words.txt"))) == ({"a.jpg": {"samovar"}}, ["dog"])


@pytest.mark.parametrize("text", ['{"b.jpg": ["dog"]}', '{"a.jpg": "dog"}', '{"a.jpg": [1]}', "[1]", "{", "[]"])
def test_labels_of_another_form(text: str, tmp_path: Path) -> None:
    path = tmp_path / "labels.json"
    path.write_text(text)
    with pytest.raises(InvalidInput):
        labels_of(path, ["a.jpg"], reader_for("open"))
