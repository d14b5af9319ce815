"""What lets calls be watched from the first one on, whatever that takes, so that replays can be counted."""

from __future__ import annotations


# Of `gapless.graphs.account`.
AMPLE = {"NUM_PLAIN": 0, "ALLOWANCE_S": 1e9, "LEAST_AHEAD": 1e9}
