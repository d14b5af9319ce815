"""Checkpoints that are written while training goes on."""

from __future__ import annotations

import threading

import pytest
import torch

from gapless.device.select import resolve_device
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
        saver.save_weights(model, tmp_path / "w")
        saver.save_state({"weight": model.weight, "list": [1, model.bias], "pairs": {}})
        with torch.no_grad():
            model.weight.zero_()
        assert not (tmp_path / "w").exists()
        may_go.set()

    assert torch.equal(checkpoint.read_weights(tmp_path / "w")["weight"], before)
    state = checkpoint.load_state(checkpoint.state_path(tmp_path))
    assert torch.equal(state["weight"], before)
    assert torch.equal(state["list"][1], model.bias)


def test_old_epochs_go_when_the_new_one_is_written(saver, tmp_path):
    """At no time are there fewer than were asked for."""
    model = torch.nn.Linear(3, 2)
    with saver:
        for epoch in (1, 2, 3):
            saver.save_weights(model, checkpoint.epoch_path(tmp_path, epoch))
            saver.drop_old_epochs(keep=2)
        saver.finish()
        names = [path.name for path in checkpoint.epoch_paths(tmp_path)]

    assert names == ["epoch0002.safetensors", "epoch0003.safetensors"]


def test_a_file_that_cannot_be_written_is_told_of_and_nothing_follows(saver, tmp_path):
    """The next call, or the end, raises what the thread met; no later file is written."""
    model = torch.nn.Linear(3, 2)
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(OSError, match="file"), saver:
        saver.save_weights(model, tmp_path / "file" / "w")
        saver.save_weights(model, tmp_path / "later")

    with pytest.raises(OSError, match="file"):
        saver.finish()
    assert not (tmp_path / "later").exists()


def test_few_copies_wait_at_a_time(saver, tmp_path, monkeypatch):
    """When the disk is slower than training, training waits rather than filling memory."""
    may_go = hold_up(monkeypatch, "write_weights")
    model = torch.nn.Linear(3, 2)
    done = []

    def save_many():
        for number in range(8):
            saver.save_weights(model, tmp_path / str(number))
            done.append(number)

    with saver:
        thread = threading.Thread(target=save_many)
        thread.start()
        thread.join(0.5)
        assert len(done) <= 5
        may_go.set()
        thread.join(20)

    assert len(done) == 8
    assert (tmp_path / "7").exists()


def test_an_error_of_the_body_is_not_hidden(saver, tmp_path):
    """What ends a run is what its user hears of."""
    model = torch.nn.Linear(3, 2)
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(ZeroDivisionError), saver:
        saver.save_weights(model, tmp_path / "file" / "w")
        raise ZeroDivisionError
