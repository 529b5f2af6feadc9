"""ICD: Instruction Contrastive Decoding (Wang et al., ACL Findings 2024).

Idea: an instruction that disturbs the model ("You are a confused object detector.") brings out its
hallucinations; subtract them. A second row has the same image followed by the disturbing sentence, and
the scores are `(1 + alpha) z - alpha z'` with the plausibility cut of `beta`.

Source: the paper, in the form in which the released code of SID (no licence found) carries it as a
baseline. Written from the formulas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import torch
from torch import Tensor

from seewhen.decoding.branches import Branch
from seewhen.decoding.method import Logits, Method, Parts, Preset
from seewhen.decoding.prefill import BranchRows
from seewhen.equations.contrast import check_contrast, logit_contrast
from seewhen.errors import InvalidMethod
from seewhen.methods.parameters import Plausibility

if TYPE_CHECKING:
    from seewhen.backbones.backbone import Backbone
    from seewhen.decoding.prefill import Prefill

# Tokens that belong to the image although they come after it: the sentence follows them.
_CLOSING = ("vision_end_token_id", "eoi_token_id", "eoi_token_index", "bos_token_id")


@dataclass(frozen=True, eq=False)
class InsertedSentence(Branch):
    """The same prompt with a sentence right after its (last) image."""

    backbone: Backbone
    sentence_ids: tuple[int, ...]

    def rows(self, prefill: Prefill) -> BranchRows:
        """Rows that are longer by the sentence; later tokens move back, and so do their positions."""
        embeds, device = prefill.embeds, prefill.embeds.device
        rows, length = embeds.shape[:2]
        extra = len(self.sentence_ids)
        start = self._start(prefill)[:, None]
        column = torch.arange(length + extra, device=device).expand(rows, -1)
        inserted = (column >= start) & (column < start + extra)
        order = torch.where(inserted, start, torch.where(column < start, column, column - extra))
        order = order.clamp(max=length - 1)
        layer = self.backbone.decoder.get_input_embeddings()
        sentence = layer(torch.tensor(self.sentence_ids, device=device)).to(embeds.dtype)
        words = sentence[(column - start).clamp(0, extra - 1)]
        embeds = embeds.gather(1, order[..., None].expand(-1, -1, embeds.shape[-1]))
        # A prompt without an image has no place for the sentence: there it is padding.
        nowhere = inserted & ~prefill.image_mask.any(dim=1, keepdim=True)
        extras = dict(prefill.extras)
        if "visual_pos_masks" in extras:
            extras["visual_pos_masks"] = extras["visual_pos_masks"].gather(1, order) & ~inserted
        return BranchRows(
            embeds=torch.where(inserted[..., None], words, embeds),
            padding=(prefill.padding.gather(1, order) & ~inserted) | nowhere,
            position_ids=_positions(prefill.position_ids, start, extra),
            order=order,
            extras=extras,
        )

    def _start(self, prefill: Prefill) -> Tensor:
        """The column after the last image token and its closing marker, per row (0 without an image)."""
        length = prefill.embeds.shape[1]
        column = torch.arange(1, length + 1, device=prefill.embeds.device)
        start = (prefill.image_mask * column).amax(dim=1)
        if prefill.input_ids is not None:
            configs = (self.backbone.model.config, self.backbone.text_config)
            for name in _CLOSING:
                token = next((t for c in configs if (t := getattr(c, name, None)) is not None), None)
                if isinstance(token, int):
                    ids = prefill.input_ids.to(start.device)
                    following = ids.gather(1, start.clamp(max=length - 1)[:, None])[:, 0]
                    start = start + ((following == token) & (start > 0) & (start < length))
        return start


def _positions(own: Tensor, start: Tensor, extra: int) -> Tensor:
    """Position ids, of one or several axes: the sentence takes the places of what came after the image."""
    # One place more than the prompt has, for a sentence at its very end.
    own = torch.cat([own, own[..., -1:] + 1], dim=-1)
    column = torch.arange(own.shape[-1] - 1 + extra, device=own.device)
    word = (column - start).clamp(min=0, max=extra)  # how many words of the sentence lie before
    before = (column - word).expand(*own.shape[:-1], -1)
    return own.gather(-1, before) + word.to(own.dtype)


@dataclass(frozen=True)
class ICD(Method):
    """Instruction Contrastive Decoding. The class defaults are those for yes/no questions."""

    name: ClassVar[str] = "icd"
    summary: ClassVar[str] = "contrast with a disturbing instruction"
    source: ClassVar[str] = "Wang et al., ACL Findings 2024; as in the code of SID (no licence found)"
    presets: ClassVar[Mapping[str, Preset]] = {
        "reference:pope": Preset({}, "released code of SID, pope_eval.py"),
        "reference:chair": Preset(
            {"sentence": "You are a confused image caption model."}, "released code of SID, chair_eval.py"
        ),
    }

    alpha: Annotated[float, "how much of the disturbed row's logits is subtracted; 0: no contrast"] = 0.5
    plausibility: Plausibility = 0.1
    sentence: Annotated[str, "the disturbing instruction"] = "You are a confused object detector."
    # The tokens of `sentence`; `prepare` fills them in.
    sentence_ids: Annotated[tuple[int, ...] | None, "its tokens; filled in from the model's tokenizer"] = None

    def __post_init__(self) -> None:
        check_contrast(self.name, self.alpha, self.plausibility)
        if self.sentence_ids is not None:
            object.__setattr__(self, "sentence_ids", tuple(int(token) for token in self.sentence_ids))

    def prepare(self, tokenizer: Any) -> Self:
        """Tokenise the sentence, unless its tokens are given."""
        if self.sentence_ids is not None:
            return self
        ids = tokenizer(self.sentence, add_special_tokens=False)["input_ids"]
        return self.replace(sentence_ids=tuple(ids))

    def parts(self, backbone: Backbone) -> Parts:
        """A row with the sentence; nothing at all for alpha = 0."""
        if not self.alpha:
            return Parts()
        if self.sentence_ids is None:
            raise InvalidMethod(
                "icd: the tokens of its sentence are not known.",
                "Use seewhen.generate, or attach(model, method.prepare(processor.tokenizer)).",
            )
        if not self.sentence_ids:
            raise InvalidMethod("icd: the sentence is empty.", "Give a sentence that disturbs the model.")
        return Parts(branches=(InsertedSentence(backbone, self.sentence_ids),), rule=self._rule)

    def _rule(self, logits: Logits) -> Tensor:
        return logit_contrast(logits.main, logits.branches[0], self.alpha, self.plausibility)
