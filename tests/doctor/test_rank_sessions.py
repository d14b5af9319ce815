"""One report from several processes."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from gapless.doctor.session.rank_sessions import FOLDER_VARIABLE, collect, this_rank, together
from gapless.records.finding import Finding, Session, Site


READ = Finding(
    code="GAP001",
    site=Site(path="train.py", line=7),
    call="Tensor.item",
    per_step=1.0,
    waited_ms=1.0,
    exposed_ms=0.5,
    cause="It waits.",
    mend="Do not.",
)
PRINT = replace(READ, code="GAP002", site=Site(path="train.py", line=9), exposed_ms=3.0)
SESSION = Session(command=("train.py",), device="cpu", versions={}, findings=(READ,))


def test_what_all_ranks_have_stands_once_with_the_figures_of_the_worst():
    """And what one of them has names it; the costliest comes first."""
    worse = replace(READ, exposed_ms=2.0)

    found = together(
        {0: replace(SESSION, findings=(READ, PRINT)), 1: replace(SESSION, findings=(worse,))}
    )

    assert found.findings == (replace(PRINT, rank=0), worse)
    assert found.num_ranks == 2


def test_notes_of_some_ranks_name_them():
    """A note of all of them stands as it is."""
    first = replace(SESSION, notes=("Both.", "One."))

    assert together({0: first, 1: replace(SESSION, notes=("Both.",))}).notes == (
        "Both.",
        "Rank 0: One.",
    )


def test_the_first_process_collects_what_all_have_put(tmp_path):
    """Through files; the folder is gone afterwards."""
    environment = {"LOCAL_WORLD_SIZE": "2", FOLDER_VARIABLE: str(tmp_path / "meeting")}
    ranks = [
        this_rank({**environment, "RANK": str(number), "LOCAL_RANK": str(number)})
        for number in range(2)
    ]
    for rank in ranks:
        rank.begin()
        rank.put(SESSION)
    ranks[0].wait_for_others()

    assert collect(tmp_path / "meeting").num_ranks == 2
    assert not (tmp_path / "meeting").exists()


def test_nobody_waits_for_a_process_that_has_ended(tmp_path):
    """One that died without a word will not report."""
    environment = {"LOCAL_WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}
    rank = replace(this_rank(environment), folder=tmp_path)
    rank.begin()
    rank.put(SESSION)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    (tmp_path / "1.pid").write_text(str(child))
    rank.wait_for_others()

    found = collect(tmp_path)
    assert found.num_ranks == 1
    assert found.notes == ("1 of 2 processes ended without a report.",)


@pytest.mark.parametrize(
    "environment",
    [{}, {"RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, {"RANK": "x"}],
)
def test_a_process_alone_is_no_rank(environment):
    """It reports for itself."""
    assert this_rank(environment) is None


def test_the_launcher_reports_for_its_processes():
    """Whether there are several or one: otherwise the first reports."""
    environment = {"RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", FOLDER_VARIABLE: "/x"}

    assert not this_rank(environment).reports
    assert this_rank({"RANK": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}).reports
