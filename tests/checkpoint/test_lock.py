"""One writer for a folder."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time

import pytest

from gapless.checkpoint import CheckpointStore, RunLock, RunLockedError
from gapless.checkpoint.files import Disk


@pytest.fixture
def start():
    """Start Python code in a process of its own; return it when it has printed a line."""
    started = []

    def run(code, *arguments):
        process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        started.append(process)
        return process, process.stdout.readline().strip()

    yield run
    for process in started:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


HOLD = """
import sys
from pathlib import Path
from gapless.checkpoint import RunLock
lock = RunLock(Path(sys.argv[1]))
lock.acquire()
print("held", flush=True)
sys.stdin.readline()
"""

# A child that was forked, as loader workers are, and is stuck, as they may be.
HOLD_WITH_CHILD = """
import os, sys, time
from pathlib import Path
from gapless.checkpoint import RunLock
lock = RunLock(Path(sys.argv[1]))
lock.acquire()
child = os.fork()
if not child:
    os.close(1)
    time.sleep(600)
print(child, flush=True)
sys.stdin.readline()
"""


def take(path):
    """Take the lock when it is free, and give it back."""
    end = time.monotonic() + 20
    while True:
        try:
            with RunLock(path):
                return
        except RunLockedError:
            assert time.monotonic() < end
            time.sleep(0.01)


def test_a_second_writer_is_refused_and_told_who_writes(tmp_path, start):
    """In another process and in this one; the message names process, host and folder."""
    process, _ = start(HOLD, tmp_path / "lock")

    with pytest.raises(RunLockedError) as raised:
        RunLock(tmp_path / "lock").acquire()

    text = str(raised.value)
    assert f"{tmp_path} is being written by process {process.pid} on host " in text
    assert "\n" not in text
    assert str(process.pid) in (tmp_path / "lock").read_text()


def test_who_writes_is_asked_without_a_trace(tmp_path, start):
    """The answer names the process, and nobody where the lock is free or was never made."""
    lock = RunLock(tmp_path / "lock")
    assert lock.holder() is None
    assert list(tmp_path.iterdir()) == []
    process, _ = start(HOLD, tmp_path / "lock")

    assert f"process {process.pid} on host " in str(lock.holder())
    process.kill()
    process.wait()
    assert lock.holder() is None
    take(tmp_path / "lock")


def test_a_killed_process_leaves_no_lock(tmp_path, start):
    """The kernel gives it back."""
    process, _ = start(HOLD, tmp_path / "lock")
    process.kill()
    process.wait()

    take(tmp_path / "lock")


def test_a_forked_child_does_not_keep_the_lock(tmp_path, start):
    """A stuck worker keeps no dead run locked; while the parent lives, the lock is held."""
    process, child = start(HOLD_WITH_CHILD, tmp_path / "lock")
    try:
        with pytest.raises(RunLockedError):
            RunLock(tmp_path / "lock").acquire()
        process.kill()
        process.wait()

        take(tmp_path / "lock")
        os.kill(int(child), 0)
    finally:
        os.kill(int(child), signal.SIGKILL)


def test_the_lock_survives_who_reads_its_file(tmp_path):
    """To close another descriptor of the file does not unlock it."""
    with RunLock(tmp_path / "lock"):
        assert (tmp_path / "lock").read_text().startswith(f"process {os.getpid()} on host ")
        with pytest.raises(RunLockedError):
            RunLock(tmp_path / "lock").acquire()

    with RunLock(tmp_path / "lock"):
        pass


def test_a_lock_can_be_given_back_twice(tmp_path):
    """The second time nothing happens."""
    lock = RunLock(tmp_path / "lock")
    lock.acquire()
    lock.release()
    lock.release()

    assert (tmp_path / "lock").read_text() == ""


class WatchedDisk(Disk):
    """Notes at each change of a name whether another one could save into the folder meanwhile."""

    def __init__(self, folder):
        self.folder, self.was_free = folder, []

    def rename(self, old, new):
        file = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.was_free.append(True)
        except BlockingIOError:
            self.was_free.append(False)
        finally:
            os.close(file)
        super().rename(old, new)


def test_saves_into_one_folder_take_turns(tmp_path):
    """While one puts its checkpoint in place and removes an old one, others wait for their turn."""
    disk = WatchedDisk(tmp_path)
    store = CheckpointStore(tmp_path, keep=1, disk=disk)

    for step in (1, 2):
        store.save(step, {}, {})

    assert disk.was_free == [False, False, False]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000002"]
