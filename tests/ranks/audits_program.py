"""A rank of two that trains a captured step on a simulated device: `SCHEDULER EVERY FOLDER`."""

from __future__ import annotations

import json
import math
import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

import gapless
from ample_room import AMPLE
from gapless.graphs import account
from gapless.testing.simulated.simulated_device import SimulatedDevice


NUM, AT = 40, 24


@torch.library.custom_op(
    "gapless_tests::sum_of_ranks", mutates_args=("values",), schema="(Tensor(a!) values) -> ()"
)
def sum_of_ranks(values):
    """Sum in place over all ranks, as one operation of the device."""
    dist.all_reduce(values)


def trained(device, rank, *, every=None, change_at=None):
    """Return losses and weights, and the step; what one rank alone computes changes before a call."""
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(100 + rank)
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1)
    )
    model.to(device.torch_device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean() * math.cos(1.0)
        loss.backward()
        for weight in model.parameters():
            sum_of_ranks(weight.grad)
        optimizer.step()
        return loss.detach()

    if every is not None:
        step = gapless.capture(step, device=device, audit_every=every)
    losses, cos = [], math.cos
    for number in range(NUM):
        if number == change_at and rank == 1:
            math.cos = math.sin
        losses.append(step(torch.randn(4, 3, generator=draw).to(device.torch_device)).item())
    math.cos = cos
    return (losses, [weight.tolist() for weight in model.parameters()]), step


def main():
    scheduler, every, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    warnings.simplefilter("ignore")
    vars(account).update(AMPLE)
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    found = {}
    for name, change_at in (("stays", None), ("changes", AT)):
        with SimulatedDevice(scheduler=scheduler) as device, device.allow_waits():
            plain, _ = trained(device, rank, change_at=change_at)
        with SimulatedDevice(scheduler=scheduler) as device, device.allow_waits():
            ours, step = trained(device, rank, every=every, change_at=change_at)
        report = step.report
        found[name] = {
            "is_same": plain == ours,
            "audits": report.audits.num,
            "replays": report.num_replays,
            "told": [
                int(text.split("in call ")[1].split(":")[0]) for text in report.audits.differences
            ],
        }
    (folder / f"rank-{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
