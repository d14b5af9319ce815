"""No worker process outlives the loop that used it, whatever ended the loop."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time
from multiprocessing.connection import wait
from multiprocessing.util import Finalize
from pathlib import Path

import pytest
import torch

import gapless
from gapless.loop.train_loop import TrainLoop
from gapless.nmt.run.stopping import StopRequest, until_stopped


class PlannedError(Exception):
    """An error that nobody has a reason to catch."""


class Numbers(torch.utils.data.Dataset):
    """Ninety numbers; the one in the middle is what something happens to."""

    def __init__(self, at_middle=lambda: None):
        self._at_middle = at_middle

    def __len__(self):
        return 90

    def __getitem__(self, number):
        if number == 45:
            self._at_middle()
        return torch.tensor(float(number))


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        while True:
            yield torch.tensor(1.0)


def fail(*_):
    raise PlannedError


def fail_at_middle(batch):
    if batch[0] == 45:
        raise PlannedError
    return torch.stack(batch)


def make_loader(dataset, **settings):
    settings = {"batch_size": 3, "num_workers": 2, **settings}
    return torch.utils.data.DataLoader(dataset, **settings)


class Update(torch.Tensor):
    """A batch of the trainer's, which says whether it ends an update."""

    ends_update = True


def update_of(batch):
    return torch.stack(batch).as_subclass(Update)


def mean_of(batch):
    return batch.mean()


def ignore_terminations(worker):
    """Have the first worker stay when it is told to end."""
    if not worker:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        Finalize(None, time.sleep, (600,), exitpriority=0)


def failing_step(batch):
    if batch[0] >= 45:
        raise PlannedError
    return batch.mean()


def interrupted_step(batch):
    if batch[0] >= 45:
        signal.raise_signal(signal.SIGINT)
    return batch.mean()


# Torch notices a worker's death by a signal, or by what it was just reading from it.
DEATH = (RuntimeError, OSError, EOFError)

# What happens, which loader and step, what the user sees.
MISHAPS = {
    "the dataset raises": (lambda: make_loader(Numbers(fail)), mean_of, PlannedError),
    "the collate function raises": (
        lambda: make_loader(Numbers(), collate_fn=fail_at_middle),
        mean_of,
        PlannedError,
    ),
    "the dataset raises through the trainer's generator": (
        lambda: until_stopped(make_loader(Numbers(fail), collate_fn=update_of), StopRequest()),
        mean_of,
        PlannedError,
    ),
    "a worker exits": (lambda: make_loader(Numbers(lambda: os._exit(3))), mean_of, DEATH),
    "a worker is killed": (
        lambda: make_loader(Numbers(lambda: os.kill(os.getpid(), signal.SIGKILL))),
        mean_of,
        DEATH,
    ),
    "the step raises": (lambda: make_loader(Numbers()), failing_step, PlannedError),
    "Ctrl-C": (lambda: make_loader(Numbers()), interrupted_step, KeyboardInterrupt),
    "the callback raises": (lambda: make_loader(Endless()), mean_of, PlannedError),
}


@pytest.fixture(scope="module")
def first_loader():
    """Start workers once, for what torch makes once in a process."""
    list(make_loader(Numbers()))


@pytest.fixture(autouse=True)
def ctrl_c_interrupts():
    """A shell starts its background processes with SIGINT ignored, and Python keeps it so."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.fixture
def workers(first_loader):
    """Collect the pids of worker processes, and check in the end that no thread or file is left."""
    gc.collect()
    threads, files = set(threading.enumerate()), num_open_files()
    seen = Workers()
    yield seen
    gc.collect()
    for thread in set(threading.enumerate()) - threads:
        thread.join(timeout=60)  # a queue's feeder ends by itself, a little later
    assert set(threading.enumerate()) <= threads
    # A worker's death may raise while torch holds a file descriptor that it has just received.
    assert num_open_files() <= files or seen.one_died


def num_open_files():
    return len(list(Path("/dev/fd").iterdir()))


class Workers:
    """The worker processes that were seen."""

    def __init__(self):
        self._seen = set()
        self.one_died = False

    def look(self):
        self._seen |= {process.pid for process in multiprocessing.active_children()}

    def are_gone(self):
        return not multiprocessing.active_children() and not any(map(is_alive, self._seen))

    def were_seen(self):
        return len(self._seen) == 2


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# Torch opens temporary files to see why a worker's connection broke. The signal of that worker's end
# may arrive while it does, and then one of them is not closed.
@pytest.mark.quick_cases(3)
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
# Of a worker that is killed while it sends a tensor.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.parametrize("mishap", MISHAPS)
def test_no_worker_outlives_an_epoch_that_failed(workers, mishap):
    """While the exception is still held, workers are gone, losses are read, a new epoch runs."""
    make, step, kind = MISHAPS[mishap]
    workers.one_died = kind is DEATH

    def look(progress):
        workers.look()
        if mishap == "the callback raises" and progress.batch == 15:
            raise PlannedError

    with TrainLoop(device="cpu") as loop:
        with pytest.raises(kind) as caught:
            loop.run_epoch(make(), step, on_batch=look)

        assert workers.were_seen()
        assert workers.are_gone()
        found = loop.losses.history
        assert mishap == "the callback raises" or [3.0 * n + 1 for n in range(len(found))] == found
        assert len(found) == 15 or kind is DEATH
        again = loop.run_epoch(make_loader(Numbers()), mean_of)
        assert [3.0 * n + 1 for n in range(30)] == again.losses
        assert workers.are_gone()
    del caught


def test_a_death_is_raised_where_a_batch_is_read(workers):
    """Torch's signal would raise it inside a step, or inside the clean-up after another error."""
    begun, ended = [], []
    workers.one_died = True

    def step(batch):
        begun.append(batch)
        workers.look()
        if len(begun) == 3:
            victim = multiprocessing.active_children()[0]
            victim.kill()
            wait([victim.sentinel], timeout=60)
            time.sleep(0.1)  # its signal is handled now
        ended.append(batch)
        return batch.mean()

    with TrainLoop(device="cpu") as loop, pytest.raises(DEATH):
        loop.run_epoch(make_loader(Endless()), step)

    assert len(begun) == len(ended) >= 3
    assert workers.were_seen()
    assert workers.are_gone()


@pytest.mark.slow  # torch waits twice five seconds
def test_a_worker_that_does_not_end_is_killed(workers):
    """One that ignores SIGTERM too, which is all that torch sends."""
    loader = make_loader(Numbers(), worker_init_fn=ignore_terminations)
    batches = iter(gapless.prefetch(loader, "cpu"))
    for _ in batches:
        workers.look()
        break

    batches.close()

    assert workers.were_seen()
    assert workers.are_gone()


@pytest.mark.parametrize("way", ["break", "close", "raise", "interrupt"])
def test_no_worker_outlives_a_loop_that_was_left(workers, way):
    """Out of somebody else's loop over `prefetch`: break, close, an error, an interrupt."""
    batches = iter(gapless.prefetch(make_loader(Endless()), "cpu"))
    held = None
    try:
        for number, _ in enumerate(batches):
            workers.look()
            if number == 3 and way == "break":
                break
            if number == 3 and way == "close":
                batches.close()
            if number == 3 and way in ("raise", "interrupt"):
                # As if it happened while the next batch was read.
                batches._batches.throw(
                    {"raise": PlannedError, "interrupt": KeyboardInterrupt}[way]
                )
    except (PlannedError, KeyboardInterrupt) as error:
        held = error
    if way == "break":
        del batches

    assert (held is None) == (way in ("break", "close"))
    assert workers.were_seen()
    assert workers.are_gone()


def test_persistent_workers_stay(workers):
    """Who asked for workers that stay keeps them through a failure, and can go on with them."""
    loader = make_loader(Numbers(), persistent_workers=True)
    with TrainLoop(device="cpu") as loop:
        with pytest.raises(PlannedError):
            loop.run_epoch(loader, failing_step, on_batch=lambda _: workers.look())
        assert not workers.are_gone()
        assert [3.0 * n + 1 for n in range(30)] == loop.run_epoch(loader, mean_of).losses
    del loader
