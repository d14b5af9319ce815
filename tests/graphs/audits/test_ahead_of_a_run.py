"""Capturing ahead of a run trains nothing, and changes nothing that the step writes."""

from __future__ import annotations

import pytest

from gapless.loop.train_loop import TrainLoop
from graphs.audits.ahead_of_a_run import WRITES, Training, ahead, nothing, wrong_ahead
from graphs.audits.harness import Place, batch


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("writes", WRITES, ids=lambda writes: writes.__name__)
def test_capturing_ahead_changes_nothing(writes, tmp_path):
    """Nothing is written meanwhile, and a run behind it trains as written."""
    assert wrong_ahead(writes, tmp_path) == []


def test_there_are_no_gradients_after_it_if_there_were_none(tmp_path):
    """Zeros are not the same: an optimizer leaves weights without gradients alone."""
    with Place(tmp_path) as place, TrainLoop(plan="captured", device=place.device) as loop:
        training = Training(place, nothing)
        ahead(loop, training, [batch(place, 1)])

        assert [weight.grad for weight in training.model.parameters()] == [None]
