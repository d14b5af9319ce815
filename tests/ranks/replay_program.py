"""Ranks that replay a captured sum of all ranks: `HARM`, which is `nothing`, `killed` or `holds a graph`."""

from __future__ import annotations

import os
import signal
import sys

import torch
import torch.distributed as dist

from gapless.device.find import find_device, num_gpus
from gapless.ranks import find_ranks
from gapless.ranks.launch import device_of, read_launch


UPDATES = 2000
HELD = []


def main():
    harm = sys.argv[1]
    # A process that waits for its device reads no signal; torchrun sends one to those that are left.
    signal.signal(signal.SIGTERM, lambda *_: None)
    launch = read_launch(os.environ)
    device = find_device(device_of(launch, "cuda", num_gpus=num_gpus()))
    device.make_current()
    ranks = find_ranks(device.torch_device, uuid=device.uuid(), launch=launch)
    values = torch.zeros(1 << 20, device=device.torch_device)
    dist.all_reduce(values, group=ranks.main)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with ranks.pause("capture"), torch.cuda.graph(graph, capture_error_mode="thread_local"):
        dist.all_reduce(values, group=ranks.main)
    for update in range(1, UPDATES):
        graph.replay()
        ranks.note_updates(update)
        if update % 10 == 0:
            torch.cuda.synchronize()
        if harm == "killed" and update == UPDATES // 2 and ranks.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    torch.cuda.synchronize()
    if harm == "holds a graph":
        HELD.append(graph)
    del graph
    ranks.end()
    print("done")


if __name__ == "__main__":
    main()
