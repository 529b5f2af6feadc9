"""The name of a method from what was stored of it. No torch here: reports read names of hundreds of runs."""

from __future__ import annotations

from typing import Any

COMBINED, PART = "combined", "part"  # what combinations and parts of methods are stored as


def name_in(description: Any) -> str:
    """The name of a method from its JSON, which may be a stranger's: `cai+vcd` for a combination of both."""
    match description:
        case {"method": str(kind), "parameters": {"methods": [*members]}} if kind == COMBINED:
            return "+".join(map(name_in, members))
        case {"method": str(kind), "parameters": {"of": whole, "part": str(part)}} if kind == PART:
            return f"{name_in(whole)}:{part}"
        case {"method": str(name)}:
            return name
    return "?"
