"""What an Accelerator has prepared, on the simulated device."""

from __future__ import annotations

from collections import UserDict

import pytest
import torch


pytest.importorskip("accelerate")

from accelerate import Accelerator, data_loader
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.state import AcceleratorState, GradientState

import gapless
from gapless import testing
from gapless.integrations.accelerate import capture_optimizer, capture_prepared


pytestmark = pytest.mark.slow


@pytest.fixture
def device(monkeypatch, request):
    with testing.SimulatedDevice(scheduler=getattr(request, "param", "asap")) as device:
        monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", str(device.torch_device))
        monkeypatch.setattr(type(device), "max_queued_copy_bytes", 4096)
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        yield device
        assert device.report.races == []
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def prepared(device, **options):
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objects = accelerator.prepare(model, optimizer)
    capture_prepared(accelerator, device=device, **{"quiet": True, **options})
    return accelerator, *objects


def test_reports_are_those_of_what_prepare_returned(device):
    """The report of a prepared optimizer is that of the optimizer within it."""
    accelerator, model, optimizer = prepared(device)
    for _ in range(5):
        accelerator.backward(model(torch.ones(3, 4, device=accelerator.device)).sum())
        optimizer.step()
        optimizer.zero_grad()

    assert gapless.capture_report(model).num_replays == 2
    assert gapless.capture_report(optimizer).num_replays == 2
    gapless.release(optimizer)
    with pytest.raises(gapless.UserError):
        gapless.capture_report(optimizer)


def test_updates_under_a_scaler_are_replayed(device):
    """Accelerate puts another `step` there for each call, to see whether the scaler skips it."""

    def trained(captures):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 2).to(device.torch_device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=3)
        prepared = AcceleratedOptimizer(optimizer, scaler=scaler)
        if captures:
            capture_optimizer(prepared, device)
        skipped = []
        for number in range(9):
            x = torch.full((3, 4), float("inf") if number == 5 else 1.0)
            scaler.scale(model(x.to(device.torch_device)).sum()).backward()
            prepared.step()
            skipped.append(prepared.step_was_skipped)
            prepared.zero_grad()
        return prepared, [skipped, scaler.get_scale(), model.weight.tolist()]

    Accelerator(cpu=True)
    _, expected = trained(captures=False)
    optimizer, found = trained(captures=True)

    assert found == expected
    assert gapless.capture_report(optimizer).num_replays == 6


class Reused(torch.utils.data.Dataset):
    """Rows of so many numbers that all lie in the same memory."""

    def __init__(self, num):
        self._row = torch.zeros(num)

    def __len__(self):
        return 6

    def __getitem__(self, number):
        return self._row.fill_(number)


@pytest.mark.parametrize("device", ["lazy"], indirect=True)
@pytest.mark.parametrize(("batch_of", "num"), [(dict, 40), (UserDict, 40), (dict, 10)])
def test_a_loader_may_fill_its_memory_again(device, batch_of, num):
    """Batches have left the loader's memory when it is asked for the next, however late the device is."""
    accelerator, *_ = prepared(device)
    rows = torch.utils.data.DataLoader(Reused(num), collate_fn=lambda rows: batch_of(x=rows[0]))
    loader = accelerator.prepare(rows)
    with gapless.count_waits(device) as waits:
        found = [batch["x"] for batch in loader]

    assert waits.count == 0
    assert [x.cpu()[0].item() for x in found] == [0, 1, 2, 3, 4, 5]
    assert not any(map(device.needs_copy, found))


def test_a_loader_may_be_read_in_inference_mode(device):
    """Tensors of inference have no versions by which a change of a mask would show."""
    accelerator, *_ = prepared(device)
    rows = [{"attention_mask": torch.ones(3, dtype=torch.long)}] * 4
    loader = accelerator.prepare(torch.utils.data.DataLoader(rows, batch_size=2))
    with torch.inference_mode():
        sums = [batch["attention_mask"].sum().item() for batch in loader]

    assert sums == [6, 6]


def test_other_devices_are_copied_to_as_before(device):
    """Only what goes to a device that is captured on is copied in another way."""
    prepared(device)
    batch = torch.ones(3)

    assert data_loader.send_to_device(batch, "cpu") is batch


def test_it_says_once_what_it_does_and_what_it_does_not(device, capsys):
    """Lines on stderr, unless it is asked to be quiet."""
    prepared(device, quiet=False)
    told = capsys.readouterr().err
    prepared(device)

    assert told.startswith("gapless: Accelerate\n  does: ")
    assert "\n  does not: " in told
    assert capsys.readouterr().err == ""


def test_on_a_cpu_it_says_that_it_does_nothing(capsys):
    """There is nothing to launch."""
    AcceleratorState._reset_state(reset_partial_state=True)
    prepared("cpu", quiet=False)

    assert "does not: anything: a CPU" in capsys.readouterr().err


def test_an_optimizer_whose_rate_changes_in_each_step_is_that_of_any_loop(device):
    """Adadelta stays in its graph, which takes no rate."""
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(4, 2)
    _, optimizer = accelerator.prepare(model, torch.optim.Adadelta(model.parameters(), lr=1.0))
    capture_prepared(accelerator, device=device, quiet=True)
    for _ in range(12):
        for weight in model.parameters():
            weight.grad = torch.ones_like(weight)
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.9

    assert gapless.capture_report(optimizer.optimizer).num_replays > 0


def test_a_model_that_recomputes_activations_is_refused_and_named(device):
    """Before anything is tried."""
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(4, 2)
    model.gradient_checkpointing = True
    accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    capture_prepared(accelerator, device=device, quiet=True)

    assert "checkpoint" in str(gapless.capture_report(model))
