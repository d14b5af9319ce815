"""Eager runs are watched, and nothing of it is left afterwards."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.optim import optimizer as torch_optimizers
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR, ReduceLROnPlateau, StepLR

from gapless.device.cpu import CpuDevice
from gapless.graphs.reads.known_optimizers import KnownOptimizers
from gapless.graphs.reads.observation import Observer
from gapless.graphs.reads.weight_guards import KnownWeights
from toy_steps import Regression


def make_observer():
    optimizers = KnownOptimizers()
    weights = KnownWeights(optimizers)
    observer = Observer(
        CpuDevice(), optimizers=optimizers, weights=weights, is_updating=lambda: False
    )
    return observer, optimizers, weights


class Own(LRScheduler):
    """A scheduler with a step of its own."""

    def get_lr(self):
        return [0.1]

    def step(self, epoch=None):
        super().step(epoch)


def make_scheduler(kind, optimizer):
    needed = {StepLR: {"step_size": 5}, OneCycleLR: {"max_lr": 1.0, "total_steps": 9}}
    return kind(optimizer, **needed.get(kind, {}))


@pytest.mark.parametrize("kind", [StepLR, OneCycleLR, ReduceLROnPlateau, Own])
def test_a_scheduler_that_is_called_is_named(kind):
    """Also one that changes nothing this time, and one of the user's own."""
    observer, *_ = make_observer()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    scheduler = make_scheduler(kind, optimizer)
    optimizer.step()

    with observer.watch(is_first=True, is_last=False) as seen:
        scheduler.step(*([1.0] if kind is ReduceLROnPlateau else []))

    assert kind.__name__ in dict(seen.schedulers)


def test_a_scheduler_that_is_not_called_is_not_named():
    """Schedulers may exist, and be called outside of the step."""
    observer, *_ = make_observer()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    scheduler = StepLR(optimizer, 5)

    with observer.watch(is_first=True, is_last=False) as seen:
        optimizer.step()
    scheduler.step()

    assert seen.schedulers == []


def test_weights_that_no_optimizer_has_are_found_behind_a_backward_pass():
    """A step may update its weights itself."""
    observer, _, weights = make_observer()
    model = Regression()

    with observer.watch(is_first=True, is_last=False):
        model.backward(model.forward((torch.ones(4, 3), torch.ones(4, 1))))

    assert [weight is model.weight for weight, _ in weights.gradients()] == [True]


@pytest.mark.parametrize("ends", ["well", "badly"])
def test_what_is_replaced_in_torch_is_put_back(ends):
    """After a watched run, also one that raises, torch's functions and hooks are its own."""
    observer, *_ = make_observer()
    kinds = [LRScheduler, StepLR, ReduceLROnPlateau, Own]
    before = [vars(kind).get("step") for kind in kinds], torch.autograd.backward
    hooks = len(torch_optimizers._global_optimizer_pre_hooks)

    def watched():
        with observer.watch(is_first=True, is_last=True):
            assert torch.autograd.backward is not before[1]
            assert len(torch_optimizers._global_optimizer_pre_hooks) == hooks + 1
            if ends == "badly":
                raise ValueError("no")

    if ends == "badly":
        with pytest.raises(ValueError, match="no"):
            watched()
    else:
        watched()

    assert before == ([vars(kind).get("step") for kind in kinds], torch.autograd.backward)
    assert len(torch_optimizers._global_optimizer_pre_hooks) == hooks


def test_loops_in_other_threads_are_not_part_of_the_step():
    """Their weights and optimizers are none of the step's, which puts its own back."""
    observer, optimizers, weights = make_observer()

    def update():
        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        scheduler = StepLR(optimizer, 5)
        weight.sum().backward()
        optimizer.step()
        scheduler.step()
        return weight, optimizer

    with observer.watch(is_first=True, is_last=False) as seen:
        kept = []
        other = threading.Thread(target=lambda: kept.append(update()))
        other.start()
        other.join()
        weight, optimizer = update()

    assert list(optimizers) == [optimizer]
    assert [each is weight for each, _ in weights.gradients()] == [True]
    assert len(kept) == 1
    assert len(seen.schedulers) == 2  # torch calls a new one itself
