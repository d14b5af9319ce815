"""What happens to a rank after the last exchange between all is no error of a run that is done."""

from __future__ import annotations

import signal

import pytest

from ranks.runs import options, summary


pytestmark = pytest.mark.xdist_group("processes: ends")

LIMIT = 60

# A rank that would leave together with the others, when all is done.
WHEN_DONE = """
import os, signal, time
import gapless.cli.train_command as command
def leave(ranks):
    while not ranks._heartbeat._liveness.is_all_done():
        time.sleep(0.01)
    {code}
command.leave_together = leave
"""

IS_KILLED = WHEN_DONE.format(code="os.kill(os.getpid(), signal.SIGKILL)")
STAYS = WHEN_DONE.format(code="open('done', 'w').close(); time.sleep(100_000)")

# When the ranks have agreed that nobody is asked to stop.
IS_ASKED_LATE = """
import os, signal
from gapless.nmt.run.trainer import Trainer
def asked(*arguments):
    scores = test(*arguments)
    os.kill(os.getpid(), signal.SIGTERM)
    return scores
test, Trainer._test_on_all_ranks = Trainer._test_on_all_ranks, asked
"""


@pytest.fixture
def run(data, tmp_path):
    return tmp_path / "run"


def check_done(run, ended):
    """Check that the results were said, once and without an error."""
    assert ended.errors == [], ended.text
    assert ended.out.count(f"written to {run}") == 1, ended.text
    assert summary(run)["bleu"] is not None


def test_a_rank_that_is_killed_at_the_end(fork, data, run):
    """The other one says so, and that the run is kept; it ends as a run that is done."""
    ended = fork(*options(data, run, epochs=1), before=[IS_KILLED, ""]).end(limit=LIMIT)

    check_done(run, ended)
    assert [rank.code for rank in ended.ranks] == [-signal.SIGKILL, 0], ended.text
    lines = [line for line in ended.err.splitlines() if "is gone" in line]
    assert len(lines) == 1, ended.err
    assert lines[0].startswith("gapless: rank 0 is gone after update ")
    assert lines[0].endswith("its process has ended; all was done before, and is kept")


def test_a_signal_at_the_end(fork, data, run, tmp_path):
    """As torchrun sends it when another rank was killed: nothing was interrupted."""
    group = fork(*options(data, run, epochs=1), before=["", STAYS])
    group.until((tmp_path / "ranks" / "done").exists, what="the end")
    group.send(0, signal.SIGTERM)
    group.send(1, signal.SIGKILL)
    ended = group.end(limit=LIMIT)

    check_done(run, ended)
    assert [rank.code for rank in ended.ranks] == [0, -signal.SIGKILL], ended.text


def test_a_signal_when_ranks_have_agreed_on_the_end(fork, data, run):
    """It is too late to stop: the run has its scores, and ends as one that was not asked."""
    ended = fork(*options(data, run, epochs=1), before=[IS_ASKED_LATE, ""]).end(limit=LIMIT)

    ended.check_done()
    check_done(run, ended)
    assert not summary(run)["interrupted"]
