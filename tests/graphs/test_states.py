"""The tables of states and of refusals are whole, and what becomes of one kind of call follows them."""

from __future__ import annotations

from typing import get_args

import pytest

import gapless
from gapless.graphs.refusal import KINDS, Refusal, RefusalKind
from gapless.graphs.states import TRANSITIONS, Event, State
from gapless.testing.simulated.simulated_device import SimulatedDevice
from toy_steps import batches


pytestmark = pytest.mark.quick_tests(6)


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        yield device


def test_every_kind_of_refusal_is_a_row():
    """No kind is without one, and no row without a kind."""
    assert set(KINDS) == set(get_args(RefusalKind))


@pytest.mark.parametrize("kind", KINDS)
def test_a_refusal_is_what_its_row_says(kind):
    """Whether it is final and whether it is of some calls, unless it says otherwise itself."""
    row = KINDS[kind]
    refusal, other = Refusal(kind, "text"), Refusal(kind, "text", is_final=not row.is_final)

    assert (refusal.is_final, refusal.is_of_call) == (row.is_final, row.is_of_call)
    assert other.is_final is not row.is_final


def test_every_state_is_come_to_and_every_event_leads_somewhere():
    """But for the state of a kind at its first call, and that of a refused one, which no event ends."""
    assert {*TRANSITIONS.values()} == {*State} - {State.PLAIN, State.REFUSED}
    assert {event for _, event in TRANSITIONS} == {*Event}


def states_of(step, calls):
    """Return the state of the one kind, and of its newest variant, behind each call."""
    found = []
    for batch in calls:
        step(batch)
        entry = step._captured._passing._now
        found.append(entry.variants[0].state if entry.variants else entry.state)
    return found


def test_a_kind_goes_from_watched_to_ready(device):
    """Two calls are watched, one is captured, and the next takes the verdict."""
    step = gapless.capture(lambda x: x * 2.0, device=device)
    calls = gapless.prefetch([batches(4)[0]] * 6, device)

    found = states_of(step, calls)

    assert found == [State.WATCHED, State.SEEN, State.CAPTURED, *[State.READY] * 3]


def test_a_kind_that_is_refused_stays_so(device):
    """Here for good: the step writes on the host."""
    seen = []

    def step(x):
        seen.append(1)
        return x * 2.0

    captured = gapless.capture(step, device=device)
    with pytest.warns(gapless.CaptureWarning, match="seen"):
        found = states_of(captured, gapless.prefetch([batches(4)[0]] * 6, device))

    assert found[-1] is State.REFUSED
    assert captured.is_refused
