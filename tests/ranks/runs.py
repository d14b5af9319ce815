"""Tiny runs of `gapless train` on two ranks, without dropout: each update is of two batches."""

from __future__ import annotations

from faults.runs import train_options


# Of an epoch on two ranks: half as many as on one.
UPDATES = 15


def options(data, run, *, epochs=4, save_every=10, **more):
    """Return the program and the arguments that start a run; dropout draws differ by rank."""
    return ["gapless", *train_options(data, run, epochs=epochs, save_every=save_every, **more)]


def resume_options(run):
    """Return the program and the arguments that go on with a run."""
    return ["gapless", "train", "--resume", run]
