"""Tensors of inference mode that a captured step or module returns: a replay returns such as well."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gapless
from gapless.testing.simulated.simulated_device import SimulatedDevice


NUM = 14


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        yield device


def model_on(device):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    return model.to(device.torch_device)


def batches(device):
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(5, 6, generator=draw).to(device.torch_device) for _ in range(NUM)]


def predicts(model):
    return torch.inference_mode()(lambda x: model(x).softmax(-1))


def predicts_in_two_forms(model):
    """The second result is a view of the first."""

    @torch.inference_mode()
    def step(x):
        scores = model(x)
        return {"scores": scores, "first": scores[:, 0], "best": scores.argmax(1)}

    return step


def leaves_inference_mode(model):
    """Of a loop in inference mode."""

    def step(x):
        with torch.inference_mode(mode=False):
            scores = model(x.clone()).detach()
        return scores, x * 2

    return step


def keeps_its_last_prediction(model):
    kept = {}

    @torch.inference_mode()
    def step(x):
        kept["mean"] = model(x).mean(0) + kept.get("mean", 0.0)
        return kept["mean"].clone()

    return step


def run(step, given, *, around=False):
    found = []
    for x in given:
        with torch.inference_mode(around):
            out = step(x)
        leaves = out.values() if isinstance(out, dict) else out if type(out) is tuple else [out]
        found.append([(leaf.is_inference(), leaf.requires_grad, leaf.tolist()) for leaf in leaves])
    return found


@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize(
    "make", [predicts, predicts_in_two_forms, leaves_inference_mode, keeps_its_last_prediction]
)
def test_a_replay_returns_what_the_step_returns(device, make, around):
    """Whichever mode the loop and the step are in."""
    given = batches(device)
    expected = run(make(model_on(device)), given, around=around)

    step = gapless.capture(make(model_on(device)), device=device)

    assert run(step, given, around=around) == expected
    assert step.report.num_replays > 0, step.report.refusals


def clamps(device):
    del device

    @torch.inference_mode()
    def step(x):
        x.clamp_(max=2.0)
        return x.sum()

    return step


class Clamps(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.inner = model_on(device)

    def forward(self, x):
        with torch.inference_mode():
            return self.inner(x.clamp_(max=2.0))


@pytest.mark.parametrize("make", [clamps, Clamps])
def test_a_batch_of_inference_mode_is_written_as_the_step_writes_it(device, make):
    """Its tensors count no versions, and what is written shows only in the last batches."""

    def contents_after(step):
        with torch.inference_mode():
            given = [torch.full((2, 6), 1.0 if n < 9 else 5.0) for n in range(NUM)]
            given = [x.to(device.torch_device) for x in given]
            outs = [step(x).tolist() for x in given]
            return outs, [x.tolist() for x in given]

    expected = contents_after(make(device))
    step = make(device)
    captured = gapless.capture(step, device=device)

    assert contents_after(step if isinstance(step, nn.Module) else captured) == expected
    assert (captured.report if make is clamps else gapless.capture_report(step)).num_replays > 0


@pytest.mark.filterwarnings("ignore::gapless.CaptureWarning")
def test_one_memory_in_both_kinds_is_refused(device):
    """Copies of each kind are made apart, and what is written to one would not show in the other."""

    def step(x):
        doubled = x * 2
        with torch.inference_mode():
            alias = torch.empty(0, device=x.device).set_(doubled)
        return doubled, alias

    captured = gapless.capture(step, device=device)
    for x in batches(device):
        doubled, alias = captured(x)
        doubled.add_(1)
        assert alias.tolist() == doubled.tolist()

    assert "cannot make anew" in str(captured.report)
