"""A rank that dies, raises or is silent ends all of them, in seconds, and nothing is lost."""

from __future__ import annotations

import signal

import pytest

from faults.runs import newest_step
from ranks.fault_table import try_fault
from ranks.faults import FAULTS
from ranks.groups import fork_ranks, torchrun
from ranks.runs import SAVE_EVERY, options


pytestmark = pytest.mark.xdist_group("processes: faults")

# The one that `make test` runs.
QUICK = {"rank 1 is killed"}

# Those of `make check`. Each takes a quarter of a minute; `python -m ranks.fault_table` tries all.
CHECKED = {
    *QUICK,
    *("rank 0 raises", "SIGTERM to all", "rank 1 is stopped"),
    *("rank 1 is out of memory", "the disk of rank 0 is full"),
}


@pytest.fixture(scope="session")
def undisturbed(launcher_of_session, data, tmp_path_factory):
    """The folder of a finished run of two ranks."""
    folder = tmp_path_factory.mktemp("undisturbed")
    arguments = options(data, folder / "run")
    fork_ranks(launcher_of_session, *arguments, folder=folder / "ranks").end().check_done()
    return folder / "run"


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(
            fault, id=fault.name, marks=() if fault.name in QUICK else (pytest.mark.slow,)
        )
        for fault in FAULTS
        if fault.name in CHECKED
    ],
)
def test_a_fault_of_one_rank(fault, launcher, data, undisturbed, tmp_path):
    """Nobody ends the others but the ranks themselves; all else is as `ranks.faults` says."""
    tried = try_fault(fault, launcher, tmp_path / "fault", data, undisturbed, is_forked=True)

    assert tried.wrong == [], tried.text


@pytest.mark.slow
def test_a_killed_rank_trains_again(launcher, data, undisturbed, tmp_path):
    """Under torchrun with a restart: the last state is taken up, and the end is the same."""
    [fault] = [one for one in FAULTS if one.name == "rank 1 is killed"]

    tried = try_fault(fault, launcher, tmp_path / "fault", data, undisturbed, restarts=True)

    assert tried.wrong == [], tried.text


@pytest.mark.slow
def test_a_killed_torchrun_leaves_no_rank(data, tmp_path):
    """The ranks stop as at a SIGTERM: after the same update, with a state."""
    run = tmp_path / "run"
    group = torchrun(*options(data, run, epochs=500), folder=tmp_path / "ranks")
    try:
        group.until(lambda: newest_step(run) >= SAVE_EVERY, what="a first state")
        before = newest_step(run)
        group.ask_to_end(signal.SIGKILL)
        for rank in range(group.world):
            group.until_gone(rank)
    finally:
        group.stop()

    # Saved as it ended: a run saves at every tenth update, and ends after any.
    assert newest_step(run) >= before
    told = [*(tmp_path / "ranks").glob("logs/*/attempt_0/0/std*.log")]
    assert any("stopped after" in path.read_text() for path in told)
