"""Processes that write and read a store, for tests that kill, crowd and starve them.

    python -m checkpoint.store_process write FOLDER FIRST LAST [STRIDE] [KEEP] [SIZE]
    python -m checkpoint.store_process read FOLDER LAST
    python -m checkpoint.store_process read_torn FOLDER
    python -m checkpoint.store_process without_room FOLDER BYTES

A writer prints each step when its save has returned. A reader loads until it has seen the last
step, and prints each step that it loads. The third empties all files
after its load and prints a sum of what it has loaded. The fourth lets no file become larger for one save, prints
what that save says, and saves again.
"""

from __future__ import annotations

import resource
import signal
import sys
import warnings

from checkpoint.stores import (
    CheckpointError,
    CheckpointStore,
    check_is,
    load_newest,
    meta_of,
    save_steps,
    tensors_of,
)


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


def without_room(folder, room):
    save_steps(folder, 10)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    everything = resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(room), everything))
    refused = None
    try:
        CheckpointStore(folder).save(20, tensors_of(20), {"position": "x" * 9000})
    except (OSError, CheckpointError) as error:
        refused = error
    resource.setrlimit(resource.RLIMIT_FSIZE, (everything, everything))
    assert refused is not None, "saved without room"
    print(refused)
    check_is(load_newest(folder).checkpoint, 10)
    save_steps(folder, 30)
    check_is(load_newest(folder).checkpoint, 30)


def read_torn(folder):
    loaded = CheckpointStore(folder).load_newest()
    for file in loaded.path.iterdir():
        file.write_bytes(b"")
    print(float(loaded.tensors["weight"].sum()))


def main(what, *arguments):
    commands = [write, read, read_torn, without_room]
    {command.__name__: command for command in commands}[what](*arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
