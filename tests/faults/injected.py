"""Python code that runs in a process before gapless, and makes what would be rare happen.

It changes what torch, Python or the system do, and nothing of gapless.
"""

from __future__ import annotations


# Each backward pass takes 10 ms longer, so that a signal arrives while the run trains.
SLOW = """
import time, torch
backward = torch.autograd.backward
def slow_backward(*args, **kwargs):
    time.sleep(0.01)
    return backward(*args, **kwargs)
torch.autograd.backward = slow_backward
"""

# The number of backward passes that have ended stands in the file `updates` of the working folder.
COUNTED = """
import os, torch
counted, count = torch.autograd.backward, [0]
number = os.open("updates", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
def counted_backward(*args, **kwargs):
    result = counted(*args, **kwargs)
    count[0] += 1
    os.pwrite(number, str(count[0]).encode(), 0)
    return result
torch.autograd.backward = counted_backward
"""

# Once the file `block` is in the working folder, every fsync takes ten minutes.
BLOCKED_FSYNC = """
import os, time
fsync = os.fsync
def blocked_fsync(number):
    if os.path.exists("block"):
        open("blocked", "w").close()
        time.sleep(600)
    return fsync(number)
os.fsync = os.fdatasync = blocked_fsync
"""

# The wall clock jumps back a day, and on by two, every few times that somebody looks.
JUMPING_CLOCK = """
import time
look, looks = time.time, [0]
def jumping():
    looks[0] += 1
    return look() + (-86400, 0, 2 * 86400)[looks[0] // 7 % 3]
time.time = jumping
time.time_ns = lambda: int(jumping() * 1e9)
"""


def failing_worker(error, *, after=10):
    """Return code with which a loader worker raises an error at some batch."""
    return f"""
import os
from torch.utils.data._utils import fetch
main, made = os.getpid(), [0]
for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
    def failing(self, *args, _fetch=kind.fetch):
        made[0] += os.getpid() != main
        if made[0] > {after}:
            raise {error}
        return _fetch(self, *args)
    kind.fetch = failing
"""
