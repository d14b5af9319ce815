"""Scripts that call `torch.set_default_device`: what gapless makes for itself is not made there."""

from __future__ import annotations

import pytest
import torch

import gapless
from gapless.testing.simulated.simulated_device import SimulatedDevice


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="lazy") as device, device.allow_waits():
        yield device
    assert device.report.races == []


@pytest.mark.parametrize("form", ["step", "in place"])
@pytest.mark.parametrize("every", [3, None])
def test_a_default_device_changes_nothing(device, form, every):
    """Nobody computes on `meta`: a tensor that was made there by mistake would be told."""

    def train(form):
        torch.manual_seed(0)
        with torch.device("cpu"):
            model = torch.nn.Sequential(
                torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)
            )
        model.to(device.torch_device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x):
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        report = None
        if form == "step":
            step = gapless.capture(step, device=device, audit_every=every)
        elif form == "in place":
            gapless.capture(model, optimizer, device=device, audit_every=every)
        draw = torch.Generator("cpu").manual_seed(1)
        losses = gapless.DeferredLoss(device=device)
        batches = [torch.randn(5, 3, generator=draw, device="cpu") for _ in range(24)]
        with torch.device("meta"):
            for x in gapless.prefetch(batches, device):
                losses.add(loss := step(x))
                loss.item()
            losses.drain()
        if form != "written":
            report = step.report if form == "step" else gapless.capture_report(model)
        return [
            list(losses.history),
            [one.tolist() for one in model.state_dict().values()],
        ], report

    expected, _ = train("written")
    found, report = train(form)

    assert found == expected
    assert report.num_replays + report.audits.num_equal > 8, str(report)
    assert report.refusals == []
