"""Steps that are watched as they run: what they write, and what their guards say."""

from __future__ import annotations

import torch

from gapless.graphs.reads.host_watch import HostWatch


def is_cpu(tensor):
    return tensor.device.type == "cpu"


def is_meta(tensor):
    return tensor.device.type == "meta"


def watched(step, *, num_runs=2, on_device=is_cpu, batch=None):
    """Run a step some times as written; return its watch and what the last run did."""
    watch = HostWatch(step, on_device=on_device, torch_random=False)
    runs = []
    for _ in range(num_runs):
        args = (torch.randn(3, 4),) if batch is None else batch()
        with watch.watch(args, {}) as run:
            step(*args)
        runs.append(run)
    return watch, runs[-1]


def names(run):
    return sorted(write.name for write in run.writes)


def kept(run):
    return sorted(path.name for path in run.kept)


def change(step, do, **more):
    """Return what guards say after something was done between two steps."""
    watch, run = watched(step, **more)
    guards = watch.guards(carried=run.kept)
    assert guards.holds(), guards.first_changed()
    assert guards.first_changed() is None
    do()
    first = guards.first_changed()
    assert guards.holds() == (first is None)
    return first
