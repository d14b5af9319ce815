"""Set up a worker process of a loader: signals, its end with the training process, lost batches."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from multiprocessing import parent_process
from typing import Any

from gapless.device.torch_private import ExceptionWrapper
from gapless.python_private import exit_now, report_what_queues_drop


# Reach every process of a terminal or of a batch job. The training process decides what they mean,
# and needs its workers until the update is complete.
_FOR_THE_TRAINING_PROCESS = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
    *(signal.SIGUSR1, signal.SIGUSR2),
)

_PR_SET_PDEATHSIG = 1


def prepare_worker(worker: int) -> None:
    """Prepare a worker process; a `worker_init_fn`.

    The worker ignores the signals that stop a run, dies with the training process, and reports a batch
    that it cannot send. The caller has to end the workers, as
    `gapless.pipeline.watched_loader.WatchedLoader` does.
    """
    del worker
    signal.set_wakeup_fd(-1)
    for number in _FOR_THE_TRAINING_PROCESS:
        signal.signal(number, signal.SIG_IGN)
    # Torch's handlers would print a line about these. The exit code names the signal anyway.
    for number in (signal.SIGBUS, signal.SIGSEGV, signal.SIGFPE):
        signal.signal(number, signal.SIG_DFL)
    # The thread that hands batches over prints the end of the training process as an error.
    sys.excepthook = _say_nothing
    _die_with_parent()
    report_what_queues_drop(_report)


def _die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies.

    Torch's workers look between two batches whether the parent lives. A worker that is stuck, for example
    in a write to a full pipe, never gets there.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = parent_process()
    if parent is not None and parent.pid != os.getppid():
        exit_now(1)  # it died before


def _say_nothing(*error: object) -> None:
    del error


def _report(queue: Any, error: Exception, item: Any) -> None:
    """Send the error instead of a batch that could not be sent, for example for lack of memory.

    Python would print it and drop the batch, and the training process would wait for that batch for ever.
    """
    if isinstance(item, tuple) and ExceptionWrapper is not None:
        queue.put((item[0], ExceptionWrapper(sys.exc_info(), where="while it was handed over")))
    else:
        exit_now(1)  # what is on the pipe may be half a message
