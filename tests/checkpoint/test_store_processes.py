"""A store among processes: one that dies, several that write, some that read meanwhile."""

from __future__ import annotations

import random
import signal
import time

import pytest

from checkpoint.stores import check_is, list_problems, load_newest, save_steps


pytestmark = pytest.mark.xdist_group("processes: store processes")


@pytest.fixture
def start(launcher, tmp_path):
    """Start a process that writes or reads, with what `store_process` takes."""
    return lambda *arguments: launcher.start(
        *arguments, folder=tmp_path, module="checkpoint.store_process"
    )


def steps_of(ended):
    """Return the steps that a process printed."""
    return [int(line) for line in ended.out.split()]


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))]
)
def test_a_writer_that_is_killed(start, tmp_path, seed):
    """After `kill -9` at any moment, the newest whole one is there, and nothing is damaged."""
    draw = random.Random(seed)
    store = tmp_path / "store"
    writer = start("write", store, 1, 100_000, 1, 2, 200_000)
    after = draw.randint(1, 12)
    writer.until(lambda: writer.out.count("\n") >= after, what=f"{after} saves")
    time.sleep(draw.random() * 0.02)
    writer.send(signal.SIGKILL)
    ended = writer.end()

    loaded = load_newest(store)

    assert ended.code == -signal.SIGKILL
    assert (loaded.said, loaded.error) == ([], None)
    last = steps_of(ended)[-1]
    assert loaded.checkpoint.step in (last, last + 1)
    check_is(loaded.checkpoint, loaded.checkpoint.step, size=200_000)
    save_steps(store, 200_000, keep=1)
    assert [path.name for path in store.iterdir()] == ["step-000200000"]


def test_readers_while_a_writer_writes(start, tmp_path):
    """Readers see whole checkpoints alone, newer and newer, though old ones are removed."""
    readers = [start("read", tmp_path / "store", 30) for _ in range(2)]
    writer = start("write", tmp_path / "store", 1, 30, 1, 1)

    ends = [process.end() for process in (writer, *readers)]

    assert [ended.err for ended in ends] == ["", "", ""]
    assert [steps_of(ended)[-1] for ended in ends] == [30, 30, 30]


def check_writers(ends):
    """Check that each writer went on to its end, or was refused in a word."""
    for ended in ends:
        assert ended.code == 0 or "CheckpointError" in ended.err.splitlines()[-1], ended.err


def test_two_writers_leave_whole_checkpoints(start, tmp_path):
    """Two writers of one folder: each goes on or is refused in a word, and nothing is torn."""
    store = tmp_path / "store"
    writers = [start("write", store, first, 40, 2, 3, 3000) for first in (1, 2)]

    ends = [writer.end() for writer in writers]

    check_writers(ends)
    assert [path.name for path in store.iterdir() if ".tmp" in path.name] == []
    loaded = load_newest(store)
    assert (loaded.said, loaded.error) == ([], None)
    assert loaded.checkpoint.step in {step for ended in ends for step in steps_of(ended)}
    check_is(loaded.checkpoint, loaded.checkpoint.step, size=3000)
    assert set(list_problems(store).values()) == {None}


@pytest.mark.slow
def test_a_step_saved_twice_by_two_processes(start, tmp_path):
    """Two writers of the same steps: what is left is one of the two, whole."""
    writers = [start("write", tmp_path / "store", 1, 15, 1, 3, 3000) for _ in range(2)]

    ends = [writer.end() for writer in writers]

    check_writers(ends)
    loaded = load_newest(tmp_path / "store")
    assert (loaded.said, loaded.error) == ([], None)
    check_is(loaded.checkpoint, 15, size=3000)


@pytest.mark.parametrize(
    "room",
    [pytest.param(0, marks=pytest.mark.slow), 1000, pytest.param(4096, marks=pytest.mark.slow)],
)
def test_a_file_without_room(start, tmp_path, room):
    """A save that finds no room fails in one line, leaves nothing, and the next may succeed."""
    ended = start("without_room", tmp_path / "store", room).end()

    assert (ended.code, ended.err) == (0, "")
    assert ended.out.count("\n") == 1
    assert "step-000000020" in ended.out
    left = sorted(path.name for path in (tmp_path / "store").iterdir())
    assert left == ["step-000000010", "step-000000030"]
