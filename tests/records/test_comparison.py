"""Figures over several rounds."""

from __future__ import annotations

import pytest

from gapless.records.comparison import Spread


def test_a_spread_is_its_quarters_and_one_bad_round_does_not_widen_it():
    """Overlap looks at the middle halves, the relative spread at all rounds."""
    steady = Spread.of([10.0, 10.1, 10.2, 10.3, 30.0])

    assert (steady.median, steady.min, steady.max) == (10.2, 10.0, 30.0)
    assert (steady.q1, steady.q3) == (10.1, 10.3)
    assert steady.relative == pytest.approx(20.0 / 10.2)
    assert not steady.overlaps(Spread.of([20.0]))
    assert steady.overlaps(Spread.of([10.2]))
    assert Spread.of([3.0]).q3 == 3.0
