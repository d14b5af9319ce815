"""Ranks that sum a number a step and beat, until something happens to one: `HARM RANK [OPTION=N...]`.

As on a GPU, a sum that another rank does not take part in never returns.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

from gapless.cli.signals import Signals
from gapless.nmt.run.stopping import StopRequest
from gapless.ranks.heartbeat import Heartbeat
from gapless.ranks.leaving import leave


UPDATES = 30
AT_UPDATE = 10


def main():
    harm, harmed, *options = sys.argv[1:]
    dist.init_process_group("gloo")
    limits = {name: float(value) for name, value in (one.split("=") for one in options)}
    rank = dist.get_rank()
    heartbeat = Heartbeat(
        dist.new_group(), rank=rank, world=dist.get_world_size(), **limits
    ).start()
    with Signals() as signals, StopRequest(second_raises=False):
        signals.may_raise()
        signals.on_stop = heartbeat.note_stop
        train(heartbeat, harm, harmed)
    if harm.endswith("_when_done"):
        harm_when_done(heartbeat, harm, harmed)
    end(heartbeat, harm)


def harm_when_done(heartbeat, harm, harmed):
    rank = dist.get_rank()
    # Nobody is harmed before all have come so far, and know that all is done.
    dist.barrier()
    if rank == 0:
        heartbeat.note_done()
    while not heartbeat._liveness.is_all_done():
        time.sleep(0.01)
    dist.barrier()
    if harmed == str(rank):
        HARMS[harm.removesuffix("_when_done")](heartbeat)


def train(heartbeat, harm, harmed):
    rank = dist.get_rank()
    if harm == "begins_with_the_lock" and harmed == str(rank):
        hold_the_lock()
    try:
        for number in range(1, UPDATES + 1):
            add(fails=harm == "sees_the_error")
            heartbeat.note_updates(number)
            if number == AT_UPDATE and harmed in (str(rank), "all") and harm in HARMS:
                HARMS[harm](heartbeat)
            time.sleep(0.01)
    except Exception:
        heartbeat.fail(traceback.print_exc, code=1)


def end(heartbeat, harm):
    if harm == "hangs_at_the_end":
        leave(heartbeat, hang, limit_seconds=0.5)
    else:
        leave(heartbeat, dist.destroy_process_group)
    print("done")


def add(*, fails):
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError:
        if fails:
            raise
        hang()


def hang():
    while True:
        time.sleep(1.0)


def is_killed(heartbeat):
    del heartbeat
    os.kill(os.getpid(), signal.SIGKILL)


def is_stopped(heartbeat):
    del heartbeat
    time.sleep(1.0)  # until the others have heard of updates
    os.kill(os.getpid(), signal.SIGSTOP)


def is_stopped_soon(heartbeat):
    """A tenth of a second after its first update: before the next beat would be due."""
    del heartbeat
    os.kill(os.getpid(), signal.SIGSTOP)


def is_stopped_in_a_pause(heartbeat):
    with heartbeat.pause():
        time.sleep(1.0)
        Path("harmed").touch()
        os.kill(os.getpid(), signal.SIGSTOP)


def raises(heartbeat):
    del heartbeat
    raise RuntimeError("planted in one rank")


def waits(heartbeat):
    del heartbeat
    hang()


def is_stopped_in_a_short_pause(heartbeat):
    with heartbeat.pause(may_be_silent=False):
        is_stopped(heartbeat)


def pauses(heartbeat):
    with heartbeat.pause():
        time.sleep(3.0)


def pauses_with_the_lock(heartbeat):
    with heartbeat.pause():
        hold_the_lock()


def hold_the_lock():
    """Let no other thread of Python run, as a library may that computes for long."""
    ctypes.PyDLL(None).sleep(3)


def nothing(heartbeat):
    del heartbeat


HARMS = {
    "nothing": nothing,
    "is_stopped_soon": is_stopped_soon,
    "hangs_at_the_end": nothing,
    "sees_the_error": is_killed,
    **{
        one.__name__: one
        for one in (is_killed, is_stopped, is_stopped_in_a_pause, is_stopped_in_a_short_pause)
    },
    **{one.__name__: one for one in (raises, waits, pauses, pauses_with_the_lock)},
}


if __name__ == "__main__":
    main()
