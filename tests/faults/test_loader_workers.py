"""A loader worker that dies, raises or says nothing ends the run in a word, and all with it."""

from __future__ import annotations

import os
import signal

import pytest

from faults.injected import SLOW, failing_worker
from faults.processes import LIMIT_OF_FAULTS
from faults.runs import check_same_run, newest_step, train_options


pytestmark = pytest.mark.xdist_group("processes: loader workers")


@pytest.fixture
def training(start, data, tmp_path):
    """A slow run with two workers that has saved; and the numbers of its workers."""

    def call(*more, before=""):
        process = start(
            *train_options(data, tmp_path / "run", workers=2), *more, before=SLOW + before
        )
        process.until(lambda: newest_step(tmp_path / "run") >= 20, what="an update was saved")
        workers = process.children()
        assert len(workers) == 2
        return process, workers

    return call


def check_goes_on(run, tmp_path, finished):
    """Check that nothing but time was lost."""
    run("train", "--resume", tmp_path / "run").check_done()
    check_same_run(tmp_path / "run", finished)


@pytest.mark.parametrize("which", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGSEGV, marks=pytest.mark.slow),
        pytest.param(signal.SIGBUS, marks=pytest.mark.slow),
    ],
    ids=lambda number: number.name,
)
def test_a_worker_that_is_killed(training, run, finished, tmp_path, number, which):
    """The run ends, names worker and signal, and goes on when it is resumed."""
    process, workers = training()

    os.kill(workers[which], number)
    ended = process.end(limit=LIMIT_OF_FAULTS)

    ended.check_refused("worker", number.name)
    check_goes_on(run, tmp_path, finished)


@pytest.mark.slow
def test_all_workers_killed_at_once(training, run, finished, tmp_path):
    """So does a run that loses all of its workers, as under memory pressure."""
    process, workers = training()

    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    ended = process.end(limit=LIMIT_OF_FAULTS)

    ended.check_refused("worker")
    check_goes_on(run, tmp_path, finished)


def test_a_worker_that_says_nothing(training, run, finished, tmp_path):
    """After the time that was given, a silent worker ends the run; a stopped one goes as well."""
    process, workers = training("--loader-timeout", 2)

    os.kill(workers[0], signal.SIGSTOP)
    ended = process.end(limit=LIMIT_OF_FAULTS + 2)

    ended.check_refused("worker", "--loader-timeout")
    check_goes_on(run, tmp_path, finished)


ERRORS = {
    "OSError(5, 'Input/output error', 'train.en')": ["Input/output error"],
    "MemoryError('no memory for a batch')": ["no memory for a batch"],
    "ValueError('a batch of nothing')": ["a batch of nothing"],
    "KeyError('two arguments', 3)": ["two arguments"],
    "StopIteration()": [],
    "SystemExit(3)": [],
    "KeyboardInterrupt()": [],
}


@pytest.mark.parametrize(
    "error",
    [
        next(iter(ERRORS)),
        *(pytest.param(error, marks=pytest.mark.slow) for error in list(ERRORS)[1:]),
    ],
)
def test_a_worker_that_raises(start, data, tmp_path, error):
    """What a worker raises ends the run with its text, whatever kind it is of."""
    process = start(
        *train_options(data, tmp_path / "run", workers=2), before=failing_worker(error, after=20)
    )

    ended = process.end(limit=LIMIT_OF_FAULTS + 30)

    assert ended.code not in (0, None)
    assert len(ended.errors) == 1, ended.err
    assert [part for part in ERRORS[error] if part not in ended.err] == []
    if error.startswith(("OSError", "MemoryError")):
        ended.check_no_traceback()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 4])
def test_an_end_without_faults_leaves_nobody(start, data, tmp_path, workers):
    """A run that is done ends its workers, and so does one that is stopped between two epochs."""
    ended = start(*train_options(data, tmp_path / "run", workers=workers)).end()

    ended.check_done()


@pytest.mark.slow
def test_a_stopped_worker_and_a_signal(training, run, finished, tmp_path):
    """A run whose workers do not answer ends at a SIGTERM all the same."""
    process, workers = training()
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)

    process.send(signal.SIGTERM)
    ended = process.end(limit=LIMIT_OF_FAULTS)

    assert ended.code == 143
    ended.check_no_traceback()
    check_goes_on(run, tmp_path, finished)


@pytest.mark.slow
def test_workers_of_a_killed_run(training):
    """Workers whose run was killed end by themselves."""
    process, _ = training()

    process.send(signal.SIGKILL)

    assert process.end(limit=LIMIT_OF_FAULTS).code == -signal.SIGKILL
