"""Checkpoints that are written while training goes on."""

from __future__ import annotations

import threading

import pytest
import torch

from gapless.device.select import resolve_device
from gapless.device.simulated.device import SimulatedDevice
from gapless.nmt import checkpoint
from gapless.nmt.saver import Saver
from gapless.pipeline.sync import HostSync


@pytest.fixture
def saver(tmp_path):
    return Saver(tmp_path, sync=HostSync(resolve_device("cpu")))


def hold_up(monkeypatch, function):
    """Let a function of `checkpoint` wait until the returned event is set."""
    may_go, real = threading.Event(), getattr(checkpoint, function)

    def wait(*arguments, **options):
        assert may_go.wait(20)
        real(*arguments, **options)

    monkeypatch.setattr(checkpoint, function, wait)
    return may_go


def test_what_is_saved_is_what_was_there_at_the_call(saver, tmp_path, monkeypatch):
    """Weights and state that change before they are written are saved as they were."""
    may_go = hold_up(monkeypatch, "write_weights")
    model = torch.nn.Linear(3, 2)
    before = model.weight.detach().clone()
    with saver:
        weights = saver.copy_weights(model)
        saver.save_weights(weights, tmp_path / "w")
        saver.save_state({"list": [1, model.bias], "pairs": {}}, weights=weights)
        with torch.no_grad():
            model.weight.zero_()
        assert not (tmp_path / "w").exists()
        may_go.set()

    assert torch.equal(checkpoint.read_weights(tmp_path / "w")["weight"], before)
    state = checkpoint.load_state(checkpoint.state_path(tmp_path))
    assert torch.equal(state["model"]["weight"], before)
    assert torch.equal(state["list"][1], model.bias)


def test_old_epochs_go_when_the_new_one_is_written(saver, tmp_path):
    """At no time are there fewer than were asked for."""
    model = torch.nn.Linear(3, 2)
    with saver:
        for epoch in (1, 2, 3):
            saver.save_weights(saver.copy_weights(model), checkpoint.epoch_path(tmp_path, epoch))
            saver.drop_old_epochs(keep=2)
        saver.finish()
        names = [path.name for path in checkpoint.epoch_paths(tmp_path)]

    assert names == ["epoch0002.safetensors", "epoch0003.safetensors"]


def test_a_file_that_cannot_be_written_is_told_of_and_nothing_follows(saver, tmp_path):
    """The next call, or the end, raises what the thread met; no later file is written."""
    model = torch.nn.Linear(3, 2)
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(OSError, match="file"), saver:
        saver.save_weights(saver.copy_weights(model), tmp_path / "file" / "w")
        saver.save_weights(saver.copy_weights(model), tmp_path / "later")

    with pytest.raises(OSError, match="file"):
        saver.finish()
    assert not (tmp_path / "later").exists()


def test_few_copies_wait_at_a_time(saver, tmp_path, monkeypatch):
    """When the disk is slower than training, training waits rather than filling memory."""
    may_go = hold_up(monkeypatch, "write_weights")
    model = torch.nn.Linear(3, 2)
    done = []

    def save_many():
        for number in range(12):
            saver.save_weights(saver.copy_weights(model), tmp_path / str(number))
            done.append(number)

    with saver:
        thread = threading.Thread(target=save_many)
        thread.start()
        thread.join(0.5)
        assert len(done) <= 9
        may_go.set()
        thread.join(20)

    assert len(done) == 12
    assert (tmp_path / "11").exists()


def test_a_file_is_written_when_its_copy_is_done_and_nobody_waits(tmp_path):
    """On a device that is behind, `poll` takes up what is done, and leaves the rest."""
    with SimulatedDevice(scheduler="lazy") as device:
        sync = HostSync(device)
        model = on(device, torch.nn.Linear(2, 1, bias=False))
        with Saver(tmp_path, sync=sync) as saver:
            weights = saver.copy_weights(model)
            saver.save_weights(weights, tmp_path / "w")
            saver.poll()
            assert not saver._writing
            while not weights.is_done():
                pass
            saver.poll()
            assert len(saver._writing) == 1
        assert sync.stats.sync_count == 0

    assert checkpoint.read_weights(tmp_path / "w")["weight"].tolist() == [[1.0, 2.0]]


def test_what_was_saved_before_an_error_is_written(tmp_path):
    """A run that dies right after an epoch keeps the checkpoint whose copies were on their way."""
    with SimulatedDevice(scheduler="lazy") as device:
        model = on(device, torch.nn.Linear(2, 1, bias=False))
        saver = Saver(tmp_path, sync=HostSync(device))
        with pytest.raises(ZeroDivisionError), saver:
            saver.save_weights(saver.copy_weights(model), tmp_path / "w")
            raise ZeroDivisionError

    assert checkpoint.read_weights(tmp_path / "w")["weight"].tolist() == [[1.0, 2.0]]


def test_few_copies_are_on_their_way_at_a_time(tmp_path):
    """A device that is far behind is waited for, through the door, rather than filling memory."""
    with SimulatedDevice(scheduler="lazy") as device:
        sync = HostSync(device)
        model = on(device, torch.nn.Linear(2, 1, bias=False))
        with Saver(tmp_path, sync=sync) as saver:
            for number in range(12):
                saver.save_weights(saver.copy_weights(model), tmp_path / str(number))
                assert len(saver._copying) <= 8
            assert sync.stats.by_reason["checkpoint"].count > 0

    assert (tmp_path / "11").exists()


def on(device, model):
    """Return the model with the weights 1, 2, ... on a device."""
    for name, weight in list(model.named_parameters()):
        memory = device.device_buffer(4 * weight.numel()).view(torch.float32)
        memory.copy_(torch.arange(1.0, weight.numel() + 1))
        setattr(model, name, torch.nn.Parameter(memory.view(weight.shape)))
    return model


def test_an_error_of_the_body_is_not_hidden(saver, tmp_path):
    """What ends a run is what its user hears of."""
    model = torch.nn.Linear(3, 2)
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(ZeroDivisionError), saver:
        saver.save_weights(saver.copy_weights(model), tmp_path / "file" / "w")
        raise ZeroDivisionError
