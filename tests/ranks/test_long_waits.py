"""A rank of a user's loop that waits long for others says so, and goes on waiting."""

from __future__ import annotations

from pathlib import Path

import pytest


pytestmark = pytest.mark.xdist_group("processes: long waits")

PROGRAM = Path(__file__).with_name("late_program.py")

# Far less than the limit of the process group.
LIMIT = 60


def test_a_wait_that_takes_long_is_told_once(fork):
    """The line says where it waits, for how long and what to do; then the answer comes as ever.

    A wait before it, which was short, is not told.
    """
    ended = fork(PROGRAM).end(limit=LIMIT)

    ended.check_done()
    assert [rank.out for rank in ended.ranks] == ["0.5\n0.5\n"] * 2
    text = PROGRAM.read_text(encoding="utf-8")
    at = text[: text.index("# all ranks")].count("\n") + 1
    assert ended.err.splitlines() == [
        f"gapless: rank 0 has waited 0.2 s for the other ranks in {PROGRAM}, line {at}, and waits "
        "1,800 s at most; all ranks have to make this call, and equally often: none may stand under a "
        "condition such as `if rank == 0`"
    ]
