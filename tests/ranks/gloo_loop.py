"""A loop of gloo ranks without gapless, that one rank may leave or stop: `gloo_loop.py HARM`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist


def main():
    harm = sys.argv[1]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for number in range(20):
        total = torch.tensor([float(rank + 1)])
        dist.all_reduce(total)
        if rank == 1 and number == 10:
            Path("harmed").touch()
            if harm == "waits":
                time.sleep(1000)
            elif harm == "ends":
                os._exit(3)
    print(f"rank {rank} of {dist.get_world_size()}: {total.item():.0f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
