"""Processes that write and read a store, for tests that kill, crowd and starve them.

    python -m checkpoint.store_process write FOLDER FIRST LAST [STRIDE] [KEEP] [SIZE]
    python -m checkpoint.store_process read FOLDER LAST

A writer prints each step when its save has returned. A reader loads until it has seen the last
step, and prints each step that it loads.
"""

from __future__ import annotations

import sys
import warnings

from checkpoint.stores import CheckpointStore, check_is, meta_of, tensors_of


def write(folder, first, last, stride=1, keep=3, size=300):
    store = CheckpointStore(folder, keep=int(keep))
    for step in range(int(first), int(last) + 1, int(stride)):
        store.save(step, tensors_of(step, size=int(size)), meta_of(step))
        print(step, flush=True)


def read(folder, last, size=300):
    warnings.simplefilter("error")
    seen = 0
    while seen < int(last):
        loaded = CheckpointStore(folder).load_newest()
        if loaded is not None:
            check_is(loaded, loaded.step, size=int(size))
            assert loaded.step >= seen, f"{loaded.step} after {seen}"
            seen = loaded.step
            print(seen, flush=True)


if __name__ == "__main__":
    {"write": write, "read": read}[sys.argv[1]](*sys.argv[2:])
