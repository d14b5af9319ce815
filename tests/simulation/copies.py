"""Weights that are copied to the host while they are trained on."""

from __future__ import annotations

import torch

from gapless.pipeline.host_copy import HostCopy
from gapless.pipeline.host_waits import HostWaits
from simulation.registry import scenario
from simulation.workloads import number


@scenario()
def weights_copied_while_they_change(device):
    """Each copy has the values of its moment, whatever is queued behind it."""
    weight, count = number(device, 0.0), number(device, 0.0).view(torch.int32)
    copies = []
    for _ in range(6):
        copies.append(HostCopy({"weight": weight, "more": [count, 7]}, device=device))
        weight += 1
        count += 2
    host_waits = HostWaits(device)
    copies[-1].wait(host_waits, reason="checkpoint")
    assert host_waits.stats.by_reason["checkpoint"].count == 1
    for step, copy in enumerate(copies):
        assert copy.is_done()
        assert float(copy.value["weight"]) == step
        assert int(copy.value["more"][0]) == 2 * step
        assert copy.value["more"][1] == 7


@scenario()
def a_copy_that_is_done_is_read_without_waiting(device):
    weight = number(device, 3.0)
    copy = HostCopy([weight], device=device)
    while not copy.is_done():
        weight += 1
    assert float(copy.value[0]) == 3.0
