"""Audits by the schedule that users get: what changes late, or in an interlude, is told for every class."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import gapless
from gapless.graphs.interludes import note_interlude
from gapless.testing.simulated.simulated_device import SimulatedDevice
from graphs.audits.footgun_classes import FOOTGUNS
from graphs.audits.footguns import AUDITED, EITHER, FORMS, NOT_AUDITED, trained
from graphs.audits.harness import batch, block_of, needs_audits


LATE = 200

# Calls that run as written until a verdict has arrived.
UNTIL_THE_VERDICT = 8


def saved(training):
    return training.net.state_dict(), training.optimizer.state_dict()


def loaded(training):
    weights, state = saved(training)
    training.net.load_state_dict(weights)
    training.optimizer.load_state_dict(state)


def flipped(training):
    training.net.eval()
    training.net.train()


def evaluated(training):
    training.net.eval()
    with torch.no_grad():
        training.other(batch(training.place, 3))
    training.net.train()


INTERLUDES = {
    "a mode and back": flipped,
    "an epoch begins": lambda training: note_interlude(),
    "a state is saved": saved,
    "a state is loaded": loaded,
    "evaluation by a graph": evaluated,
    "another captured object": lambda training: training.other(batch(training.place, 3)),
    "the host is away": lambda training: training.place.device.spend("away"),
}


def with_an_interlude(row, interlude):
    """Return a row whose change, if it has one, is made in an interlude."""

    def set_up(training):
        row.set_up(training)
        training.other = gapless.capture(lambda x: x * 2.0, device=training.place.device)
        training.other(batch(training.place, 3))

    def change(training, number):
        if row.when == "once":
            interlude(training)
        if row.change is not None:
            row.change(training, number)

    return replace(row, set_up=set_up, change=change)


PROMISED = [row for row in FOOTGUNS if row.expect != NOT_AUDITED]
UNSEEN = [row for row in PROMISED if row.expect == AUDITED]

# Every class in every form, the interludes in turn; and what no guard sees in each of them.
IN_TURN = [
    (row, form, list(INTERLUDES)[(number + place) % len(INTERLUDES)])
    for number, row in enumerate(PROMISED)
    for place, form in enumerate(FORMS)
    if row.when == "once"
]
IN_EACH = [(row, form, name) for row in UNSEEN[:2] for form in FORMS for name in INTERLUDES]


@needs_audits
@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("footgun", PROMISED, ids=str)
def test_a_late_change_is_told_within_the_bound(footgun, form, tmp_path, same_places):
    """A change after two hundred calls is none to replays, or an audit tells within two blocks."""
    size = 2 if form == "group" else 1

    def run(calls, options):
        same_places()
        return trained(footgun, form, tmp_path, calls=calls, at=LATE, options=options)

    calls = LATE + 2 * UNTIL_THE_VERDICT
    plain, found = run(calls, None), run(calls, {})
    if found.results == plain.results:
        assert found.told_at() is None
        return
    assert footgun.verdict_of(form) in (AUDITED, EITHER)

    bound = size * 2 * block_of(found.reports[-1])
    found = run(calls + bound, {})
    plain = run(calls + bound, None)

    assert found.differs_from(plain)[0] >= LATE
    told = found.told_at()
    assert told is not None, "results differ, and nothing is said"
    assert size * told <= LATE + bound + size * UNTIL_THE_VERDICT


@needs_audits
@pytest.mark.quick_cases(4)
@pytest.mark.parametrize(("footgun", "form", "interlude"), [*IN_TURN, *IN_EACH], ids=str)
def test_a_change_in_an_interlude_is_told_at_the_next_call(
    footgun, form, interlude, tmp_path, same_places
):
    """No replay comes before the audit, so that no result is other than as written."""
    row = with_an_interlude(footgun, INTERLUDES[interlude])

    def run(options):
        same_places()
        device = SimulatedDevice(scheduler="asap", durations={"away": 60_000.0})
        return trained(row, form, tmp_path, options=options, device=device)

    plain, found = run(None), run({})

    assert found.results == plain.results
    assert (found.told_at() is not None) == (footgun.verdict_of(form) == AUDITED)
