"""Checkpoints of any loop: what is saved comes back, and what is damaged is named."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import subprocess
import sys

import pytest
import torch

from gapless.checkpoint import CheckpointError, CheckpointStore, CheckpointWarning
from gapless.checkpoint.files import Disk
from gapless.errors import UserError


def tensors_of(number):
    draw = torch.Generator().manual_seed(number)
    return {
        "weight": torch.randn(20, 60, generator=draw),
        "half": torch.randn(7, generator=draw).to(torch.bfloat16),
        "count": torch.tensor(number),
        "mask": torch.tensor([True, False]),
        "none": torch.empty(0, 3),
    }


def save(store, *steps):
    for step in steps:
        store.save(step, tensors_of(step), {"epoch": step / 7, "best": None, "names": ["é"]})


def check(found, step):
    expected = tensors_of(step)
    assert found.step == step
    assert found.meta == {"epoch": step / 7, "best": None, "names": ["é"]}
    assert found.tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found.tensors[name].dtype == tensor.dtype
        assert torch.equal(found.tensors[name], tensor)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_is_saved_comes_back(tmp_path):
    """Tensors of every kind bit by bit, and the values beside them."""
    store = CheckpointStore(tmp_path / "a" / "b")
    assert store.load_newest() is None
    assert list(store.list()) == []

    save(store, 200)

    check(CheckpointStore(tmp_path / "a" / "b").load_newest(), 200)
    (listed,) = store.list()
    assert (listed.step, listed.problem, listed.path.name) == (200, None, "step-000000200")
    assert listed.size == sum(path.stat().st_size for path in listed.path.iterdir())


def test_a_transposed_tensor_and_a_part_of_one_come_back(tmp_path):
    """What is not dense in memory is saved by its values."""
    whole = torch.arange(12.0).view(3, 4)
    CheckpointStore(tmp_path).save(1, {"t": whole.t(), "part": whole[:, 1:3]}, {})

    found = CheckpointStore(tmp_path).load_newest().tensors

    assert torch.equal(found["t"], whole.t())
    assert torch.equal(found["part"], whole[:, 1:3])


def test_the_files_are_those_of_safetensors(tmp_path):
    """Any program that reads safetensors reads them."""
    from safetensors.torch import load_file

    save(CheckpointStore(tmp_path), 3)

    found = load_file(tmp_path / "step-000000003" / "tensors.safetensors")
    assert torch.equal(found["weight"], tensors_of(3)["weight"])


def test_the_newest_are_kept(tmp_path):
    """As many as asked for; by number, not by name or time."""
    store = CheckpointStore(tmp_path, keep=2)
    save(store, 5, 999_999_999, 1_000_000_000)

    assert names(tmp_path) == ["step-1000000000", "step-999999999"]
    check(store.load_newest(), 1_000_000_000)


def test_a_loop_that_went_back_leaves_its_later_checkpoints_behind(tmp_path):
    """They are of a future that was given up; the newest is the one saved last."""
    store = CheckpointStore(tmp_path, keep=3)
    save(store, 1, 2, 3, 4)
    save(store, 3)

    assert [item.step for item in store.list()] == [2, 3]


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_step_can_be_saved_again(tmp_path, monkeypatch, exchanges):
    """The new one takes the place of the old one, also where two names cannot change places."""
    if not exchanges:
        monkeypatch.setattr(Disk, "exchange", lambda *args: False)
    store = CheckpointStore(tmp_path)
    store.save(1, {"a": torch.zeros(2)}, {})
    store.save(1, {"a": torch.ones(2)}, {})

    assert torch.equal(store.load_newest().tensors["a"], torch.ones(2))
    assert names(tmp_path) == ["step-000000001"]


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


# --- damage ---


def damages(folder, *, seed, count):
    """Yield damages to the files of a checkpoint, each with a function that does it."""
    draw = random.Random(seed)
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        yield f"{path.name} deleted", path.unlink
        for size in {0, 1, len(data) // 2, len(data) - 1}:
            yield f"{path.name} cut to {size}", lambda p=path, n=size: os.truncate(p, n)
        yield f"{path.name} grown", lambda p=path, d=data: p.write_bytes(d + b"\0")
        yield f"{path.name} zeroed", lambda p=path, d=data: p.write_bytes(bytes(len(d)))
        for bit in draw.sample(range(8 * len(data)), min(count, 8 * len(data))):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            yield f"{path.name} bit {bit}", lambda p=path, d=bytes(flipped): p.write_bytes(d)


def test_no_damage_is_loaded(tmp_path):
    """Every file cut, grown, deleted or with a bit flipped: named, and the one before is used."""
    store = CheckpointStore(tmp_path / "store")
    save(store, 1, 2)
    newest, sound = tmp_path / "store" / "step-000000002", tmp_path / "sound"
    shutil.copytree(newest, sound)
    lines, cases = [], list(damages(newest, seed=1, count=60))
    for name, damage in cases:
        damage()
        lines.clear()
        check(store.load_newest(on_damaged=lines.append), 1)
        assert [str(newest) in line and "\n" not in line for line in lines] == [True], name
        assert store.list()[-1].problem, name
        shutil.rmtree(newest)
        shutil.copytree(sound, newest)

    assert len(cases) > 200
    check(store.load_newest(), 2)


def test_a_file_of_another_checkpoint_is_noticed(tmp_path):
    """Also if it is whole in itself; and a whole folder under another step's name."""
    store = CheckpointStore(tmp_path)
    save(store, 1, 2, 3)
    shutil.copy(tmp_path / "step-000000002" / "meta.json", tmp_path / "step-000000003")
    with pytest.warns(CheckpointWarning, match="step-000000003 is damaged: meta.json"):
        check(store.load_newest(), 2)

    shutil.rmtree(tmp_path / "step-000000003")
    shutil.copytree(tmp_path / "step-000000001", tmp_path / "step-000000003")
    with pytest.warns(CheckpointWarning, match="it is step-000000001 under another name"):
        check(store.load_newest(), 2)


def test_if_none_is_whole_that_is_an_error(tmp_path):
    """It names each of them."""
    store = CheckpointStore(tmp_path)
    save(store, 1, 2)
    for path in tmp_path.glob("*/meta.json"):
        path.unlink()

    with pytest.raises(CheckpointError, match=r"no checkpoint .*step-000000002 .*step-000000001 "):
        store.load_newest()


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
        save(CheckpointStore(folder, keep=1, disk=Failing(number, errno.ENOSPC)), 2)
    except OSError as error:
        return error
    return None


def test_a_full_disk_leaves_what_was_there(tmp_path):
    """Wherever it is full: the error names the checkpoint, and a whole checkpoint is left."""
    save(CheckpointStore(tmp_path, keep=1), 1)
    number = 0
    while (error := failure_of(tmp_path, number + 1)) is not None:
        number += 1
        assert str(tmp_path) in str(error.filename)
        assert CheckpointStore(tmp_path).load_newest().step in (1, 2)
        shutil.rmtree(tmp_path)
        save(CheckpointStore(tmp_path, keep=1), 1)

    assert number > 10
    assert names(tmp_path) == ["step-000000002"]


def test_a_file_whose_sync_failed_is_written_anew(tmp_path):
    """A second sync would claim success for pages that were thrown away."""
    seen = []

    class Watched(Failing):
        def create(self, path):
            seen.append(path.name)
            return super().create(path)

    disk = Watched(2, errno.EIO, only="sync")
    save(CheckpointStore(tmp_path, disk=disk), 1)

    assert seen == [
        *("tensors.safetensors", "meta.json"),
        *("tensors.safetensors", "meta.json", "manifest.json"),
    ]
    check(CheckpointStore(tmp_path).load_newest(), 1)


KILLED = """
import os, signal, sys, torch
from gapless.checkpoint import CheckpointStore
from gapless.checkpoint.files import Disk

class Deadly(Disk):
    left = int(sys.argv[2])
    def write(self, file, data):
        Deadly.left -= 1
        if not Deadly.left:
            os.kill(os.getpid(), signal.SIGKILL)
        super().write(file, data)

CheckpointStore(sys.argv[1], disk=Deadly()).save(2, {"a": torch.ones(9)}, {})
"""


def test_what_a_killed_process_left_is_ignored_and_removed(tmp_path):
    """No reader takes it for a checkpoint, and the next save removes it."""
    save(CheckpointStore(tmp_path), 1)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path, "3"],
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == -9
    assert len(names(tmp_path)) == 2
    check(CheckpointStore(tmp_path).load_newest(), 1)

    save(CheckpointStore(tmp_path), 2)

    assert names(tmp_path) == ["step-000000001", "step-000000002"]


def test_meta_is_json_for_people(tmp_path):
    """What is saved beside the tensors can be read with any tool."""
    save(CheckpointStore(tmp_path), 7)

    assert json.loads((tmp_path / "step-000000007" / "meta.json").read_text())["epoch"] == 1.0
