"""The tower, a `Dinov2Model`: how it wants its pictures, and its weights under the names they are stored by."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

# transformers renamed these modules between 5.17 and 5.22; stored weights keep the older names.
_RENAMED = (
    ("attention.attention.query.", "attention.q_proj."),
    ("attention.attention.key.", "attention.k_proj."),
    ("attention.attention.value.", "attention.v_proj."),
    ("attention.output.dense.", "attention.o_proj."),
)


def fill(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load stored weights, whichever names this release of transformers has for them."""
    newer = any(".attention.q_proj." in name for name in model.state_dict())
    model.load_state_dict({_rename(name, forth=True) if newer else name: t for name, t in weights.items()})


def stored(model: nn.Module) -> dict[str, Tensor]:
    """The weights under the names `fill` expects."""
    return {_rename(name, forth=False): tensor.detach() for name, tensor in model.state_dict().items()}


def _rename(name: str, forth: bool) -> str:
    for old, new in _RENAMED:
        name = name.replace(old, new) if forth else name.replace(new, old)
    return name
