"""A disk without room: training goes on while it may find some, and no checkpoint is torn."""

from __future__ import annotations

import re

import pytest

from faults.injected import SLOW
from faults.processes import LIMIT_OF_FAULTS
from faults.runs import check_same_run, newest_step, train_options
from faults.small_disk import SmallDisk


pytestmark = pytest.mark.xdist_group("processes: full disk")


@pytest.fixture
def disk(tmp_path):
    """Make a small disk in the test's folder."""
    disks = []

    def make(name="disk", **size):
        (tmp_path / name).mkdir()
        disks.append(SmallDisk(tmp_path / name, **size))
        return disks[-1]

    yield make
    for one in disks:
        one.close()


@pytest.fixture
def training(start, data):
    """A slow run on a small disk that has saved."""

    def call(disk, *more):
        process = start(*train_options(data, disk.path / "run"), *more, before=disk.enter + SLOW)
        process.until(lambda: newest_step(disk.seen / "run") >= 20, what="an update was saved")
        return process

    return call


NO_ROOM = "No space left on device"


def test_a_disk_that_is_full_for_a_while(training, disk, finished):
    """A save that finds no room is told once, and the run goes on to the same end."""
    small = disk(kilobytes=4000)
    process = training(small)
    small.fill()
    process.until(lambda: NO_ROOM in process.err, what="the full disk was noticed")
    small.free()

    ended = process.end()

    ended.check_done()
    check_same_run(small.seen / "run", finished)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_disk_that_stays_full(training, disk, run, finished, workers):
    """The run ends, names its last whole checkpoint, and goes on from it when there is room."""
    small = disk(kilobytes=4000)
    process = training(small, "--workers", workers)
    small.fill()
    process.until(lambda: NO_ROOM in process.err, what="the full disk was noticed")

    ended = process.end(limit=LIMIT_OF_FAULTS + 60)

    ended.check_refused(NO_ROOM)
    named = re.findall(r"step-0*(\d+)", ended.err)
    assert named, "the last whole checkpoint is named"
    assert int(named[-1]) == newest_step(small.seen / "run")
    assert f"go on with gapless train --resume {small.path / 'run'}" in " ".join(ended.err.split())
    assert ended.err.count(NO_ROOM) <= 3, "it is told once when it begins, and at the end"
    small.free()
    run("train", "--resume", small.path / "run", before=small.enter).check_done()
    check_same_run(small.seen / "run", finished)


@pytest.mark.slow
@pytest.mark.parametrize("leave", [0, 4096, 8192, 20_000, 60_000, 120_000])
def test_a_disk_with_little_room(training, disk, run, finished, leave):
    """Whatever the last thing is that fits, nothing is torn and the end is the same."""
    small = disk(kilobytes=4000)
    process = training(small, "--workers", 2)
    small.fill(leave=leave)

    ended = process.end(limit=LIMIT_OF_FAULTS + 60)

    ended.check_no_traceback()
    run("checkpoint", "verify", small.path / "run", before=small.enter).check_done()
    small.free()
    run("train", "--resume", small.path / "run", before=small.enter).check_done()
    check_same_run(small.seen / "run", finished)


def test_room_is_looked_for_at_the_start(run, disk, data):
    """A run that cannot keep its checkpoints is refused with what it needs and what is free."""
    small = disk(kilobytes=300)

    ended = run(*train_options(data, small.path / "run"), before=small.enter)

    ended.check_refused("free")
    assert len(re.findall(r"\d", ended.errors[0])) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("inodes", [0, 8])
def test_no_room_for_a_workers_temporary_file(start, disk, data, finished, tmp_path, inodes):
    """Workers whose temporary folder is full end the run in a word, or do without it."""
    small = disk("tmp", kilobytes=64, inodes=inodes)
    small.fill()
    for number in range(inodes):
        try:
            (small.seen / str(number)).touch()
        except OSError:
            break

    ended = start(
        *train_options(data, tmp_path / "run", workers=2),
        before=small.enter,
        TMPDIR=small.path,
    ).end(limit=LIMIT_OF_FAULTS + 30)

    if ended.code == 0:
        check_same_run(tmp_path / "run", finished)
    else:
        ended.check_refused()


@pytest.mark.slow
def test_no_room_for_shared_memory(start, disk, data, finished, tmp_path):
    """Batches of workers need shared memory; without room for it the run ends in a word."""
    small = disk("shm", kilobytes=64)
    small.fill()
    over_shm = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"{small.path}", b"/dev/shm", None, 4096, None):
    raise OSError(ctypes.get_errno(), "mount")
"""

    ended = start(
        *train_options(data, tmp_path / "run", workers=2), before=small.enter + over_shm
    ).end(limit=LIMIT_OF_FAULTS + 30)

    if ended.code == 0:
        check_same_run(tmp_path / "run", finished)
    else:
        ended.check_refused("worker")


@pytest.mark.slow
def test_a_disk_that_becomes_read_only(training, disk, run):
    """A run folder that nobody may write to any more ends the run; its checkpoints are whole."""
    small = disk(kilobytes=4000)
    process = training(small, "--workers", 2)
    small.make_read_only()

    ended = process.end(limit=LIMIT_OF_FAULTS + 60)

    ended.check_refused("Read-only file system")
    verified = run("checkpoint", "verify", small.path / "run", before=small.enter)
    assert "step-" not in verified.out
