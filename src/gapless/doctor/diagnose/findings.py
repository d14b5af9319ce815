"""Findings: what each line costs, the costliest first, and what the whole step costs. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.doctor.advice.causes import CODE_OF
from gapless.doctor.advice.finding_texts import cause_text, mend_text
from gapless.doctor.diagnose.finding_groups import Group
from gapless.doctor.diagnose.watched_run import HOST_COSTS
from gapless.records.finding import PARTS, Finding


if TYPE_CHECKING:
    from gapless.doctor.advice.causes import Cause
    from gapless.doctor.diagnose.finding_groups import Groups, Key, KnownWaits
    from gapless.doctor.diagnose.measured_times import MeasuredTimes
    from gapless.doctor.diagnose.watched_run import WatchedRun

# Batches come in ever new shapes if more than so many of at least so many have one of their own.
_LEAST_BATCHES = 10
_LEAST_NEW_SHAPES = 0.5

# Below this share of the step a host cost is not worth a finding.
_LEAST_COST_SHARE = 0.01
# Likewise where nobody knows how much of it the device was idle.
_LEAST_UNKNOWN_SHARE = 0.05
_LEAST_LAUNCH_SHARE = 0.10
# From this share of a step on, batches hold it back.
LEAST_DATA_SHARE = 0.20


def findings_of(
    known: KnownWaits, groups: Groups, times: MeasuredTimes
) -> list[tuple[Finding, Group]]:
    """Return the findings of all groups that are worth one, and of the whole step, part by part, the costliest first."""
    found = [
        (_finding(key, group, times.step_ms, known.watched), group)
        for key, group in groups.items()
        # Not what came in the first recorded step alone: the profiler may have caused it.
        if group.per_step > 0.0
        and (key.cause not in HOST_COSTS or _is_worth(key, group, times.step_ms))
    ]
    found += [(finding, Group()) for finding in _of_the_whole_step(known, times)]
    found += [(finding, Group()) for finding in _of_batches(known, times)]
    found.sort(key=lambda one: cost_of(one[0]), reverse=True)
    return sorted(found, key=lambda one: PARTS.index(one[0].part))


def cost_of(finding: Finding) -> tuple[float, float, float]:
    """Return what findings are ordered by: idle time of the device, time of the host, and how often.

    A finding whose idle time was not measured comes behind all those of which it was.
    """
    exposed = -1.0 if finding.exposed_ms is None else finding.exposed_ms
    return exposed, finding.waited_ms or 0.0, finding.per_step or 0.0


def _is_worth(key: Key, group: Group, step_ms: float | None) -> bool:
    if key.cause in ("shapes", "launch") or step_ms is None:
        return True
    if group.exposed_ms is None:
        return (group.waited_ms or 0.0) >= _LEAST_UNKNOWN_SHARE * step_ms
    return group.exposed_ms >= _LEAST_COST_SHARE * step_ms


def _finding(key: Key, group: Group, step_ms: float | None, watched: WatchedRun) -> Finding:
    site = key.site
    around = None if site is None else watched.places.get(site.path)
    exposed = group.exposed_ms
    return Finding(
        code=CODE_OF[key.cause],
        site=key.site,
        thread=key.thread,
        call=key.call,
        per_step=group.per_step,
        waited_ms=group.waited_ms,
        exposed_ms=exposed,
        gain_ms=None if group.gain_ms is None else min(group.gain_ms, exposed or 0.0),
        share=None if exposed is None or not step_ms else exposed / step_ms,
        cause=cause_text(key.cause, key.call, group.detail),
        mend=mend_text(
            key.cause,
            key.call,
            group.detail,
            None if site is None or around is None else around.at(site.line),
        ),
        part="step" if site is None else watched.parts.get((site.path, site.line), "step"),
        forward=key.forward,
    )


def _of_the_whole_step(known: KnownWaits, times: MeasuredTimes) -> list[Finding]:
    """Return findings that no line is to blame for."""
    found = []
    watched, step = known.watched, times.step_ms
    launch_ms = times.idle_ms["launch"]
    if step and times.recording is not None and launch_ms >= _LEAST_LAUNCH_SHARE * step:
        num = times.num_launches or 0.0
        detail = (
            f"{num:,.0f} launches a step; between them the device is idle {launch_ms:.1f} of "
            f"{step:.1f} ms, which is what capturing the step can gain at most"
        )
        if any(map(known.is_wait, range(len(known.joined.waits)))):
            detail += ", once its waits are out"
        share = launch_ms / step if launch_ms else None
        found.append(
            _whole("launch", "launches", num, detail=detail, exposed_ms=launch_ms, share=share)
        )
    if watched.recompilations and watched.num_shapes_steps:
        per_step = watched.recompilations / watched.num_shapes_steps
        detail = f"torch.compile compiled {watched.recompilations} times"
        found.append(_whole("shapes", "torch.compile", per_step, detail=detail))
    if watched.has_device and _shapes_never_end(watched):
        per_step = watched.num_batch_shapes / max(1, watched.num_seen_steps)
        detail = (
            f"{watched.num_batches} batches of loaders had {watched.num_batch_shapes} different "
            "shapes"
        )
        found.append(_whole("shapes", "DataLoader", per_step, detail=detail))
    return found


def _of_batches(known: KnownWaits, times: MeasuredTimes) -> list[Finding]:
    """Return the line of the loop that makes batches, where no loader of torch does and it takes long."""
    parts, step = known.watched.step_parts, times.step_ms
    if parts is None or not step or any(one.cause == "loader" for one in known.watched.seen):
        return []
    parts = parts.of(step)
    if parts.data_line is None or parts.data_line_ms < LEAST_DATA_SHARE * step:
        return []
    steps = ".step(" in parts.data_line.source
    call = "a step of an environment" if steps else "batches of the loop"
    return [
        Finding(
            code=CODE_OF["loader"],
            site=parts.data_line,
            call=call,
            per_step=1.0,
            waited_ms=parts.data_line_ms,
            cause="A batch is made here while the model does nothing else.",
            mend=mend_text("loader", call),
        )
    ]


def _shapes_never_end(watched: WatchedRun) -> bool:
    """Whether there are batches enough to say so, and hardly two of them have the same shape."""
    return (
        watched.num_batches >= _LEAST_BATCHES
        and watched.num_batch_shapes > _LEAST_NEW_SHAPES * watched.num_batches
    )


def _whole(
    cause: Cause,
    call: str,
    per_step: float,
    *,
    detail: str,
    exposed_ms: float | None = None,
    share: float | None = None,
) -> Finding:
    return Finding(
        code=CODE_OF[cause],
        site=None,
        call=call,
        per_step=per_step,
        exposed_ms=exposed_ms,
        share=share,
        cause=cause_text(cause, call, detail),
        mend=mend_text(cause, call, detail),
    )
