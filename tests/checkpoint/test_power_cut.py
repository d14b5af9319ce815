"""A loop goes on after a power cut at any operation of a save."""

from __future__ import annotations

import errno
import shutil

import pytest
import torch

from gapless.checkpoint import CheckpointStore
from gapless.checkpoint.files import Disk, replace_file
from power_cut import PowerCuts, RecordedDisk, put_back


def tensors_of(step):
    return {"a": torch.arange(2000.0) * step, "b": torch.tensor([step])}


def save(folder, step, disk):
    """Save the state of a step, which is all of 8 KiB and more: three parts to be torn."""
    CheckpointStore(folder / "store", keep=2, disk=disk).save(step, tensors_of(step), {"at": step})


def newest(folder):
    """Return the step of the newest whole checkpoint, its content checked, and what was named."""
    lines = []
    found = CheckpointStore(folder / "store").load_newest(on_damaged=lines.append)
    if found is None:
        return 0, lines
    assert found.meta == {"at": found.step}
    for name, tensor in tensors_of(found.step).items():
        assert torch.equal(found.tensors[name], tensor)
    return found.step, lines


@pytest.fixture
def cut(tmp_path):
    """Cut the power at every operation of something; yield what each cut leaves, in a folder."""

    def run(do):
        root, after = tmp_path / "root", tmp_path / "after"
        root.mkdir(exist_ok=True)
        disk = RecordedDisk(root)
        do(root, disk)
        for found in PowerCuts(disk, samples=100):
            after.mkdir()
            put_back(found, after)
            yield after
            shutil.rmtree(after)

    return run


def test_a_first_save(cut):
    """There is a whole checkpoint or none, and never half of one."""
    found = {newest(after)[0] for after in cut(lambda root, disk: save(root, 1, disk))}

    assert found == {0, 1}


def test_a_later_save(tmp_path, cut):
    """The one before or the new one, and the loop can save the next in its place."""
    (tmp_path / "root").mkdir()
    for step in (1, 2):
        save(tmp_path / "root", step, Disk())
    found = set()
    for after in cut(lambda root, disk: save(root, 3, disk)):
        step, lines = newest(after)
        assert lines == []
        found.add(step)
        save(after, step + 1, Disk())
        assert newest(after) == (step + 1, [])

    assert found == {2, 3}


def test_a_save_in_the_place_of_another(tmp_path, cut):
    """The old one or the new one is there, whole, under its name."""
    (tmp_path / "root").mkdir()
    save(tmp_path / "root", 1, Disk())
    tensors, found = {"a": torch.ones(3)}, set()

    def again(root, disk):
        CheckpointStore(root / "store", disk=disk).save(1, tensors, {"at": "again"})

    for after in cut(again):
        loaded = CheckpointStore(after / "store").load_newest()
        found.add(loaded.meta["at"])

    assert found == {1, "again"}


def test_a_file_that_is_replaced(tmp_path, cut):
    """The old content or the new one, never part of one."""
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "f").write_bytes(b"old" * 3000)

    found = {
        (after / "f").read_bytes()
        for after in cut(lambda root, disk: replace_file(root / "f", b"new" * 4000, disk=disk))
    }

    assert found == {b"old" * 3000, b"new" * 4000}


class Full(Disk):
    """A disk without room."""

    def sync(self, file):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_file_that_finds_no_room_leaves_nothing(tmp_path):
    """The old content stays, and no other file."""
    (tmp_path / "f").write_bytes(b"old")

    with pytest.raises(OSError, match="No space"):
        replace_file(tmp_path / "f", b"new", disk=Full())

    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("f", b"old")]


class NeverSynced(RecordedDisk):
    """What was done before checkpoints were synced."""

    def sync(self, file):
        pass

    def sync_folder(self, path):
        pass


@pytest.mark.parametrize("method", ["sync", "sync_folder"])
def test_without_a_sync_something_is_lost(tmp_path, monkeypatch, method):
    """The test would notice if files or names were not synced before the old ones are removed."""
    monkeypatch.setattr(RecordedDisk, method, getattr(NeverSynced, method))
    save(tmp_path, 1, Disk())
    disk = RecordedDisk(tmp_path)
    CheckpointStore(tmp_path / "store", keep=1, disk=disk).save(2, tensors_of(2), {"at": 2})
    cuts = PowerCuts(disk, samples=100)

    def is_lost(number, found):
        after = tmp_path / f"after{number}"
        after.mkdir()
        put_back(found, after)
        return all(listed.problem for listed in CheckpointStore(after / "store").list())

    assert any(is_lost(number, found) for number, found in enumerate(cuts))
