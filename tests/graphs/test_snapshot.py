"""Graphs that are captured ahead of a run leave everything as it was, whatever the step writes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes

from gapless.device.cpu import CpuDevice
from gapless.graphs.callee import Callee
from gapless.graphs.proof.snapshot import Snapshot
from gapless.loop.train_loop import TrainLoop
from gapless.pipeline.host_waits import HostWaits
from gapless.testing import SimulatedDevice


CALLS = 7


@pytest.fixture
def device():
    with SimulatedDevice() as device, device.allow_waits():
        yield device


class Training:
    """A step that writes beside weights and the state of its optimizer, on the device alone.

    Args:
        device: where it trains.
        writes: what it does beside, given the training and the batch.
        kind: of the optimizer.
    """

    changes_no_other_objects = True

    def __init__(self, device, writes=None, kind=torch.optim.AdamW, **settings):
        torch.manual_seed(0)
        place = device.torch_device
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)).to(place)
        self.optimizer = kind(self.model.parameters(), lr=0.05, **settings)
        self.seen = torch.zeros(8, device=place)
        self.writes = writes

    def step(self, x):
        loss = self.model(x).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if self.writes is not None:
            self.writes(self, x)
        return loss.detach()

    def written(self):
        """Return all that the step may write; gradients may be zeros, or none."""
        tensors = [*self.model.parameters(), self.seen]
        for weight in self.model.parameters():
            tensors.append(torch.zeros_like(weight) if weight.grad is None else weight.grad)
        return [one.tolist() for one in tensors]


def noise(training, x):
    """Random numbers of the device."""
    training.seen.add_(torch.rand_like(training.seen))


def batches(device, num=CALLS):
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(4, 4, generator=draw).to(device.torch_device) for _ in range(num)]


def losses_of(training, device, *, is_ahead, scaler=None, num=CALLS):
    """Return the losses of a loop, with captures ahead of it or as written, and its report."""
    plan = "captured" if is_ahead else "gapless"
    with TrainLoop(plan=plan, device=device) as loop:
        report = ahead(loop, training, device, scaler=scaler) if is_ahead else None
        return loop.run_epoch(batches(device, num), training.step).losses, report


def ahead(loop, training, device, scaler=None):
    return loop.capture_ahead(
        batches(device, 1),
        training.step,
        model=training.model,
        optimizer=training.optimizer,
        scaler=scaler,
    )


OPTIMIZERS = [
    (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.5}),
    (torch.optim.SGD, {"momentum": 0.9}),
    (torch.optim.NAdam, {}),
    (torch.optim.ASGD, {}),
    (torch.optim.Rprop, {}),
    (torch.optim.Adam, {}),
]


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize(("kind", "settings"), OPTIMIZERS)
def test_any_optimizer_is_put_back(kind, settings):
    """Whatever its state begins as; its graphs are replayed in the end."""
    found = []
    for is_ahead in (False, True):
        with SimulatedDevice() as device, device.allow_waits():
            training = Training(device, kind=kind, **settings)
            losses, report = losses_of(training, device, is_ahead=is_ahead, num=12)
            found.append((losses, training.written()))

    assert found[0] == found[1]
    assert report.num_replays > 0


class Scaled(Training):
    """Scales its loss."""

    def __init__(self, device):
        super().__init__(device)
        self.scaler = torch.amp.GradScaler(
            device.torch_device.type, init_scale=8.0, growth_interval=2
        )

    def step(self, x):
        loss = self.model(x).square().mean()
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()


def test_a_scaler_is_put_back():
    """It grows as in the loop as written."""
    found = []
    for is_ahead in (False, True):
        with SimulatedDevice() as device, device.allow_waits():
            training = Scaled(device)
            losses, _ = losses_of(training, device, is_ahead=is_ahead, scaler=training.scaler)
            found.append((losses, training.written(), training.scaler.get_scale()))

    assert found[0] == found[1]
    assert found[0][-1] > 8.0


def test_memory_that_compiled_code_has_made_is_not_kept():
    """It looks as if it had been there before, and is gone after the run."""
    device = CpuDevice()
    training = Training(device)
    snapshot = Snapshot(training.model, training.optimizer)
    callee = Callee(training.step, device=device, host_waits=HostWaits(device))
    snapshot.keep(callee)
    with snapshot.watching():
        with _disable_current_modes():
            made = torch.ones(8)
        made.mul_(2.0)
        training.seen.add_(made)
    memory = StorageWeakRef(made.untyped_storage())
    del made
    snapshot.forget_freed()
    snapshot.restore([])

    assert memory.expired()
    assert training.seen.tolist() == [0.0] * 8


def test_memory_that_does_not_suffice_for_copies(device, monkeypatch):
    """What was done is put back, and a note says so."""
    training = Training(device, noise)
    before = training.written()

    def full(storage):
        raise torch.OutOfMemoryError("no memory")

    with monkeypatch.context() as patched, TrainLoop(plan="captured", device=device) as loop:
        patched.setattr("gapless.graphs.proof.snapshot._bytes_of", full)
        report = ahead(loop, training, device)

    assert training.written() == before
    assert "captured as batches come" in report.note
