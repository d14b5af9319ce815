"""What host and streams did in a few steps of a plan, as a timeline with its gaps."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

from gapless.records.timeline import Gap, Lane, Timeline


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gapless.records.timeline import Span


# Shorter ones lie between any two kernels.
_LEAST_GAP_US = 1.0

_CAUSES = {"wait": "host wait", "data": "data", "step": "launch"}


def plan_timeline(title: str, host: Sequence[Span], streams: Sequence[Lane]) -> Timeline:
    """Return a timeline that begins with the first step, or work of the device before it.

    What the host did earlier, such as starting a loader's workers, is left out.

    Args:
        title: of the timeline, such as the plan's name.
        host: what the loop's thread did, in any order: steps, waits, waits for data.
        streams: of the device, on the same clock; empty for a CPU, which has no gaps.
    """
    spans = sorted(host, key=lambda span: (span.start_us, -span.end_us))
    work = [span for lane in streams for span in lane.spans]
    steps = [span for span in spans if span.kind == "step"]
    start_us = min((span.start_us for span in [*steps, *work] or spans), default=0.0)

    def moved(found: Sequence[Span]) -> tuple[Span, ...]:
        return tuple(
            replace(
                span, start_us=max(0.0, span.start_us - start_us), end_us=span.end_us - start_us
            )
            for span in found
            if span.end_us >= start_us
        )

    own = moved(spans)
    lanes = [replace(lane, spans=moved(lane.spans)) for lane in streams]
    return Timeline(
        title=title,
        lanes=(Lane(name="host", is_device=False, spans=own), *lanes),
        gaps=tuple(_gaps(own, lanes)),
        step_starts_us=tuple(span.start_us for span in own if span.kind == "step"),
        end_us=max((span.end_us for span in [*spans, *work]), default=start_us) - start_us,
    )


def _gaps(host: Sequence[Span], lanes: Sequence[Lane]) -> Iterator[Gap]:
    """Yield the time between the first and the last work in which no stream has any."""
    work = sorted((span.start_us, span.end_us) for lane in lanes for span in lane.spans)
    # The latest end of each span and all before it: spans lie in one another.
    ends = list(accumulate((span.end_us for span in host), max))
    reached = work[0][1] if work else 0.0
    for start_us, end_us in work:
        if start_us - reached >= _LEAST_GAP_US:
            beside = host[bisect_right(ends, reached) :]
            cause = _cause(beside, since=reached, until=start_us)
            yield Gap(start_us=reached, end_us=start_us, cause=cause)
        reached = max(reached, end_us)


def _cause(host: Iterable[Span], *, since: float, until: float) -> str:
    """Return what the host did for longest in a gap; a wait within a step is a wait."""
    totals = dict.fromkeys(_CAUSES, 0.0)
    step_end = since
    for span in host:
        if span.start_us > until:
            break
        shared = min(span.end_us, until) - max(span.start_us, since)
        if shared <= 0.0 or span.kind not in totals:
            continue
        totals[span.kind] += shared
        if span.kind == "step":
            step_end = span.end_us
        elif span.start_us < step_end:
            totals["step"] -= shared
    kind = max(totals, key=lambda name: totals[name])
    return _CAUSES[kind] if totals[kind] > 0.0 else "host code"
