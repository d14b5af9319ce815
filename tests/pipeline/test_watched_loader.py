"""A watched loader names what went wrong with a worker, and leaves no process behind."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from gapless.errors import LoaderError
from gapless.pipeline.loader_worker import prepare_worker
from gapless.pipeline.watched_loader import WatchedLoader


class Numbers(torch.utils.data.Dataset):
    """Numbers in tensors; something happens in the worker that makes the one at 40."""

    def __init__(self, at_40=lambda: None):
        self._at_40 = at_40

    def __len__(self):
        return 60

    def __getitem__(self, number):
        if number == 40:
            self._at_40()
        return torch.full((100,), float(number))


def watch(dataset, *, workers=2, timeout=60.0):
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=None,
        num_workers=workers,
        persistent_workers=workers > 0,
        worker_init_fn=prepare_worker if workers else None,
    )
    return WatchedLoader(loader, timeout_seconds=timeout)


def read(loader):
    return [int(batch[0]) for batch in loader]


def fail():
    raise ValueError("no such pair")


def allow_no_memory_file():
    # As if there were no room for what a batch is shared through.
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))


def stop_iterating():
    raise StopIteration


def end_by(number):
    os.kill(os.getpid(), number)


FAULTS = {
    "killed": (lambda: end_by(signal.SIGKILL), r"loader worker \d+ was killed by SIGKILL"),
    "out of shared memory": (lambda: end_by(signal.SIGBUS), "SIGBUS.* enlarge /dev/shm"),
    "exits": (lambda: os._exit(3), "exit code 3"),
    "raises": (fail, "a loader worker failed: ValueError: no such pair"),
    "raises what ends a loop": (stop_iterating, "a loader worker failed: StopIteration"),
    "cannot hand over": (allow_no_memory_file, "a loader worker failed: .*File too large"),
    "stopped": (lambda: end_by(signal.SIGSTOP), r"no batch came .* within 2 s"),
    "busy": (lambda: time.sleep(600), r"no batch came .* within 2 s"),
}


# The others take seconds, or differ little.
QUICK = ("killed", "raises", "cannot hand over")


@pytest.mark.parametrize(
    "fault",
    [fault if fault in QUICK else pytest.param(fault, marks=pytest.mark.slow) for fault in FAULTS],
)
def test_a_worker_at_fault(fault, capfd):
    """The pass ends with one error, the workers are gone, and they have printed nothing."""
    at_40, message = FAULTS[fault]
    loader = watch(Numbers(at_40), timeout=2.0 if "within 2 s" in message else 60.0)
    seen = []
    with pytest.raises(LoaderError, match=message) as caught:
        for batch in loader:
            seen.append(int(batch[0]))
    pids = [process.pid for process in multiprocessing.active_children()]
    loader.close()

    assert seen == list(range(len(seen)))
    assert len(seen) <= 40
    assert "\n" not in str(caught.value)
    assert multiprocessing.active_children() == []
    assert capfd.readouterr() == ("", "")
    # Torch leaves behind the file that it cannot make large enough.
    for path in [path for pid in pids for path in Path("/dev/shm").glob(f"torch_{pid}_*")]:
        path.unlink()


def test_workers_stay_from_pass_to_pass():
    """A pass that was cut short, and whole ones, use the same workers; closing ends them."""
    loader = watch(Numbers())
    cut = iter(loader)
    next(cut)
    cut.close()
    started = {process.pid for process in multiprocessing.active_children()}

    assert [list(range(60))] * 2 == [read(loader), read(loader)]
    assert len(started) == 2
    assert started == {process.pid for process in multiprocessing.active_children()}
    loader.close()
    assert multiprocessing.active_children() == []
    assert list(range(60)) == read(loader)
    loader.close()


def test_workers_ignore_the_signals_that_stop_a_run():
    """A signal to the whole process group stops the training process, not its workers."""
    loader = watch(Numbers())
    batches = iter(loader)
    workers = multiprocessing.active_children()
    # They take turns: each has begun by then.
    found = [int(next(batches)[0]) for _ in workers]
    for process in workers:
        for number in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"):
            os.kill(process.pid, signal.Signals[number])
    found += [int(batch[0]) for batch in batches]

    assert list(range(60)) == found
    loader.close()


def test_a_stuck_worker_is_ended():
    """A worker that does not end when it is told to is killed."""
    loader = watch(Numbers())
    next(iter(loader))
    for process in multiprocessing.active_children():
        os.kill(process.pid, signal.SIGSTOP)
    loader.close()

    assert multiprocessing.active_children() == []


KILLED = """
import os, signal, sys, torch
from test_watched_loader import Numbers, watch
loader = watch(Numbers())
next(iter(loader))
pids = [worker.pid for worker in loader._workers()]
os.kill(pids[0], signal.SIGSTOP)
print(*pids, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of such a death")
def test_workers_die_with_the_training_process():
    """Where the training process is killed, its workers are gone, and silent, a stuck one too."""
    paths = [str(Path(__file__).parent), *sys.path]
    done = subprocess.run(
        [sys.executable, "-c", KILLED],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stderr == ""
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    deadline = time.monotonic() + 60
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_running(pid):
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    # A zombie that nobody has asked for.
    return stat.rpartition(")")[2].split()[0] != "Z"
