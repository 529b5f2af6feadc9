"""Loading as people do it: old InstructBLIP files, quantised weights, adapters, gated and missing models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import published
import pytest
import torch
from PIL import Image

import seewhen
import tiny
from seewhen.backbones.loading import load_model, load_processor, quantization_config
from seewhen.backbones.prompts import chat_prompt, model_inputs
from seewhen.benchmarks.pope.prompts import STYLES as POPE_STYLES
from seewhen.errors import InvalidInput, UnsupportedModel

PICTURE = Image.fromarray(np.random.default_rng(1).integers(0, 255, (40, 60, 3), dtype=np.uint8))
OTHER = Image.fromarray(np.random.default_rng(2).integers(0, 255, (50, 30, 3), dtype=np.uint8))
OPEN = seewhen.method("cai", start_layer=0, threshold=-1.0, contrast=2.0, plausibility=None)


# -- InstructBLIP ------------------------------------------------------------------------------------------


def write_instructblip(directory: Path, *, old: bool) -> None:
    """As published: today with the image token in configuration, tokenizer and processor, formerly without."""
    model = tiny.model("instructblip")
    words = published.tokenizer({})
    if not old:
        words.add_tokens(["<image>"], special_tokens=True)
    words.save_pretrained(directory)
    words.save_pretrained(directory / "qformer_tokenizer")
    model.save_pretrained(directory)
    config = json.loads((directory / "config.json").read_text())
    if old:
        del config["image_token_index"]
    else:
        config["image_token_index"] = words.convert_tokens_to_ids("<image>")
    # The tiny model has 144 tokens; these prompts have bytes of up to 300.
    _widen(directory, config, len(words))
    (directory / "config.json").write_text(json.dumps(config))
    side = tiny.model("instructblip").config.vision_config.image_size
    settings = {
        "image_processor_type": "BlipImageProcessor",
        "processor_class": "InstructBlipProcessor",
        "size": {"height": side, "width": side},
    }
    (directory / "preprocessor_config.json").write_text(json.dumps(settings))
    if not old:
        settings = {"processor_class": "InstructBlipProcessor", "num_query_tokens": 5}
        (directory / "processor_config.json").write_text(json.dumps(settings))


def _widen(directory: Path, config: dict[str, Any], vocabulary: int) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(directory / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    for name, tensor in weights.items():
        if tensor.shape[:1] == (tiny.VOCABULARY,):
            weights[name] = torch.randn(400, *tensor.shape[1:], generator=generator)[:vocabulary].clone()
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    config["text_config"]["vocab_size"] = config["qformer_config"]["vocab_size"] = vocabulary


@pytest.mark.parametrize("old", [False, True], ids=["with image token", "before image tokens"])
def test_instructblip(tmp_path: Path, old: bool) -> None:
    write_instructblip(tmp_path, old=old)
    model, processor = seewhen.load(tmp_path, device="cpu")
    # The published evaluations give InstructBLIP the bare question.
    prompts = [POPE_STYLES["only-instructblip"].text(q) for q in ("Is there a dog?", "Is there a red cup here?")]
    inputs = model_inputs(model, processor, [[PICTURE], [OTHER]], prompts)
    image = inputs["input_ids"] == model.config.image_token_index
    assert image[:, :5].all() and not image[:, 5:].any()  # five query tokens come first
    batch = seewhen.generate(
        model, processor, [PICTURE, OTHER], prompts, OPEN, trace=True, max_new_tokens=4, do_sample=False
    )
    assert batch.trace.image_tokens == (5, 5) and batch.trace.fired_tokens() == (4, 4)
    for row, picture in enumerate((PICTURE, OTHER)):
        alone = seewhen.generate(model, processor, picture, prompts[row], OPEN, max_new_tokens=4, do_sample=False)
        assert alone.answers[0].tokens == batch.answers[row].tokens


def test_an_old_instructblip_checkpoint_answers_like_a_new_one(tmp_path: Path) -> None:
    """The token is only a place: what it is called and where it lies in the vocabulary changes nothing."""
    answers = []
    for old in (False, True):
        directory = tmp_path / str(old)
        directory.mkdir()
        write_instructblip(directory, old=old)
        model, processor = seewhen.load(directory, device="cpu")
        inputs = model_inputs(model, processor, [[PICTURE]], ["Is there a dog?"])
        with seewhen.attach(model, OPEN):
            output = model.generate(
                **inputs, max_new_tokens=3, do_sample=False, return_dict_in_generate=True, output_logits=True
            )
        vocabulary = len(published.tokenizer({}))  # without the image token, which only one of them has
        answers.append(torch.stack(output.logits)[..., :vocabulary])
    torch.testing.assert_close(answers[0], answers[1], atol=1e-5, rtol=0)


def test_a_processor_that_places_the_image_itself_gets_the_bare_text(tmp_path: Path) -> None:
    write_instructblip(tmp_path, old=False)
    assert chat_prompt(load_processor(tmp_path), "Is there a dog?", 1) == "Is there a dog?"


# -- quantised weights -------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:MatMul8bitLt")
@pytest.mark.parametrize(("bits", "layer"), [("8bit", "Linear8bitLt"), ("4bit", "Linear4bit")])
def test_quantised(bits: str, layer: str) -> None:
    """The tilt, the lens and the text-only row work on quantised layers; the head stays as it is."""
    pytest.importorskip("bitsandbytes")
    model = load_model("packaged", device="cpu", quantization=bits)
    exact, processor = seewhen.load("packaged", device="cpu")
    backbone = seewhen.Backbone.of(model)
    assert type(backbone.layers[0].self_attn.q_proj).__name__ == layer
    assert type(backbone.head) is torch.nn.Linear
    prompt = chat_prompt(processor, "What is in the image?", 1)
    inputs = model_inputs(exact, processor, [[PICTURE]], [prompt])
    tokens = torch.tensor([5, 9])
    replays = [seewhen.replay(m, inputs, tokens, OPEN) for m in (exact, model)]
    assert bool(replays[1].gates.any())
    probabilities = [torch.softmax(replay.logits.float(), dim=-1) for replay in replays]
    distance = 0.5 * (probabilities[0] - probabilities[1]).abs().sum(dim=-1).max()
    assert distance < (0.1 if bits == "8bit" else 0.6)


def test_quantisations_by_name() -> None:
    with pytest.raises(InvalidInput, match="no quantization '3bit'"):
        quantization_config("3bit")
    pytest.importorskip("bitsandbytes")
    assert quantization_config("8bit").load_in_8bit
    four = quantization_config("4bit", torch.float16)
    assert four.load_in_4bit and four.bnb_4bit_quant_type == "nf4" and four.bnb_4bit_compute_dtype == torch.float16
    with pytest.raises(InvalidInput, match="exclude each other"):
        load_model("packaged", quantization="8bit", quantization_config=four)


def test_device_map() -> None:
    pytest.importorskip("accelerate")
    model, processor = seewhen.load("packaged", device_map="auto")
    answer = seewhen.generate(model, processor, PICTURE, "What?", OPEN, max_new_tokens=2, do_sample=False)
    assert len(answer.answers[0].tokens) == 2
    with pytest.raises(InvalidInput, match="exclude each other"):
        load_model("packaged", device="cpu", device_map="auto")


# -- adapters ----------------------------------------------------------------------------------------------


@pytest.fixture
def adapter(tmp_path: Path) -> tuple[Path, Any]:
    """A LoRA made here, with the model it was made on."""
    peft = pytest.importorskip("peft")
    model = load_model("packaged", device="cpu")
    tuned = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.05, generator=torch.Generator().manual_seed(0))
    tuned.save_pretrained(tmp_path)
    return tmp_path, tuned.eval()


def test_adapter(adapter: tuple[Path, Any]) -> None:
    directory, tuned = adapter
    plain, processor = seewhen.load("packaged", device="cpu")
    loaded = load_model("packaged", device="cpu", adapter=directory)
    assert type(loaded) is type(plain)
    inputs = model_inputs(plain, processor, [[PICTURE]], [chat_prompt(processor, "What?", 1)])
    with torch.no_grad():
        theirs, ours, without = (m(**inputs).logits for m in (tuned, loaded, plain))
    assert torch.equal(theirs, ours) and not torch.equal(ours, without)
    with seewhen.attach(loaded, OPEN) as handle:
        loaded.generate(**inputs, max_new_tokens=2, do_sample=False)
    assert handle.trace.fired_tokens() == (2,)


def test_a_broken_adapter(adapter: tuple[Path, Any], tmp_path: Path) -> None:
    directory, _ = adapter
    (directory / "adapter_model.safetensors").unlink()
    with pytest.raises(InvalidInput, match=r"complete directory \(adapter_config\.json"):
        load_model("packaged", device="cpu", adapter=directory)
    with pytest.raises(InvalidInput, match="nowhere-at-all"):
        load_model("packaged", device="cpu", adapter=tmp_path / "nowhere-at-all")


# -- refusals ----------------------------------------------------------------------------------------------


def test_shapes_have_no_weights() -> None:
    with pytest.raises(InvalidInput, match=r"no weights.*random_model"):
        seewhen.load("shape:llava-1.5-7b")


def test_remote_code_is_never_run() -> None:
    with pytest.raises(UnsupportedModel, match="never run"):
        seewhen.load("packaged", trust_remote_code=True)


class Hub(BaseHTTPRequestHandler):
    """A hub with one gated model and nothing else."""

    def do_HEAD(self) -> None:
        gated = "someone/gated" in self.path
        self.send_response(403 if gated else 404)
        self.send_header("X-Error-Code", "GatedRepo" if gated else "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()


def failing_loads(names: tuple[str, ...], cache: Path, **environment: str) -> list[str]:
    """What `load` says of each in a process of its own: the address of the hub is read at import."""
    program = textwrap.dedent(f"""
        import seewhen
        for name in {names!r}:
            try:
                seewhen.load(name)
            except seewhen.SeewhenError as error:
                print(error)
    """)
    settings = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    settings |= {"HF_HOME": str(cache), **environment}
    ran = subprocess.run(
        [sys.executable, "-c", program], env=settings, capture_output=True, text=True, timeout=120, check=True
    )
    return ran.stdout.splitlines()


@pytest.mark.slow
def test_a_gated_model_names_its_card_and_a_missing_one_does_not(hub: str, tmp_path: Path) -> None:
    gated, missing = failing_loads(("someone/gated", "someone/missing"), tmp_path, HF_ENDPOINT=hub)
    assert "https://huggingface.co/someone/gated" in gated and "licence" in gated
    assert "someone/missing cannot be loaded" in missing and "licence" not in missing


@pytest.mark.slow
def test_offline_mode_is_honoured(hub: str, tmp_path: Path) -> None:
    """The hub is not asked: the gated model is simply not in the cache."""
    (said,) = failing_loads(("someone/gated",), tmp_path, HF_ENDPOINT=hub, HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE is set" in said and "licence" not in said
