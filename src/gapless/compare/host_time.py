"""Processor time of this process and of the loader workers that it started."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path


def cpu_seconds() -> float:
    """Return the processor time used so far by this process and its children, in seconds.

    Children that have ended are in the account of the system. Those that run are looked up in
    /proc: where there is none, as on a Mac, their time is missing until they end.

    Sync: Does not block the host on the device.
    """
    own = os.times()
    ended = own.children_user + own.children_system
    running = sum(_running(child.pid) for child in multiprocessing.active_children())
    return own.user + own.system + ended + running


def _running(pid: int | None) -> float:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    # Fields 14 and 15 of proc(5): user and system time in ticks. The second is a name in brackets
    # that may hold anything.
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
