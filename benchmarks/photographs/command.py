"""What the programs of this folder have in common: a parser whose commands name the work they do."""

from __future__ import annotations

import argparse
import sys

from seewhen.errors import SeewhenError


def carry_out(parser: argparse.ArgumentParser) -> None:
    """Do the work of the command that was given; a mistake is one line."""
    options = parser.parse_args()
    try:
        options.work(options)
    except SeewhenError as error:
        sys.exit(f"error: {error}")
