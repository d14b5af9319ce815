"""Modules whose weights or sums lie across ranks are refused by their names."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

import gapless
from gapless.graphs.sharded import refusal_of_module, refusal_of_step
from gapless.testing.simulated.simulated_device import SimulatedDevice
from toy_steps import Training, batches


class ShardedLinear(FSDPModule, torch.nn.Linear):
    """What `fully_shard` makes of a layer."""

    def __new__(cls, *args):
        return torch.nn.Linear.__new__(cls)


def made_as(kind, name):
    """Return a module of a class that cannot be made without a process group."""
    module = kind.__new__(kind)
    torch.nn.Module.__init__(module)
    module._modules[name] = torch.nn.Linear(2, 2)
    return module


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        yield device


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (lambda: ShardedLinear(2, 2), "fully_shard"),
        (lambda: torch.nn.Sequential(ShardedLinear(2, 2)), "fully_shard"),
        (
            lambda: made_as(FullyShardedDataParallel, "_fsdp_wrapped_module"),
            "FullyShardedDataParallel",
        ),
        (lambda: made_as(DistributedDataParallel, "module"), "DistributedDataParallel"),
        (lambda: torch.nn.DataParallel(torch.nn.Linear(2, 2)), "DataParallel"),
    ],
)
def test_a_module_is_refused_by_name(device, module, name):
    """When it is given, and nothing else is told of it."""
    module = module()
    with pytest.warns(gapless.CaptureWarning, match=name):
        gapless.capture(module, device=device)

    assert [one.name for one in gapless.capture_report(module).refusals] == [name]
    with pytest.raises(gapless.CaptureRefused, match=name):
        gapless.capture(gapless.release(module), device=device, on_refusal="raise")


def test_a_module_of_one_rank_is_not_refused():
    assert refusal_of_module(torch.nn.Sequential(torch.nn.Linear(2, 2))) is None


GLOBAL = ShardedLinear(2, 2)


def uses_a_global(batch):
    return GLOBAL(batch)


class Held:
    def __init__(self):
        self.model = ShardedLinear(2, 2)

    def step(self, batch):
        return self.model(batch)

    __call__ = step


def steps():
    model = ShardedLinear(2, 2)
    yield uses_a_global
    yield Held()
    yield Held().step
    yield lambda batch: model(batch)
    yield functools.partial(lambda model, batch: model(batch), model)
    yield functools.partial(lambda batch, scale: model(batch) * scale, scale=2.0)


@pytest.mark.parametrize("step", list(steps()), ids=range(6))
def test_a_step_is_refused_wherever_it_finds_the_module(step):
    found = refusal_of_step(step)

    assert found is not None
    assert found.name == "fully_shard"


def test_a_step_with_distributed_data_parallel_is_not_refused():
    model = made_as(DistributedDataParallel, "module")

    assert refusal_of_step(lambda batch: model(batch)) is None


class DTensor(torch.nn.Parameter):
    """A weight of which each rank has a part, as far as its name goes."""


@pytest.mark.parametrize("what", ["step", "optimizer"])
@pytest.mark.filterwarnings("ignore::gapless.CaptureWarning")
def test_weights_in_parts_are_refused(device, what):
    training = Training(device)
    weight = training.model[0].weight
    training.model[0].weight = DTensor(weight.data)
    training.optimizer = torch.optim.SGD(training.model.parameters(), lr=0.05)
    captured = gapless.capture(
        training.step if what == "step" else training.optimizer, device=device
    )
    for batch in gapless.prefetch(batches(4, 4, 4, 4), device):
        (captured if what == "step" else training.step)(batch)
    report = captured.report if what == "step" else gapless.capture_report(captured)

    assert [one.name for one in report.refusals] == ["DTensor"]
    assert report.num_replays == 0
