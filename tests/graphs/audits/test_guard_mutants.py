"""Delete any guard, or anything that an audit or a proof puts back, and a case of the page of footguns tells."""

from __future__ import annotations

import pytest

from graphs.audits.guard_mutants import broken, noticed, places
from graphs.audits.mutants_of_guards import AHEAD, GUARDS, PUT_BACK, VERDICTS


MUTANTS = [*GUARDS, *PUT_BACK, *AHEAD, *VERDICTS]
HALF = len(GUARDS) // 2
SHARES = {
    "reads": GUARDS[:HALF],
    "weights": GUARDS[HALF:],
    "put back": [*PUT_BACK, *AHEAD],
    "verdicts": VERDICTS,
}


def test_each_mutant_has_a_name_of_its_own():
    """A survivor is named, and nothing is taken away twice."""
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 55
    assert len({(mutant.function, mutant.code) for mutant in MUTANTS}) == len(MUTANTS)


def test_the_code_of_each_mutant_is_there():
    """What is gone from the source, or stands there twice, is named."""
    for mutant in MUTANTS:
        assert len(places(mutant)) == 1, mutant


def test_broken_code_is_mended():
    """No test that follows sees a mutant."""
    from gapless.graphs.reads.read_check import Check

    (mutant,) = [one for one in MUTANTS if one.function == "Check.holds"]
    check = Check(lambda: 1, 2, "number", "", is_memory=False, by_value=True)
    with broken(mutant):
        assert check.holds(1)

    assert not check.holds(1)


@pytest.mark.slow
@pytest.mark.parametrize("share", SHARES)
def test_a_case_tells(share, tmp_path):
    """With a guard deleted replays differ or audits tell; with a verdict that always holds nobody does."""
    assert [mutant.name for mutant in SHARES[share] if not noticed(mutant, tmp_path)] == []
