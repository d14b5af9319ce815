"""What a store refuses to save, and what a full or failing disk leaves."""

from __future__ import annotations

import errno
import os
import shutil

import pytest
import torch

from checkpoint.stores import check_is, load_newest, meta_of, name_of, save_steps, tensors_of
from gapless.checkpoint import CheckpointStore
from gapless.checkpoint.files import Disk
from gapless.errors import UserError


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.save(1, {}, {"a": (1, 2)}), "`pack` divides other state"),
        (lambda s: s.save(1, {}, {1: 2}), "`pack` divides other state"),
        (lambda s: s.save(1, {}, {"a": object()}), "`pack` divides other state"),
        (
            lambda s: s.save(1, {"q": torch.zeros(1, dtype=torch.complex128)}, {}),
            "'q' is torch.comp",
        ),
        (lambda s: s.save(-1, {}, {}), "`step` must be a whole number of 0 or more, but is -1"),
        (
            lambda s: CheckpointStore(s.folder, keep=0),
            "`keep` must be a whole number of 1 or more, but is 0",
        ),
    ],
)
def test_what_cannot_be_saved_is_refused(tmp_path, call, message):
    """Before anything is written."""
    with pytest.raises(UserError, match=message):
        call(CheckpointStore(tmp_path / "store"))

    assert not (tmp_path / "store").exists()


# --- failures while saving ---


class Failing(Disk):
    """A disk on which the operation of a number fails."""

    def __init__(self, number, code, *, only=None):
        self.left, self.code, self.only = number, code, only

    def fail(self, kind):
        if self.only in (None, kind):
            self.left -= 1
            if self.left == 0:
                raise OSError(self.code, os.strerror(self.code))

    def create(self, path):
        self.fail("create")
        return super().create(path)

    def write(self, file, data):
        self.fail("write")
        super().write(file, data)

    def sync(self, file):
        self.fail("sync")
        super().sync(file)

    def make_folder(self, path):
        self.fail("make_folder")
        super().make_folder(path)

    def sync_folder(self, path):
        self.fail("sync_folder")
        super().sync_folder(path)

    def rename(self, old, new):
        self.fail("rename")
        super().rename(old, new)


def failure_of(folder, number):
    """Save where the operation of a number finds the disk full; return the error, if any."""
    try:
        store = CheckpointStore(folder, keep=1, disk=Failing(number, errno.ENOSPC))
        store.save(2, tensors_of(2), meta_of(2))
    except OSError as error:
        return error
    return None


def test_a_full_disk_leaves_what_was_there(tmp_path):
    """Wherever it is full: the error names the checkpoint, and a whole checkpoint is left."""
    save_steps(tmp_path, 1, keep=1)
    number = 0
    while (error := failure_of(tmp_path, number + 1)) is not None:
        number += 1
        assert str(tmp_path) in str(error.filename)
        assert CheckpointStore(tmp_path).load_newest().step in (1, 2)
        shutil.rmtree(tmp_path)
        save_steps(tmp_path, 1, keep=1)

    assert number > 10
    assert names(tmp_path) == [name_of(2)]


def test_a_file_whose_sync_failed_is_written_anew(tmp_path):
    """A second sync would claim success for pages that were thrown away."""
    seen = []

    class Watched(Failing):
        def create(self, path):
            seen.append(path.name)
            return super().create(path)

    disk = Watched(2, errno.EIO, only="sync")
    CheckpointStore(tmp_path, disk=disk).save(1, tensors_of(1), meta_of(1))

    assert seen == [
        *("tensors.safetensors", "meta.json"),
        *("tensors.safetensors", "meta.json", "manifest.json"),
    ]
    check_is(load_newest(tmp_path).checkpoint, 1)
