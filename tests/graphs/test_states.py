"""The tables of states and of refusals are whole, and what becomes of one kind of call follows them."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from hypothesis import given, settings, strategies as st

import gapless
from gapless.graphs.refusal import KINDS, Refusal
from gapless.graphs.states import OF_KINDS, OF_VARIANTS, TRANSITIONS, Event, State
from gapless.testing.simulated.simulated_device import SimulatedDevice
from toy_steps import batches


pytestmark = pytest.mark.quick_tests(6)


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        yield device


@pytest.mark.parametrize("kind", KINDS)
def test_a_refusal_is_what_its_row_says(kind):
    """Whether it is final and whether it is of some calls, unless it says otherwise itself."""
    is_final = KINDS[kind] not in ("a rest", "room")
    refusal, other = Refusal(kind, "text"), Refusal(kind, "text", is_final=not is_final)

    assert (refusal.is_final, refusal.is_of_call) == (is_final, KINDS[kind] == "another call")
    assert other.is_final is not is_final


def test_every_state_is_come_to_and_every_event_leads_somewhere():
    """But for the state of a kind at its first call, and that of a refused one, which no event ends."""
    assert {*TRANSITIONS.values()} == {*State} - {State.PLAIN, State.REFUSED}
    assert {event for _, event in TRANSITIONS} == {*Event}


def test_every_event_of_a_kind_or_a_graph_is_in_the_table_in_every_state():
    """None can raise a KeyError in somebody's loop."""
    of_kinds = itertools.product(OF_KINDS, (Event.WATCHED, Event.SEEN, Event.CHANGED))
    of_graphs = itertools.product(
        OF_VARIANTS, set(Event) - {Event.WATCHED, Event.CHANGED, Event.SEEN}
    )

    assert set(TRANSITIONS) == {*of_kinds, *of_graphs}


# After three, a graph is in use.
NUM_CALLS = {"call": 1, "other": 1, "calls": 3}


class Turns:
    """A captured step, and what other threads or the step itself do while it is learnt.

    Args:
        device: simulated.
        within: what is done behind watched runs, captures and audits, one after the other.
    """

    def __init__(self, device, within):
        self.device, self.within = device, list(within)
        self.scale, self.is_within = 1.0, False
        self.captured = gapless.capture(
            lambda x: (x * self.scale).sum(), device=device, audit_every=2
        )
        learning = self.captured._captured.learning
        for owner, name in (
            (learning.trial, "run"),
            (learning.trial, "audit"),
            (learning._warm_ups, "run"),
        ):
            setattr(owner, name, self.followed_by_others(getattr(owner, name)))

    def followed_by_others(self, run):
        def run_and_more(*args, **kwargs):
            out = run(*args, **kwargs)
            if self.within and not self.is_within:
                self.is_within = True
                self.do(self.within.pop(0))
                self.is_within = False
            return out

        return run_and_more

    def do(self, what):
        if what == "clear":
            self.captured.clear()
        elif what == "forget":
            self.captured._captured.forget()
        elif what == "change":
            self.scale += 1.0
        elif what != "nothing":
            for _ in range(NUM_CALLS[what]):
                self.call(2 if what == "other" else 3)

    def call(self, size):
        expected = size * self.scale

        assert self.captured(torch.ones(size).to(self.device.torch_device)).item() == expected

    def variants(self):
        for entry in self.captured._captured.entries:
            assert len({id(one) for one in entry.in_use}) == len(entry.in_use)
            yield from (*entry.variants, *entry.in_use)


def check_turns(between, within):
    """See that calls are the loop's, and that the state of a graph says whether there is one."""
    with warnings.catch_warnings(), SimulatedDevice() as device, device.allow_waits():
        warnings.simplefilter("ignore")
        turns = Turns(device, within)
        for what in between:
            for one in (what, "call", "call"):
                turns.do(one)
                for variant in turns.variants():
                    has_graph = variant.graph is not None
                    assert has_graph == (variant.state in (State.READY, State.AUDITED))
                    assert (variant.pending is not None) == (variant.state is State.CAPTURED)


@pytest.mark.parametrize(
    "within",
    [
        pytest.param(["nothing", "nothing", "call"], id="captured meanwhile"),
        pytest.param(["nothing", "nothing", "calls"], id="replayed meanwhile"),
        pytest.param([*["nothing"] * 3, "call"], id="audited meanwhile"),
        pytest.param([*["nothing"] * 3, "clear"], id="dropped in an audit"),
    ],
)
def test_a_graph_may_go_or_come_while_a_call_is_captured_or_audited(within):
    """Another thread may call the step, or let go of its graphs, before the call goes on."""
    check_turns(["nothing"] * 6, within)


DONE = st.lists(
    st.sampled_from(["call", "calls", "other", "clear", "forget", "change"]), max_size=12
)


@pytest.mark.slow
@settings(max_examples=20)
@given(between=DONE, within=DONE)
def test_whatever_happens_while_calls_are_learnt_graphs_and_states_agree(between, within):
    """In any order."""
    check_turns(between, within)


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
