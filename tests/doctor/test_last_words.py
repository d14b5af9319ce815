"""What was known of a script that dies is there, however it dies; its traceback is the last that is said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from faults.processes import environment


TRAINS = """\
import os, signal, sys, time
import torch

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range({steps}):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
{end}
"""
DEATHS = {
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    "os._exit": ("os._exit(3)", 3),
    "os.execv": ("os.execv(sys.executable, [sys.executable, '-c', 'raise SystemExit(4)'])", 4),
}
LAST_LINE = "ValueError: no such corpus\n"


def run(folder, *options, end, steps=100):
    """Run a script under the doctor in a process of its own; return it, ended."""
    (folder / "train.py").write_text(TRAINS.format(steps=steps, end=end))
    return subprocess.run(
        [sys.executable, "-m", "gapless", "doctor", *options, "train.py"],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(),
        timeout=300,
    )


@pytest.mark.parametrize("death", DEATHS)
def test_a_script_that_dies_has_its_reports(death, tmp_path):
    """All files are there, whole, and one line says where."""
    end, code = DEATHS[death]

    done = run(tmp_path, "--save", "s", "--out", "o", "--html", "h", end=end)

    assert done.returncode == code
    assert json.loads((tmp_path / "s").read_text())["steps"]["num_steps"] == 20
    assert "A step takes" in (tmp_path / "o").read_text()
    assert "</html>" in (tmp_path / "h").read_text()
    assert done.stderr == "gapless: report in o, s, h\n"


@pytest.mark.parametrize("death", DEATHS)
def test_a_report_that_was_to_be_printed_is_printed_by_another_process(death, tmp_path):
    """Once; also when the windows are not over yet."""
    end, code = DEATHS[death]

    done = run(tmp_path, end=end, steps=35)

    assert done.returncode == code
    assert done.stderr.count("A step takes") == done.stderr.count("gapless doctor\n") == 1
    assert "The script ended after" in done.stderr


def test_a_script_that_ends_by_itself_prints_its_report_once(tmp_path):
    """The other process has nothing to add, and is gone."""
    done = run(tmp_path, end="")

    assert done.returncode == 0
    assert done.stderr.count("A step takes") == done.stderr.count("gapless doctor\n") == 1


def test_processes_that_a_script_leaves_behind_keep_no_report_back(tmp_path):
    """What they have of the script's files does not count."""
    end = "pid = os.fork()\nif pid: os._exit(3)\ntime.sleep(60)"
    (tmp_path / "train.py").write_text(TRAINS.format(steps=100, end=end))

    with subprocess.Popen(
        [sys.executable, "-m", "gapless", "doctor", "train.py"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environment(),
        start_new_session=True,
    ) as process:
        lines = iter(process.stderr.readline, "")
        assert any("A step takes" in line for line in lines)
        os.killpg(process.pid, signal.SIGKILL)


def test_the_traceback_is_the_last_that_is_said(tmp_path):
    """Behind the report, so that nobody has to look for it."""
    done = run(tmp_path, end="raise ValueError('no such corpus')")

    assert done.returncode == 1
    report, traceback, _ = done.stderr.partition("Traceback (most recent call last)")
    assert "A step takes" in report
    assert traceback
    assert done.stderr.endswith(LAST_LINE)


def test_a_script_that_fails_before_its_loop_has_one_line_of_report(tmp_path):
    """Not all that the syntax of its files shows."""
    done = run(tmp_path, steps=0, end="raise ValueError('no such corpus')")

    first, *others = done.stderr.splitlines()
    assert first == "gapless doctor: the script failed before a step was seen"
    assert others[0] == "Traceback (most recent call last):"
    assert done.stderr.endswith(LAST_LINE)


@pytest.mark.parametrize("end", ["", "raise ValueError('no such corpus')"])
def test_a_step_that_the_script_has_not_is_told_with_those_that_it_has(end, tmp_path):
    """Whether the script fails or not, its steps are not said to be missing for that."""
    done = run(tmp_path, "--step", "nosuch", end=f"def train_step(): ...\n{end}", steps=9)

    said = " ".join(done.stderr.split())
    assert "No step was seen: train.py has no function nosuch; it has train_step." in said
    assert "failed before a step" not in said


def test_a_step_that_is_defined_after_a_failure_is_not_said_to_be_missing(tmp_path):
    """A script that fails has not run all of its file."""
    end = "raise ValueError('no such corpus')\ndef train_step(): ..."

    done = run(tmp_path, "--step", "train_step", end=end)

    assert "train_step was not called" in done.stderr
    assert "has no function" not in done.stderr
