"""Train with gradients that ranks sum, eagerly and captured; each rank prints JSON.

Run as `nccl_program.py new|kept [DEVICE [holds]]`, under the environment of torchrun. A rank that is alone
joins a group of one, which `gapless train` would not make: what NCCL does in a capture shows on one
GPU too. With `kept` gradients stay where they are summed, and with `holds` graphs are alive when the ranks part.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from contextlib import ExitStack
from itertools import pairwise

import torch

from gapless.device.find import find_device, num_gpus
from gapless.loop.train_loop import TrainLoop
from gapless.pipeline.step import StepLoss
from gapless.ranks.launch import device_of, read_launch
from gapless.ranks.torch_ranks import join_ranks


os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

NUM_UPDATES = 14
SIZES = (16, 96, 64, 8)

HELD = []


class Step:
    """A step of a small model, whose gradients are clipped after the sum."""

    def __init__(self, device, *, keeps_gradients):
        torch.manual_seed(0)
        layers = [
            part
            for one, other in pairwise(SIZES)
            for part in (torch.nn.Linear(one, other), torch.nn.Tanh())
        ]
        self.model = torch.nn.Sequential(*layers).to(device.torch_device)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=0.01, fused=True, capturable=device.is_accelerator
        )
        self.gradients = None
        self._keeps_gradients = keeps_gradients

    def forward(self, batch):
        return StepLoss(loss=(self.model(batch) ** 2).mean(), weight=1.0)

    def backward(self, out):
        out.loss.backward()
        self.gradients.finish()
        self.update()

    def update(self):
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=not self._keeps_gradients)

    def bits(self):
        weights = [weight.detach().cpu().numpy().tobytes() for weight in self.model.parameters()]
        return hashlib.sha256(b"".join(weights)).hexdigest()


def batches_of(rank):
    draw = torch.Generator().manual_seed(rank)
    return [torch.randn(6, SIZES[0], generator=draw) for _ in range(NUM_UPDATES)]


def expected(device, *, world):
    """Return the bits of one process that makes the gradients of all ranks, and adds them up."""
    step = Step(device, keeps_gradients=False)
    weights = list(step.model.parameters())
    for batches in zip(*map(batches_of, range(world)), strict=True):
        sums = [torch.zeros_like(weight) for weight in weights]
        for number, batch in enumerate(batches):
            step.forward(batch.to(device.torch_device)).loss.backward()
            for place, weight in enumerate(weights):
                sums[place] = sums[place] + weight.grad if number else weight.grad
            step.model.zero_grad()
        for weight, total in zip(weights, sums, strict=True):
            weight.grad = total
        step.update()
    return step.bits()


def trained(plan, ranks, device, *, keeps_gradients, holds):
    """Return the bits of the weights, and what was captured."""
    step = Step(device, keeps_gradients=keeps_gradients)
    with ExitStack() as until_end:
        loop = until_end.enter_context(TrainLoop(plan=plan, device=device, ranks=ranks))
        with loop.on_compute_stream():
            step.gradients = ranks.sum_gradients(step.model.parameters())
        loop.run_epoch(batches_of(ranks.rank), step)
        report = loop.capture_report
        found = {"bits": step.bits(), "graphs": 0 if report is None else report.num_graphs}
        if report is not None and report.refusal is not None:
            found["refusal"] = report.refusal.text
        if holds:
            HELD.append(until_end.pop_all())
            return found
    step.gradients.close()
    return found


def main():
    keeps = sys.argv[1] == "kept"
    kind = sys.argv[2] if len(sys.argv) > 2 else "cpu"
    holds = "holds" in sys.argv[3:]
    torch.use_deterministic_algorithms(True)
    launch = read_launch(os.environ)
    device = find_device(device_of(launch, kind, num_gpus=num_gpus()))
    device.make_current()
    ranks = join_ranks(launch, device.torch_device, uuid=device.uuid())
    found = {
        "expected": expected(device, world=ranks.world),
        "eager": trained("gapless", ranks, device, keeps_gradients=keeps, holds=False),
        "captured": trained("captured", ranks, device, keeps_gradients=keeps, holds=holds),
    }
    print(json.dumps(found), flush=True)
    ranks.end()


if __name__ == "__main__":
    main()
