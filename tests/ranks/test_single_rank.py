"""A process alone: what it asks of itself comes back at once."""

from __future__ import annotations

import pytest
import torch

from gapless.ranks.single_rank import SingleRank


def test_values_come_back():
    """There is nobody else to hear."""
    ranks = SingleRank()

    assert (ranks.rank, ranks.world, ranks.is_first) == (0, 1, True)
    assert ranks.agree("mine") == ["mine"]
    assert ranks.share("mine") == "mine"


def test_rows_get_a_dimension_of_ranks():
    """The values are the rows themselves."""
    rows = torch.arange(6.0).view(3, 2)

    gathered = SingleRank().gather_rows(rows)

    assert gathered.tolist() == [rows.tolist()]
    assert gathered.data_ptr() == rows.data_ptr()


def test_gradients_stay_as_they_are():
    """The sum over one rank is the gradient, in its own memory."""
    weight = torch.nn.Parameter(torch.ones(3))
    summed = SingleRank().sum_gradients([weight])

    weight.square().sum().backward()
    before = weight.grad
    summed.finish()
    summed.close()

    assert weight.grad is before
    assert weight.grad.tolist() == [2.0, 2.0, 2.0]


def test_a_flag_is_agreed_on_at_once_and_only_once():
    """A process alone stops after the update in which it was asked to, whatever `every` is."""
    agreement = SingleRank().agreement(("stop", "failed"), blocking=None, every=10)
    agreement.ask("stop")
    agreement.ask("stop", 3)
    agreement.ask("stop", 2)

    assert agreement.after_update(1) == {"stop": 3}
    assert agreement.after_update(2) == {}
    agreement.ask("failed")
    assert agreement.finish() == {"failed": 1}


def test_a_flag_that_does_not_exist():
    """A misspelt name is an error where it is raised."""
    with pytest.raises(KeyError, match="halt"):
        SingleRank().agreement(("stop",), blocking=None).ask("halt")
