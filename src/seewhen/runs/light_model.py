"""A model without its weights: enough to refuse a method before a run begins, and to find its controls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from seewhen.runs.evaluate import Ask, check_mode

if TYPE_CHECKING:
    from seewhen.decoding.method import Method


@dataclass(frozen=True)
class LightModel:
    """The model of an evaluation. A served one shows nothing of itself."""

    ask: Ask
    backbone: Any = None
    tokenizer: Any = None

    @classmethod
    def of(cls, ask: Ask) -> LightModel:
        """From the configuration and the tokenizer alone."""
        if ask.server is not None:
            return cls(ask)
        import torch
        from transformers import AutoModelForImageTextToText

        from seewhen.backbones.backbone import Backbone
        from seewhen.backbones.loading import load_config, load_processor, tokenizer_of

        config = load_config(ask.model, revision=ask.revision)
        with torch.device("meta"):
            backbone = Backbone.of(AutoModelForImageTextToText.from_config(config, trust_remote_code=False))
        processor = load_processor(ask.model, revision=ask.revision)
        return cls(ask, backbone, tokenizer_of(processor))

    def check(self, method: Method) -> None:
        """Raises where the method cannot run like this, before a directory is made for it."""
        check_mode(self.ask, method)
        if self.backbone is None:
            from seewhen.served.remote import check_served

            check_served(method)
            return
        from seewhen.decoding.session import Session

        Session(self.backbone, method.prepare(self.tokenizer))

    def with_controls(self, method: Method) -> list[Method]:
        """The method and its controls; what is served cannot be taken apart."""
        from seewhen.methods import method as make_method
        from seewhen.methods.controls import with_controls

        if self.backbone is None:
            found = (make_method("regular"), method)
            return list({each.fingerprint: each for each in found}.values())
        ready = method.prepare(self.tokenizer)
        return [method if each is ready else each for each in with_controls(ready, self.backbone)]
