"""Lets `python -m gapless` do what `gapless` does."""

from __future__ import annotations

from gapless.cli.main import main


if __name__ == "__main__":
    main()
