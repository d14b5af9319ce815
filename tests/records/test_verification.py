"""What verdicts mean together."""

from __future__ import annotations

import math

import pytest

from gapless.records.verification import PLAIN_LOOP, RunSummary, Verdict, Verification
from gapless.records.wait_stats import WaitStats


def verdict(plan, *, against=PLAIN_LOOP, is_identical=True, loss=1.0):
    runs = [
        RunSummary(plan=name, losses=[1.0, loss], waits=WaitStats(), passes=(2,))
        for name in (plan, against)
    ]
    return Verdict(
        ours=runs[0],
        theirs=runs[1],
        num_tensors=1,
        is_identical=is_identical,
        difference=None,
        closeness=None,
    )


def verification(*plans, **itself):
    return Verification(itself=verdict(PLAIN_LOOP, **itself), plans=plans)


@pytest.mark.parametrize(
    ("found", "holds", "is_reproducible"),
    [
        (verification(), True, True),
        (verification(verdict("gapless")), True, True),
        (verification(verdict("gapless", is_identical=False)), False, True),
        (verification(is_identical=False), False, False),
        (verification(loss=math.nan), False, None),
    ],
)
def test_a_verification_holds_if_all_its_verdicts_do(found, holds, is_reproducible):
    """Losses that are not finite leave open whether the workload is reproducible."""
    assert (found.holds, found.is_reproducible) == (holds, is_reproducible)


def test_a_plan_is_the_same_if_all_that_it_was_compared_with_is():
    """A plan that was not run is not known."""
    found = verification(
        verdict("blocking"),
        verdict("gapless"),
        verdict("gapless", against="blocking"),
        verdict("full", is_identical=False),
        verdict("full", against="blocking"),
    )

    assert [found.is_same(plan) for plan in ("blocking", "gapless", "full", "auto")] == [
        *(True, True, False, None)
    ]
    assert verification(is_identical=False).is_same("blocking") is None


def test_the_first_loss_that_is_not_finite_is_the_references():
    """Steps are counted from 1."""
    assert verdict("gapless", loss=math.inf).first_nonfinite_step == 2
    assert verdict("gapless").first_nonfinite_step is None
