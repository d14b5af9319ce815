"""Models and optimizers that are captured where they stand, for windows of a run."""

from __future__ import annotations

import warnings
from collections import Counter

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torch.optim.optimizer import register_optimizer_step_post_hook

import gapless
from gapless.device.find import find_device
from gapless.doctor.watching.variant_trials import VariantTrials
from gapless.testing import SimulatedDevice
from gapless.trials import called_parts
from gapless.trials.captured_parts import CapturedParts


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 8), nn.Tanh())

    def forward(self, x):
        return self.inner(x)


class Script:
    """A loop that trains an encoder and a head; `on_step` is called at the end of each step."""

    def __init__(self, device):
        torch.manual_seed(0)
        self.device = device
        self.encoder = Encoder().to(device.torch_device)
        self.head = nn.Linear(8, 2).to(device.torch_device)
        weights = [*self.encoder.parameters(), *self.head.parameters()]
        self.optimizer = SGD(weights, lr=0.1, momentum=0.9)
        self.scheduler = StepLR(self.optimizer, step_size=1000)
        self.losses = []

    def step(self):
        draw = torch.Generator().manual_seed(len(self.losses))
        x = torch.randn(3, 4, generator=draw).to(self.device.torch_device)
        loss = self.head(self.encoder(x)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.losses.append(loss.detach())

    def run(self, num_steps):
        for _ in range(num_steps):
            self.step()
        return [loss.item() for loss in self.losses]


class Doctor:
    """Counts steps by a hook, as the doctor does, and measures a variant."""

    def __init__(self, script, variant, **options):
        self.num_steps = 0
        self.variant_trials = VariantTrials(
            [variant],
            synchronize=lambda: None,
            step_ended=self.step_ended,
            **{"num_windows": 2, "num_steps": 4, "least_s": 0.0, **options},
        )
        self._handle = register_optimizer_step_post_hook(
            gapless_hook(lambda *args: self.step_ended(args[0]))
        )
        self.variant_trials.start()
        try:
            script()
        finally:
            self._handle.remove()
            self.variant_trials.stop()
        (self.trial,) = self.variant_trials.trials

    def step_ended(self, optimizer):
        self.num_steps += 1
        self.variant_trials.next_step()


def gapless_hook(hook):
    """Return a hook that says it is gapless' own, as that of the doctor is."""
    hook.__module__ = "gapless.doctor.watching.step_hooks"
    return hook


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        yield device


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch):
    """Forget what other tests have compiled in this process."""
    counters = {"frames": Counter()}
    monkeypatch.setattr(called_parts, "compiler_counters", lambda: counters)
    return counters


def test_windows_take_turns_and_losses_stay(device):
    """Calls are graphs in the windows of the variant alone; every step is counted once."""
    expected = Script(device).run(60)
    script = Script(device)
    before = dict(vars(script.encoder)), vars(script.optimizer).get("step")

    doctor = Doctor(lambda: script.run(60), CapturedParts(device))

    assert doctor.trial.refusal == ""
    assert len(doctor.trial.steps_per_second.rounds) == 2
    assert doctor.num_steps == 60
    assert [loss.item() for loss in script.losses] == expected
    assert [text.partition(":")[0] for text in doctor.trial.details] == [
        "Encoder",
        "Linear",
        "SGD",
    ]
    assert all("1 graph" in text for text in doctor.trial.details)
    assert (dict(vars(script.encoder)), vars(script.optimizer).get("step")) == before


def test_steps_as_written_are_no_replays(device):
    """While the variant is out, no call counts as a replay."""
    script, variant = Script(device), CapturedParts(device)
    variant.start(lambda optimizer: None)
    script.run(2)
    while not variant.is_settled:
        script.step()
    variant.stop()
    replays = gapless.capture_report(script.encoder).num_replays

    script.run(5)
    out = gapless.capture_report(script.encoder).num_replays
    variant.start(lambda optimizer: None)
    script.run(5)
    back = gapless.capture_report(script.encoder).num_replays
    variant.close()

    assert (out - replays, back - out) == (0, 5)


def test_a_model_that_cannot_be_captured_is_refused(device):
    """The refusals of the capture are the reason, and no warning disturbs the script."""
    script = Script(device)
    script.encoder.inner.register_forward_hook(lambda *args: None)
    script.optimizer.register_step_post_hook(lambda *args: None)
    script.head = nn.Identity()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        doctor = Doctor(lambda: script.run(100), CapturedParts(device))

    assert doctor.trial.steps_per_second is None
    assert "Encoder: " in doctor.trial.refusal
    assert "SGD: SGD.step() has hooks" in doctor.trial.refusal


def test_a_script_that_captures_itself_is_left_alone(device):
    """What the user has captured stays captured."""
    script = Script(device)
    gapless.capture(script.optimizer, device=device)

    doctor = Doctor(lambda: script.run(40), CapturedParts(device))

    assert "captures its model or its optimizer itself" in doctor.trial.refusal
    assert gapless.capture_report(script.optimizer).num_steps == 40


def test_compiled_code_is_not_compiled_again(device, no_compiler):
    """Hooks that look for what a script calls would change what its code was compiled for."""
    no_compiler["frames"]["total"] = 1

    doctor = Doctor(lambda: Script(device).run(40), CapturedParts(device))

    assert "torch.compile is at work" in doctor.trial.refusal


def test_a_cpu_has_nothing_to_launch():
    """Without an accelerator the variant says so at once."""
    assert "no accelerator" in CapturedParts(find_device("cpu")).refusal
