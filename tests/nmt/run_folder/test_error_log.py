"""`errors.log`: what went wrong in a run."""

from __future__ import annotations

import re

from gapless.errors import LoaderError
from gapless.nmt.run_folder.logs import ErrorLog


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
    assert any("test_error_log.py" in line for line in rest)


def test_a_name_that_is_no_text(tmp_path):
    """It is shown with escapes, as on standard error, and is no further error."""
    ErrorLog(tmp_path).warning("r\udcff: the disk is full", update=1)

    assert texts(tmp_path) == [r"update 1  warning: r\udcff: the disk is full"]


def test_a_folder_that_takes_nothing_is_no_further_error(tmp_path):
    """The same text is on standard error; the log may fail in silence."""
    log = ErrorLog(tmp_path / "gone")

    log.warning("the folder is gone", update=1)

    assert not (tmp_path / "gone").exists()
