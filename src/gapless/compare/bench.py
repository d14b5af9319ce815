"""Time plans on the same work, round by round in turns.

Speed drifts: clocks fall as a device warms up, and a shared host has other users. So each round
runs every plan once, in a new random order, and a drift affects all plans equally. Building,
capturing and warm-up rounds come before. Kernel traces, the driver's utilisation and
timelines, which cost time, come after.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

import torch

from gapless.compare.report_row import with_kernels
from gapless.compare.timed_plan import TimedPlan
from gapless.device.instruments.processor import CompileClock
from gapless.errors import DeviceError
from gapless.plans import get_plan


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gapless.compare.settings import CompareSettings
    from gapless.compare.verify_plan import OnProgress
    from gapless.compare.workload import PlanWorkloadFunction
    from gapless.device.base import UtilisationMeter
    from gapless.records.comparison import PlanRow
    from gapless.records.timeline import Timeline


# How long each plan runs while the driver's utilisation is read; the first second does not count.
_NVML_SECONDS = 2.5

# The device must have this many times the memory of the largest plan so far free for the next one.
_MEMORY_MARGIN = 1.5


_STARTS_WORKERS = (
    "The loader starts its workers anew in every epoch. The time until their first batch is left "
    "out of all times but host CPU. NVML is not read, because it would show that time as idle."
)


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """What was measured of all plans.

    Attributes:
        rows: one for each plan, in the order of the settings.
        unit: what the weights of steps count; empty if they count nothing.
        notes: what a reader has to know about these figures.
        in_turns: whether each round took every plan; otherwise one plan was timed after the other.
        timelines: of each plan, in the order of the settings; empty if none were asked for.
    """

    rows: tuple[PlanRow, ...]
    unit: str
    notes: tuple[str, ...]
    in_turns: bool
    timelines: tuple[Timeline, ...] = ()


class _NoRoomError(Exception):
    """The plans do not fit on the device side by side."""


def run_bench(
    make: PlanWorkloadFunction, settings: CompareSettings, *, on_progress: OnProgress | None = None
) -> BenchResult:
    """Time plans on the same work.

    All plans are held at once and take turns. If the device has no room for that, each is timed
    by itself, and a note says so.

    Args:
        make: builds the workload for a plan.
        settings: what is timed.
        on_progress: called with the name of the work, how much is done, and how much there is.

    Raises:
        UserError: the workload cannot be used.
        Exception: whatever the workload raises, torch.OutOfMemoryError included.

    Sync: Blocks the host as the plans say, and between rounds.
    """
    settings.run.set_numerics(compares=False)
    bench = _Bench(make, settings, on_progress=on_progress or _ignore)
    try:
        found = bench.run(settings.plans)
    except _NoRoomError:
        # Plans are timed one by one below; here the traceback still holds what fills the device.
        found = []
        bench.timelines.clear()
    in_turns = bool(found)
    if not in_turns:
        settings.run.device.release_cached_memory()
        bench.notes.append(
            "The device has no room for all plans at once, so each was timed by itself: a drift "
            "of the machine's speed may affect one plan more than another."
        )
        found = [row for plan in settings.plans for row in bench.run((plan,))]
    # Compiling is no plan's own: they share the compiled code.
    seconds = bench.compile_clock.seconds
    return BenchResult(
        rows=tuple(replace(row, compile_seconds=seconds) for row in found),
        unit=bench.unit,
        notes=tuple(dict.fromkeys(bench.notes)),
        in_turns=in_turns,
        timelines=tuple(bench.timelines),
    )


def _ignore(title: str, done: int, total: int) -> None:
    """Show nothing."""


class _Bench:
    """Takes plans through warm-up rounds, timed rounds and the measurements after them."""

    def __init__(
        self, make: PlanWorkloadFunction, settings: CompareSettings, *, on_progress: OnProgress
    ) -> None:
        self._make = make
        self._settings = settings
        self._on_progress = on_progress
        self._started_at = perf_counter()
        self.compile_clock = CompileClock()
        self.unit = ""
        self.notes: list[str] = []
        self.timelines: list[Timeline] = []

    def run(self, plans: Sequence[str]) -> list[PlanRow]:
        """Measure these plans side by side.

        Raises:
            _NoRoomError: there is no room for more than one of them.
        """
        timed_plans: list[TimedPlan] = []
        try:
            with self.compile_clock:
                for number, plan in enumerate(plans):
                    on_work = partial(self._on_progress, f"warm-up of {plan}", number, len(plans))
                    on_work()
                    timed_plans.append(self._prepared(plan, timed_plans, on_work=on_work))
            self.unit = self.unit or timed_plans[0].workload.unit
            most = max(timed.num_warmup_rounds for timed in timed_plans)
            for timed in timed_plans:
                timed.catch_up(most)
            self._take_turns(timed_plans)
            rows = self._measure(timed_plans)
            if self._settings.timelines:
                for timed in self._with_progress("timelines", timed_plans):
                    self.timelines.append(timed.timeline())
            return rows
        except torch.OutOfMemoryError as error:
            if len(plans) == 1:
                raise
            raise _NoRoomError from error
        finally:
            for timed in timed_plans:
                timed.close()

    def _prepared(
        self, plan: str, others: Sequence[TimedPlan], *, on_work: Callable[[], None]
    ) -> TimedPlan:
        settings = self._settings
        free = settings.run.device.free_memory_bytes()
        largest = max((other.held_memory_bytes for other in others), default=0)
        if free is not None and largest * _MEMORY_MARGIN > free:
            raise _NoRoomError
        timed = TimedPlan(
            get_plan(plan),
            make=self._make,
            settings=settings.run,
            steps=settings.rounds.steps,
        )
        try:
            timed.prepare(rounds=settings.rounds.warmup_rounds, on_work=on_work)
        except BaseException:
            timed.close()
            raise
        if timed.is_undecided:
            self.notes.append(
                f"{plan} had not decided when the timed rounds began: its times are partly those "
                "of what it tries."
            )
        return timed

    def _take_turns(self, timed_plans: Sequence[TimedPlan]) -> None:
        # Not the global generator: workloads draw from it, and would draw other numbers.
        draw = random.Random(self._settings.run.seed)
        total = self._settings.rounds.rounds
        for number in range(total):
            if number and self._is_late():
                self.notes.append(f"The time limit allowed {number} of {total} rounds.")
                break
            order = draw.sample(timed_plans, k=len(timed_plans))
            for done, timed in enumerate(order):
                self._on_progress(f"round {number + 1} of {total}", done, len(order))
                timed.take_round()

    def _is_late(self) -> bool:
        limit = self._settings.seconds
        return limit is not None and perf_counter() - self._started_at > limit

    def _measure(self, timed_plans: Sequence[TimedPlan]) -> list[PlanRow]:
        """Take the measurements that cost time, and return a row for each plan.

        Traces come last: torch's profiler may leave the driver's profiling library in the process,
        and each launch takes longer from then on.
        """
        nvml = self._open_nvml()
        try:
            percents = [
                self._utilisation(timed, nvml)
                for timed in self._with_progress("utilisation", timed_plans)
            ]
        finally:
            if nvml is not None:
                nvml.close()
        return [
            self._with_kernels(replace(timed.row(), nvml_percent=percent), timed)
            for percent, timed in zip(
                percents, self._with_progress("kernels", timed_plans), strict=True
            )
        ]

    def _utilisation(self, timed: TimedPlan, nvml: UtilisationMeter | None) -> float | None:
        if any(found.start_ms for found in timed.rounds):
            self.notes.append(_STARTS_WORKERS)
            return None
        return None if nvml is None else timed.utilisation(nvml, seconds=_NVML_SECONDS)

    def _with_kernels(self, row: PlanRow, timed: TimedPlan) -> PlanRow:
        if not self._settings.run.device.is_accelerator:
            return row
        trace, steps = timed.trace()
        if trace is None:
            self.notes.append("No kernels, busy time or gap: torch's profiler saw no kernel.")
            return row
        return with_kernels(row, trace, steps=steps)

    def _open_nvml(self) -> UtilisationMeter | None:
        device = self._settings.run.device
        if not device.is_accelerator:
            return None
        try:
            return device.open_utilisation_meter()
        except DeviceError as error:
            self.notes.append(f"No device utilisation by the driver (NVML): {error}.")
            return None

    def _with_progress(self, title: str, timed_plans: Sequence[TimedPlan]) -> Iterator[TimedPlan]:
        for done, timed in enumerate(timed_plans):
            self._on_progress(title, done, len(timed_plans))
            yield timed
