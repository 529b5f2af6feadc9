"""Readers and writers of the parts: GGUF, int8, shards, pieces, boxes, low-rank updates."""

import copy
import random
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from photographs import boxes, dino, int8, lora, photos, pieces, rows, tiny
from seewhen.backbones.photo import gguf, language
from seewhen.backbones.photo.dino import fill, stored
from seewhen.backbones.photo.int8 import load_int8
from seewhen.backbones.photo.lora import merge
from seewhen.errors import InvalidInput


def test_a_gguf_file_gives_the_model_it_was_made_from(tmp_path: Path) -> None:
    """Up to quantisation, which the reordering of heads and a wrong offset would both exceed by far."""
    made = tiny.write_gguf(tmp_path / "tiny.gguf").eval()
    read, tokenizer = language.load(tmp_path / "tiny.gguf")
    for name, weight in made.state_dict().items():
        assert (read.state_dict()[name] - weight).abs().max() < 0.1 * weight.abs().max() + 1e-6, name
    ids = torch.tensor([tokenizer.encode("<|im_start|>user\nhello 12<|im_end|>")])
    with torch.no_grad():
        difference = (made(ids).logits - read(ids).logits).norm() / made(ids).logits.norm()
    assert difference < 0.15


def test_heads_are_reordered(tmp_path: Path) -> None:
    made = tiny.write_gguf(tmp_path / "tiny.gguf")
    file = gguf.read(tmp_path / "tiny.gguf")
    theirs = file.tensor("blk.0.attn_q.weight")
    ours = made.model.layers[0].self_attn.q_proj.weight.detach()
    assert (theirs - ours).abs().max() > 0.2 * ours.abs().max()
    assert (language._halves(theirs, 4) - ours).abs().max() < 0.1 * ours.abs().max()


@pytest.mark.parametrize(("kind", "error"), [(0, 0.0), (8, 1 / 127), (3, 1 / 15)])
def test_blocks_are_unpacked(kind: int, error: float) -> None:
    values = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
    raw = np.frombuffer(tiny.quantised(kind, values), dtype=np.uint8)
    assert np.abs(gguf._unpacked(raw, kind).reshape(4, 64) - values).max() <= error * 3 + 1e-6


def test_tokens_are_those_of_a_chat(store: Path) -> None:
    tokenizer = language.tokenizer_of(gguf.read(store / "smollm2.gguf"))
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("<image>")) == ["<image>"]
    text = "<|im_start|>user\nIs it 1999?<|im_end|>"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_what_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGML" + bytes(40))
    with pytest.raises(InvalidInput, match="GGUF"):
        gguf.read(tmp_path / "x.gguf")
    with pytest.raises(InvalidInput, match="no file"):
        gguf.read(tmp_path / "y.gguf")


def test_int8_keeps_rows_to_half_a_step(tmp_path: Path) -> None:
    weights = {
        "large": torch.randn(64, 128) * torch.logspace(-3, 3, 64)[:, None],
        "conv": torch.randn(48, 3, 14, 14),
        "zero": torch.zeros(64, 128),
        "bias": torch.randn(64),
    }
    int8.save_int8(weights, tmp_path / "w.safetensors")
    read = load_int8(tmp_path / "w.safetensors")
    assert read.keys() == weights.keys()
    for name in ("large", "conv", "zero"):
        rows_of = weights[name].reshape(len(weights[name]), -1)
        step = rows_of.abs().amax(1) / 127
        error = (read[name].reshape(rows_of.shape) - rows_of).abs().amax(1)
        assert (error <= 0.5 * step + 1e-6 * rows_of.abs().amax(1)).all()
    assert (read["bias"] - weights["bias"]).abs().max() < 1e-2
    assert (tmp_path / "w.safetensors").stat().st_size < 64 * 128 * 2 * 1.2 + 48 * 588 + 8000


def test_stored_tower_names_fit_this_release(store: Path) -> None:
    tower = dino.load_tower(store / "dinov2-small.int8.safetensors")
    names = stored(tower)
    assert "encoder.layer.0.attention.attention.query.weight" in names
    other = copy.deepcopy(tower)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    fill(other, names)
    assert all(torch.equal(a, b) for a, b in zip(tower.parameters(), other.parameters(), strict=True))


def test_positions_keep_their_place_in_another_grid() -> None:
    rows_, columns = torch.meshgrid(torch.arange(37.0), torch.arange(37.0), indexing="ij")
    table = torch.stack([rows_, columns], -1).reshape(1, 37 * 37, 2)
    square = dino.resample(table, 16).reshape(16, 16, 2)
    assert (square[1:, :, 0] > square[:-1, :, 0]).all() and (square[:, 1:, 1] > square[:, :-1, 1]).all()
    assert abs(float(square.mean()) - 18) < 0.2


def test_shards_give_back_their_photographs(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    content = {n: tiny._picture(rng) for n in (9, 4, 123456)}
    photos.write_shard(tmp_path / "a.safetensors", content)
    assert photos.read_shard(tmp_path / "a.safetensors") == content
    one = photos.load_photos([tmp_path / "a.safetensors"], "cpu", None, tiny.SIDE)
    pool = photos.decoders(2)
    assert pool is not None and photos.decoders(1) is None
    with pool:
        two = photos.load_photos([tmp_path / "a.safetensors"], "cpu", pool, tiny.SIDE)
    assert one.numbers.tolist() == [9, 4, 123456]
    assert torch.equal(one.pixels, two.pixels) and one.pixels.shape == (3, tiny.SIDE, tiny.SIDE, 3)


def test_a_shard_is_full_before_the_next_begins() -> None:
    content = [(n, bytes(10)) for n in range(10)]
    assert [list(s) for s in photos.shards_of(content, 35, 9)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    assert [list(s) for s in photos.shards_of(content, 35, 2)] == [[0, 1, 2], [3, 4, 5]]


def test_photographs_come_out_of_a_repository(tmp_path: Path) -> None:
    folder = tmp_path / "clone"
    (folder / "train2017").mkdir(parents=True)
    for number in (25, 9):
        Image.new("RGB", (40, 20), (number, 0, 0)).save(folder / "train2017" / f"{number:012d}.jpg")
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "x"], check=True)
    names = photos.names_in(folder, ["train2017/"])
    assert set(names) == {9, 25}
    first = next(photos.blobs(folder, [names[25]]))
    assert first == (folder / "train2017" / "000000000025.jpg").read_bytes()
    assert photos.decode([photos.shrink(first, 90, 28)], 28).shape == (1, 28, 28, 3)
    with pytest.raises(InvalidInput, match="not in"):
        list(photos.blobs(folder, ["0" * 40]))


def test_pieces_arrive_in_any_order_and_are_checked(tmp_path: Path) -> None:
    store, sent, there = (tmp_path / name for name in ("store", "sent", "there"))
    store.mkdir()
    (store / "large").write_bytes(random.Random(0).randbytes(2500))
    (store / "small").write_bytes(b"small")
    pieces.cut(store, sent, 1000)
    names = sorted(p.name for p in sent.iterdir() if p.name != pieces.MANIFEST)
    assert names == ["large.00", "large.01", "large.02", "small"]
    for name in reversed(names):
        carried = tmp_path / f"call-{name}"
        carried.mkdir()
        (carried / name).write_bytes((sent / name).read_bytes())
        (carried / pieces.MANIFEST).write_bytes((sent / pieces.MANIFEST).read_bytes())
        missing = pieces.receive(carried, there)
        assert name not in missing
    assert missing == []
    assert {p.name for p in there.iterdir()} == {"large", "small", pieces.MANIFEST}
    assert (there / "large").read_bytes() == (store / "large").read_bytes()


def test_a_damaged_piece_is_refused(tmp_path: Path) -> None:
    store, sent = tmp_path / "store", tmp_path / "sent"
    store.mkdir()
    (store / "file").write_bytes(b"content")
    pieces.cut(store, sent, 1000)
    (sent / "file").write_bytes(b"Content")
    with pytest.raises(InvalidInput, match="damaged"):
        pieces.receive(sent, tmp_path / "there")
    assert not (tmp_path / "there" / "file").exists()


def test_boxes_are_shares_of_the_picture() -> None:
    content = {
        "categories": [{"id": 18, "name": "dog"}],
        "images": [{"id": 7, "width": 200, "height": 100}],
        "annotations": [
            {"image_id": 7, "category_id": 18, "bbox": [50, 25, 100, 50]},
            {"image_id": 7, "category_id": 18, "bbox": [0, 0, 200, 100], "iscrowd": 1},
        ],
    }
    assert boxes._from_coco(content) == {"7": [("dog", 0.25, 0.25, 0.75, 0.75)]}
    assert boxes._from_yolo("16 0.5 0.5 0.5 0.5") == [("dog", 0.25, 0.25, 0.75, 0.75)]


def test_low_rank_updates_begin_at_nothing_and_merge_to_the_same() -> None:
    torch.manual_seed(0)
    layers = nn.ModuleList([nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 8)) for _ in range(2)])
    plain, x = copy.deepcopy(layers), torch.randn(3, 8)
    trained = lora.add(layers, 2)
    assert len(trained) == 8 and torch.equal(layers[1](layers[0](x)), plain[1](plain[0](x)))
    with torch.no_grad():
        for parameter in trained:
            parameter.normal_()
    values = lora.updates(layers)
    merge(plain, values)
    assert torch.allclose(layers[1](layers[0](x)), plain[1](plain[0](x)), atol=1e-4)
    again = copy.deepcopy(layers)
    with torch.no_grad():
        for module in again.modules():
            if isinstance(module, lora.Lora):
                module.up.zero_()
    lora.set_updates(again, values)
    assert torch.equal(layers[0](x), again[0](x))


def test_learned_tokens_are_the_assistants(store: Path, tmp_path: Path) -> None:
    tokenizer = language.tokenizer_of(gguf.read(store / "smollm2.gguf"))
    tokenizer.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    turns = [("Is there a dog?", "No."), ("A cat?", "Yes.")]
    ids, learned = rows.encode(tokenizer.backend_tokenizer, turns, image=True)
    assert (
        tokenizer.decode([i for i, own in zip(ids, learned, strict=True) if own]) == "No.<|im_end|>Yes.<|im_end|>"
    )
    assert tokenizer.decode(ids).startswith("\nIs there a dog?<|im_end|>\n<|im_start|>assistant\nNo.")
    packed = rows.pack([(ids, learned), (ids[:4], learned[:4])], [3, 5])
    assert packed.lengths.tolist() == [len(ids), 4] and packed.photo.tolist() == [3, 5]


def test_a_tower_file_without_a_tower(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no tower"):
        dino.load_tower(tmp_path / "nothing.safetensors")
