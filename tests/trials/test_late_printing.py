"""What a script prints of late numbers: the same bytes, in the same order, by real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


SCRIPT = Path(__file__).with_name("printing_script.py")

# The script's device is one of the tests' own.
PATHS = [str(SCRIPT.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
WITH_TESTS = {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS)}


def line_of(text):
    """Return the number of the line of the script that has a text."""
    lines = SCRIPT.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def run(tmp_path, way, end):
    """Return the exit code, all that was written to both outputs, and what was logged to a file."""
    log = tmp_path / f"{way}.log"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), way, end, str(log)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=120,
        env=WITH_TESTS,
    )
    return done.returncode, done.stdout, log.read_text()


def test_the_same_is_printed_and_what_forces_is_named(tmp_path):
    """Both outputs and the log have the bytes of the script as written; plain numbers are left."""
    written = run(tmp_path, "written", "stop")
    late = run(tmp_path, "late", "stop")

    (text, details) = late[1][: len(written[1])], late[1][len(written[1]) :]
    assert (late[0], text, late[2]) == written
    assert "step  23" in text
    assert "reads could be late." in details
    assert f"{SCRIPT.name}:{line_of('# compares')} compares a value" in details
    assert f"{SCRIPT.name}:{line_of('right {total')} " not in details


@pytest.mark.slow
@pytest.mark.parametrize("end", ["raise", "exit"])
def test_what_is_held_back_is_written_at_the_end(tmp_path, end):
    """A script that raises or exits in the midst of it has written all before, and its traceback after."""
    assert run(tmp_path, "late", end) == run(tmp_path, "written", end)
