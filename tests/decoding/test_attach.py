"""`attach` on a user's own model and `generate` call: modes, identities, refusals, leaving no trace."""

from __future__ import annotations

import copy
import gc
import threading
import warnings
import weakref

import pytest
import torch
from transformers import StoppingCriteria, StoppingCriteriaList, TextIteratorStreamer
from transformers.generation.streamers import BaseStreamer

import naive
import seewhen
import tiny
from seewhen.errors import InvalidMethod, UnsupportedMode, UnsupportedModel

ON = {"preset": "reference", "start_layer": 1, "threshold": -1.0}


def always(**changes):
    return seewhen.method("cai", **{**ON, **changes})


@pytest.fixture
def llava():
    return tiny.model("llava")


def generate(model, inputs, **options):
    options = {"max_new_tokens": 5, "do_sample": False, **options}
    return model.generate(**inputs, return_dict_in_generate=True, output_logits=True, **options)


def same(a, b):
    return torch.equal(a.sequences, b.sequences) and all(
        torch.equal(x, y) for x, y in zip(a.logits, b.logits, strict=True)
    )


# -- identities -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{"strength": 0.0}, {"threshold": 1e9}, {"kernel": "bias", "threshold": 1e9}])
@pytest.mark.filterwarnings("ignore:.*never fired")
def test_nothing_to_do_is_stock_bit_for_bit(llava, changes):
    inputs = tiny.inputs("llava", rows=2, text_lengths=(4, 7))
    stock = generate(llava, inputs)
    with seewhen.attach(llava, always(**changes)):
        assert same(generate(llava, inputs), stock)


def test_lambda_one_adds_no_row(llava):
    with seewhen.attach(llava, always(contrast=1.0)) as handle:
        generate(llava, tiny.inputs("llava"))
        assert handle.session.last.all_rows == 1
    with seewhen.attach(llava, always(contrast=2.0)) as handle:
        generate(llava, tiny.inputs("llava"))
        assert handle.session.last.all_rows == 2


@pytest.mark.parametrize(
    "changes", [{}, {"tilt": "exponential", "strength": 2.0}, {"tilt": "exponential", "kl_budget": 0.2}]
)
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_bias_form_equals_correction_form(changes, kv_heads):
    model = tiny.model("llava", num_key_value_heads=kv_heads)
    inputs = tiny.inputs("llava", rows=2, text_lengths=(4, 7))
    results = []
    for kernel in ("correction", "bias"):
        with seewhen.attach(model, always(kernel=kernel, **changes)):
            results.append(generate(model, inputs))
    assert torch.equal(results[0].sequences, results[1].sequences)
    for a, b in zip(results[0].logits, results[1].logits, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


def in_a_gap(model, inputs, tokens):
    """A threshold at which gates open and close, as far from every entropy as can be, and the replay with it.

    Entropies differ by up to 1e-5 between kinds of processors: one on the threshold opens a gate on some.
    """
    seen = seewhen.replay(model, inputs, tokens, always()).entropy[:, 1:3].flatten().sort().values
    best = (0.0, None, None)
    for threshold in ((seen[1:] + seen[:-1]) / 2).tolist():
        result = seewhen.replay(model, inputs, tokens, always(threshold=threshold))
        if result.gates.any() and not result.gates[:, 2:].all():
            margin = float((result.entropy[:, 1:3] - threshold).abs().min())
            best = max(best, (margin, threshold, result), key=lambda one: one[0])
    assert best[0] > 1e-2
    return best[1:]


@pytest.mark.filterwarnings("ignore:.*never fired")
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_grouped_heads_match_a_plain_reimplementation(kv_heads):
    model = tiny.model("llava", num_key_value_heads=kv_heads)
    inputs = tiny.inputs("llava")
    ids = inputs["input_ids"][0]
    tokens = torch.tensor([5, 9, 33, 71])
    threshold, result = in_a_gap(model, inputs, tokens)
    columns = (ids == tiny.IMAGE).nonzero().flatten().tolist()
    span = (columns[0], columns[-1] + 1)
    with torch.no_grad():
        features = model.get_image_features(inputs["pixel_values"], return_dict=True).pooler_output
        embeds = model.get_input_embeddings()(torch.cat([ids, tokens]))
        embeds[span[0] : span[1]] = torch.cat(list(features))
        for step in range(len(tokens) + 1):
            logits, fired, _ = naive.cai_logits(
                model, embeds[: len(ids) + step], span, len(ids), 1, threshold, True
            )
            torch.testing.assert_close(result.logits[step], logits, atol=2e-4, rtol=0)
            assert fired[-1] == result.gates[step].tolist()


def test_realised_kl_stays_within_the_budget(llava):
    budget = 0.05
    method = always(tilt="exponential", kl_budget=budget)
    with seewhen.attach(llava, method, trace=True) as handle:
        generate(llava, tiny.inputs("llava"))
    moved = (handle.trace.mass_after - handle.trace.mass_before)[handle.trace.gate]
    assert (moved > 0).any() and moved.abs().max() <= (budget / 2) ** 0.5


# -- decoding modes ---------------------------------------------------------------------------------------


class Collect(BaseStreamer):
    def __init__(self):
        self.tokens, self.ended = [], False

    def put(self, value):
        self.tokens.append(value.flatten().tolist())

    def end(self):
        self.ended = True


def test_streaming(llava):
    inputs = tiny.inputs("llava")
    streamer = Collect()
    with seewhen.attach(llava, always(contrast=2.0)):
        output = generate(llava, inputs, streamer=streamer)
    prompt, *tokens = streamer.tokens
    assert streamer.ended and prompt + [t[0] for t in tokens] == output.sequences[0].tolist()
    assert TextIteratorStreamer is not None  # the usual streamer takes the same calls


def test_several_images_and_rows_without_one(llava):
    both = tiny.inputs("llava", images=2)
    with seewhen.attach(llava, always(), trace=True) as handle:
        generate(llava, both)
    assert handle.trace.image_tokens[0] == int((both["input_ids"] == tiny.IMAGE).sum())
    assert torch.isfinite(handle.trace.relevance).all()


def test_a_prompt_without_an_image_passes_through(llava):
    inputs = {"input_ids": torch.tensor([[1, 5, 9, 11]])}
    stock = generate(llava, inputs)
    with seewhen.attach(llava, always(contrast=3.0)), pytest.warns(UserWarning, match="No image in the prompt"):
        attached = generate(llava, inputs)
    assert torch.equal(stock.sequences, attached.sequences)


def test_embeddings_alone_do_not_tell_where_the_image_is(llava):
    inputs = tiny.inputs("llava")
    embeds = llava.get_input_embeddings()(inputs["input_ids"])
    with seewhen.attach(llava, always()), pytest.warns(UserWarning, match="in inputs_embeds alone"):
        llava.generate(inputs_embeds=embeds, attention_mask=inputs["attention_mask"], max_new_tokens=2)


def test_own_forward_calls_work_too(llava):
    inputs = tiny.inputs("llava")
    method = always(contrast=2.0)
    expected = seewhen.replay(llava, inputs, torch.tensor([5, 6]), method)
    with seewhen.attach(llava, method), torch.no_grad():
        first = llava(**inputs)
        second = llava(input_ids=torch.tensor([[5]]), past_key_values=first.past_key_values)
    torch.testing.assert_close(first.logits[0, -1], expected.scores[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(second.logits[0, -1], expected.scores[1], atol=1e-5, rtol=0)


def test_nested_generate_calls_do_not_meet(llava):
    inputs, other = tiny.inputs("llava"), tiny.inputs("llava", seed=5)
    method = seewhen.method("cai", contrast=2.0, start_layer=1)

    inner = []

    class Nested(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            if len(inner) < 2:
                inner.append(None)
                inner[-1] = generate(llava, other)
            return torch.zeros(input_ids.shape[0], dtype=torch.bool)

    with seewhen.attach(llava, method):
        alone, other_alone = generate(llava, inputs), generate(llava, other)
        outer = generate(llava, inputs, stopping_criteria=StoppingCriteriaList([Nested()]))
    assert same(outer, alone)
    assert all(same(result, other_alone) for result in inner)


def test_two_models_in_two_threads():
    models = {name: tiny.model(name) for name in ("llava", "qwen2_5_vl")}
    prompts = {name: tiny.inputs(name) for name in models}
    alone = {}
    for name, model in models.items():
        with seewhen.attach(model, always(contrast=2.0)):
            alone[name] = generate(model, prompts[name])
    together, errors = {}, []

    def work(name):
        try:
            for _ in range(3):
                together[name] = generate(models[name], prompts[name])
        except Exception as error:
            errors.append(error)

    method = always(contrast=2.0)
    with seewhen.attach(models["llava"], method), seewhen.attach(models["qwen2_5_vl"], method):
        threads = [threading.Thread(target=work, args=(name,)) for name in models]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not errors
    assert all(same(together[name], alone[name]) for name in models)


def test_beams_carry_their_own_history(llava):
    # The adaptive threshold depends on each beam's own past: replaying the winner must agree with it.
    inputs = tiny.inputs("llava", rows=2, text_lengths=(4, 6))
    method = seewhen.method("cai", start_layer=1, contrast=1.5, plausibility=None)
    with seewhen.attach(llava, method):
        output = generate(llava, inputs, num_beams=3, output_scores=True, length_penalty=0.0, eos_token_id=None)
    prompt = inputs["input_ids"].shape[1]
    tokens = output.sequences[:, prompt:]
    scores = torch.log_softmax(seewhen.replay(llava, inputs, tokens, method).scores, -1)[:, : tokens.shape[1]]
    total = scores.gather(-1, tokens[..., None]).sum(dim=(1, 2))
    torch.testing.assert_close(total, output.sequences_scores, atol=1e-3, rtol=0)


def test_the_trace_of_a_beam_search_is_the_winners_own(llava):
    inputs = tiny.inputs("llava", rows=2, text_lengths=(4, 6))
    method = seewhen.method("cai", start_layer=1, contrast=1.5, plausibility=None)
    with seewhen.attach(llava, method, trace=True) as handle:
        output = llava.generate(**inputs, num_beams=3, max_new_tokens=5, eos_token_id=None)
        beams = handle.trace
    tokens = output[:, inputs["input_ids"].shape[1] :]
    assert torch.equal(beams.tokens.T, tokens)
    replayed = seewhen.replay(llava, inputs, tokens, method)
    steps = slice(0, tokens.shape[1])
    assert torch.equal(beams.gate.transpose(0, 1), replayed.gates[:, steps])
    torch.testing.assert_close(beams.entropy.transpose(0, 1), replayed.entropy[:, steps], atol=1e-4, rtol=0)


def test_bfloat16_model_keeps_its_dtype(llava):
    model = copy.deepcopy(llava).to(torch.bfloat16)
    inputs = {k: v.to(torch.bfloat16) if v.is_floating_point() else v for k, v in tiny.inputs("llava").items()}
    stock = generate(model, inputs)
    with seewhen.attach(model, always(strength=0.0)):
        assert same(generate(model, inputs), stock)
    with seewhen.attach(model, always()) as handle:
        generate(model, inputs)
    assert all(handle.trace.fired_tokens())


def test_device_map(tmp_path):
    from transformers import AutoModelForImageTextToText

    tiny.model("llava").save_pretrained(tmp_path)
    model = tiny.aligned(AutoModelForImageTextToText.from_pretrained(tmp_path, device_map="auto")).eval()
    inputs = tiny.inputs("llava")
    with seewhen.attach(model, always(contrast=2.0)):
        mapped = generate(model, inputs)
    plain = tiny.model("llava")
    with seewhen.attach(plain, always(contrast=2.0)):
        assert same(generate(plain, inputs), mapped)


# -- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefill_chunk_size": 4}, "chunked prefill"),
        ({"prompt_lookup_num_tokens": 2}, "prompt lookup"),
        ({"use_cache": False}, "use_cache=False"),
    ],
)
def test_modes_that_would_be_nonsense_are_refused(llava, options, message):
    with seewhen.attach(llava, always()), pytest.raises(UnsupportedMode, match=message):
        generate(llava, tiny.inputs("llava"), **options)


def test_assisted_decoding_is_refused(llava):
    with seewhen.attach(llava, always()), pytest.raises(UnsupportedMode, match="assisted"):
        generate(llava, tiny.inputs("llava"), assistant_model=llava)


def test_continuing_a_cache_with_several_tokens_is_refused(llava):
    inputs = tiny.inputs("llava")
    with seewhen.attach(llava, always()), torch.no_grad():
        cache = llava(**inputs).past_key_values
        with pytest.raises(UnsupportedMode, match="already holds"):
            llava(input_ids=torch.tensor([[5, 6]]), past_key_values=cache)


def test_attaching_twice_is_refused(llava):
    refused = pytest.raises(UnsupportedMode, match="already has 'cai'")
    with seewhen.attach(llava, "cai"), refused, seewhen.attach(llava, "cai"):
        pass
    with seewhen.attach(llava, "cai"):  # and the failed attempt took nothing away
        pass


def test_not_a_vision_language_model():
    with pytest.raises(UnsupportedModel), seewhen.attach(torch.nn.Linear(2, 2), "cai"):
        pass


def test_start_layer_too_deep(llava):
    with pytest.raises(InvalidMethod, match="leaves no layer"), seewhen.attach(llava, always(start_layer=30)):
        pass


# -- leaving -------------------------------------------------------------------------------------------------


def footprint(model):
    hooks = {
        name: [len(getattr(module, kind)) for kind in ("_forward_hooks", "_forward_pre_hooks")]
        for name, module in model.named_modules()
    }
    keys = sorted(model.__dict__)
    return hooks, keys, model.config.to_json_string(), model.get_decoder().config._attn_implementation


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_as_it_was(llava, fails):
    inputs = tiny.inputs("llava")
    stock, before = generate(llava, inputs), footprint(llava)

    def explode(input_ids, scores):
        if fails:
            raise RuntimeError("boom")
        return scores

    try:
        with seewhen.attach(llava, always(contrast=2.0), trace=True):
            generate(llava, inputs, logits_processor=[explode])
    except RuntimeError:
        assert fails
    assert footprint(llava) == before
    assert same(generate(llava, inputs), stock)


def test_layers_in_which_nothing_acts_keep_the_stock_attention(llava):
    def kernels():
        return [layer.self_attn.config._attn_implementation for layer in llava.get_decoder().layers]

    before = kernels()
    assert set(before) == {"sdpa"}
    with seewhen.attach(llava, always(start_layer=1)):
        assert kernels() == ["sdpa", "sdpa", "seewhen_sdpa", "seewhen_sdpa"]
    assert kernels() == before
    assert all(layer.self_attn.config is llava.get_decoder().config for layer in llava.get_decoder().layers)


def test_a_cache_dies_with_its_last_user(llava):
    inputs = tiny.inputs("llava")
    gc.disable()
    try:
        with seewhen.attach(llava, always(contrast=2.0)), torch.no_grad():
            output = llava(**inputs)
            cache = weakref.ref(output.past_key_values)
            del output
            assert cache() is None
    finally:
        gc.enable()


def test_never_fired_warns_once(llava):
    with seewhen.attach(llava, always(threshold=1e9)):
        with pytest.warns(UserWarning, match="never fired"):
            generate(llava, tiny.inputs("llava"))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            generate(llava, tiny.inputs("llava"))
