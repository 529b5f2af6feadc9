"""`seewhen methods`: every method with its parameters and presets."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
