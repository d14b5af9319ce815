"""Cores that a process may use."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gapless.device.cores import num_cores


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_a_process_that_was_given_one_core_has_one():
    """As under `taskset`, or a scheduler's job, on a machine with many."""
    code = (
        "import os\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from gapless.device.cores import num_cores\n"
        "print(num_cores())"
    )

    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert found.stdout == "1\n"


@pytest.mark.parametrize(("told", "expected"), [(6, 6), (None, 1)])
def test_where_the_system_does_not_tell_it_is_all_cores(monkeypatch, told, expected):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: told)

    assert num_cores() == expected
