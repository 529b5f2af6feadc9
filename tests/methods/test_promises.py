"""What every method promises, in one table: methods x promises, each where it is tried.

Off is the plain model bit for bit, on changes the scores, a batch is its rows alone, beams carry their own state,
a static cache equals a growing one, a compiled step equals an eager one. Every method of the registry also keeps
its parameters through JSON, runs in every mode of decoding or refuses it in one line, and leaves the model as it
was, whatever happens. What is particular to a method (its formula, its published numbers) is in its own file.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from calibrating import fitted_ict, fitted_vti
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation.streamers import BaseStreamer

import promises
import seewhen
import tiny
from every_family import CONTRAST, NEVER, state_of
from promises import FAMILIES, NEVER_A_TOKEN, generate, logits_of
from seewhen.backbones.backbone import Backbone
from seewhen.decoding.method import Method
from seewhen.errors import SeewhenError, UnsupportedMode
from seewhen.methods import method_class, method_names
from wordy import WordyTokenizer

Setting = Method | Callable[[str], Method]  # some depend on the family: their directions are fitted to it
Cell = tuple[Setting, str, dict[str, Any]]

HYBRID = "qwen3_5"
EVERY_FAMILY = (*tiny.FAMILIES, tiny.CAPPED)


def at(setting: Setting, *families: str, **options: Any) -> list[Cell]:
    """A setting, tried on some families."""
    return [(setting, family, options) for family in families]


def fitted(fit: Callable[..., Method], **parameters: Any) -> Callable[[str], Method]:
    return lambda family: fit(family, **parameters)


method = seewhen.method
agla, agla_parity = method("agla", keep=0.5), method("agla", keep=0.5, reference_parity=True)
gla = method("cai-gla", start_layer=0, threshold=-1.0)
dola = method("dola", layers=[0, 1, 2])
far = method("farsight", preset="infinite", decay="released")
icd = method("icd", sentence_ids=(40, 41, 42, 43, 44, 45, 46))
m3id, m3id_gated = method("m3id", t0=10.0, gate_alpha=None), method("m3id", t0=10.0, gate_alpha=0.6, apc_beta=0.1)
# On four layers: judge layers 0 to 2, with a threshold that opens sometimes.
OPEN = {"after": 0, "before": 3, "threshold": 0.3, "ratio": 0.4}
memvr = method("memvr", **OPEN)
memvr_silu = method("memvr", **{**OPEN, "threshold": 0.01}, activation="silu", lens_norm=False)
only = method("only", agreement=0.9, plausibility=None)
pai, sid, vcd = method("pai"), method("sid"), method("vcd")
locore = method("locore", beta=0.5, window=3)
confirm = method("confirm", lexicon="coco", verdict="asking").prepare(WordyTokenizer())
weak_ict = fitted(fitted_ict, image_strength=2.0, object_strength=2.0)

MATRIX: dict[str, dict[str, list[Cell]]] = {
    "regular": {"off": at(method("regular"), "llava", HYBRID)},
    "min-p": {"batch": at(method("min-p"), "llava")},
    "cai": {  # more about every family in tests/decoding
        "off": at(NEVER, *EVERY_FAMILY, warns="never fired"),
        "batch": at(CONTRAST, *EVERY_FAMILY),
        # The adaptive threshold is a history per row, which must follow its beam.
        "beams": at(CONTRAST, *EVERY_FAMILY)
        + at(method("cai", start_layer=0, contrast=1.5), *EVERY_FAMILY, rows=1, num_beams=4),
    },
    "cai-gla": {
        "off": at(gla.replace(strength=0.0), HYBRID) + at(gla.replace(threshold=1e9), HYBRID, warns="never fired"),
        "acts": at(gla, HYBRID) + at(gla.replace(contrast=3.0), HYBRID),
        "batch": at(gla, HYBRID)
        + at(gla.replace(contrast=3.0), HYBRID)
        + at(method("cai-gla", start_layer=0), HYBRID),
        "static_cache": at(gla, HYBRID)
        + at(gla.replace(contrast=3.0), HYBRID)
        + at(method("cai-gla", start_layer=0), HYBRID),
        "beams": at(gla.replace(contrast=3.0), HYBRID),
        "compiled": at(gla.replace(contrast=3.0), HYBRID),
    },
    "pai": {
        "off": at(method("pai", alpha=0.0, gamma=1.0), *FAMILIES),
        "acts": at(method("pai", plausibility=None), *FAMILIES),
        "batch": at(pai, *FAMILIES),
        "static_cache": at(pai, *FAMILIES),
        "beams": at(pai, *FAMILIES),
        "compiled": at(pai, "llava"),
    },
    "vcd": {
        "off": at(method("vcd", alpha=0.0), *FAMILIES),
        "acts": at(method("vcd", plausibility=None), *FAMILIES),
        "batch": at(vcd, *FAMILIES),
        "static_cache": at(vcd, *FAMILIES),
        "beams": at(vcd, *FAMILIES),
        "compiled": at(vcd, "llava"),
    },
    "icd": {
        "off": at(method("icd", alpha=0.0), *FAMILIES),
        "acts": at(icd.replace(plausibility=None), *FAMILIES),
        "batch": at(icd, *FAMILIES),
        "static_cache": at(icd, *FAMILIES),
        "beams": at(icd, *FAMILIES),
        "compiled": at(icd, "llava"),
    },
    "m3id": {
        "off": at(method("m3id", k=0.0), *FAMILIES),
        "acts": at(m3id, *FAMILIES),
        "batch": at(m3id, *FAMILIES) + at(m3id_gated, *FAMILIES),
        "static_cache": at(m3id, *FAMILIES),
        "beams": at(m3id, *FAMILIES) + at(m3id_gated, *FAMILIES),
        "compiled": at(method("m3id", t0=10.0), "llava"),
    },
    "sid": {
        "off": at(method("sid", alpha=0.0), *FAMILIES),
        "acts": at(method("sid", plausibility=None), *FAMILIES),
        # Where the image comes first, a hidden token may have nothing else to see; no NaN comes of it.
        "batch": at(sid, *FAMILIES)
        + at(method("sid", keep=1), "instructblip", "paligemma", "mistral3", "idefics3"),
        "static_cache": at(sid, *FAMILIES),
        "beams": at(sid, *FAMILIES),
        "compiled": at(sid, "llava"),
    },
    "confirm": {"off": at(confirm.replace(on_denied="mark"), "llava", "qwen2_5_vl")},  # it only tells
    "opera": {},  # its own beam search: its file compares every choice it makes
    "vti": {
        "off": at(method("vti", image_strength=0.0, text_strength=0.0), *FAMILIES),
        "batch": at(fitted(fitted_vti), *FAMILIES),
        "without_cache": at(fitted(fitted_vti), *FAMILIES),
        "static_cache": at(fitted(fitted_vti), "llava"),
        "beams": at(fitted(fitted_vti), "llava"),
        "compiled": at(fitted(fitted_vti), "llava"),
    },
    "ict": {
        "off": at(method("ict", image_strength=0.0, object_strength=0.0), *FAMILIES),
        "acts": at(fitted(fitted_ict), *FAMILIES, HYBRID, "gemma3", "instructblip"),
        "batch": at(fitted(fitted_ict), *FAMILIES, tolerance=1e-3),
        "static_cache": at(weak_ict, "llava"),
        "beams": at(weak_ict, "llava"),
        "compiled": at(weak_ict, "llava"),
    },
    "agla": {
        "off": at(method("agla", alpha=0.0), "llava"),
        "acts": at(agla.replace(plausibility=None), *FAMILIES, "gemma3", "idefics3", "paligemma"),
        "batch": at(agla, *FAMILIES, "gemma3", "idefics3", "paligemma"),
        "static_cache": at(agla_parity, "llava"),
        "beams": at(agla, "llava"),
        "compiled": at(agla_parity, "llava"),
    },
    "only": {
        "off": at(method("only", collaboration=0.0, contrast=0.0, plausibility=None), "llava"),
        "acts": at(method("only"), *FAMILIES, "instructblip", "paligemma"),
        "batch": at(method("only"), *FAMILIES, "paligemma", tolerance=1e-3),
        "without_cache": at(method("only", layer=1), "llava", "qwen2_5_vl", HYBRID),
        "static_cache": at(only, "qwen2_5_vl"),
        "beams": at(only, "llava"),
        "compiled": at(only, "qwen2_5_vl"),
    },
    "dola": {  # no strength that is zero: its scores are a difference
        "acts": at(method("dola", relative_top=0), *FAMILIES, HYBRID, "gemma3"),
        "batch": at(method("dola"), *FAMILIES, HYBRID, "gemma3"),
        "without_cache": at(dola, "llava"),
        "static_cache": at(dola, "llava"),
        "beams": at(dola, "llava"),
        "compiled": at(dola, "llava"),
    },
    "farsight": {
        "off": at(method("farsight", sigma=2000.0), "llava")
        + at(method("farsight", sigma=2000.0, registers="infinite"), "llava")
        + at(method("farsight", reference_parity=True), "llava"),
        "acts": at(method("farsight:released"), *FAMILIES, HYBRID)
        + at(method("farsight:infinite"), *FAMILIES, HYBRID),
        "batch": at(method("farsight:released"), *FAMILIES, HYBRID)
        + at(method("farsight:infinite"), *FAMILIES, HYBRID),
        "static_cache": at(far, "llava"),
        "beams": at(far, "llava"),
        "compiled": at(far, "llava"),
    },
    "saliency": {},  # it samples: its file compares it with plain sampling
    "locore": {
        "off": at(method("locore", beta=0.0), "llava"),
        "acts": at(method("locore"), *FAMILIES, HYBRID, first=False),  # at first there are no words of its own
        "batch": at(method("locore", beta=0.5), *FAMILIES, HYBRID),
        "static_cache": at(locore, "llava"),
        "beams": at(locore, "llava"),
        "compiled": at(locore, "llava"),
    },
    "memvr": {
        "off": at(method("memvr", **{**OPEN, "ratio": 0.0}), "llava")
        + at(method("memvr", **{**OPEN, "threshold": 1.1}), "llava", warns="never fired"),
        "acts": at(memvr, *FAMILIES, HYBRID, "gemma3"),
        "batch": at(memvr, *FAMILIES, HYBRID, "gemma3") + at(memvr_silu, "llava"),
        "static_cache": at(memvr_silu, "llava"),
        "beams": at(memvr_silu, "llava"),
        "compiled": at(memvr_silu, "llava"),
    },
}


def test_every_method_has_a_row() -> None:
    assert set(MATRIX) >= {name for name in method_names() if method_class(name).__module__.startswith("seewhen.")}


def _cells() -> list[Any]:
    slow = pytest.mark.slow  # tracing takes seconds; two contrasts and a tilt stand for all where time matters
    quick = ("pai", "vcd", "cai-gla")
    return [
        pytest.param(
            promise,
            *cell,
            id=f"{name}-{promise}-{cell[1]}",
            marks=slow if promise == "compiled" and name not in quick else (),
        )
        for name, row in MATRIX.items()
        for promise, cells in row.items()
        for cell in cells
    ]


@pytest.mark.parametrize(("promise", "setting", "family", "options"), _cells())
def test_promise(promise: str, setting: Setting, family: str, options: dict[str, Any]) -> None:
    check = getattr(promises, f"check_{promise}")
    made = setting if isinstance(setting, Method) else setting(family)
    said = options.get("warns")
    given = {name: value for name, value in options.items() if name != "warns"}
    if said:
        with pytest.warns(UserWarning, match=said):
            check(family, made, **given)
    else:
        check(family, made, **given)


# -- every method of the registry --------------------------------------------------------------------------

each_method = pytest.mark.parametrize("name", MATRIX)


def tried(name: str) -> tuple[str, Method]:
    """A family the method runs on, and a setting of it that runs there."""
    family = HYBRID if name == "cai-gla" else "llava"
    special = {
        "icd": lambda: icd,
        "dola": lambda: dola,
        "confirm": lambda: confirm,
        "vti": lambda: fitted_vti(family),
        "ict": lambda: fitted_ict(family),
        "saliency": lambda: method("saliency", alpha=0.5, first_layer=0, last_layer=1),
        "opera": lambda: method("opera", candidates=3),
    }
    return family, special.get(name, lambda: method(name))()


@each_method
def test_settings_travel_through_json(name: str) -> None:
    for made in (tried(name)[1], *(method(name, preset) for preset in (None, *method_class(name).presets))):
        again = seewhen.method_from_json(made.to_json())
        assert again == made and again.fingerprint == made.fingerprint


class Collected(BaseStreamer):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.got: list[Tensor] = []

    def put(self, value: Tensor) -> None:
        self.got.append(value.reshape(-1))

    def end(self) -> None:
        """Nothing to flush."""


MODES: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True},
    "beams": {"do_sample": False, "num_beams": 2},
    "streaming": {},
    "static cache": {"cache_implementation": "static", "disable_compile": True},
}
# What a method cannot run in, and what the refusal says; OPERA needs beams, SGRS draws.
REFUSED = {
    ("opera", "greedy"): "num_beams=1",
    ("opera", "sampling"): "num_beams=1",
    ("opera", "streaming"): "streamer",
    ("opera", "static cache"): "static cache",
    ("saliency", "greedy"): "do_sample",
    ("saliency", "beams"): "beam search",
    ("confirm", "beams"): "beam search",
    ("confirm", "static cache"): "static cache of 27 columns is too short",
}
USUAL = {"opera": {"num_beams": 2, "do_sample": False}, "saliency": {"do_sample": True}}


@each_method
@pytest.mark.parametrize("mode", MODES)
def test_modes_run_or_are_refused(name: str, mode: str) -> None:
    """A run in the mode repeats itself exactly, and a streamer is given the answer's own tokens."""
    family, made = tried(name)
    model, inputs = tiny.model(family), tiny.inputs(family)
    # transformers makes a static cache as long as the longest before: other tests would give it room for anything.
    model.__dict__.pop("_previous_max_cache_length", None)
    explicit = mode in ("greedy", "sampling", "beams")
    options = {**({} if explicit else USUAL.get(name, {"do_sample": False})), **MODES[mode]}
    options |= {"max_new_tokens": 4, "eos_token_id": NEVER_A_TOKEN, "pad_token_id": tiny.PAD}
    answers = []
    with warnings.catch_warnings(), seewhen.attach(model, made):
        warnings.filterwarnings("ignore", message=".*never fired")
        for _ in range(2):
            torch.manual_seed(3)
            heard = {"streamer": Collected()} if mode == "streaming" else {}
            if (name, mode) in REFUSED:
                with pytest.raises(UnsupportedMode, match=REFUSED[name, mode]):
                    model.generate(**inputs, **options, **heard)
                return
            answers.append(model.generate(**inputs, **options, **heard))
            if heard:
                assert torch.equal(torch.cat(heard["streamer"].got), answers[-1][0])
    assert torch.equal(*answers)
    assert answers[0].shape[1] == inputs["input_ids"].shape[1] + 4


def summary_of(name: str, made: Method, family: str, inputs: dict[str, Any], **attach: Any) -> seewhen.Handle:
    """The handle of a short call in the mode that the method is made for."""
    model = tiny.model(family)
    options = {"max_new_tokens": 4, "eos_token_id": NEVER_A_TOKEN, "pad_token_id": tiny.PAD}
    with warnings.catch_warnings(), seewhen.attach(model, made, **attach) as handle:
        warnings.simplefilter("ignore")  # of a gate that stays closed, of a prompt without an image
        torch.manual_seed(3)
        model.generate(**inputs, **{**USUAL.get(name, {"do_sample": False}), **options})
    return handle


@each_method
def test_the_summary_says_what_was_done(name: str) -> None:
    family, made = tried(name)
    handle = summary_of(name, made, family, tiny.inputs(family))
    told = handle.summary().splitlines()
    assert told[0].startswith(f"{name}: ")
    assert not repr(getattr(handle, "trace", handle)).rstrip(")").endswith((":", " "))
    # What was counted, or that nothing was: never silence about it.
    assert len(told) > 2 or name == "regular", told
    if name == "regular":
        assert told[1:] == ["nothing was changed: the model decodes as it is"]
    else:
        assert method_class(name).summary in "\n".join(told)
    if made.parts(Backbone.of(tiny.model(family))).rule is not None:
        assert any(line.startswith("another token became the likeliest at ") for line in told)


@each_method
def test_the_summary_of_a_prompt_without_an_image(name: str) -> None:
    family, made = tried(name)
    inputs = tiny.inputs(family, images=0)
    try:
        told = summary_of(name, made, family, inputs).summary()
    except SeewhenError as error:
        assert "image" in str(error)  # refused, and told why
        return
    assert "stayed closed" not in told
    if made.needs_image and name not in ("regular", "opera"):
        assert told.splitlines()[1:] == ["no image in the prompt: passed through unchanged"]
        model = tiny.model(family)
        if name != "saliency":  # it draws
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with_it = logits_of(generate(model, inputs, made))
            promises.close(with_it, logits_of(generate(model, inputs)), promises.rounding(family))


@pytest.mark.parametrize("name", ["vcd", "pai", "min-p", "dola"])
def test_tokens_whose_likeliest_choice_changed_are_counted(name: str) -> None:
    family, made = tried(name)
    handle = summary_of(name, made, family, tiny.inputs(family, rows=2), trace="replay")
    trace = handle.trace
    other = trace.logits.argmax(dim=-1) != trace.scores.argmax(dim=-1)
    assert torch.equal(trace.changed, other)
    assert f"the likeliest at {int(other.sum())} of {sum(trace.lengths)} tokens" in handle.summary()


class Broken(LogitsProcessor):
    """Fails at the second token."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > 1:
            raise RuntimeError("on purpose")
        return scores


@each_method
def test_after_a_failure_the_model_is_as_it_was(name: str) -> None:
    family, made = tried(name)
    model, inputs = tiny.model(family), tiny.inputs(family)
    before, stock = state_of(model), generate(model, inputs)
    usual = {"max_new_tokens": 4, "pad_token_id": tiny.PAD, "do_sample": False, **USUAL.get(name, {})}
    with pytest.raises(RuntimeError, match="on purpose"), seewhen.attach(model, made):
        model.generate(**inputs, **usual, logits_processor=LogitsProcessorList([Broken()]))
    assert state_of(model) == before
    assert torch.equal(logits_of(generate(model, inputs)), logits_of(stock))
