"""What the pipeline does, as scenarios: all of them.

They run on the simulated device under every scheduler, and they are what must notice each removed
ordering operation (`simulation.mutants`). Each is a test of its own, by its name:

    pytest tests/simulation -k a_graph_for_each_shape                  ten random schedules
    pytest tests/simulation -k a_graph_for_each_shape -m "not slow"    two

A module of scenarios, such as `capturing.py`, holds no tests: `test_scenarios.py` runs them all.
"""

from __future__ import annotations

from simulation import (  # noqa: F401
    batch_values,
    capturing,
    capturing_in_place,
    choosing,
    copies,
    failures,
    guarding,
    in_place,
    losses,
    paying,
    prefetching,
    proving,
    streams,
    summing,
    training,
)
from simulation.registry import SCENARIOS, RaceError, run, schedules


__all__ = ["SCENARIOS", "RaceError", "run", "schedules"]
