"""How long the host works in a step, its waits left out."""

import pytest

from gapless.doctor.diagnose.watched_run import host_ms
from gapless.doctor.seen_waits import SeenWait


def waited(ms, *, step, cause="item", thread="main", ends=True):
    return SeenWait(
        cause=cause,
        call="Tensor.item",
        site=None,
        thread=thread,
        step=step,
        start_ns=1_000_000,
        end_ns=1_000_000 + int(1e6 * ms) if ends else None,
    )


def test_waits_of_the_steps_are_left_out():
    """All of a step's, on the main thread and on autograd's; the first step counts for nothing."""
    seen = [
        waited(3.0, step=1),
        waited(4.0, step=1, thread="autograd"),
        waited(6.0, step=2),
        waited(8.0, step=3),
    ]

    assert host_ms([90.0, 10.0, 10.0, 10.0], seen) == pytest.approx(3.0)
    assert host_ms([90.0, 1.0, 1.0, 4.0], []) == pytest.approx(2.0)


@pytest.mark.parametrize("other", [{"cause": "loader"}, {"cause": "gc"}, {"thread": "saver"}])
def test_other_time_is_the_hosts_work(other):
    """A loader and the collector keep the host busy; other threads do not hold up the steps."""
    assert host_ms([9.0, 10.0], [waited(4.0, step=1, **other)]) == pytest.approx(10.0)


def test_a_wait_of_unknown_length_leaves_nothing_to_tell():
    """Torch's warnings come when a wait is over, and do not say when it began."""
    assert host_ms([9.0, 10.0], [waited(4.0, step=1, ends=False)]) is None
    assert host_ms([9.0, 10.0], [waited(4.0, step=1, thread="saver", ends=False)]) == 10.0


def test_a_single_step_tells_nothing():
    assert host_ms([9.0], []) is None
