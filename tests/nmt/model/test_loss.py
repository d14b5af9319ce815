"""Losses as formulas."""

from __future__ import annotations

import math
from unittest import mock

import pytest
import torch
from hypothesis import given, settings, strategies as st

from gapless.nmt.data.vocab import PAD
from gapless.nmt.model.loss import LabelSmoothing, LossCompute


@settings(deadline=None)
@given(
    st.integers(0, 1000),
    st.sampled_from([0.0, 0.1, 0.5]),
    st.lists(st.integers(0, 6), min_size=1, max_size=12),
)
def test_label_smoothing_is_cross_entropy_against_smoothed_targets(seed, smoothing, targets):
    """A token's target is 1 - s + s / V at its class, s / V elsewhere; padding has no loss."""
    logits = torch.randn(len(targets), 7, generator=torch.Generator().manual_seed(seed))
    logits = logits.double()
    expected = 0.0
    for row, target in zip(logits.log_softmax(-1).tolist(), targets, strict=True):
        if target != PAD:
            share = [smoothing / 7 + (1 - smoothing) * (n == target) for n in range(7)]
            expected -= sum(p * log for p, log in zip(share, row, strict=True))

    found = LabelSmoothing(smoothing)(logits, torch.tensor(targets))

    assert math.isclose(expected, float(found), rel_tol=1e-9, abs_tol=1e-9)


def test_batch_and_rows_give_the_same_sum():
    """The loss of a batch is the sum of the losses of its sentences."""
    logits, targets = torch.randn(3, 4, 9).double(), torch.randint(0, 9, (3, 4))
    loss = LabelSmoothing(0.1)

    rows = sum(loss(logits[n], targets[n]) for n in range(3))
    assert torch.allclose(rows, loss(logits, targets))


def make_compute(*, lr=None):
    torch.manual_seed(0)
    generator = torch.nn.Linear(3, 6)
    optimizer = None if lr is None else torch.optim.SGD(generator.parameters(), lr=lr)
    return LossCompute(generator, LabelSmoothing(), optimizer), generator


def test_training_follows_the_gradient_of_the_normalized_loss():
    """One step moves the weights by lr times the gradient of sum / tokens."""
    out, targets = torch.randn(2, 4, 3), torch.randint(1, 6, (2, 4))
    compute, generator = make_compute(lr=0.5)
    by_hand, reference = make_compute()
    by_hand.normalized(out, targets, torch.tensor(8.0)).backward()

    loss, was_trained = compute.compute_loss_tensor(out, targets, torch.tensor(8.0))

    assert was_trained
    assert not loss.requires_grad
    expected = reference.weight.detach() - 0.5 * reference.weight.grad
    assert torch.allclose(expected, generator.weight.detach())
    assert None is generator.weight.grad


def test_evaluation_changes_nothing():
    """Without an optimizer neither weights nor gradients are touched."""
    compute, generator = make_compute()
    before = generator.weight.clone()

    loss, was_trained = compute.compute_loss_tensor(
        torch.randn(1, 2, 3), torch.tensor([[4, 5]]), torch.tensor(2.0)
    )

    assert (was_trained, loss.shape) == (False, ())
    assert torch.equal(before, generator.weight)
    assert None is generator.weight.grad


def test_calling_it_gives_a_number():
    """Calling `LossCompute` returns a Python float that equals the tensor."""
    compute, _ = make_compute()
    out, targets = torch.randn(1, 2, 3), torch.tensor([[4, 5]])

    number = compute(out, targets, 2.0)

    assert float is type(number)
    assert number == float(compute.compute_loss_tensor(out, targets, 2.0)[0])


@settings(deadline=None, max_examples=20)
@given(
    tokens=st.integers(1, 40),
    vocab=st.integers(2, 30),
    chunk=st.integers(1, 300),
    smoothing=st.sampled_from([0.0, 0.1, 0.5]),
    seed=st.integers(0, 20),
)
def test_a_loss_in_chunks_is_the_whole_loss(tokens, vocab, chunk, smoothing, seed):
    """Loss and both gradients equal those of all logits at once, padding included."""
    torch.manual_seed(seed)
    layer = torch.nn.Linear(6, vocab, bias=False)
    hidden = torch.randn(tokens, 6, requires_grad=True)
    targets = torch.randint(0, vocab, (tokens,))
    criterion = LabelSmoothing(smoothing)
    whole = criterion(layer(hidden), targets)
    expected = torch.autograd.grad(3.0 * whole, (hidden, layer.weight))

    with mock.patch("gapless.nmt.model.loss._CHUNK_ELEMENTS", chunk):
        found = criterion.of_hidden(hidden, layer, targets)
        gradients = torch.autograd.grad(3.0 * found, (hidden, layer.weight))
        with torch.no_grad():
            evaluated = criterion.of_hidden(hidden, layer, targets)

    torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(evaluated, found, rtol=1e-6, atol=1e-6)
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_logits_keep_a_float32_loss(dtype):
    """Under autocast the products are in half precision, the loss and its gradients in float32."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(16, 40, bias=False)
    hidden = torch.randn(30, 16, requires_grad=True)
    targets = torch.randint(1, 40, (30,))
    with torch.autocast("cpu", dtype=dtype):
        found = LabelSmoothing(0.1).of_hidden(hidden, layer, targets)
    found.backward()
    exact = LabelSmoothing(0.1)(layer(hidden), targets)

    assert found.dtype is hidden.grad.dtype is layer.weight.grad.dtype is torch.float32
    torch.testing.assert_close(found, exact, rtol=1e-2, atol=0.0)


def test_an_output_layer_may_have_a_bias():
    """Loss and gradients of its hidden vectors, weight and bias are those of its logits."""
    torch.manual_seed(3)
    layer, targets = torch.nn.Linear(5, 7), torch.tensor([3, PAD, 6, 2])
    hidden = torch.randn(4, 5, requires_grad=True)
    found, expected = [], []
    for results, loss in (
        (found, LabelSmoothing(0.1).of_hidden(hidden, layer, targets)),
        (expected, LabelSmoothing(0.1)(layer(hidden), targets)),
    ):
        results += [loss, *torch.autograd.grad(loss, [hidden, layer.weight, layer.bias])]

    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
