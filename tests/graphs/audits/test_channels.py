"""Whatever a step reads that changes between two calls: guarded, refused, or told by an audit."""

from __future__ import annotations

import pytest

from graphs.audits.channels import CHANNELS
from graphs.audits.harness import (
    AUDITED,
    NEVER,
    REFUSED,
    block_of,
    lines_of_audits,
    needs_audits,
    run,
    verdict,
)


CALLS, AT = 16, 10
LATE = 200

# Calls that run as written until a verdict has arrived.
UNTIL_THE_VERDICT = 8

each_channel = pytest.mark.parametrize("channel", CHANNELS, ids=str)


def plainly(channel, folder, *, calls=CALLS, at=AT):
    return run(channel, folder, calls=calls, at=at)


def test_there_are_many_channels():
    """Each has a name of its own."""
    assert len({channel.name for channel in CHANNELS}) == len(CHANNELS) >= 75


@pytest.mark.quick_cases(4)
@each_channel
def test_the_loop_as_written_sees_the_change(channel, tmp_path):
    """It repeats its results, and all of them are others from the change on."""
    unchanged = plainly(channel, tmp_path, at=None)
    changed = plainly(channel, tmp_path)

    assert plainly(channel, tmp_path).results == changed.results
    assert changed.differs_from(unchanged) == list(range(AT, CALLS))


@needs_audits
@pytest.mark.quick_cases(4)
@each_channel
def test_no_change_passes_in_silence(channel, tmp_path):
    """With an audit of every replay each result is as written; what replays miss without, is told."""
    plain = plainly(channel, tmp_path)
    audited = run(channel, tmp_path, calls=CALLS, at=AT, options={"audit_every": 1})
    alone = run(channel, tmp_path, calls=CALLS, at=AT, options={"audit_every": NEVER})
    found = verdict(audited, plain)

    assert audited.differs_from(plain) == []
    if alone.differs_from(plain):
        assert found == AUDITED or audited.refusals, "replays differ, and no audit tells"
    if found == AUDITED:
        assert audited.told_at() >= AT, "an audit tells of a difference that is none"
        (line,) = lines_of_audits(audited.reports[-1])
        assert any(line in text for text in audited.warned), "no warning says it"
    if found == REFUSED:
        assert not any("\n" in text for text in audited.refusals)


@needs_audits
@pytest.mark.quick_cases(4)
@each_channel
def test_nothing_is_told_where_nothing_changes(channel, tmp_path):
    """No audit takes a step that stays as it is for another."""
    same = run(channel, tmp_path, calls=CALLS, at=None, options={"audit_every": 1})

    assert same.told_at() is None
    assert same.results == plainly(channel, tmp_path, at=None).results


@needs_audits
@pytest.mark.slow
@each_channel
def test_a_late_change_is_told_within_the_bound(channel, tmp_path, same_places):
    """Audits at random tell within twice the calls of which one is audited."""
    same_places()
    before = run(channel, tmp_path, calls=LATE, at=None, options={})
    bound = 2 * block_of(before.reports[-1]) if before.replays[-1] else 0
    calls = LATE + bound + 2 * UNTIL_THE_VERDICT
    plain = plainly(channel, tmp_path, calls=calls, at=LATE)

    same_places()
    audited = run(channel, tmp_path, calls=calls, at=LATE, options={})
    stale = audited.differs_from(plain)

    assert all(number >= LATE for number in stale)
    if stale:
        told = audited.told_at()
        assert told is not None, "results differ, and nothing is said"
        assert told < LATE + bound + UNTIL_THE_VERDICT
        assert stale[-1] <= told, "results differ after the verdict"
