"""CAI's released text-only pass, which is tilted where it grows past the image, against a plain second writing."""

from __future__ import annotations

import pytest
import torch

import naive
import seewhen
import tiny
from promises import close, some_tokens

# Text after the 16 image tokens: row 0 has 21, so that its text-only prompt is too long at once; row 1 has 14,
# and grows past the end of its image in the middle of the answer.
LENGTHS = (40, 27)
START, CONTRAST = 0, 3.0


@pytest.mark.filterwarnings("ignore:.*never fired")
@pytest.mark.parametrize("key_heads", [4, 2])
@pytest.mark.parametrize("threshold", [-1.0, 0.65, 9.0])
def test_the_tilt_in_the_text_only_pass_is_that_of_the_released_code(threshold: float, key_heads: int) -> None:
    model = tiny.model("llava", num_key_value_heads=key_heads)
    tokens = some_tokens(rows=2, steps=4)
    method = seewhen.method(
        "cai:reference", start_layer=START, threshold=threshold, contrast=CONTRAST, plausibility=None
    )
    inputs = tiny.inputs("llava", rows=2, text_lengths=LENGTHS)
    run = seewhen.replay(model, inputs, tokens, method)
    repaired = seewhen.replay(model, inputs, tokens, method.replace(leak=False))
    for row in range(2):
        alone = tiny.inputs("llava", rows=2, text_lengths=LENGTHS, only=row)
        ids = alone["input_ids"][0]
        image = ids == tiny.IMAGE
        span = (int(image.nonzero().min()), int(image.nonzero().max()) + 1)
        with torch.no_grad():
            visual = model.get_image_features(alone["pixel_values"], return_dict=True).pooler_output[0]
            words = model.get_input_embeddings()(torch.cat([ids, tokens[row]]))
            words[: len(ids)][image] = visual
            text = torch.cat([words[: len(ids)][~image], words[len(ids) :]])
            prompt = int((~image).sum())
            for step in range(tokens.shape[1] + 1):
                main, gates, weights = naive.cai_logits(
                    model, words[: len(ids) + step], span, len(ids), START, threshold, True
                )
                other, *_ = naive.cai_logits(
                    model, text[: prompt + step], span, prompt, START, threshold, True, (visual, gates, weights)
                )
                expected = CONTRAST * main.log_softmax(-1) - (CONTRAST - 1) * other.log_softmax(-1)
                close(run.scores[row, step], expected, 1e-3)
                differs = bool((run.scores - repaired.scores)[row, step].abs().max() > 1e-2)
                grown = prompt + step > span[1]
                assert differs == grown if threshold < 0 else grown or not differs
