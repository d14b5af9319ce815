"""Loops whose next batch depends on the step, or on how far the loader was read."""

from __future__ import annotations

import pytest
import torch

from hazards.harness import EVERYWHERE, HOLDS, case


@case("Loader and step draw from torch's default generator.")
def torchs_generator_is_shared(place):
    def loader():
        for _ in range(6):
            yield torch.randn(8)

    return [x + torch.rand(1).item() for x in place.prefetch(loader())], torch.rand(1).item()


class CountingLoader:
    """As Accelerate's: it reads one ahead of itself, and knows when a batch is the last."""

    def __init__(self, batches):
        self.batches, self.end_of_dataloader, self.remainder = batches, False, -1

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        self.end_of_dataloader = False
        for number, batch in enumerate(self.batches):
            self.end_of_dataloader = number == len(self.batches) - 1
            self.remainder = len(batch) if self.end_of_dataloader else -1
            yield batch


@case("The loader says of the batch at hand whether it is the last (gradient accumulation).")
def end_of_dataloader(place):
    loader = CountingLoader([place.numbers(n, 8, 2) for n in range(5)])
    weight = torch.zeros(2, device=place.torch_device)
    pending, results = [], []
    for number, x in enumerate(place.prefetch(loader)):
        pending.append(x.mean(0))
        if (number + 1) % 2 == 0 or loader.end_of_dataloader:
            weight = weight + torch.stack(pending).sum(0)
            pending.clear()
        results.append((loader.end_of_dataloader, len(pending)))
    return weight, results


@case("A checkpoint in the middle of an epoch saves how far the loader was read.")
def state_of_the_loader(place):
    class Stateful:
        position = 0

        def __iter__(self):
            while self.position < 7:
                self.position += 1
                yield place.numbers(self.position, 4)

        def state_dict(self):
            return {"position": self.position}

    prefetcher, states = place.prefetch(Stateful()), []
    for _ in prefetcher:
        states.append(prefetcher.state_dict()["position"])
    return states


@case("The loader prints and times itself: it is read once for each batch, in turn with the step.")
def order_of_events(place):
    events = []

    def loader():
        for number in range(4):
            events.append(f"read {number}")
            yield place.numbers(number, 3)
        events.append("end")

    prefetcher = place.prefetch(loader())
    events.append("made")
    batches = iter(prefetcher)
    events.append("iter")
    for number, _ in enumerate(batches):
        events.append(f"step {number}")
    return events


@case("Nothing is read when a prefetcher is made, and `iter` alone reads no batch.", verdict=HOLDS)
def lazy_until_asked(place):
    reads = []

    def loader():
        for number in range(3):
            reads.append(number)
            yield place.numbers(number, 3)

    prefetcher = place.prefetch(loader())
    assert reads == []
    batches = iter(prefetcher)
    assert reads == []
    next(batches)
    assert reads == [0]


@case("With `depth=k` no more than k batches are read ahead.", devices=EVERYWHERE, verdict=HOLDS)
def depth_is_a_bound(place):
    for depth in (0, 1, 3):
        reads = []

        def loader(reads=reads):
            for number in range(9):
                reads.append(number)
                yield place.numbers(number, 3)

        for number, x in enumerate(place.prefetch(loader(), depth=depth)):
            assert number + 1 <= len(reads) <= number + 1 + depth
            assert int(x[0]) == 1000 * number + 1


@case("With `depth=3` a loader refills one buffer in place.", devices=("simulated", "gpu"))
def depth_with_a_refilled_buffer(place):
    results = []
    for make in (place.pinned, lambda one: one):
        for size in place.sizes():
            buffer = make(torch.zeros(size))

            def loader(buffer=buffer):
                for number in range(8):
                    buffer.copy_(place.numbers(number, buffer.numel()))
                    yield buffer, number
                    buffer.fill_(-1)

            for x, number in place.prefetch(loader(), depth=3):
                place.busy()
                results.append((x[:50] * 1, number))
    return results


@case("With `depth=2` the loader raises at batch 4: four batches come first.", verdict=HOLDS)
def depth_with_a_failure(place):
    def loader():
        for number in range(4):
            yield place.numbers(number, 5)
        raise OSError("disk")

    seen = []
    with pytest.raises(OSError, match="disk"):
        for x in place.prefetch(loader(), depth=2):
            seen.append(int(x[0]))
    assert seen == [1, 1001, 2001, 3001]


@case("A depth below 0 is refused.", verdict=HOLDS)
def negative_depth(place):
    with pytest.raises(ValueError, match="depth"):
        place.prefetch([], depth=-1)
