"""Gradients that one graph made, while others are replayed in memory that they share."""

from __future__ import annotations

import warnings

import pytest
import torch

import gapless
import micro_steps
from gapless.device.find import find_device
from gapless.device.numerics import seed_everything, set_numerics


pytestmark = pytest.mark.gpu

LOOPS = {
    **{
        f"accumulation, {name}, {how}": micro_steps.accumulation(name, "FFT", how)
        for name in micro_steps.OPTIMIZERS
        for how in micro_steps.HOW
    },
    "two heads": micro_steps.two_heads,
    "of another": micro_steps.gradients_of_another,
    "in a backward pass to come": micro_steps.gradients_in_a_backward_pass_to_come,
    "gradients kept": micro_steps.cosines(lambda grad: grad),
    "views kept": micro_steps.cosines(torch.detach),
    **{f"program {seed}": micro_steps.Program.of(seed).loop for seed in range(60)},
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_leaves_the_same_bits(name):
    """Captured, after it did so twice as written."""
    set_numerics(find_device("cuda"), "fp32", deterministic=True)

    def run(capture):
        seed_everything(5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return LOOPS[name](torch.device("cuda"), capture)

    plain, again = run(lambda step: step), run(lambda step: step)
    found = run(gapless.capture)

    assert micro_steps.differing(plain, again) == []
    assert micro_steps.differing(plain, found) == []
