"""Two gloo ranks audit a captured step whose gradients they sum, on a simulated device each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ranks import audits_program
from ranks.audits_program import AT
from ranks.groups import fork_ranks


pytestmark = pytest.mark.xdist_group("processes: group")


def of_ranks(launcher, folder, scheduler, every):
    """Return what each rank has found."""
    program = Path(audits_program.__file__)
    group = fork_ranks(launcher, program, scheduler, every, folder, folder=folder / "ranks")
    group.end().check_done()
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize(
    ("scheduler", "every"),
    [
        pytest.param(*one, marks=[pytest.mark.slow] * (one != ("asap", 5)))
        for one in [("asap", 5), ("asap", 1), ("lazy", 1), ("random", 3)]
    ],
)
def test_both_ranks_audit_the_same_calls(launcher, tmp_path, scheduler, every):
    """Bits are as written; what only one rank's code computes otherwise is told by both, at one call."""
    first, second = of_ranks(launcher, tmp_path, scheduler, every)

    assert first == second
    assert first["stays"]["is_same"]
    assert first["stays"]["audits"] >= 30 // every
    assert first["stays"]["told"] == []
    assert first["stays"]["replays"] > 0 or every == 1
    (told,) = first["changes"]["told"]
    assert AT < told <= AT + every
    # A replay before the audit had other bits; the audited call has not.
    assert first["changes"]["is_same"] == (told == AT + 1)
