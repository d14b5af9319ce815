"""Which checkpoints a store keeps, in which order, and what it leaves alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from checkpoint.damage import flip, truncate
from checkpoint.stores import (
    CheckpointError,
    CheckpointStore,
    check_is,
    list_problems,
    load_newest,
    name_of,
    save_steps,
    tensors_of,
)
from gapless.checkpoint.files import Disk
from gapless.errors import UserError


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("keep", [1, 2, 3, 10])
def test_the_newest_are_kept(tmp_path, keep):
    """A store keeps so many of the newest, and nothing else stays behind."""
    steps = [1, 5, 20, 100, 3000]

    save_steps(tmp_path, *steps, keep=keep)

    assert names(tmp_path) == [name_of(step) for step in steps[-keep:]]
    check_is(load_newest(tmp_path).checkpoint, 3000)


@pytest.mark.parametrize("keep", [0, -1, True, 1.5, None, "3"])
def test_a_keep_that_cannot_be(tmp_path, keep):
    """A store that would keep nothing is refused before a folder is made."""
    with pytest.raises((CheckpointError, ValueError, TypeError), match="keep"):
        CheckpointStore(tmp_path / "store", keep=keep)

    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("step", [-1, 1.5, "7", None])
def test_a_step_that_cannot_be(tmp_path, step):
    """A step that is no count is refused, and nothing is written."""
    with pytest.raises((CheckpointError, ValueError, TypeError), match="step"):
        CheckpointStore(tmp_path / "store").save(step, {}, {})

    assert not (tmp_path / "store").exists() or names(tmp_path / "store") == []


def test_steps_are_ordered_as_numbers(tmp_path):
    """More digits than a name has room for sort by their number all the same."""
    steps = [0, 9, 10, 999_999_999, 1_000_000_000, 20_000_000_000]

    store = save_steps(tmp_path, *steps, keep=10)

    assert [entry.step for entry in store.list()] == steps
    check_is_step(load_newest(tmp_path).checkpoint, steps[-1])
    CheckpointStore(tmp_path, keep=2).save(30_000_000_000, tensors_of(30_000_000_000), {})
    assert names(tmp_path) == ["step-20000000000", "step-30000000000"]


def check_is_step(loaded, step):
    assert loaded.step == step
    assert loaded.tensors["count"].item() == step


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_step_may_be_saved_again(tmp_path, monkeypatch, exchanges):
    """The later one is loaded, and there is no second folder; also where two names cannot change places."""
    if not exchanges:
        monkeypatch.setattr(Disk, "exchange", lambda *args: False)
    store = save_steps(tmp_path, 10, 20)

    store.save(20, {"other": torch.ones(2)}, {"again": True})

    loaded = load_newest(tmp_path)
    assert loaded.said == []
    assert loaded.checkpoint.meta == {"again": True}
    assert list(loaded.checkpoint.tensors) == ["other"]
    assert names(tmp_path) == [name_of(10), name_of(20)]


def test_a_damaged_step_may_be_saved_again(tmp_path):
    """A run that fell back comes to the same step again and replaces what is damaged."""
    store = save_steps(tmp_path, 10, 20)
    truncate(tmp_path / name_of(20) / "tensors.safetensors", 5)

    store.save(20, tensors_of(20), {"epoch": 0, "position": {"update": 20, "order": [20, 21]}})

    loaded = load_newest(tmp_path)
    assert loaded.said == []
    check_is(loaded.checkpoint, 20)


def test_a_fresh_loop_removes_no_later_checkpoints_of_another(tmp_path):
    """Who starts anew in a folder by mistake loses nothing, and is told at the first save."""
    save_steps(tmp_path, 80, 90)

    with pytest.raises(UserError, match=f"{name_of(90)} is later than step 10 .* `load_newest`"):
        save_steps(tmp_path, 10)

    assert names(tmp_path) == [name_of(80), name_of(90)]


def test_what_another_process_saves_meanwhile_stays(tmp_path):
    """A later checkpoint that came while a save was under way was never seen, so it stays."""

    class Tensors(dict):
        """Are read by a save after it has looked for later ones, and before it has its turn."""

        def items(self):
            save_steps(tmp_path, 20)
            return super().items()

    CheckpointStore(tmp_path).save(10, Tensors(tensors_of(10)), {})

    assert names(tmp_path) == [name_of(10), name_of(20)]
    check_is(load_newest(tmp_path).checkpoint, 20)


def test_a_link_that_leads_nowhere(tmp_path):
    """In the place of a checkpoint it is damage: the step is saved again, and the link goes."""
    store = save_steps(tmp_path, 10)
    (tmp_path / name_of(20)).symlink_to(tmp_path / "nowhere")

    store.save(20, tensors_of(20), {"epoch": 0, "position": {"update": 20, "order": [20, 21]}})

    check_is(load_newest(tmp_path).checkpoint, 20)
    assert not (tmp_path / name_of(20)).is_symlink()


def test_a_loop_that_goes_back_leaves_its_later_checkpoints_behind(tmp_path):
    """They are of a future that was given up; the newest is the one saved last."""
    store = save_steps(tmp_path, 1, 2, 3, 4)

    store.save(3, tensors_of(3), {"epoch": 0, "position": {"update": 3, "order": [3, 4]}})

    assert names(tmp_path) == [name_of(2), name_of(3)]


def test_a_loop_that_loaded_may_go_back(tmp_path):
    """What was there when it loaded is of its own past, whatever it makes of it."""
    save_steps(tmp_path, 80, 90)
    store = CheckpointStore(tmp_path)
    assert store.load_newest().step == 90

    store.save(10, tensors_of(10), {"epoch": 0, "position": {"update": 10, "order": [10, 11]}})

    assert names(tmp_path) == [name_of(10)]


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_damaged_ones_push_no_whole_one_out(tmp_path, keep):
    """Damaged checkpoints that are newer do not cost a fresh one, or the last whole one."""
    save_steps(tmp_path, 10, 20, 30, 40, keep=4)
    for step in (20, 30, 40):
        flip(tmp_path / name_of(step) / "tensors.safetensors", -1, 0)

    save_steps(tmp_path, 15, keep=keep)

    check_is(load_newest(tmp_path).checkpoint, 15)


def test_a_save_that_fails_removes_nothing(tmp_path):
    """The old ones go when the new one is there, not before."""
    store = save_steps(tmp_path, 10, keep=1)

    with pytest.raises((CheckpointError, ValueError, TypeError)):
        store.save(20, {"bad": "no tensor"}, {})

    check_is(load_newest(tmp_path).checkpoint, 10)


def test_other_names_are_left_alone(tmp_path):
    """Files and folders that are no checkpoints of steps are neither removed nor read."""
    for name in ("best", "final", "epoch-0003", "step-x", "step-", "step-7", "step-000000007.bak"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tensors.safetensors").write_bytes(b"mine")
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "step-000000006").write_text("a file, and no folder")
    (tmp_path / ".hidden").mkdir()
    before = set(names(tmp_path))

    save_steps(tmp_path, 1, 2, 3, 4, 5, 8, keep=1)

    assert before - set(names(tmp_path)) <= {"step-000000006"}
    assert (tmp_path / "best" / "tensors.safetensors").read_bytes() == b"mine"
    check_is(load_newest(tmp_path).checkpoint, 8)


def a_dead_process():
    """Return the number of a process that has ended."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_what_a_dead_writer_left_is_removed(tmp_path):
    """Temporary folders of a writer that died are not read, and the next save removes them."""
    save_steps(tmp_path, 10)
    torn = tmp_path / f".step-000000020.{a_dead_process()}.tmp"
    torn.mkdir()
    (torn / "tensors.safetensors").write_bytes(b"half")

    loaded = load_newest(tmp_path)

    assert loaded.said == []
    check_is(loaded.checkpoint, 10)
    assert torn.exists(), "a reader changes nothing"
    assert list(list_problems(tmp_path)) == [name_of(10)]
    save_steps(tmp_path, 20)
    assert names(tmp_path) == [name_of(10), name_of(20)]


def test_a_temporary_folder_of_the_same_name(tmp_path):
    """A process number comes again: a leftover with our own number is in nobody's way."""
    torn = tmp_path / f".step-000000020.{os.getpid()}.tmp"
    torn.mkdir(parents=True)
    (torn / "tensors.safetensors").write_bytes(b"half")
    (torn / "other").mkdir()

    save_steps(tmp_path, 20)

    assert names(tmp_path) == [name_of(20)]
    check_is(load_newest(tmp_path).checkpoint, 20)


def test_the_list_says_what_is_there(tmp_path):
    """Newest last, with the bytes that each takes."""
    store = save_steps(tmp_path, 10, 20, 30)

    entries = store.list()

    assert [entry.step for entry in entries] == [10, 20, 30]
    assert [entry.path for entry in entries] == [tmp_path / name_of(s) for s in (10, 20, 30)]
    assert [entry.problem for entry in entries] == [None] * 3
    for entry in entries:
        on_disk = sum(file.stat().st_size for file in entry.path.iterdir())
        assert entry.size == on_disk


@pytest.mark.parametrize("kind", ["absent", "empty", "other things"])
def test_a_folder_without_checkpoints(tmp_path, kind):
    """Where no checkpoint was saved, there is none: no error, and the folder stays as it is."""
    folder = tmp_path / "store"
    if kind != "absent":
        folder.mkdir()
    if kind == "other things":
        (folder / "notes.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))

    store = CheckpointStore(folder)

    assert store.load_newest() is None
    assert list(store.list()) == []
    assert sorted(tmp_path.rglob("*")) == before


def test_a_file_where_the_folder_should_be(tmp_path):
    """Both a save and a load name what is in the way."""
    (tmp_path / "store").write_text("a file")

    with pytest.raises((CheckpointError, OSError), match="store"):
        CheckpointStore(tmp_path / "store").save(1, {}, {})
    with pytest.raises((CheckpointError, OSError), match="store"):
        CheckpointStore(tmp_path / "store").load_newest()
    assert (tmp_path / "store").read_text() == "a file"


def test_a_reader_changes_nothing(tmp_path):
    """Loading and listing leave every file and time as they were, damaged ones too."""
    store = save_steps(tmp_path, 10, 20)
    flip(tmp_path / name_of(20) / "meta.json", 0, 0)

    def state():
        return [(p, p.stat().st_mtime_ns, p.stat().st_size) for p in sorted(tmp_path.rglob("*"))]

    before = state()

    store.list()
    load_newest(tmp_path)

    assert state() == before
