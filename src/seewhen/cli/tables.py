"""Where tables are printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_WIDE = 120


def table_console(wide: int = _WIDE) -> Console:
    """A console for stdout; a file or a pipe has no width, so tables there need not be cut to 80 columns."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, wide)
    return console
