"""The promises about plans, on a CPU, where the same code runs in order."""

from __future__ import annotations

import pytest
import torch

from gapless.plans import PLANS


@pytest.mark.parametrize("plan", PLANS)
def test_waits_of_a_hundred_batches_are_as_declared(train_tiny, expected_waits, plan):
    """Over 100 batches the host asks for the waits of its plan, as on a GPU."""
    result = train_tiny(plan=plan).result

    counts = {reason: total.count for reason, total in result.waits.by_reason.items()}
    assert expected_waits[plan] == counts


@pytest.mark.parametrize("plan", PLANS)
def test_a_last_partial_interval_is_waited_for_once(train_tiny, expected_waits, plan):
    """Over 95 batches the interval plans wait ceil(95 / 10) times, and lose no loss."""
    result = train_tiny(plan=plan, num_batches=95).result

    expected = sum(expected_waits[plan].values())
    if plan in ("blocking", "gapless"):
        expected = {"blocking": 190, "gapless": 1}[plan]
    elif plan in ("deferred-loss", "events"):
        expected = {"deferred-loss": 95 + 10, "events": 96}[plan]
    elif plan == "interval":
        expected = 9 + 9 + 1
    assert expected == result.waits.sync_count
    assert len(result.losses) == 95


def test_all_plans_give_the_same_bits(train_tiny):
    """Losses and weights after 220 batches with dropout do not depend on the plan."""
    reference = train_tiny(plan="blocking", num_batches=220)

    for plan in PLANS:
        run = train_tiny(plan=plan, num_batches=220, workers=1 if plan == "full" else 0)
        assert reference.result.losses == run.result.losses, plan
        assert all(map(torch.equal, reference.weights, run.weights)), plan


def test_accumulation_equals_one_large_batch(train_tiny):
    """Two batches in one update count their tokens together: the loss is that of the update."""
    run = train_tiny(plan="gapless", num_batches=40, accumulate=4)

    assert run.step.num_updates == 10
    assert len(run.result.losses) == 40
