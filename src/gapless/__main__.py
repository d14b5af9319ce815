"""What `gapless` and `python -m gapless` do."""

from __future__ import annotations


def main() -> None:
    """Load the command line and run it; an interrupt meanwhile ends it without a traceback."""
    try:
        from gapless.cli.main import main as run
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    run()


if __name__ == "__main__":
    main()
