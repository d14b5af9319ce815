"""The promises about plans, on a CPU, where the same code runs in order."""

from __future__ import annotations

import pytest
import torch

from gapless.device.find import find_device
from gapless.nmt.data.padded_layout import PaddedLayout
from gapless.nmt.data.sampler import MicrobatchSampler, make_loader
from gapless.nmt.data.token_pairs import TokenPairs
from gapless.nmt.model.transformer import ModelSizes, Transformer
from gapless.nmt.run.training_step import TranslationStep
from gapless.nmt.settings.config import make_config
from gapless.plans import PLANS


# A hundred batches under each plan are trained once, for two tests.
in_one_process = pytest.mark.xdist_group("a hundred batches")
_trained = {}


@pytest.fixture
def a_hundred_batches(train_tiny):
    """Train so many under a plan, with a loader like that of its users."""

    def train(plan):
        if plan not in _trained:
            _trained[plan] = train_tiny(plan=plan, workers=1 if plan == "full" else 0)
        return _trained[plan]

    return train


@in_one_process
@pytest.mark.parametrize("plan", PLANS)
def test_waits_of_a_hundred_batches_are_as_declared(a_hundred_batches, expected_waits, plan):
    """Over 100 batches the host asks for the waits of its plan, as on a GPU."""
    result = a_hundred_batches(plan).result

    counts = {reason: total.count for reason, total in result.waits.by_reason.items()}
    assert expected_waits[plan] == counts


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("plan", PLANS)
def test_a_last_partial_interval_is_waited_for_once(train_tiny, expected_waits, plan):
    """Over 95 batches the interval plans wait ceil(95 / 10) times, and lose no loss."""
    result = train_tiny(plan=plan, num_batches=95).result

    expected = sum(expected_waits[plan].values())
    if plan in ("blocking", "gapless", "captured", "auto"):
        expected = {"blocking": 190, "gapless": 1, "captured": 1, "auto": 1}[plan]
    elif plan in ("deferred-loss", "events"):
        expected = {"deferred-loss": 95 + 10, "events": 96}[plan]
    elif plan == "interval":
        expected = 9 + 9 + 1
    assert expected == result.waits.count
    assert len(result.losses) == 95


@in_one_process
def test_all_plans_give_the_same_bits(a_hundred_batches):
    """Losses and weights after 100 batches with dropout do not depend on the plan."""
    reference = a_hundred_batches("blocking")

    for plan in PLANS:
        run = a_hundred_batches(plan)
        assert reference.result.losses == run.result.losses, plan
        assert all(map(torch.equal, reference.weights, run.weights)), plan


def test_accumulation_equals_one_large_batch():
    """Two batches in one update move the weights as the same pairs in one batch do."""
    whole = TokenPairs([[5, 6], [7, 8], [9], [10]], [[6, 5, 7, 8], [8, 7], [9, 4], [10]])
    weights = [_after_one_update(whole, accumulate) for accumulate in (1, 2)]
    start = _after_one_update(whole, accumulate=0)

    assert all(map(torch.allclose, *weights))
    assert not all(map(torch.allclose, start, weights[0]))


def _after_one_update(pairs, accumulate):
    torch.manual_seed(3)
    sizes = ModelSizes(
        src_vocab=12, tgt_vocab=12, d_model=16, heads=2, ffn=16, dropout=0.0, share="all"
    )
    model = Transformer(sizes)
    config = make_config({"lr": 1e-1, "schedule": "constant", "warmup": 0, "clip_norm": 0.0})
    step = TranslationStep(model, config, device=find_device("cpu"), total_updates=1)
    if accumulate:
        # Plain gradient descent: Adam's first step forgets the size of the gradient.
        step.optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)
        layout = PaddedLayout(
            pairs.src_lengths, pairs.tgt_lengths, max_sentences=len(pairs) // accumulate
        )
        sampler = MicrobatchSampler(pairs, layout, accumulate=accumulate, shuffle=False)
        for batch in make_loader(pairs, sampler, workers=0):
            step.on_host(batch)
            step.backward(step.forward(batch))
        assert step.num_updates == 1
    return list(model.parameters())
