"""A module in which steps look up a function where they run; a loop sets another one."""

from __future__ import annotations


def scaled(loss):
    """Return the loss."""
    return loss * 1.0
