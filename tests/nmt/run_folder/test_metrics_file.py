"""The file of figures, and how much of it a state covers."""

from __future__ import annotations

import errno
import json

import pytest

from gapless.nmt.run_folder.disk_space import DiskTroubles
from gapless.nmt.run_folder.logs import MetricsFile, go_back


def write(path, *rows):
    """Append rows; return what the file holds then, as a state notes it."""
    file = MetricsFile(path, troubles=DiskTroubles())
    for kind, step in rows:
        file.write({"kind": kind, "step": step, "loss": 0.5})
    content = file.content()
    file.close()
    return content


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def test_a_resumed_run_drops_what_its_state_does_not_cover(path):
    """To the byte, whatever stands there; and goes on with the hash of the rest."""
    covered = write(path, ("train", 0), ("train", 1), ("epoch", 1))
    before = path.read_bytes()
    write(path, ("train", 2))
    path.write_bytes(path.read_bytes() + b'{"kind": "tr\xff')

    assert go_back(path, covered=covered, batches=2, updates=1, epochs=1) is None
    assert path.read_bytes() == before
    assert write(path) == covered


def test_a_new_run_begins_with_an_empty_file(path):
    """What another left behind is no part of it."""
    path.write_bytes(b"old\n")

    assert go_back(path, covered=None, batches=0, updates=0, epochs=0) is None
    assert path.read_bytes() == b""


@pytest.mark.parametrize(
    ("damage", "kept"),
    [
        (lambda data: data[:-5], 2),
        (lambda data: data.replace(b"0.5", b"0,5", 1), 2),
        (lambda data: data.replace(b"0.5", b"0.6", 1), 3),
        (lambda data: b"\x00" * len(data), 0),
        (lambda data: b"[1]\n3\nnull\n{}\n" + data, 3),
        (lambda data: b"[" * 100_000 + b"\n" + data, 3),
        (lambda data: b"", 0),
    ],
)
def test_damaged_lines_are_named_and_stop_no_run(path, damage, kept):
    """The whole ones are kept, in order; a line says how many."""
    covered = write(path, ("train", 0), ("train", 1), ("epoch", 1))
    write(path, ("train", 2), ("epoch", 2))
    path.write_bytes(damage(path.read_bytes()[: covered.size]))

    note = go_back(path, covered=covered, batches=2, updates=1, epochs=1)

    assert str(path) in note
    assert f"{kept} lines of it are kept" in note
    assert path.read_bytes().count(b"\n") == kept


def test_validations_inside_epochs_are_kept_too(path):
    """Each kind of line counts steps of its own: batches, updates or epochs."""
    covered = write(path, ("train", 0), ("train", 1), ("validation", 1), ("train", 2))
    write(path, ("train", 3), ("validation", 2))
    path.write_bytes(path.read_bytes().replace(b"0.5", b"0,5", 1))

    note = go_back(path, covered=covered, batches=3, updates=1, epochs=0)

    assert "3 lines of it are kept" in note
    kinds = [json.loads(line)["kind"] for line in path.read_text().splitlines()]
    assert kinds == ["train", "validation", "train"]


def test_a_file_that_is_gone_is_damage(path):
    """The run goes on, and says so."""
    covered = write(path, ("train", 0))
    path.unlink()

    assert "0 lines of it are kept" in go_back(
        path, covered=covered, batches=1, updates=1, epochs=0
    )


def test_lines_wait_for_room(path):
    """A full disk is told of once; when there is room all lines are written, in order."""
    told = []
    file = MetricsFile(path, troubles=DiskTroubles(told.append))
    real = file._file

    class Full:
        def write(self, data):
            raise OSError(errno.ENOSPC, "No space left on device")

    file._file = Full()
    for step in (0, 1):
        file.write({"step": step})
        file.flush()
    with pytest.raises(OSError, match="No space left"):
        file.sync()
    file._file = real
    file.write({"step": 2})
    file.flush()
    file.sync()
    file.close()

    assert len(told) == 1
    assert path.read_text() == '{"step": 0}\n{"step": 1}\n{"step": 2}\n'
