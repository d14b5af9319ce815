"""Files that a user names for a result."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path

import pytest

from gapless.cli.output import write_whole


def test_a_plain_file_is_replaced(tmp_path):
    """Nothing else is left in its folder."""
    path = tmp_path / "out.json"
    path.write_bytes(b"before, and longer")

    write_whole(path, b"now")

    assert path.read_bytes() == b"now"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path):
    """Also if that is not there yet."""
    for name in ("target", "new"):
        (tmp_path / f"{name}.link").symlink_to(tmp_path / name)
    (tmp_path / "target").write_bytes(b"before")

    for name in ("target", "new"):
        write_whole(tmp_path / f"{name}.link", b"now")

        assert (tmp_path / f"{name}.link").is_symlink()
        assert (tmp_path / name).read_bytes() == b"now"


def test_a_pipe_stays_one(tmp_path):
    """As a device does: it is written into, never replaced by a file."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read = []
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()), daemon=True)
    reader.start()

    write_whole(path, b"now")
    reader.join(10.0)

    assert read == [b"now"]
    assert path.is_fifo()


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no memory with names")
def test_a_plain_file_among_devices_is_one():
    """As in the memory that has the names of files."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder) / "out.json"
        for content in (b"before, and longer", b"now"):
            write_whole(path, content)

        assert path.read_bytes() == b"now"


def test_what_stands_among_devices_may_be_a_file_that_a_shell_has_open(tmp_path):
    """/dev/stdout of `gapless ... > log` is that log, whose name must not go to another file."""
    log = tmp_path / "log"
    log.write_bytes(b"a line\n")
    before = log.stat().st_ino
    with log.open("ab") as file:
        write_whole(Path(f"/dev/fd/{file.fileno()}"), b"now")

    assert log.read_bytes() == b"a line\nnow"
    assert log.stat().st_ino == before
