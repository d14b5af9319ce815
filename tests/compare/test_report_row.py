"""From rounds to a row of the report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gapless.compare.report_row import row_of_rounds, with_device_times, with_kernels
from gapless.compare.settings import RunSettings
from gapless.compare.timed_plan import TimedPlan
from gapless.device.instruments.kernel_trace import KernelTrace
from gapless.plans import get_plan
from toys import CPU, small_workload


def rounds_of(plan, *, steps=4):
    """Return three rounds of a plan on the CPU."""
    settings = RunSettings(device=CPU)
    one = TimedPlan(get_plan(plan), make=small_workload(), settings=settings, steps=steps)
    one.prepare(rounds=1)
    for _ in range(3):
        one.take_round()
    one.close()
    return one.rounds


def row_of(plan, rounds, *, unit=""):
    return row_of_rounds(get_plan(plan), rounds, unit=unit)


def test_a_row_shows_the_waits_that_the_plan_promises():
    """Waits are counted a step, in all and by reason."""
    rows = {
        plan: row_of(plan, rounds_of(plan, steps=20))
        for plan in ("blocking", "interval", "gapless")
    }

    assert rows["blocking"].waits_per_step == 2.0
    assert rows["interval"].waits_per_step == pytest.approx(0.25)
    assert rows["gapless"].waits_by_reason["epoch_end"]["count"] == pytest.approx(0.25)


def test_times_are_a_step_and_speed_is_in_what_weights_count():
    """Milliseconds a step of every round are kept; each step has weight 3."""
    rounds = rounds_of("gapless", steps=20)

    row = row_of("gapless", rounds, unit="images")

    assert row.steps_per_epoch == 4.0
    assert row.ms_per_step.rounds == tuple(found.total.wall_ms / 20 for found in rounds)
    assert row.throughput == pytest.approx(3000.0 / row.ms_per_step.median)
    assert (row.gap_share, row.nvml_percent, row.peak_memory_bytes) == (None, None, None)


def test_without_a_unit_speed_is_in_steps():
    """Weights that nobody named are no speed."""
    row = row_of("gapless", rounds_of("gapless"))

    assert row.throughput == pytest.approx(1000.0 / row.ms_per_step.median)


def test_figures_of_a_trace_are_a_step_and_the_gap_is_the_rest():
    """A trace of eight steps is set beside the time of rounds without one."""
    plain = row_of("gapless", rounds_of("gapless"))
    wall_ms = plain.ms_per_step.median
    trace = KernelTrace(
        num_kernels=800,
        busy_ms=2.0 * wall_ms,
        kernel_ms=2.5 * wall_ms,
        ms_of_streams=(1.5 * wall_ms, 1.0 * wall_ms),
    )

    row = with_kernels(plain, trace, steps=8)

    assert (row.kernels_per_step, row.busy_ms_per_step) == (100.0, pytest.approx(wall_ms / 4))
    assert (row.gap_share, row.busy_share) == (pytest.approx(0.75), pytest.approx(0.25))
    assert row.overlap_share == pytest.approx(0.2)
    assert row.stream_shares == pytest.approx((0.6, 0.4))


def with_gaps(rounds, *, busy_ms, gap_ms):
    return [
        replace(found, total=replace(found.total, busy_ms=busy_ms, gap_ms=gap_ms), num_graphs=1)
        for found in rounds
    ]


@pytest.mark.parametrize(
    ("busy_ms", "gap_ms", "share"), [(12.0, 4.0, 0.25), (0.0, 0.0, None), (12.0, None, None)]
)
def test_the_gap_by_event_pairs_is_a_share_of_the_devices_time(busy_ms, gap_ms, share):
    """Without gaps, or on a simulated device that takes no time, there is no share."""
    rounds = with_gaps(rounds_of("gapless"), busy_ms=busy_ms, gap_ms=gap_ms)

    row = with_device_times(row_of("gapless", rounds), rounds)

    assert (row.meter_busy_ms_per_step, row.meter_gap_share) == (busy_ms / 4, share)
    assert row.late_captures == 3


def test_processor_time_is_over_all_rounds_and_unknown_if_they_are_short():
    """Half a core in rounds of 150 ms shows in two of them; one is too short for 10 ms ticks."""
    one = replace(rounds_of("gapless")[0], elapsed_ms=150.0, cpu_seconds=0.0, own_cpu_seconds=0.0)
    other = replace(one, cpu_seconds=0.15, own_cpu_seconds=0.12)

    both = row_of("gapless", [one, other])
    assert both.host_cpu_percent == pytest.approx(50.0)
    assert both.own_cpu_percent == pytest.approx(40.0)
    assert row_of("gapless", [other]).host_cpu_percent is None


@pytest.mark.parametrize(
    ("plan", "flags"),
    [("gapless", (False, False)), ("captured", (True, False)), ("auto", (False, True))],
)
def test_the_plans_fields_keep_their_names_in_files(plan, flags):
    """Files say with two flags which graphs a plan captures."""
    settings = row_of(plan, rounds_of("gapless")).settings

    assert (settings["capture"], settings["auto"]) == flags
    assert (settings["name"], "graphs" in settings) == (plan, False)
