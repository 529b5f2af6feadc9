"""The installed command, and `python -m seewhen`: Ctrl-C ends it quietly while it is still being imported, too."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    try:
        from seewhen.cli import main as command
        from seewhen.cli.starting import alone
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    with alone():
        command()


if __name__ == "__main__":
    main()
