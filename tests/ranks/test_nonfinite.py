"""A loss that is not finite ends all ranks of a run after the same update, in good order."""

from __future__ import annotations

import pytest

from ranks.runs import options


pytestmark = pytest.mark.xdist_group("processes: nonfinite")

# This rank reads its first losses late, as one may whose device is behind.
LATE = """
from gapless.nmt.run_folder.logs import LossLog
write, calls = LossLog.write_new, []
def write_later(log):
    calls.append(log)
    if len(calls) > 15:
        write(log)
LossLog.write_new = write_later
"""


def test_all_ranks_end_after_the_same_update(fork, data, tmp_path):
    """Rank 0, which writes the log of errors, is not cut short by the rank that saw it first."""
    run = tmp_path / "run"
    ended = fork(*options(data, run), "--lr", 1e30, before=[LATE, ""]).end()

    assert [rank.code for rank in ended.ranks] == [1, 1], ended.text
    assert len(ended.errors) == 1, ended.err
    assert "expected a finite number" in ended.errors[0]
    assert "expected a finite number" in (run / "errors.log").read_text()
