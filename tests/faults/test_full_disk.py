"""A disk without room for what a run needs beside its checkpoints, or none from its start."""

from __future__ import annotations

import pytest

from faults.processes import LIMIT_OF_FAULTS
from faults.runs import check_same_run, train_options
from faults.small_disk import SmallDisk


pytestmark = pytest.mark.xdist_group("processes: full disk")

# Mounts a small disk over the folder of shared memory.
OVER_SHM = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"{path}", b"/dev/shm", None, 4096, None):
    raise OSError(ctypes.get_errno(), "mount")
"""


@pytest.fixture
def disk(tmp_path):
    """Make a small disk in the test's folder."""
    disks = []

    def make(**size):
        (tmp_path / "disk").mkdir()
        disks.append(SmallDisk(tmp_path / "disk", **size))
        return disks[-1]

    yield make
    for one in disks:
        one.close()


def test_room_is_looked_for_at_the_start(run, disk, data):
    """A run that cannot keep its checkpoints is refused with what it needs and what is free."""
    small = disk(kilobytes=300)

    ended = run(*train_options(data, small.path / "run"), before=small.enter)

    ended.check_refused(small.path, "needs up to", "but its disk has", "free")


@pytest.mark.slow
def test_no_room_for_a_temporary_file_of_workers(run, disk, data, finished, tmp_path):
    """Workers do without it."""
    small = disk(kilobytes=64)
    small.fill()
    options = train_options(data, tmp_path / "run", workers=2)

    run(*options, before=small.enter, TMPDIR=small.path, limit=2 * LIMIT_OF_FAULTS).check_done()

    check_same_run(tmp_path / "run", finished)


@pytest.mark.slow
def test_no_room_for_shared_memory(run, disk, data, tmp_path):
    """Batches of workers need shared memory; without room for it the run ends in a word."""
    small = disk(kilobytes=64)
    small.fill()
    before = small.enter + OVER_SHM.format(path=small.path)
    options = train_options(data, tmp_path / "run", workers=2)

    run(*options, before=before, limit=2 * LIMIT_OF_FAULTS).check_refused("worker")
