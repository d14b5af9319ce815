"""Doors into captures that their users do not have, for tests that need more of them than users do."""

from __future__ import annotations

from contextlib import contextmanager

from gapless.graphs import call_windows, graph_limits


@contextmanager
def replayed_whatever_it_takes():
    """Let no replays within the body be compared with calls as written, which would take their place."""
    usual, call_windows.NUM_BEFORE = call_windows.NUM_BEFORE, 1e9
    try:
        yield
    finally:
        call_windows.NUM_BEFORE = usual


@contextmanager
def memory_fraction(share):
    """Let what is captured in the body have this share of the device's memory."""
    usual, graph_limits.MEMORY_FRACTION = graph_limits.MEMORY_FRACTION, share
    try:
        yield
    finally:
        graph_limits.MEMORY_FRACTION = usual
