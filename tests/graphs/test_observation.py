"""Eager runs are watched, and nothing of it is left afterwards."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest
import torch
from torch.optim import optimizer as torch_optimizers
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau, StepLR

from gapless.device.cpu import CpuDevice
from gapless.graphs.reads.observation import observed
from gapless.graphs.reads.weight_guards import KnownWeights
from gapless.graphs.updates.update_outside import Updates
from toy_steps import Regression


@contextmanager
def watched():
    """Watch the body as a step; yield the optimizers and the weights that it is seen to use."""
    device = CpuDevice()
    updates = Updates(device)
    weights = KnownWeights(updates.optimizers)
    with (
        observed(device, weights, is_updating=lambda: False, sees_reads=True),
        updates.watch(),
    ):
        yield updates, weights


def test_weights_that_no_optimizer_has_are_found_behind_a_backward_pass():
    """A step may update its weights itself."""
    model = Regression()

    with watched() as (_, weights):
        model.backward(model.forward((torch.ones(4, 3), torch.ones(4, 1))))

    assert [weight is model.weight for weight, _ in weights.gradients()] == [True]


@pytest.mark.parametrize("ends", ["well", "badly"])
def test_what_is_replaced_in_torch_is_put_back(ends):
    """After a watched run, also one that raises, torch's functions and hooks are its own."""
    kinds = [LRScheduler, StepLR, ReduceLROnPlateau]
    before = [vars(kind).get("step") for kind in kinds], torch.autograd.backward
    hooks = len(torch_optimizers._global_optimizer_pre_hooks)

    def run():
        with watched():
            assert torch.autograd.backward is not before[1]
            assert len(torch_optimizers._global_optimizer_pre_hooks) == hooks + 1
            if ends == "badly":
                raise ValueError("no")

    if ends == "badly":
        with pytest.raises(ValueError, match="no"):
            run()
    else:
        run()

    assert before == ([vars(kind).get("step") for kind in kinds], torch.autograd.backward)
    assert len(torch_optimizers._global_optimizer_pre_hooks) == hooks


def test_loops_in_other_threads_are_not_part_of_the_step():
    """Their weights and optimizers are none of the step's, which puts its own back."""

    def update():
        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        scheduler = StepLR(optimizer, 5)
        weight.sum().backward()
        optimizer.step()
        scheduler.step()
        return weight, optimizer

    with watched() as (updates, weights):
        kept = []
        other = threading.Thread(target=lambda: kept.append(update()))
        other.start()
        other.join()
        weight, optimizer = update()

    assert updates.optimizers() == [optimizer]
    assert [each is weight for each, _ in weights.gradients()] == [True]
    assert len(kept) == 1
