"""Errors of the library, said in flags."""

from __future__ import annotations

import pytest

from gapless.cli.error_text import with_flags


NAMES = {"sync_interval", "device", "pack", "seed"}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("`sync_interval` must be at least 1", "--sync-interval must be at least 1"),
        ('no GPU here; use `device="cpu"`', "no GPU here; use --device cpu"),
        ("add `seed=3` or more", "add --seed 3 or more"),
        ("add `pack=True` or `pack=False`", "add --pack or --no-pack"),
        ("`wait_with` must be `seed`", "`wait_with` must be --seed"),
        ("use `depth=2`", "use `depth=2`"),
        ("the seed of the device", "the seed of the device"),
        ("unknown plan 'a`b'; set `seed`", "unknown plan 'a`b'; set `seed`"),
    ],
)
def test_parameters_in_backticks_become_flags(message, expected):
    """Options of the command do; other names, plain words and stray backticks stay as they are."""
    assert with_flags(message, NAMES) == expected
