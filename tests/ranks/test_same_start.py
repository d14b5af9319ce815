"""Which differences between ranks end a run before it begins."""

from __future__ import annotations

import pytest

from gapless.errors import UserError
from gapless.nmt.run.rank_agreement import check_same_start


class Ranks:
    """Two ranks, of which the other says what is given."""

    world = 2

    def __init__(self, other):
        self.own, self._other = None, other

    def agree(self, value):
        self.own = value
        return [value, self._other or value]


def said_of(**given):
    ranks = Ranks(None)
    check_same_start(ranks, given)
    return ranks.own


@pytest.mark.parametrize(
    ("what", "there", "said"),
    [
        (
            "`lr`",
            "0.03",
            "`lr` is 0.02 on rank 0, but 0.03 on rank 1; start all ranks with the same",
        ),
        ("`plan`", None, "`plan` is 'full' on rank 0, but missing on rank 1"),
        ("gapless", "0.0", "gapless is .*, but 0.0 on rank 1"),
        ("torch", "0.0", "torch is .*, but 0.0 on rank 1"),
    ],
)
def test_what_differs_is_named_with_both_values(what, there, said):
    """Settings and libraries: each alone would give ranks other weights."""
    given = {"lr": 0.02, "plan": "full", "seed": None}
    other = said_of(**given)
    assert other.pop(what)
    if there is not None:
        other[what] = there

    with pytest.raises(UserError, match=said):
        check_same_start(Ranks(other), given)
