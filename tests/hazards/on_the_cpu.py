"""Loops on the CPU: `.to("cpu")` returns the same tensor, and so does prefetch."""

from __future__ import annotations

import gc
import weakref

import torch

from hazards.harness import CPU, HOLDS, case


@case("Tensors of the loader arrive as the very same objects.", devices=(CPU,), verdict=HOLDS)
def the_very_same_tensors(place):
    loader = [(torch.ones(3, requires_grad=True), {"y": torch.zeros(2, 2).t()}) for _ in range(3)]
    for (x, rest), (given, more) in zip(place.prefetch(loader), loader, strict=True):
        assert x is given
        assert rest["y"] is more["y"]


@case(
    "A loader refills one buffer while the loop keeps the batches: all show the last.",
    devices=(CPU,),
)
def kept_batches_show_the_last(place):
    buffer = torch.zeros(4)

    def loader():
        for number in range(4):
            buffer.fill_(number)
            yield buffer

    return list(place.prefetch(loader()))


@case("Batches die at once when the loop drops them.", devices=(CPU,), verdict=HOLDS)
def batches_die(place):
    dying = []
    for x in place.prefetch(torch.ones(10) for _ in range(10)):
        dying.append(weakref.ref(x))
        del x
    gc.collect()
    assert sum(one() is not None for one in dying) <= 1


@case("No thread is started, and no wait is made.", devices=(CPU,), verdict=HOLDS)
def nothing_is_started(place):
    import threading

    before = threading.active_count()
    with place.count_waits() as waits:
        for _ in place.prefetch([torch.ones(100_000) for _ in range(5)], depth=0):
            assert threading.active_count() == before
    assert waits.count == 0


@case("The process forks workers after a pass over prefetch.", devices=(CPU,))
def forked_after_a_pass(place):
    from torch.utils.data import DataLoader

    list(place.prefetch([torch.ones(50_000) for _ in range(3)]))
    loader = DataLoader([place.numbers(n, 3) for n in range(6)], batch_size=2, num_workers=1)
    return [x * 1 for x in place.prefetch(loader)]
