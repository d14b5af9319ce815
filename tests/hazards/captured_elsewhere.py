"""A module that steps look up where they run; a loop or a test sets what it holds."""

from __future__ import annotations


SCALE = 1.0
NUM_SEEN = 0


def scaled(loss):
    """Return the loss."""
    return loss * 1.0


def restore():
    """Put the numbers back that were set."""
    global SCALE, NUM_SEEN
    SCALE, NUM_SEEN = 1.0, 0
