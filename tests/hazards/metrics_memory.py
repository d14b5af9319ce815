"""Deferred metrics: memory of long trainings."""

from __future__ import annotations

import gc
import sys
import weakref

import torch

from hazards.harness import CPU, GPU, HOLDS, REAL, case


@case(
    "Ten epochs of a thousand adds, with a reset after each: host memory is flat.",
    devices=(CPU,),
    verdict=HOLDS,
)
def flat_over_epochs(place):
    losses, x = place.losses(), torch.tensor(0.5)

    def epoch():
        for _ in range(1_000):
            losses.add(x, weight=3)
        losses.mean()
        losses.reset()

    epoch()
    epoch()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(8):
        epoch()
    gc.collect()
    assert sys.getallocatedblocks() - before < 500


@case(
    "Device memory is flat over ten thousand adds without a read.", devices=(GPU,), verdict=HOLDS
)
def device_memory_is_flat(place):
    losses, x = place.losses(), place.scalar(0.5)
    for _ in range(2_000):
        losses.add(x * 1)
    before = torch.cuda.memory_allocated()
    for _ in range(8_000):
        losses.add(x * 1)
    assert torch.cuda.memory_allocated() - before <= 512 * 1024
    assert losses.mean() == 0.5


@case("Activations of a step die although its loss was added.", devices=(GPU,), verdict=HOLDS)
def activations_die(place):
    losses = place.losses()
    weight = torch.ones(1_000_000, device=place.torch_device, requires_grad=True)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(20):
        losses.add((weight * 2).square().mean())
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() - before <= 2**20
    assert losses.mean() == 4.0


@case("A loss that is part of a large tensor does not keep it.", devices=REAL, verdict=HOLDS)
def large_tensors_die(place):
    losses, dying = place.losses(), []
    for number in range(10):
        x = torch.full((10_000,), 1.0 * number, device=place.torch_device)
        dying.append(weakref.ref(x))
        losses.add(x[5])
        del x
    place.settle()
    losses.drain()
    gc.collect()
    assert sum(one() is not None for one in dying) == 0
    assert losses.mean() == 4.5
