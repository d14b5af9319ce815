"""All cases: importing this module registers them."""

from __future__ import annotations

from hazards import (  # noqa: F401
    captured_batch,
    captured_forms,
    captured_found,
    captured_found_aliases,
    captured_found_idioms,
    captured_found_projects,
    captured_found_reads,
    captured_late,
    captured_many,
    captured_marks,
    captured_memory,
    captured_mixtures,
    captured_numbers,
    captured_on_the_cpu,
    captured_reads,
    captured_report,
    captured_skipped_reads,
    captured_tries,
    captured_unwaited,
    captured_writes,
    containers,
    forms,
    in_place_forms,
    in_place_found,
    in_place_gradients,
    in_place_idioms,
    in_place_limits,
    in_place_marks,
    in_place_memory,
    in_place_mixtures,
    in_place_modes,
    in_place_objects,
    in_place_pays,
    in_place_rates,
    in_place_refused,
    in_place_skipped_reads,
    in_place_turns,
    in_place_updates,
    in_place_weights,
    kept_views,
    leaving,
    loaders,
    looking_ahead,
    memory,
    metrics_late,
    metrics_memory,
    metrics_streams,
    metrics_values,
    objects,
    on_the_cpu,
    streams,
)
from hazards.captured_harness import CAPTURED_CASES
from hazards.harness import CASES
from hazards.in_place_harness import IN_PLACE_CASES


__all__ = ["CAPTURED_CASES", "CASES", "IN_PLACE_CASES"]
