"""The plans on the virtual clock, and the page of the documentation about them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gapless.plans import PLANS
from gapless.testing.timelines import plan_timeline


PAGE = Path(__file__).parents[2] / "docs" / "timelines.md"
DURATIONS = {"h2d": 2.0, "forward": 8.0, "backward": 16.0, "host": 6.0}


def row(plan):
    found = plan_timeline(plan, durations=DURATIONS)
    return (
        f"| `{plan}` | {found.step_ms:.1f} | {found.gap_share:.1%} | {found.wait_ms:.1f} "
        f"| {found.overlap_share:.0%} |"
    )


@pytest.mark.parametrize("plan", PLANS)
def test_the_documented_table_is_what_the_clock_says(plan):
    """The page states the simulated step time, gap, waits and overlap of each plan."""
    assert row(plan) in PAGE.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("plan", ["blocking", "interval", "gapless"])
def test_the_documented_drawing_is_what_the_clock_draws(plan):
    """The drawings of the page are those of the simulation."""
    drawing = plan_timeline(plan, durations=DURATIONS).timeline.draw(until=96.0)

    assert drawing in PAGE.read_text(encoding="utf-8")


def test_waiting_every_batch_costs_the_hosts_own_time():
    """With a wait at every batch the device idles while it is loaded and copied: 8 of 32 ms."""
    found = plan_timeline("blocking", durations=DURATIONS)

    assert found.step_ms == 32.0
    assert found.gap_share == pytest.approx(8 / 32)
    assert found.wait_ms == 26.0


def test_without_waits_there_is_no_gap():
    """Without waits a step takes the 8 + 16 ms of the device, and copies run beside it."""
    found = plan_timeline("gapless", durations=DURATIONS)

    assert found.step_ms == 24.0
    assert found.gap_share == 0.0
    assert found.wait_ms == 0.0
    assert found.overlap_share > 0.9


def test_a_slow_host_is_not_helped_by_any_plan():
    """If the host needs longer than the device, the difference is the gap."""
    found = plan_timeline("gapless", durations={**DURATIONS, "host": 30.0})

    assert found.step_ms == 30.0
    assert found.gap_share == pytest.approx(6 / 30)


def test_slow_copies_are_the_limit_when_they_are_longest():
    """With transfers of 40 ms a step takes 40 ms, since one engine carries them in turn."""
    found = plan_timeline("full", durations={**DURATIONS, "h2d": 40.0})

    assert found.step_ms == 40.0
