"""A tiny random Qwen-VL, its inputs, and what its tests compare with."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from seewhen.backbones.qwen_vl import QwenVLConfig, QwenVLForConditionalGeneration

TOLERANCE = 2e-4
START, END, PAD = 50, 51, 52


def tiny_config(seq_length: int = 24, **changes: Any) -> QwenVLConfig:
    visual = {"image_size": 21, "patch_size": 7, "width": 16, "layers": 2, "heads": 2, "mlp_ratio": 2.0}
    values: dict[str, Any] = {
        "vocab_size": 60,
        "hidden_size": 32,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "kv_channels": 16,
        "initializer_range": 0.3,
        "seq_length": seq_length,
        "resampler_head_dim": 8,
        "visual": visual | {"n_queries": 4, "output_dim": 32, "image_start_id": START},
    }
    return QwenVLConfig(**values | changes)


def tiny_model(seq_length: int = 24, **changes: Any) -> QwenVLForConditionalGeneration:
    torch.manual_seed(0)
    model = QwenVLForConditionalGeneration(tiny_config(seq_length, **changes)).eval()
    with torch.no_grad():  # stock initialisation has zero biases, which would hide a wrong bias
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.3)
    return model


def tokens(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, START, (rows, length), generator=torch.Generator().manual_seed(seed))


def pixels(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, 3, 21, 21, generator=torch.Generator().manual_seed(seed))


def image_ids() -> torch.Tensor:
    return torch.tensor([[START, PAD, PAD, PAD, PAD, END]])


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = TOLERANCE) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance, check_dtype=False)


def left_padded(rows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    width = max(row.shape[1] for row in rows)
    ids = torch.cat([nn.functional.pad(row, (width - row.shape[1], 0)) for row in rows])
    mask = torch.stack([(torch.arange(width) >= width - row.shape[1]).long() for row in rows])
    return {"input_ids": ids, "attention_mask": mask}


def generated(model: nn.Module, count: int = 8, **inputs: Any) -> torch.Tensor:
    inputs.setdefault("attention_mask", torch.ones_like(inputs["input_ids"]))
    out = model.generate(**inputs, max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0)
    return out[:, inputs["input_ids"].shape[1] :]


def steps(model: nn.Module, prompt: dict[str, torch.Tensor], continuation: torch.Tensor) -> tuple[Any, Any]:
    """Cached decoding, teacher forced: logits and hidden states of the last position at every step."""
    outputs = model(**prompt, use_cache=True, output_hidden_states=True)
    logits, hidden = [outputs.logits[:, -1]], [torch.stack([h[:, -1] for h in outputs.hidden_states])]
    for token in continuation.unbind(1):
        outputs = model(
            input_ids=token[:, None], past_key_values=outputs.past_key_values, output_hidden_states=True
        )
        logits.append(outputs.logits[:, -1])
        hidden.append(torch.stack([h[:, -1] for h in outputs.hidden_states]))
    return torch.stack(logits), torch.stack(hidden)
