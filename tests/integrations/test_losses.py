"""The losses that a Trainer logs are filtered on the device as it filters them on the host."""

from __future__ import annotations

import math

import pytest
import torch

from gapless.integrations.losses import FilteredLoss


def summed(losses, dtype, *, filtered):
    """Sum up losses as a Trainer does."""
    total = torch.tensor(0.0)
    for step, value in enumerate(losses):
        loss = torch.tensor(value, dtype=dtype)
        if filtered:
            loss = FilteredLoss.of(loss, lambda step=step: 1 + step)
        if torch.isnan(loss) or torch.isinf(loss):
            total += total / (1 + step)
        else:
            total += loss
    return total


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize(
    "losses",
    [
        [0.1, 0.7, 1e-8],
        [0.1, math.nan, 0.3],
        [math.inf, 0.1, 0.3],
        [0.1, 0.7, -math.inf, math.nan],
    ],
)
def test_the_sum_has_the_bits_of_the_filter_on_the_host(losses, dtype):
    """NaN and infinite losses are replaced by the mean of those before."""
    found, expected = (summed(losses, dtype, filtered=on) for on in (True, False))

    assert found.dtype == expected.dtype
    assert found.numpy().tobytes() == expected.numpy().tobytes()
    assert type(found) is torch.Tensor


def test_it_is_the_plain_tensor_to_everything_else():
    """Results of other functions are those of the plain tensor, of its type."""
    loss = FilteredLoss.of(torch.tensor(0.5), lambda: 1)

    assert type(loss * 2) is torch.Tensor
    assert (loss * 2).item() == 1.0
    assert loss.device == torch.device("cpu")
    assert loss.item() == 0.5
    assert float(loss) == 0.5
