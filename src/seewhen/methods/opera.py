"""OPERA: over-trust penalty and retrospection-allocation (Huang et al., CVPR 2024).

Idea: hallucinations follow "summary tokens", columns of the attention map on which all later tokens
lean. A beam search tries, for each beam, its `candidates` best tokens: one more forward pass gives each
candidate's attention row of the last layer (maximum over heads, normalised). With the rows of the
response so far, every response column j gets `phi_j = 1e-7 prod_{i >= j} (scale M[i, j])`, and a
candidate's logit becomes `z - weight max_j phi_j`. The first `warmup` tokens get a bonus instead, the
row's attention on the image. When the same column c stays the strongest in all beams more than
`threshold` times, the search goes back to the token after c and forbids what it chose there.

It has a loop of its own and no judge (`decoding/judge.py`): a judge keeps one row of the cache per answer and
hides what that row takes back, while here a step tries every candidate of every beam in a row of its own, of which
most die at once. The number of rows changes with each step, and going back is a choice of all beams together.

Source: the released code (shikiw/OPERA, MIT); written anew from its behaviour. The factor 1e-7, the
maximum over heads, the last layer only and the image bonus are in the code, not in the paper.
`reference_parity` also keeps four accidents of that code; without it (the default)
- column products stay in float32 (the code rounds them to float16, in which most are 0 and tie);
- tokens that are not candidates lie 999 below the worst candidate (the code sets them to -999, so a
  candidate with a penalty above about 1000 loses against every unlikely token of the vocabulary);
- a forbidden choice lies below all others (in the code it ties with the least likely token);
- going back forgets what was forbidden at later positions, whose prefix is a different one now.

Finished beams are compared as the installed transformers does, by the length of the answer; the code's own version
counts the prompt's tokens too, so with `length_penalty` other than 0 another finished beam may win there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from seewhen.decoding.method import Method, Parts, Preset
from seewhen.methods.opera_columns import AttentionWatch, OverTrust
from seewhen.methods.opera_search import generate

if TYPE_CHECKING:
    from seewhen.backbones.backbone import Backbone


@dataclass(frozen=True)
class Opera(OverTrust, Method):
    """Beam search with an over-trust penalty and rollback."""

    name: ClassVar[str] = "opera"
    summary: ClassVar[str] = "beam search that avoids, and goes back behind, tokens all others lean on"
    source: ClassVar[str] = "Huang et al., CVPR 2024; code MIT"
    presets: ClassVar[Mapping[str, Preset]] = {
        "reference": Preset({"reference_parity": True}, "released code, argument defaults; num_beams=5"),
        "fast": Preset({"threshold": 25, "candidates": 1}, "README of the released code; num_beams=5"),
    }
    compiles: ClassVar[bool] = False
    beams_only: ClassVar[bool] = True
    needs_image: ClassVar[bool] = False

    def parts(self, backbone: Backbone) -> Parts:
        """A watcher of the last softmax layer, and a decoding loop."""
        watch = AttentionWatch(backbone.softmax_layers[-1])

        def loop(session: Any, stock: Any, *args: Any, **kwargs: Any) -> Any:
            return generate(self, watch, session, stock, *args, **kwargs)

        return Parts(interventions=(watch,), loop=loop)
