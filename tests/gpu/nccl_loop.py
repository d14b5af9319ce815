"""Train with a process group of one on a GPU, as written and captured, and print the bits of both.

Run as `nccl_loop.py MODE STORE` by a test, in a process of its own.
"""

from __future__ import annotations

import gc
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gapless


os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
STEPS = []


def make_step(mode):
    """Return the step, and its model."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)).cuda()
    called = model
    if mode == "ddp":
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            called = DistributedDataParallel(model)
        torch.cuda.current_stream().wait_stream(side)
    elif mode == "ddp_on_the_default_stream":
        called = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x):
        optimizer.zero_grad()
        loss = called(x).square().mean()
        loss.backward()
        if called is model:
            for weight in model.parameters():
                dist.all_reduce(weight.grad)
        optimizer.step()
        return loss

    return step, model


def bits_of(mode, *, is_captured):
    """Return the bits of all weights after training."""
    step, model = make_step(mode)
    if is_captured:
        step = gapless.capture(step, device="cuda", num_warmup=11)
        STEPS.append(step)
    for number in range(30):
        step(torch.linspace(-1.0, 1.0, 48, device="cuda").view(6, 8) * (1 + number % 5))
        torch.cuda.synchronize()
    return "".join(weight.detach().cpu().numpy().tobytes().hex() for weight in model.parameters())


def main():
    mode, store = sys.argv[1:]
    torch.cuda.set_device(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=0, world_size=1)
    print(bits_of(mode, is_captured=False), bits_of(mode, is_captured=True))
    if mode not in ("global", "held"):
        STEPS.clear()
        gc.collect()
    if mode != "global":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
