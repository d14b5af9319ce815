"""Objects that are captured where they stand."""

from __future__ import annotations

import gc
import warnings
import weakref

import torch

import gapless
from gapless.graphs.in_place.capture_in_place import capture_report
from simulation.registry import FEW, scenario
from simulation.workloads import read_back


def _gradients(num, like):
    """Yield a gradient for each step, in memory of its own."""
    for number in range(num):
        yield torch.full_like(like, 2.0**-number)


@scenario(num_seeds=FEW)
def an_optimizer_that_is_captured_in_place(device):
    """Its steps are replays, by the gradients of each call, which are left alone."""
    plain, weight = torch.ones(8), torch.ones(8, device=device.torch_device)
    for one, where in ((plain, None), (weight, device)):
        one.requires_grad_()
        optimizer = torch.optim.SGD([one], lr=0.1, momentum=0.9)
        if where is not None:
            gapless.capture(optimizer, device=device)
        for gradient in _gradients(8, one.detach()):
            one.grad = gradient
            optimizer.step()
            found = read_back(device, one.detach()) if where else None
            assert one.grad is gradient
    assert torch.equal(found, plain.detach())
    report = capture_report(optimizer)
    assert (report.refusals, report.num_graphs) == ([], 1)
    assert (report.num_replays, report.num_eager) == (5, 3)


@scenario(num_seeds=FEW)
def an_optimizer_whose_rate_changes_at_every_step(device):
    """Its graph is cut where it takes its rate, and replays have the bits as written."""
    plain, weight = torch.ones(8), torch.ones(8, device=device.torch_device)
    for one, where in ((plain, None), (weight, device)):
        one.requires_grad_()
        optimizer = torch.optim.SGD([one], lr=0.1)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        if where is not None:
            gapless.capture(optimizer, device=device)
        for gradient in _gradients(12, one.detach()):
            one.grad = gradient
            optimizer.step()
            schedule.step()
            found = read_back(device, one.detach()) if where else None
    assert torch.equal(found, plain.detach())
    report = capture_report(optimizer)
    assert (report.refusals, report.num_graphs) == ([], 2)
    assert report.num_replays > 4


@scenario(num_seeds=FEW)
def an_optimizer_whose_momentum_changes_at_every_step(device):
    """A graph bakes it in: it is not captured again and again, and its updates are those as written."""
    plain, weight = torch.ones(8), torch.ones(8, device=device.torch_device)
    for one, where in ((plain, None), (weight, device)):
        one.requires_grad_()
        optimizer = torch.optim.SGD([one], lr=0.1, momentum=0.9)
        if where is not None:
            gapless.capture(optimizer, device=device)
        for gradient in _gradients(16, one.detach()):
            one.grad = gradient
            optimizer.step()
            optimizer.param_groups[0]["momentum"] *= 0.9
            found = read_back(device, one.detach()) if where else None
    assert torch.equal(found, plain.detach())
    report = capture_report(optimizer)
    assert [refusal.kind for refusal in report.refusals] == ["too_many_changes"]
    # A momentum that comes back finds no graph.
    optimizer.param_groups[0]["momentum"] = 0.9
    for gradient in _gradients(16, one.detach()):
        one.grad = gradient
        optimizer.step()
        optimizer.param_groups[0]["momentum"] *= 0.9
    assert report.num_replays == 0


@scenario(num_seeds=FEW)
def gradients_that_are_differentiated_late(device):
    """Nothing is replayed before, since sums behind a replay would have another order."""

    def trained(where, *, is_captured):
        torch.manual_seed(0)
        held = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        model, alive = held.to(where), weakref.ref(held[1])
        if is_captured:
            gapless.capture(model, device=device)
        optimizer, weights = torch.optim.SGD(model.parameters(), lr=0.1), list(model.parameters())
        draw = torch.Generator().manual_seed(1)
        for number in range(8):
            loss = model(torch.randn(3, 4, generator=draw).to(where)).square().mean()
            if number > 5:
                slopes = torch.autograd.grad(loss, weights, create_graph=True)
                loss = loss + sum(slope.square().sum() for slope in slopes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        found = [weight.detach().cpu() for weight in weights]
        report = str(capture_report(model)) if is_captured else ""
        # The search has kept no variables.
        del model, held, optimizer, loss
        gc.collect()
        assert alive() is None
        return found, report

    with device.allow_waits(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain, _ = trained(torch.device("cpu"), is_captured=False)
        found, report = trained(device.torch_device, is_captured=True)
    assert all(map(torch.equal, plain, found))
    assert "may run a backward pass with create_graph=True" in report
