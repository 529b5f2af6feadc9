"""What a method did, in words: what it was placed on the model to do, and what was counted while it did."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seewhen.decoding.method import Method, Parts
    from seewhen.decoding.sequence import CachedSequence


PASSED = "no image in the prompt: passed through unchanged"
UNCHANGED = "nothing was changed: the model decodes as it is"


def placed(method: Method, parts: Parts, sequence: CachedSequence) -> tuple[str, ...]:
    """What `method` does to this call, or why it does nothing."""
    if not any((parts.interventions, parts.branches, parts.rule, parts.judge)):
        return (UNCHANGED,)
    lines = [method.in_words()]
    if parts.branches:
        rows = len(parts.branches)
        lines[0] += f"; {rows} extra row{'s' * (rows > 1)}"
    with_image = sequence.image.valid.any(dim=1).tolist()
    if method.needs_image and not any(with_image):
        return (PASSED,)
    if method.needs_image and not all(with_image):
        bare = with_image.count(False)
        lines.append(f"{bare} of {len(with_image)} rows have no image: passed through unchanged")
    return tuple(lines)
