"""Checkpoints that are written while training goes on."""

from __future__ import annotations

import errno
import threading
import time
import weakref

import pytest
import torch

from gapless.checkpoint import files
from gapless.device.find import find_device
from gapless.nmt.run_folder import checkpoint_writer, checkpoints as checkpoint
from gapless.nmt.run_folder.checkpoint_writer import CheckpointWriter
from gapless.nmt.run_folder.disk_space import DiskTroubles
from gapless.pipeline.host_waits import HostWaits
from gapless.testing.simulated.simulated_device import SimulatedDevice


@pytest.fixture
def writer(tmp_path):
    return CheckpointWriter(tmp_path, host_waits=HostWaits(find_device("cpu")), keep=2)


@pytest.fixture
def late(tmp_path):
    """A writer on a device that runs only what it must, and a model there."""
    with SimulatedDevice(scheduler="lazy") as device:
        model = torch.nn.Linear(2, 1, bias=False)
        memory = device.device_buffer(8).view(torch.float32)
        model.weight = torch.nn.Parameter(memory.copy_(torch.tensor([1.0, 2.0])).view(1, 2))
        yield CheckpointWriter(tmp_path, host_waits=HostWaits(device)), model


def weights_in(run_dir, epoch):
    return checkpoint.read_weights(checkpoint.epoch_path(run_dir, epoch))["weight"]


def epochs_in(run_dir):
    return [int(path.name[-4:]) for path in checkpoint.epoch_paths(run_dir)]


def state_in(run_dir):
    return checkpoint.load_state(run_dir)[1]


def hold_up(monkeypatch, function):
    """Let a function of the writer wait until the returned event is set."""
    may_go, real = threading.Event(), getattr(checkpoint_writer, function)

    def wait(*arguments, **options):
        assert may_go.wait(20)
        return real(*arguments, **options)

    monkeypatch.setattr(checkpoint_writer, function, wait)
    return may_go


def test_what_is_saved_is_what_was_there_at_the_call(writer, tmp_path, monkeypatch):
    """Weights and state are saved as they were at the call, even if they change soon after."""
    may_go = hold_up(monkeypatch, "write_checkpoint")
    model = torch.nn.Linear(3, 2)
    before = model.weight.detach().clone()
    with writer:
        weights = writer.copy_weights(model)
        writer.save_epoch(weights, 1)
        writer.save_state({"list": [1, model.bias], "pairs": {}}, weights=weights, step=7, epoch=1)
        with torch.no_grad():
            model.weight.zero_()
        writer.poll()
        assert epochs_in(tmp_path) == []
        may_go.set()

    assert torch.equal(weights_in(tmp_path, 1), before)
    state = state_in(tmp_path)
    assert torch.equal(state["model"]["weight"], before)
    assert torch.equal(state["list"][1], model.bias)


def test_epochs_stay_that_an_average_or_the_state_needs(writer, tmp_path):
    """The newest two epochs stay, and the two up to each state, which a resumed run averages."""
    model, found = torch.nn.Linear(3, 2), []
    with writer:
        for epoch in range(1, 9):
            weights = writer.copy_weights(model)
            writer.save_epoch(weights, epoch)
            if epoch in (3, 7):
                writer.save_state({}, weights=weights, step=10 * epoch, epoch=epoch)
            writer.finish()
            found.append(epochs_in(tmp_path))

    assert found[:4] == [[1], [1, 2], [2, 3], [2, 3, 4]]
    assert found[4:] == [[2, 3, 4, 5], [2, 3, 5, 6], [2, 3, 6, 7], [2, 3, 6, 7, 8]]


def test_epochs_are_counted_beyond_four_digits(tmp_path):
    """Epoch 10,000 comes after epoch 9,999."""
    for epoch in (9_998, 9_999, 10_000, 10_001):
        checkpoint.epoch_path(tmp_path, epoch).mkdir(parents=True)

    checkpoint.drop_old_epochs(tmp_path, keep=2, state_epochs=[])
    assert [path.name for path in checkpoint.epoch_paths(tmp_path)] == [
        "epoch-10000",
        "epoch-10001",
    ]
    checkpoint.drop_later(tmp_path, updates=0, epochs=10_000, is_finished=True)
    assert [path.name for path in checkpoint.epoch_paths(tmp_path)] == ["epoch-10000"]


def test_the_best_state_is_kept_beside_the_newest(writer, tmp_path):
    """It is a full state of its own, which later states do not change."""
    model = torch.nn.Linear(3, 2)
    before = model.weight.detach().clone()
    with writer:
        for step in (10, 20):
            weights = writer.copy_weights(model)
            writer.save_state({"x": step}, weights=weights, step=step, epoch=1, is_best=step == 10)
            with torch.no_grad():
                model.weight.zero_()

    found = checkpoint.read_saved(checkpoint.best_path(tmp_path))
    assert found.step == 10
    assert torch.equal(checkpoint.weights_in(found)["weight"], before)
    assert state_in(tmp_path)["x"] == 20


def test_one_state_is_saved_at_a_time(writer, monkeypatch):
    """Who saves can ask whether the last state is still on its way."""
    may_go = hold_up(monkeypatch, "pack")
    with writer:
        assert not writer.is_saving_state
        weights = writer.copy_weights(torch.nn.Linear(3, 2))
        writer.save_state({}, weights=weights, step=1, epoch=1)
        assert writer.is_saving_state
        writer.poll()
        assert writer.is_saving_state
        may_go.set()
        writer.finish()
        assert not writer.is_saving_state


class Late:
    """A part of a state that comes later, or is found to be of no use."""

    def __init__(self, *, is_spoiled=False):
        self.has_come, self.spoiled = False, is_spoiled

    def is_done(self):
        return self.has_come

    def wait(self, host_waits, *, reason):
        self.has_come = True

    def is_spoiled(self):
        return self.spoiled

    def value(self):
        return {"late": 3}


def test_a_state_is_written_when_all_of_it_has_come(writer, tmp_path):
    """Not before; and what it relies on is brought to the disk first."""
    late, order = Late(), []
    with writer:
        weights = writer.copy_weights(torch.nn.Linear(3, 2))
        writer.save_state(
            {},
            weights=weights,
            step=1,
            epoch=0,
            late=late,
            sync_first=lambda: order.append(list(tmp_path.rglob("step-*"))),
        )
        writer.poll()
        assert not writer._queue._writing
        late.has_come = True
        writer.poll()
        assert writer._queue._writing

    assert order == [[]]
    assert state_in(tmp_path)["late"] == 3


def test_a_state_by_which_the_run_stops_is_not_kept(writer, tmp_path):
    """Such as one whose losses turn out to be NaN: nobody should resume from it."""
    with writer:
        weights = writer.copy_weights(torch.nn.Linear(3, 2))
        writer.save_state({}, weights=weights, step=1, epoch=0)
        writer.save_state({}, weights=weights, step=2, epoch=0, late=Late(is_spoiled=True))

    assert checkpoint.state_store(tmp_path).load_newest().step == 1


def full(monkeypatch, tmp_path, *, times, where):
    """Let the disk be full for so many of the checkpoints whose name begins so."""
    real, left = files.Disk.make_folder, [times]

    def make_folder(disk, path):
        if path.name.startswith(f".{where}") and left[0]:
            left[0] -= 1
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        real(disk, path)

    monkeypatch.setattr(files.Disk, "make_folder", make_folder)


def test_a_full_disk_that_has_room_again(tmp_path, monkeypatch):
    """The user is told once, weights are written later, and of the states the newest."""
    told = []
    waits = HostWaits(find_device("cpu"))
    writer = CheckpointWriter(
        tmp_path, host_waits=waits, keep=2, disk_troubles=DiskTroubles(told.append)
    )
    full(monkeypatch, tmp_path, times=2, where="epoch-0001")
    model = torch.nn.Linear(3, 2)
    first = model.weight.detach().clone()
    with writer:
        for epoch in (1, 2, 3):
            weights = writer.copy_weights(model)
            writer.save_epoch(weights, epoch)
            writer.save_state({}, weights=weights, step=epoch, epoch=epoch)
            writer.drain()
            with torch.no_grad():
                model.weight.add_(1.0)

    assert len(told) == 1
    assert "No space left on device; training goes on" in told[0]
    assert torch.equal(weights_in(tmp_path, 1), first)
    assert epochs_in(tmp_path) == [1, 2, 3]


def test_best_weights_that_a_full_disk_did_not_take_are_written_later(tmp_path, monkeypatch):
    """A state that comes after them is no better."""
    writer = CheckpointWriter(tmp_path, host_waits=HostWaits(find_device("cpu")), keep=2)
    full(monkeypatch, tmp_path, times=1, where="best")
    model = torch.nn.Linear(3, 2)
    best = model.weight.detach().clone()
    with writer:
        for step in (1, 2):
            weights = writer.copy_weights(model)
            writer.save_state({}, weights=weights, step=step, epoch=step, is_best=step == 1)
            writer.drain()
            with torch.no_grad():
                model.weight.add_(1.0)

    written = checkpoint.read_weights(checkpoint.best_path(tmp_path))
    assert torch.equal(written["weight"], best)


def test_best_weights_are_there_before_the_state_that_counts_on_them(tmp_path, monkeypatch):
    """A run that is killed between both makes them again."""
    writer = CheckpointWriter(tmp_path, host_waits=HostWaits(find_device("cpu")), keep=2)
    full(monkeypatch, tmp_path, times=99, where="step-000000001")
    model = torch.nn.Linear(3, 2)
    with pytest.raises(OSError, match="No space left"), writer:
        writer.save_state({}, weights=writer.copy_weights(model), step=1, epoch=1, is_best=True)

    assert checkpoint.best_path(tmp_path).exists()


def test_no_state_counts_on_best_weights_that_are_not_there(tmp_path, monkeypatch):
    """A run that is killed then goes on from the state before, and makes them again."""
    writer = CheckpointWriter(tmp_path, host_waits=HostWaits(find_device("cpu")), keep=2)
    full(monkeypatch, tmp_path, times=99, where="best")
    model = torch.nn.Linear(3, 2)
    with pytest.raises(OSError, match="No space left"), writer:
        for step in (1, 2, 3):
            weights = writer.copy_weights(model)
            writer.save_state({}, weights=weights, step=step, epoch=step, is_best=step == 2)
            writer.drain()

    assert [path.name for path in checkpoint.state_store(tmp_path, keep=9).paths()] == [
        "step-000000001"
    ]


@pytest.mark.parametrize("where", ["epoch-0001", "step-000000002"])
def test_a_disk_that_stays_full_is_an_error_at_the_end(tmp_path, monkeypatch, where):
    """Weights that an average needs, or the newest state, could not be saved."""
    writer = CheckpointWriter(tmp_path, host_waits=HostWaits(find_device("cpu")), keep=2)
    full(monkeypatch, tmp_path, times=99, where=where)
    model = torch.nn.Linear(3, 2)
    with pytest.raises(OSError, match="No space left"), writer:
        for epoch in (1, 2):
            weights = writer.copy_weights(model)
            writer.save_epoch(weights, epoch)
            writer.save_state({}, weights=weights, step=epoch, epoch=epoch)
            writer.poll()


def test_a_file_that_cannot_be_written_is_told_of_and_nothing_follows(
    writer, tmp_path, monkeypatch
):
    """The next poll raises the error of the writing thread; no later file is written."""
    model = torch.nn.Linear(3, 2)
    (tmp_path / "checkpoints").write_text("in the way")

    real = checkpoint_writer.write_checkpoint

    def write(path, **options):
        try:
            real(path, **options)
        finally:
            (tmp_path / "checkpoints").unlink()

    monkeypatch.setattr(checkpoint_writer, "write_checkpoint", write)
    with pytest.raises(OSError, match="checkpoints") as raised, writer:
        writer.save_epoch(writer.copy_weights(model), 1)
        writer.save_epoch(writer.copy_weights(model), 2)
        end = time.monotonic() + 20
        while time.monotonic() < end:
            writer.poll()
        pytest.fail("nobody was told")

    assert not hasattr(raised.value, "__notes__")
    with pytest.raises(OSError, match="checkpoints"):
        writer.finish()
    assert not (tmp_path / "checkpoints").exists()


def test_an_error_of_the_body_is_not_hidden(writer, tmp_path):
    """The error that ends a run is raised, with a note on the file that was not written."""
    (tmp_path / "checkpoints").write_text("in the way")

    with pytest.raises(ZeroDivisionError) as raised, writer:
        writer.save_epoch(writer.copy_weights(torch.nn.Linear(3, 2)), 1)
        raise ZeroDivisionError

    assert any("checkpoints" in note for note in raised.value.__notes__)


def test_few_copies_wait_at_a_time(writer, tmp_path, monkeypatch):
    """If the disk is slower than training, training waits rather than filling memory."""
    may_go = hold_up(monkeypatch, "write_checkpoint")
    model = torch.nn.Linear(3, 2)
    done = []

    def save_many():
        for epoch in range(1, 13):
            writer.save_epoch(writer.copy_weights(model), epoch)
            writer.poll()
            done.append(epoch)

    with writer:
        thread = threading.Thread(target=save_many)
        thread.start()
        thread.join(0.5)
        assert len(done) <= 5
        may_go.set()
        thread.join(20)

    assert len(done) == 12
    assert epochs_in(tmp_path) == [11, 12]


def test_this_thread_gives_back_the_memory_of_copies(writer, tmp_path):
    """The writing thread never frees a copy: it might do so while a graph is captured."""
    freed_by = []
    with writer:
        for epoch in range(1, 30):
            weights = writer.copy_weights(torch.nn.Linear(3, 2))
            weakref.finalize(weights, lambda: freed_by.append(threading.get_ident()))
            writer.save_epoch(weights, epoch)
            del weights
            writer.poll()
            time.sleep(0.002)

    assert len(freed_by) == 29
    assert set(freed_by) == {threading.get_ident()}


def test_an_interrupted_wait_for_a_file_loses_none(writer, tmp_path, monkeypatch):
    """Ctrl-C during the wait for an earlier file loses no file that was saved before."""
    may_go = hold_up(monkeypatch, "write_checkpoint")

    def interrupt(futures):
        monkeypatch.undo()
        may_go.set()
        raise KeyboardInterrupt

    monkeypatch.setattr("gapless.nmt.run_folder.write_queue.wait", interrupt)
    with pytest.raises(KeyboardInterrupt), writer:
        for epoch in (1, 2):
            writer.save_epoch(writer.copy_weights(torch.nn.Linear(3, 2)), epoch)
        writer.finish()

    assert epochs_in(tmp_path) == [1, 2]


def test_a_file_is_written_when_its_copy_is_done_and_nobody_waits(late, tmp_path):
    """`poll` submits the jobs whose copies are done, and leaves the rest, without a wait."""
    writer, model = late
    with writer:
        weights = writer.copy_weights(model)
        writer.save_epoch(weights, 1)
        writer.poll()
        assert not writer._queue._writing
        while not weights.is_done():
            pass
        writer.poll()
        assert writer._queue._writing
        writer.finish()
        assert writer._host_waits.stats.count == 0

    assert weights_in(tmp_path, 1).tolist() == [[1.0, 2.0]]


def test_what_was_saved_before_an_error_is_written(late, tmp_path):
    """A run that fails right after an epoch still writes the checkpoint that was being copied."""
    writer, model = late
    with pytest.raises(ZeroDivisionError), writer:
        writer.save_epoch(writer.copy_weights(model), 1)
        raise ZeroDivisionError

    assert weights_in(tmp_path, 1).tolist() == [[1.0, 2.0]]


def test_few_copies_are_on_their_way_at_a_time(late, tmp_path):
    """If the device is far behind, the host waits for it, counted, rather than filling memory."""
    writer, model = late
    with writer:
        for epoch in range(1, 13):
            writer.save_epoch(writer.copy_weights(model), epoch)
            assert len(writer._queue._copying) <= 4
        assert writer._host_waits.stats.by_reason["checkpoint"].count > 0

    assert epochs_in(tmp_path) == [12]
