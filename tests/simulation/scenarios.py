"""What the pipeline does, as scenarios: all of them.

They run on the simulated device under every scheduler, and they are what must notice each removed
ordering operation (`simulation.mutants`).
"""

from __future__ import annotations

from simulation import (  # noqa: F401
    capturing,
    choosing,
    copies,
    failures,
    losses,
    prefetching,
    streams,
    training,
)
from simulation.registry import SCENARIOS, RaceError, run, schedules


__all__ = ["SCENARIOS", "RaceError", "run", "schedules"]
