"""The files of a run: what they leave behind in the process."""

from __future__ import annotations

import gc
import threading
import weakref

from gapless.nmt.run_folder.disk_space import DiskTroubles
from gapless.nmt.run_folder.logs import RunLogs


def test_a_thread_that_stays_holds_nothing_of_a_run(tmp_path):
    """Libraries start threads that live as long as the process, and each keeps the hook of its start."""
    goes_on = threading.Event()
    with RunLogs(tmp_path, troubles=DiskTroubles(print)) as folder:
        thread = threading.Thread(target=goes_on.wait)
        thread.start()
    gone = weakref.ref(folder)
    del folder
    gc.collect()

    try:
        assert gone() is None
    finally:
        goes_on.set()
        thread.join()


def test_errors_of_other_threads_are_told_as_ever(tmp_path, monkeypatch):
    """The hook of before gets them, during a run and after it."""
    told = []
    monkeypatch.setattr(threading, "excepthook", lambda error: told.append(error.exc_type))

    def fail():
        raise OSError

    with RunLogs(tmp_path, troubles=DiskTroubles(print)):
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
    after = threading.Thread(target=fail)
    after.start()
    after.join()

    assert told == [OSError, OSError]
