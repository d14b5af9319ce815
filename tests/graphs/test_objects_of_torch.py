"""Steps change or read objects of torch that are no modules, and objects that no file has made."""

from __future__ import annotations

import logging
import types

import pytest
import torch
from torch import nn
from torch.distributions import AffineTransform, ComposeTransform
from torch.quasirandom import SobolEngine
from torch.utils.data import Subset, TensorDataset

import gapless
from gapless.testing import SimulatedDevice


NUM, LATE = 16, 8


def outcome(loop, *, captures):
    """Return what a loop gives for each step, and the report of its captured step."""
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        torch.manual_seed(0)
        step, after_each, edit = loop(device)
        run = gapless.capture(step, device=device) if captures else step
        seen = []
        for n in range(NUM):
            if n == LATE:
                edit()
            chance = torch.Generator().manual_seed(n)
            x = torch.randn(6, 8, generator=chance).to(device.torch_device)
            seen.append((run(x).item(), after_each()))
        return seen, run.report if captures else None


def training(device):
    """Return a model's weight, its optimizer, and what trains on a loss."""
    weight = nn.Parameter(torch.ones(8, device=device.torch_device))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def train(loss):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return weight, optimizer, train


def nothing():
    return None


# ----------------------------------------------------------------------- steps that change one


def loads_rates(device):
    weight, optimizer, train = training(device)

    def step(x):
        state = optimizer.state_dict()
        state["param_groups"][0]["lr"] *= 0.9
        optimizer.load_state_dict(state)
        return train((x * weight).square().mean())

    return step, lambda: optimizer.param_groups[0]["lr"], nothing


def adds_groups(device):
    weight, _, train = training(device)
    other = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)

    def step(x):
        other.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
        return train((x * weight).square().mean())

    return step, lambda: len(other.param_groups), nothing


def draws_of_an_engine(device):
    weight, _, train = training(device)
    engine = SobolEngine(2)

    def step(x):
        engine.draw()
        return train((x * weight).square().mean())

    return step, lambda: engine.num_generated, nothing


def steps_a_profiler(device):
    weight, _, train = training(device)
    profiler = torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=100, warmup=1, active=1)
    )

    def step(x):
        profiler.step()
        return train((x * weight).square().mean())

    return step, lambda: profiler.step_num, nothing


def counts_in_a_module_made_at_run_time(device):
    weight, _, train = training(device)
    state = types.ModuleType("state")
    state.n = 0

    def step(x):
        state.n += 1
        return train((x * weight).square().mean())

    return step, lambda: state.n, nothing


def raises_a_level(device):
    weight, _, train = training(device)
    log = logging.getLogger("gapless.tests.level")
    log.setLevel(1)

    def step(x):
        log.setLevel(log.level + 1)
        return train((x * weight).square().mean())

    return step, lambda: log.level, nothing


@pytest.mark.parametrize(
    "loop",
    [
        loads_rates,
        adds_groups,
        draws_of_an_engine,
        steps_a_profiler,
        counts_in_a_module_made_at_run_time,
        raises_a_level,
    ],
)
def test_a_step_that_changes_one_is_refused(loop):
    """It runs as written, as often as it is called."""
    expected, _ = outcome(loop, captures=False)

    seen, report = outcome(loop, captures=True)

    assert seen == expected
    assert report.num_replays == 0
    assert "changes on the host" in str(report)


# -------------------------------------------------------------------------- loops that edit one


def rate_of_a_state(device):
    weight, optimizer, train = training(device)

    def step(x):
        rate = optimizer.state_dict()["param_groups"][0]["lr"]
        return train((x * weight).square().mean() * rate)

    def edit():
        optimizer.param_groups[0]["lr"] = 0.5

    return step, nothing, edit


def a_dataset(device):
    weight, _, train = training(device)
    dataset = TensorDataset(torch.ones(4, 8, device=device.torch_device))

    def step(x):
        (row,) = dataset[1]
        return train((x * weight * row).square().mean())

    def edit():
        dataset.tensors = (torch.full((4, 8), 2.0, device=device.torch_device),)

    return step, nothing, edit


def a_part_of_a_dataset(device):
    weight, _, train = training(device)
    rows = torch.arange(32.0, device=device.torch_device).view(4, 8) / 32
    part = Subset(TensorDataset(rows), [0, 1])

    def step(x):
        return train((x * weight * part[1][0]).square().mean())

    def edit():
        part.indices = [0, 3]

    return step, nothing, edit


def a_transform_that_is_called(device):
    weight, _, train = training(device)
    transform = AffineTransform(0.0, 2.0)
    both = ComposeTransform([transform])

    def step(x):
        return train(both(x * weight).square().mean())

    def edit():
        transform.scale = 3.0

    return step, nothing, edit


@pytest.mark.parametrize(
    "loop", [rate_of_a_state, a_dataset, a_part_of_a_dataset, a_transform_that_is_called]
)
def test_an_edit_of_one_that_a_step_reads_is_seen(loop):
    """Results are those of the loop as written, and there are replays before and after."""
    expected, _ = outcome(loop, captures=False)

    seen, report = outcome(loop, captures=True)

    assert seen == expected
    assert report.num_graphs == 2
    assert report.refusals == []


# --------------------------------------------------------------------------- what a step returns


def test_a_weight_that_a_step_makes_is_refused():
    """A copy of it would be no weight: a module would not register it."""
    with SimulatedDevice() as device, device.allow_waits():

        @gapless.capture(device=device)
        def step(x):
            return nn.Parameter(x * 2)

        kinds = [type(step(torch.ones(2).to(device.torch_device))) for _ in range(6)]

    assert kinds == [nn.Parameter] * 6
    assert "returns a torch.nn.parameter.Parameter, which a replay" in str(step.report)


def test_a_conjugate_stays_one():
    """Torch computes it where it is used, as for the step as written."""
    with SimulatedDevice() as device, device.allow_waits():

        @gapless.capture(device=device)
        def step(x):
            return torch.complex(x, x).conj()

        results = [step(torch.ones(2).to(device.torch_device)) for _ in range(6)]

        assert all(result.is_conj() for result in results)
        assert results[-1].tolist() == [1 - 1j, 1 - 1j]
        assert step.report.num_replays
