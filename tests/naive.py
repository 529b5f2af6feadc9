"""CAI once more, written as plainly as possible, to compare the library with.

No cache, no hooks, no batching: the whole sequence is run again for every token, in explicit loops over
layers and heads, from the released code's description. Llama-like decoders only.
"""

from __future__ import annotations

import math

import torch


def _rotate(x, cos, sin):
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return x * cos + turned * sin


def cai_logits(model, embeds, image, first, start_layer, threshold, tail_query, left=None):
    """Logits of the last position of `embeds` (n, d) with CAI; `image` = (s, e), `first` = prefill length.

    Earlier positions ran as last position of their own step, so their keys and values are those of an
    untilted pass except where they were tilted themselves: all rows after the prompt are recomputed in
    order, each as the last row of its own pass, keeping its keys and values.

    Also returns each pass's gates and weights. `left` makes it the released code's text-only pass, with
    `embeds` of the text: the image features, and the gates and weights that the main passes left behind.
    """
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    config = decoder.config
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    size = decoder.layers[0].self_attn.head_dim
    s, e = image
    keys = [[] for _ in decoder.layers]
    values = [[] for _ in decoder.layers]
    logits, fired, weights = None, [], []
    visual = embeds[s:e] if left is None else left[0]
    chunks = [list(range(first))] + [[t] for t in range(first, embeds.shape[0])]
    for chunk in chunks:
        hidden = embeds[chunk]
        query_vector = embeds[e:first].mean(0) if len(chunk) > 1 and tail_query else hidden[-1]
        cosine = torch.nn.functional.cosine_similarity(visual, query_vector[None], dim=-1)
        weight = torch.sigmoid(100 * (cosine - cosine.min()))
        positions = torch.tensor([chunk])
        cos, sin = decoder.rotary_emb(hidden[None], positions)
        weights.append(weight)
        flags = []
        for index, layer in enumerate(decoder.layers):
            gate = False
            if index > start_layer:
                p = torch.softmax(head(decoder.norm(hidden[-1])), -1)
                gate = float(-(p * torch.log10(p + 1e-9)).sum()) > threshold
            flags.append(gate)
            used = weight
            if left is not None and not gate and left[1][len(fired)][index]:
                gate, used = True, left[2][len(fired)]
            x = layer.input_layernorm(hidden)
            attn = layer.self_attn
            q = attn.q_proj(x).view(len(chunk), heads, size).transpose(0, 1)
            k = attn.k_proj(x).view(len(chunk), kv_heads, size).transpose(0, 1)
            v = attn.v_proj(x).view(len(chunk), kv_heads, size).transpose(0, 1)
            q, k = _rotate(q, cos[0], sin[0]), _rotate(k, cos[0], sin[0])
            keys[index].append(k)
            values[index].append(v)
            all_k, all_v = torch.cat(keys[index], 1), torch.cat(values[index], 1)
            outputs = []
            for h in range(heads):
                kv = h // (heads // kv_heads)
                scores = q[h] @ all_k[kv].T / math.sqrt(size)
                for row, position in enumerate(chunk):
                    scores[row, position + 1 :] = -math.inf
                if gate and scores.shape[1] > e:
                    scores[-1, s:e] += scores[-1, s:e].abs() * used
                outputs.append(torch.softmax(scores, -1) @ all_v[kv])
            hidden = hidden + attn.o_proj(torch.cat(outputs, -1))
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        logits = head(decoder.norm(hidden[-1]))
        fired.append(flags)
    return logits, fired, weights
