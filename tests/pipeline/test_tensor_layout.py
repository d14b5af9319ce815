"""Which tensors torch calls alike."""

from __future__ import annotations

import pytest
import torch

from gapless.pipeline.tree.tensor_layout import comparison_with


def test_tensors_with_other_values_are_alike():
    """Values are not looked at."""
    comparison = comparison_with([torch.zeros(2, 3), torch.ones(4)])

    assert comparison(torch.ones(2, 3), torch.zeros(4))


@pytest.mark.parametrize(
    "other",
    [
        torch.zeros(3, 2),
        torch.zeros(2, 3, 1),
        torch.zeros(3, 2).t(),
        torch.zeros(2, 3, dtype=torch.float64),
        torch.zeros(2, 3, device="meta"),
        torch.zeros(2, 3, requires_grad=True),
        torch.nn.Parameter(torch.zeros(2, 3), requires_grad=False),
    ],
)
def test_what_a_graph_would_not_see_is_told(other):
    """Shape, strides, dtype, device, type and `requires_grad`."""
    assert not comparison_with([torch.zeros(2, 3)])(other)


def test_two_tensors_are_not_like_one_that_was_given_twice():
    """A graph has one memory for both."""
    one, other = torch.zeros(2), torch.zeros(2)

    assert not comparison_with([one, one])(one, other)
    assert not comparison_with([one, other])(one, one)


def test_no_tensors_are_like_no_tensors():
    """As long as the modes are the same."""
    comparison = comparison_with([])

    assert comparison()
    with torch.inference_mode():
        assert not comparison()
