"""The promises about plans, on one GPU."""

from __future__ import annotations

import pytest
import torch

from gapless.device.cuda import CudaDevice
from gapless.device.find import find_device
from gapless.device.numerics import set_numerics
from gapless.plans import PLANS


pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("plan", PLANS)
def test_waits_are_as_declared_with_all_others_made_errors(train_tiny, expected_waits, plan):
    """Over 100 batches the host waits as the plan says, and nowhere else."""
    run = train_tiny(plan=plan, device="cuda", context=lambda device: device.forbid_waits())

    counts = {reason: total.count for reason, total in run.result.waits.by_reason.items()}
    num_captures = counts.pop("capture", 0)
    assert (num_captures > 0) == (PLANS[plan].graphs != "never")
    # The background thread may lag on a busy machine.
    counts.pop("staging", 0)
    assert expected_waits[plan] == counts


def test_all_plans_give_the_same_bits(train_tiny):
    """Losses and weights after 250 batches with dropout do not depend on the plan."""
    reference = train_tiny(plan="blocking", device="cuda", num_batches=250)

    for plan in PLANS:
        run = train_tiny(plan=plan, device="cuda", num_batches=250, workers=2)
        assert reference.result.losses == run.result.losses, plan
        assert all(map(torch.equal, reference.weights, run.weights)), plan


@pytest.mark.parametrize("streams", range(1, 9))
def test_any_number_of_streams_gives_the_same_bits(train_tiny, streams):
    """Losses and weights do not depend on the number of streams."""
    reference = train_tiny(plan="blocking", device="cuda", num_batches=60)

    run = train_tiny(
        plan=PLANS["gapless"].with_knobs(streams=streams), device="cuda", num_batches=60
    )

    assert reference.result.losses == run.result.losses
    assert all(map(torch.equal, reference.weights, run.weights))


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_every_precision_trains_without_undeclared_waits(train_tiny, precision):
    """Each precision lowers the loss, with clipping and accumulation, and never waits."""
    run = train_tiny(
        plan="gapless",
        device="cuda",
        num_batches=200,
        precision=precision,
        accumulate=2,
        context=lambda device: device.forbid_waits(),
    )

    losses = run.result.losses
    assert sum(losses[-20:]) < sum(losses[:20])


def test_a_bounded_run_ahead_waits_for_the_oldest_batch(train_tiny):
    """With a run-ahead of 4 the host waits under its own reason, and bits stay the same."""
    reference = train_tiny(plan="blocking", device="cuda", num_batches=60)

    run = train_tiny(plan=PLANS["gapless"].with_knobs(run_ahead=4), device="cuda", num_batches=60)

    assert reference.result.losses == run.result.losses
    assert set(run.result.waits.by_reason) <= {"run_ahead", "staging", "epoch_end"}


def test_pageable_copies_of_large_tensors_are_counted_as_waiting(train_tiny, monkeypatch):
    """Without pinned memory each of them blocks, and stands in the account."""
    monkeypatch.setattr(CudaDevice, "max_direct_copy_bytes", -1)
    run = train_tiny(
        plan=PLANS["gapless"].with_knobs(pin_memory=False), device="cuda", num_batches=20
    )

    assert run.result.waits.by_reason["pageable_copy"].count >= 20


@pytest.mark.parametrize("length", [64, 192])
def test_masked_attention_has_finite_gradients(length):
    """Also where every score of a row is very negative, and the length is 64 modulo 128."""
    set_numerics(find_device("cuda"), "bf16", deterministic=False)
    ones = torch.ones(1, 1, length, 64, device="cuda", dtype=torch.bfloat16)
    queries, keys = (ones * value for value in (1.0, -15.0))  # scores of -15 * 64 / 8 = -120
    queries.requires_grad_()
    mask = torch.ones(length, length, dtype=torch.bool, device="cuda").tril()

    out = torch.nn.functional.scaled_dot_product_attention(queries, keys, ones, attn_mask=mask)
    out.sum().backward()

    assert queries.grad.isfinite().all()


def test_the_gap_is_measured(train_tiny):
    """A run on a GPU knows its busy time and the share of its gaps."""
    result = train_tiny(plan="gapless", device="cuda", num_batches=50).result

    assert result.busy_ms > 0
    assert 0 <= result.gap_share < 1
