"""Files of strangers cost what is bounded, and are read or refused in a line."""

from __future__ import annotations

import gzip
import re
import resource
import struct
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from seewhen.backbones.photo import gguf
from seewhen.benchmarks.chair.coco import image_key
from seewhen.benchmarks.files import find_image
from seewhen.benchmarks.mme.questions import bare_question
from seewhen.errors import InvalidInput, SeewhenError
from seewhen.reading import MIB, parse_json, read_json, read_text
from strangers.fuzz import fuzz
from strangers.subjects import SUBJECTS, Subject


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_spoiled_files_are_read_or_refused(subject: Subject) -> None:
    told = fuzz(subject, max(2, round(200 * subject.share)), seed=1)
    assert not told["raw_exceptions"], told["examples"]
    assert told["refused"]


def test_a_gzip_bomb_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "questions.json.gz"
    path.write_bytes(gzip.compress(b" " * (300 * MIB), 1))
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput, match="unpacks to more than"):
            read_text(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200 * MIB


def test_what_packs_well_is_still_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b"[" + b"1," * MIB + b"1]"))
    assert len(read_json(path)) == MIB + 1


@pytest.mark.parametrize("claim", [(2**60, 0), (0, 2**60), (0, 1, 2**60)])
def test_a_gguf_file_is_read_no_further_than_it_goes(tmp_path: Path, claim: tuple[int, ...]) -> None:
    """However many tensors, facts or letters it says it has."""
    path = tmp_path / "a.gguf"
    path.write_bytes(b"GGUF" + struct.pack(f"<I{len(claim)}Q", 3, *claim) + bytes(40))
    with pytest.raises(InvalidInput, match="it ends too early"):
        gguf.read(path)


def test_a_large_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(1 << 34)  # a hole: it takes no room
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InvalidInput, match="has more than 1024 MiB"):
        read_json(path)
    with pytest.raises(InvalidInput, match="has more than 1 MiB"):
        read_text(Path("/dev/zero"), largest=MIB)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024


@pytest.mark.parametrize(
    "text",
    ["[" * 101 + "]" * 101, "[" * 100_000, '{"a":' * 5000, "7" * 5000, '"\\ud800"', "nul", "", '{"a": 1'],
)
def test_odd_json_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_json(text, "it")


def test_plain_json_is_read() -> None:
    assert parse_json("[" * 99 + "]" * 99, "it") is not None
    assert parse_json('{"a": [1, 2.5, "\\ud83d\\ude00"]}', "it") == {"a": [1, 2.5, "😀"]}


@given(st.from_regex(r"([a-z0-9]{0,3}/)?(COCO_[a-z0-9_]{0,5})?[0-9]{0,4}(\.[a-z0-9.]{0,3})?", fullmatch=True))
def test_images_are_named_as_before(name: str) -> None:
    match = re.fullmatch(r"(?:.*/)?(?:COCO_\w+_)?0*(\d+)(?:\.\w+)?", name)  # what it was, quadratic in zeros
    assert image_key(name) == (match.group(1) if match else name)


@given(
    st.text(max_size=20), st.sampled_from(["Please answer yes or no", "Answer the question using a single word"])
)
def test_questions_are_cut_as_before(text: str, form: str) -> None:
    before = re.compile(r"\s*(?:Please answer yes or no|Answer the question using a single word)\b.*", re.S)
    for whole in (text, f"{text} {form}.", f"{text} {form} {text} {form}", f"{form}s {text}"):
        assert bare_question(whole) == " ".join(before.sub("", whole).split())


def test_long_names_are_read_in_one_pass() -> None:
    # Seventeen seconds for 30,000 when every way to share out the zeros was tried; a million would be hours.
    assert image_key("0" * 1_000_000 + "x") == "0" * 1_000_000 + "x"
    assert image_key("0" * 1_000_000) == "0"
    assert image_key("COCO_" + "_0" * 500_000 + "!").startswith("COCO_")
    assert bare_question("a" + " " * 1_000_000 + "b") == "a b"


@pytest.mark.parametrize("name", ["9" * 5000, "²", "a\0b", "x" * 5000, "../" * 2000])
def test_odd_image_names_are_missing_pictures(tmp_path: Path, name: str) -> None:
    with pytest.raises(SeewhenError, match="The picture"):
        find_image(tmp_path, name)


@pytest.mark.parametrize("lost", ["gate", "mass_before", "mass_after"])
def test_a_trace_may_lack_what_another_part_of_it_promises(tmp_path: Path, lost: str) -> None:
    subject = next(each for each in SUBJECTS if each.name == "trace")
    subject.write(tmp_path)
    tensors = load_file(tmp_path / "trace.safetensors")
    save_file({name: tensor for name, tensor in tensors.items() if name != lost}, tmp_path / "trace.safetensors")
    with suppress(SeewhenError):
        subject.read(tmp_path)


@pytest.mark.parametrize(
    ("file", "known", "other"),
    [
        ("result.json", '"level": ', '"level": NaN, "was": '),
        ("manifest.json", '"seewhen": "0"', '"seewhen": 1e999'),
        ("manifest.json", '"method": "regular"', '"method": -1e308'),
        ("manifest.json", '"parameters": {}', '"others": {}'),
    ],
)
def test_a_run_that_no_report_can_tell_is_refused(tmp_path: Path, file: str, known: str, other: str) -> None:
    subject = next(each for each in SUBJECTS if each.name == "runs")
    subject.write(tmp_path / "runs")
    path = tmp_path / "runs" / "regular" / file
    text = path.read_text()
    assert known in text
    path.write_text(text.replace(known, other))
    with pytest.raises(InvalidInput, match=file):
        subject.read(tmp_path / "runs")


def test_an_interval_beside_its_value_is_drawn(tmp_path: Path) -> None:
    subject = next(each for each in SUBJECTS if each.name == "others")
    subject.write(tmp_path)
    sweep = tmp_path / "sweep.json"
    sweep.write_text(sweep.read_text().replace('"low": 0.4', '"low": 0.55', 1))
    subject.read(tmp_path)
