"""What a run logs: figures, errors, and what its files leave behind in the process."""

from __future__ import annotations

import errno
import gc
import json
import re
import threading
import weakref

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gapless.errors import LoaderError
from gapless.nmt.run_folder.disk_space import DiskTroubles
from gapless.nmt.run_folder.logs import ErrorLog, LossLog, MetricsFile, RunLogs, go_back


# --- metrics.jsonl ---


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


# --- errors.log ---


def texts(folder):
    """Return the lines of the log without their times."""
    lines = (folder / "errors.log").read_text(encoding="utf-8").splitlines()
    return [re.sub(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ  ", "", line) for line in lines]


def test_a_run_without_trouble_has_no_log(tmp_path):
    """The file is made with its first line."""
    ErrorLog(tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_warnings_and_errors_are_lines_in_order(tmp_path):
    """A resumed run goes on with the file, and our own errors have no traceback."""
    ErrorLog(tmp_path).warning("the disk is full", update=7)
    ErrorLog(tmp_path).error(LoaderError("a worker\nended"), update=12)

    assert texts(tmp_path) == [
        "update 7  warning: the disk is full",
        "update 12  error: a worker ended",
    ]


def test_another_error_has_its_traceback_below(tmp_path):
    """What should not have been can be reported from the file alone."""
    try:
        raise KeyError("weights")
    except KeyError as error:
        ErrorLog(tmp_path).error(error, update=3)

    first, *rest = texts(tmp_path)
    assert first == "update 3  error: KeyError: 'weights'"
    assert rest[0] == "  Traceback (most recent call last):"
    assert any("test_logs.py" in line for line in rest)


def test_a_name_that_is_no_text(tmp_path):
    """It is shown with escapes, as on standard error, and is no further error."""
    ErrorLog(tmp_path).warning("r\udcff: the disk is full", update=1)

    assert texts(tmp_path) == [r"update 1  warning: r\udcff: the disk is full"]


def test_a_folder_that_takes_nothing_is_no_further_error(tmp_path):
    """The same text is on standard error; the log may fail in silence."""
    log = ErrorLog(tmp_path / "gone")

    log.warning("the folder is gone", update=1)

    assert not (tmp_path / "gone").exists()


# --- what files leave behind ---


def test_a_thread_that_stays_holds_nothing_of_a_run(tmp_path):
    """Libraries start threads that live as long as the process, and each keeps the hook of its start."""
    goes_on = threading.Event()
    with RunLogs(tmp_path, troubles=DiskTroubles(print)) as folder:
        thread = threading.Thread(target=goes_on.wait)
        thread.start()
    gone = weakref.ref(folder)
    del folder
    gc.collect()

    try:
        assert gone() is None
    finally:
        goes_on.set()
        thread.join()


def test_errors_of_other_threads_are_told_as_ever(tmp_path, monkeypatch):
    """The hook of before gets them, during a run and after it."""
    told = []
    monkeypatch.setattr(threading, "excepthook", lambda error: told.append(error.exc_type))

    def fail():
        raise OSError

    with RunLogs(tmp_path, troubles=DiskTroubles(print)):
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
    after = threading.Thread(target=fail)
    after.start()
    after.join()

    assert told == [OSError, OSError]


# --- losses ---


class Arriving:
    """Losses and their tokens; as many are on the host as `num_here` says."""

    num_added = 0
    num_here = 0

    def read_since(self, first):
        return [(1.0, 3), (5.0, 1), (2.0, 2)][first : self.num_here]


def test_losses_that_arrive_together_are_one_point_of_the_curve(tmp_path):
    """Their mean by tokens, at the last of them; the file has each."""
    logs, losses = RunLogs(tmp_path, troubles=DiskTroubles()), Arriving()
    log = LossLog(logs, losses, first_batch=10, look_at=lambda number, loss: None)
    for losses.num_here in (0, 2, 3, 3):
        log.write_new()
    logs.close()

    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(row["step"], row["loss"]) for row in rows] == [(10, 1.0), (11, 5.0), (12, 2.0)]
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert board.Tags()["scalars"] == ["train/loss"]
    assert [(one.step, one.value) for one in board.Scalars("train/loss")] == [(11, 2.0), (12, 2.0)]
