"""From where to where a slider of a number makes sense: found by asking the method what it takes.

Methods check their parameters themselves, so a range is what a method accepts of a span that holds its default
and the values of its presets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from seewhen.decoding.method import Method
from seewhen.errors import InvalidMethod

_STEPS = 20  # how finely the ends are searched for


def range_of(
    cls: type[Method], name: str, values: Sequence[float], whole: bool, ceiling: float
) -> dict[str, float] | None:
    """Lowest, highest and step of parameter `name`; `values` are those in use. None where nothing is accepted."""
    top = min(_top(values, whole), ceiling)
    bottom = min(0.0, *values) if values else 0.0
    ladder = [bottom + (top - bottom) * step / _STEPS for step in range(_STEPS + 1)]
    ladder = sorted({*ladder, *(value for value in values if bottom <= value <= top)})
    if whole:
        ladder = sorted({float(round(value)) for value in ladder})
    taken = [value for value in ladder if _takes(cls, name, int(value) if whole else value)]
    if not taken:
        return None
    step = 1.0 if whole else _nice((top - bottom) / 200)
    return {"min": taken[0], "max": taken[-1], "step": step}


def _top(values: Sequence[float], whole: bool) -> float:
    # Some preset may be far from the others (a contrast of 50): three quarters of the values decide.
    ordered = sorted(abs(value) for value in values)
    large = ordered[(3 * (len(ordered) - 1) + 3) // 4] if len(ordered) > 8 else max(ordered, default=0.0)
    if whole:
        return float(max(8, 2 * large))
    return 1.0 if large < 1 else _nice(2 * large)


def _nice(value: float) -> float:
    """The nearest of 1, 2 and 5 times a power of ten, upwards."""
    power = 10 ** math.floor(math.log10(value))
    return float(f"{next(m * power for m in (1, 2, 5, 10) if m * power >= value * 0.999):.6g}")


def _takes(cls: type[Method], name: str, value: Any) -> bool:
    """With the defaults or with some preset's values: parameters can depend on each other."""
    for settings in ({}, *(dict(preset.values) for preset in list(cls.presets.values())[:8])):
        try:
            cls(**{**settings, name: value})
        except (InvalidMethod, TypeError):
            continue
        return True
    return False
