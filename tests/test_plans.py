"""Plans as data."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from gapless.errors import PlanError
from gapless.plans import PLANS, Plan, get_plan


def test_the_plans_of_the_origin_and_ours_are_there():
    """Ten plans, in the order of the design."""
    assert [
        *("blocking", "deferred-loss", "events", "interval", "events-interval"),
        *("four-stream", "full", "gapless", "captured", "auto"),
    ] == list(PLANS)


def test_an_unknown_plan_names_those_that_exist():
    """The message lists every plan."""
    with pytest.raises(PlanError, match=r"'fast'; the plans are blocking, .*gapless"):
        get_plan("fast")


@given(
    streams=st.integers(1, 8),
    sync_interval=st.integers(1, 1000),
    loss_interval=st.integers(1, 1000),
    prefetch=st.integers(0, 50),
)
def test_legal_knobs_make_a_plan(**knobs):
    """Every combination of legal knobs is a plan, and no other knob changes."""
    plan = PLANS["gapless"].with_knobs(**knobs, workers=None)

    assert knobs == {name: getattr(plan, name) for name in knobs}
    assert PLANS["gapless"].workers == plan.workers
    assert plan is get_plan(plan)


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        *(("streams", 0), ("streams", 9), ("sync_interval", 0), ("loss_interval", -1)),
        *(("prefetch", -1), ("workers", -1), ("run_ahead", 0)),
    ],
)
def test_illegal_knobs_are_named(knob, value):
    """The message names the knob, its value and its range."""
    with pytest.raises(PlanError, match=f"`{knob}` must be .*but is {value}"):
        Plan(name="mine", **{knob: value})


def test_an_unknown_way_of_waiting_is_refused():
    """The ways there are stand in the message."""
    with pytest.raises(PlanError, match="stream, event, nothing"):
        Plan(name="mine", wait_with="hope")


LEAST = {"sync_interval": 1, "loss_interval": 1, "prefetch": 0, "workers": 0, "run_ahead": 1}


@given(st.sampled_from([*LEAST]), st.integers(max_value=0), st.sampled_from([*PLANS]))
def test_any_knob_below_its_range_is_refused(knob, value, plan):
    """No plan accepts a knob that would make the loop wait forever or divide by nothing."""
    if value >= LEAST[knob]:
        value = LEAST[knob] - 1
    with pytest.raises(PlanError, match=f"at least {LEAST[knob]}, but is {value}"):
        PLANS[plan].with_knobs(**{knob: value})


@given(st.integers().filter(lambda n: not 1 <= n <= 8))
def test_streams_are_one_to_eight(count):
    """Any other number is refused with its range."""
    with pytest.raises(PlanError, match=f"1 to 8, but is {count}"):
        PLANS["gapless"].with_knobs(streams=count)


def test_plans_know_their_names_and_say_what_they_do():
    """Each is found under its own name, has a summary of one line, and cannot be changed."""
    for name, plan in PLANS.items():
        assert name == plan.name
        assert plan is get_plan(name)
        assert plan.summary
        assert "\n" not in plan.summary
        with pytest.raises(AttributeError):
            plan.streams = 3
