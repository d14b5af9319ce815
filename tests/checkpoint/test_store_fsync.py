"""What a save asks of the system, and what it does when the system says no; seen by strace."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from checkpoint.stores import check_is, load_newest, name_of, save_steps


def can_trace():
    """Whether this machine has strace and lets it trace."""
    if shutil.which("strace") is None:
        return False
    traced = subprocess.run(
        ["strace", "-f", "--seccomp-bpf", "-e", "trace=openat", "true"], capture_output=True
    )
    return traced.returncode == 0


pytestmark = pytest.mark.skipif(not can_trace(), reason="no strace here, or it may not trace")


def save_traced(folder, log, *faults, steps=(20,)):
    """Save steps in a process whose system calls are written down, some of which fail."""
    arguments = ["write", folder, steps[0], steps[-1], 10]
    return subprocess.run(
        [
            *("strace", "-f", "--seccomp-bpf", "-y", "-o", log),
            *("-e", "trace=openat,mkdir,mkdirat,rename,renameat,renameat2,fsync,fdatasync,unlink"),
            *(part for fault in faults for part in ("-e", f"inject={fault}")),
            *(sys.executable, "-m", "checkpoint.store_process", *map(str, arguments)),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "PYTHONDONTWRITEBYTECODE": "1",  # Python renames what it compiles
        },
    )


def calls_of(log, folder):
    """Return the successful calls about a store, in order: name and arguments."""
    lines = (line.split(maxsplit=1)[1] for line in log.read_text().splitlines())
    return [line for line in lines if str(folder) in line and " = -1 " not in line]


def test_the_order_of_a_save(tmp_path):
    """Each file and the folder are on the disk before the rename, and the rename after it."""
    folder, log = tmp_path / "store", tmp_path / "log"
    save_steps(folder, 10)

    done = save_traced(folder, log)

    assert done.returncode == 0, done.stderr
    calls = calls_of(log, folder)
    [renamed] = [
        n for n, call in enumerate(calls) if call.startswith("rename") and name_of(20) in call
    ]
    synced = [re.search(r"<(.*?)>", call)[1] if "sync(" in call else "" for call in calls]
    temporary = {str(Path(path).parent) for path in synced[:renamed] if "tensors.safe" in path}
    assert len(temporary) == 1
    [temporary] = temporary
    assert re.fullmatch(rf"{folder}/\.{name_of(20)}\.\d+\.tmp", temporary)
    before = synced[:renamed]
    for name in ("tensors.safetensors", "meta.json", "manifest.json"):
        assert f"{temporary}/{name}" in before
    assert temporary in before
    last_file = max(n for n, path in enumerate(before) if path.startswith(f"{temporary}/"))
    assert before.index(temporary, last_file) > last_file
    assert str(folder) in synced[renamed + 1 :]


@pytest.mark.slow
def test_a_new_folder_is_on_the_disk_too(tmp_path):
    """The folder that a first save makes is synced in the folder above it."""
    folder, log = tmp_path / "store", tmp_path / "log"

    done = save_traced(folder, log)

    assert done.returncode == 0, done.stderr
    lines = log.read_text().splitlines()
    assert [line for line in lines if "sync(" in line and f"<{tmp_path}>" in line] != []


@pytest.mark.slow
@pytest.mark.parametrize("which", [1, 4, 5])  # a file, the new folder, the one above
def test_a_failed_sync_writes_the_file_anew(tmp_path, which):
    """A sync that fails once may have lost data: what was written is written again."""
    folder, log = tmp_path / "store", tmp_path / "log"
    save_steps(folder, 10)

    done = save_traced(folder, log, f"fsync,fdatasync:error=EIO:when={which}")

    assert done.returncode == 0, done.stderr
    loaded = load_newest(folder)
    assert loaded.said == []
    check_is(loaded.checkpoint, 20)
    failed = re.search(r"sync\(\d+<(.*?)>\) += -1 EIO", log.read_text())
    assert failed, "no sync was there to fail"
    after = log.read_text()[failed.end() :]
    path = failed[1]
    if path.endswith((".json", ".safetensors")):
        name = Path(path).name
        assert re.search(rf'openat\(.*{re.escape(name)}", .*(O_WRONLY|O_RDWR)', after)
        assert re.search(rf"sync\(\d+<[^>]*{re.escape(name)}>\) += 0", after)


FAILING = {
    "a disk that never takes a sync": "fsync,fdatasync:error=EIO:when=1+",
    "no room for a name": "rename,renameat,renameat2:error=ENOSPC:when=1+",
}


@pytest.mark.slow
@pytest.mark.parametrize("failing", FAILING)
def test_what_always_fails(tmp_path, failing):
    """The save fails in a word and leaves nothing, and the one before stays."""
    folder, log = tmp_path / "store", tmp_path / "log"
    save_steps(folder, 10)

    done = save_traced(folder, log, FAILING[failing])

    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(("OSError", "gapless.errors.CheckpointError"))
    check_is(load_newest(folder).checkpoint, 10)
    assert [path.name for path in folder.iterdir()] == [name_of(10)]
