"""A store among processes: one that dies, several that write, some that read meanwhile."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys

import pytest

from checkpoint.stores import check_is, list_problems, load_newest, meta_of, save_steps, tensors_of
from faults.marks import NOT_BUILT


pytestmark = NOT_BUILT

# Seconds after which a process of these tests counts as stuck.
LIMIT = 60


def start(*arguments, **options):
    """Start a process that writes or reads."""
    return subprocess.Popen(
        [sys.executable, "-m", "checkpoint.store_process", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        **options,
    )


def end(process):
    """Wait for a process and return its exit code, the steps it printed, and its errors."""
    try:
        out, err = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        pytest.fail(f"a process did not end within {LIMIT} s")
    return process.returncode, [int(line) for line in out.split()], err


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 9))]
)
def test_a_writer_that_is_killed(tmp_path, seed):
    """After `kill -9` at any moment, the newest whole one is there, and nothing is damaged."""
    draw = random.Random(seed)
    writer = start("write", tmp_path / "store", 1, 10_000, 1, 2, 200_000)
    printed = [int(writer.stdout.readline()) for _ in range(draw.randint(1, 12))]
    signal_in = draw.random() * 0.02
    try:
        writer.wait(timeout=signal_in)
    except subprocess.TimeoutExpired:
        writer.kill()
    code, more, _ = end(writer)

    loaded = load_newest(tmp_path / "store")

    assert code == -signal.SIGKILL
    assert (loaded.said, loaded.error) == ([], None)
    last = ([*printed, *more])[-1]
    assert loaded.checkpoint.step in (last, last + 1)
    check_is(loaded.checkpoint, loaded.checkpoint.step, size=200_000)
    save_steps(tmp_path / "store", 20_000, keep=1)
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["step-000020000"]


def test_readers_while_a_writer_writes(tmp_path):
    """Readers see whole checkpoints alone, newer and newer, though old ones are removed."""
    readers = [start("read", tmp_path / "store", 30) for _ in range(2)]
    writer = start("write", tmp_path / "store", 1, 30, 1, 1)

    ends = [end(process) for process in (writer, *readers)]

    assert [code for code, _, _ in ends] == [0, 0, 0], ends
    assert [steps[-1] for _, steps, _ in ends] == [30, 30, 30]


def test_two_writers_leave_whole_checkpoints(tmp_path):
    """Two writers of one folder: each goes on or is refused in a word, and nothing is torn."""
    writers = [start("write", tmp_path / "store", first, 40, 2, 3, 3000) for first in (1, 2)]

    ends = [end(process) for process in writers]

    assert [path.name for path in (tmp_path / "store").iterdir() if ".tmp" in path.name] == []
    for code, _, err in ends:
        assert code == 0 or "CheckpointError" in err.splitlines()[-1], err
    saved = {step for _, steps, _ in ends for step in steps}
    loaded = load_newest(tmp_path / "store")
    assert (loaded.said, loaded.error) == ([], None)
    assert loaded.checkpoint.step == max(saved)
    check_is(loaded.checkpoint, loaded.checkpoint.step, size=3000)
    assert set(list_problems(tmp_path / "store").values()) == {None}


NO_ROOM = """
import resource, signal, sys
from checkpoint.stores import CheckpointError, CheckpointStore, check_is, load_newest, save_steps, tensors_of
save_steps(sys.argv[1], 10)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    CheckpointStore(sys.argv[1]).save(20, tensors_of(20), {"position": "x" * 9000})
except (OSError, CheckpointError) as error:
    print(error)
else:
    sys.exit("saved without room")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
check_is(load_newest(sys.argv[1]).checkpoint, 10)
save_steps(sys.argv[1], 30)
check_is(load_newest(sys.argv[1]).checkpoint, 30)
"""


@pytest.mark.parametrize(
    "room",
    [pytest.param(0, marks=pytest.mark.slow), 1000, pytest.param(4096, marks=pytest.mark.slow)],
)
def test_a_file_without_room(tmp_path, room):
    """A save that finds no room fails in one line, leaves nothing, and the next may succeed."""
    done = subprocess.run(
        [sys.executable, "-c", NO_ROOM, tmp_path / "store", str(room)],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    assert "step-000000020" in done.stdout
    left = sorted(path.name for path in (tmp_path / "store").iterdir())
    assert left == ["step-000000010", "step-000000030"]


@pytest.mark.slow
def test_a_step_saved_twice_by_two_processes(tmp_path):
    """Two writers of the same steps: what is left is one of the two, whole."""
    writers = [start("write", tmp_path / "store", 1, 15, 1, 3, 3000) for _ in range(2)]

    ends = [end(process) for process in writers]

    for code, _, err in ends:
        assert code == 0 or "CheckpointError" in err.splitlines()[-1], err
    loaded = load_newest(tmp_path / "store")
    assert (loaded.said, loaded.error) == ([], None)
    check_is(loaded.checkpoint, 15, size=3000)
    assert meta_of(15) == loaded.checkpoint.meta
    assert tensors_of(15, size=3000).keys() == loaded.checkpoint.tensors.keys()
