"""A request to stop, or a loader that fails, ends an epoch at the end of an update."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

import pytest

from gapless.errors import LoaderError
from gapless.nmt.run.stopping import StopNow, StopRequest, until_stopped


def batches(*ends, then=None):
    """Yield batches that end an update or do not; raise an error behind them."""
    for ends_update in ends:
        yield SimpleNamespace(ends_update=ends_update)
    if then is not None:
        raise then


def test_a_loader_that_fails_between_updates_stops_the_run():
    """What was done can be saved, so the request takes the error."""
    stop, failure = StopRequest(), LoaderError("gone")

    assert len(list(until_stopped(batches(False, True, then=failure), stop))) == 2
    assert stop.is_set
    assert stop.failure is failure
    assert stop.number is None
    with pytest.raises(StopNow):
        stop.check()


def test_a_loader_that_fails_within_an_update():
    """Half an update cannot be saved, so the error comes out."""
    stop = StopRequest()

    with pytest.raises(LoaderError, match="gone"):
        list(until_stopped(batches(True, False, then=LoaderError("gone")), stop))
    assert not stop.is_set
    stop.check()


def test_a_request_waits_for_the_end_of_an_update():
    """Batches come until the update is complete."""
    stop = StopRequest()
    seen = []
    for batch in until_stopped(batches(True, False, False, True, True), stop):
        seen.append(batch)
        if len(seen) == 2:
            stop.number = 15

    assert len(seen) == 4


@pytest.mark.parametrize(
    ("is_stopped", "second_raises", "heard"),
    [(True, False, []), (False, False, [signal.SIGTERM]), (True, True, [signal.SIGTERM])],
    ids=["the process ends", "nobody asked", "a program goes on"],
)
def test_a_signal_after_a_run_that_was_stopped(is_stopped, second_raises, heard):
    """A process that is about to end does not end with another error; others get their handler back."""
    came = []
    taken = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
    former = {
        number: signal.getsignal(number) for number in map(signal.Signals.__getitem__, taken)
    }
    signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    try:
        with StopRequest(second_raises=second_raises):
            if is_stopped:
                os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)

    assert came == heard
