"""All cases: importing this module registers them."""

from __future__ import annotations

from hazards import (  # noqa: F401
    captured_batch,
    captured_forms,
    captured_found,
    captured_found_reads,
    captured_late,
    captured_many,
    captured_memory,
    captured_numbers,
    captured_on_the_cpu,
    captured_reads,
    captured_report,
    captured_tries,
    captured_unwaited,
    captured_writes,
    containers,
    forms,
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


__all__ = ["CAPTURED_CASES", "CASES"]
