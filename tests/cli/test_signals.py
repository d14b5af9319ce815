"""Signals end a run politely, and at once where it does not end by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gapless
from cli.conftest import ONE_EPOCH
from gapless.cli import progress
from gapless.nmt.run_folder.checkpoint_writer import CheckpointWriter


SRC = str(Path(gapless.__file__).parents[1])

NUMBERS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]

# A run whose validation never ends, as if a disk or a device did not answer.
STUCK = """
import sys, time
from gapless.nmt.run import validation
def never_ends(*_, **__):
    print("stuck", flush=True)
    time.sleep(600)
validation.validate = never_ends
from gapless.cli.main import main
main(sys.argv[1:])
"""


@pytest.fixture
def handlers():
    """A process that was asked to stop ignores later signals; this one is not at its end."""
    former = {number: signal.getsignal(number) for number in NUMBERS}
    # A shell starts its background processes with SIGINT ignored, and `nohup` with SIGHUP.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield former
    for number, handler in former.items():
        signal.signal(number, handler)


@pytest.fixture
def signal_after_a_batch(monkeypatch, handlers):
    """Send a signal to this process when a run has queued its first batch."""

    def send(number):
        seen = []

        def batch_queued(self, record, *, run):
            seen.append(run.num_updates)
            if len(seen) == 1:
                os.kill(os.getpid(), number)

        monkeypatch.setattr(progress.TrainingProgress, "batch_queued", batch_queued)
        return seen

    return send


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]
)
def test_a_run_that_is_asked_to_stop(gapless, tiny_data, signal_after_a_batch, number, code):
    """It ends the update, saves, says how to go on, and its exit code names the signal."""
    seen = signal_after_a_batch(number)
    outcome = gapless("train", "--data", tiny_data, *ONE_EPOCH, "--run-dir", "r")

    assert outcome.code == code
    assert len(seen) == 1
    # A later one would only break the end of the process.
    assert signal.getsignal(number) is signal.SIG_IGN
    assert "stopped after 1 updates; go on with\n  gapless train --resume r\n" in outcome.out
    assert outcome.err == ""


def test_a_hang_up_that_is_ignored(gapless, tiny_data, signal_after_a_batch):
    """A run under nohup goes on when its terminal is closed."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    seen = signal_after_a_batch(signal.SIGHUP)
    outcome = gapless("train", "--data", tiny_data, *ONE_EPOCH, "--run-dir", "r")

    assert outcome.code == 0
    assert len(seen) > 1
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def start(code, *arguments, folder):
    return subprocess.Popen(
        [sys.executable, *code, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": SRC, "XDG_CACHE_HOME": str(folder / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts its background processes with SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def training(tiny_data):
    return ["train", "--data", tiny_data, *ONE_EPOCH, "--run-dir", "r"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("numbers", "flags", "code", "text"),
    [
        ([signal.SIGTERM], ["--grace", "0.5"], 143, "not done 0.5 s after SIGTERM"),
        ([signal.SIGTERM, signal.SIGINT], [], 130, "stopped at once"),
    ],
    ids=["after the grace", "a second signal"],
)
def test_a_run_that_does_not_end(tiny_data, tmp_path, numbers, flags, code, text):
    """A thread ends the process while the main thread is stuck, and takes the workers along."""
    arguments = [*training(tiny_data), "--workers", "1", *flags]
    running = start(["-c", STUCK], *arguments, folder=tmp_path)
    while "stuck" not in running.stdout.readline():
        assert running.poll() is None
    for number in numbers:
        running.send_signal(number)
        time.sleep(0.3)
    # Reads until no process holds the other end: none is left.
    _, error = running.communicate(timeout=60)

    assert running.returncode == code
    assert error == (
        "gapless: stopping; Ctrl-C again ends it at once\n"
        f"gapless: error: {text}; nothing is saved yet\n"
    )


@pytest.mark.slow
def test_nobody_reads_the_output(tiny_data, tmp_path):
    """`gapless train | head -1` trains to its end."""
    with start(["-m", "gapless"], *training(tiny_data), folder=tmp_path) as running:
        running.stdout.readline()
        running.stdout.close()
        error = running.stderr.read()

    assert running.returncode == 0
    line = "gapless: warning: standard output is closed; the run goes on without it"
    assert error.splitlines().count(line) == 1
    assert "Traceback" not in error
    assert (tmp_path / "r" / "summary.json").is_file()


def test_a_second_request_while_the_first_saves(
    gapless, tiny_data, signal_after_a_batch, monkeypatch
):
    """Who asks again, as supervisors do, does not cut the save short."""
    finish = CheckpointWriter.finish

    def finish_slowly(saver):
        os.kill(os.getpid(), signal.SIGTERM)
        finish(saver)

    monkeypatch.setattr(CheckpointWriter, "finish", finish_slowly)
    signal_after_a_batch(signal.SIGTERM)
    outcome = gapless("train", "--data", tiny_data, *ONE_EPOCH, "--run-dir", "r")

    assert outcome.code == 143
    assert outcome.err == ""
    assert [path.name for path in Path("r/checkpoints").glob("step-*")] == ["step-000000001"]
