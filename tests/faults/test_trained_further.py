"""A finished run that is trained further: its old final weights are never taken for the new."""

from __future__ import annotations

import shutil
import signal

import pytest

from faults.injected import SLOW
from faults.runs import UPDATES, check_same_run, newest_step, tensors_in, train_options


pytestmark = pytest.mark.xdist_group("processes: trained further")


@pytest.fixture
def short(run, data, tmp_path):
    """A finished run of two epochs."""
    run(*train_options(data, tmp_path / "run", epochs=2)).check_done()
    return tmp_path / "run"


@pytest.mark.slow
def test_a_run_is_trained_further(short, run, finished):
    """Two epochs and one more end with the bits of three."""
    run("train", "--resume", short, "--epochs", 3).check_done()

    check_same_run(short, finished)


def test_final_weights_go_when_training_goes_on(short, start, run, finished):
    """A run that trains on and is killed has no final weights; then it gets the new ones."""
    old = tensors_in(short / "checkpoints" / "final")
    process = start("train", "--resume", short, "--epochs", 3, before=SLOW)
    process.until(lambda: newest_step(short) > 2 * UPDATES, what="it trained further")
    process.send(signal.SIGKILL)
    process.end()

    assert not (short / "checkpoints" / "final").exists()
    translated = run("translate", short, "--checkpoint", "final", "--device", "cpu", "red dog")
    translated.check_refused("final")
    run("train", "--resume", short).check_done()
    assert tensors_in(short / "checkpoints" / "final") != old
    check_same_run(short, finished)


@pytest.mark.slow
def test_a_finished_run_stays_finished(finished_copy, run, finished):
    """Resuming what is done changes nothing."""
    run("train", "--resume", finished_copy).check_done()

    check_same_run(finished_copy, finished)


@pytest.mark.slow
def test_a_finished_run_without_its_final_weights(finished_copy, run, finished):
    """A run that was killed before its last file was written is finished by a resume."""
    shutil.rmtree(finished_copy / "checkpoints" / "final")

    run("train", "--resume", finished_copy).check_done()

    check_same_run(finished_copy, finished)
