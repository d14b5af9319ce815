"""Batches that are objects with a `.to` of their own: they are moved by it."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import DataLoader

from hazards.harness import EVERYWHERE, GPU, HOLDS, REAL, case, form_case


def form(name, sentence, make, *, devices=EVERYWHERE):
    form_case(name, "objects", sentence, make, devices=devices)


class ToDevice:
    """The usual class: `.to(device)` makes a new one."""

    def __init__(self, x, text):
        self.x, self.text = x, text

    def to(self, device):
        return ToDevice(self.x.to(device), self.text)


class InPlace:
    """Moves itself and returns nothing."""

    def __init__(self, x):
        self.x, self.num_moves = x, 0

    def to(self, device):
        self.x = self.x.to(device, non_blocking=True)
        self.num_moves += 1


class AnyArguments:
    def __init__(self, x):
        self.x = x

    def to(self, *args, **kwargs):
        return AnyArguments(self.x.to(*args, **kwargs))


class Images:
    """As in torchvision's detection models: tensors with a list of sizes."""

    def __init__(self, tensors, image_sizes):
        self.tensors, self.image_sizes = tensors, image_sizes

    def to(self, device):
        return Images(self.tensors.to(device), self.image_sizes)


class Pinnable:
    """A custom batch with `pin_memory()`, as the documentation of DataLoader shows."""

    def __init__(self, rows):
        self.x = torch.stack([row[0] for row in rows])
        self.y = torch.stack([row[1] for row in rows])

    def pin_memory(self):
        self.x, self.y = self.x.pin_memory(), self.y.pin_memory()
        return self

    def to(self, device, non_blocking=False):
        self.x = self.x.to(device, non_blocking=non_blocking)
        self.y = self.y.to(device, non_blocking=non_blocking)
        return self


def x_of(place, number):
    size = [place.tiny, place.medium, place.large][number % 3]
    x = place.numbers(number, size)
    return place.pinned(x) if number % 2 else x


form(
    "in_place", "A `.to` that changes in place and returns None.", lambda p, n: InPlace(x_of(p, n))
)
form(
    "images",
    "An image list within a tuple, with targets as a list of dicts.",
    lambda p, n: (
        Images(p.numbers(n, 2, 3, 4, 4), [(4, 4), (3, 4)]),
        [{"boxes": x_of(p, n), "label": "cat"}, {"boxes": x_of(p, n), "label": "dog"}],
    ),
)


@case("The batch is a PackedSequence.")
def packed_sequence(place):
    results = []
    for number in range(4):
        rows = [place.numbers(number, length) for length in (5 + number, 3, 2)]
        for packed in place.prefetch([(pack_sequence(rows), torch.tensor(number))]):
            assert isinstance(packed[0], PackedSequence)
            # Lengths stay on the host, or padding fails.
            assert packed[0].batch_sizes.device.type == "cpu"
            results.append((packed[0].data, packed[0].batch_sizes.tolist(), packed[1]))
    return results


@case("Objects with `.to` are moved once each, in their turn.", verdict=HOLDS)
def moved_once(place):
    batches = [InPlace(x_of(place, number)) for number in range(5)]
    for number, batch in enumerate(place.prefetch(batches)):
        assert batch is batches[number]
        assert [one.num_moves for one in batches] == [1] * (number + 1) + [0] * (4 - number)


@case("A pinned object is refilled in place by its loader for the next batch.")
def pinned_object_refilled(place):
    buffers = [place.pinned(torch.zeros(size)) for size in place.sizes()]

    def loader():
        for number in range(9):
            buffer = buffers[number % 3]
            buffer.copy_(place.numbers(number, buffer.numel()))
            yield AnyArguments(buffer)
            buffer.fill_(-1)

    results = []
    for batch in place.prefetch(loader()):
        place.busy()
        results.append(batch.x * 2)
    return results


@case(
    "A side stream is busy; `.to` of an object runs in order with the loop's stream.",
    devices=(GPU,),
)
def objects_on_a_side_stream(place):
    side, results = place.stream(), []
    place.order(side, place.current())
    with place.on(side):
        for batch in place.prefetch(ToDevice(x_of(place, n), "a") for n in range(9)):
            place.busy()
            results.append(batch.x.mul_(2)[:7])
    place.order(place.current(), side)
    return results


@case("The `.to` of an object raises: the loop gets that error, at that batch.", verdict=HOLDS)
def to_that_raises(place):
    class Broken:
        def to(self, device):
            raise RuntimeError("cannot move")

    seen = []
    with pytest.raises(RuntimeError, match="cannot move"):
        for batch in place.prefetch([place.numbers(0, 3), place.numbers(1, 3), Broken()]):
            seen.append(batch)  # noqa: PERF402
    assert len(seen) == 2


@case(
    "The `.to` of an object raises TypeError of its own, which is not mistaken for a signature.",
    verdict=HOLDS,
)
def to_that_raises_type_error(place):
    class Broken:
        num_calls = 0

        def to(self, device, non_blocking=False):
            Broken.num_calls += 1
            raise TypeError("my own mistake")

    with pytest.raises(TypeError, match="my own mistake"):
        list(place.prefetch([Broken()]))
    assert Broken.num_calls == 1


@case("A DataLoader with workers pins batches of a class with `pin_memory()`.", devices=(GPU,))
def data_loader_pins_objects(place):
    rows = [(place.numbers(n, 300), torch.tensor(n)) for n in range(40)]
    loader = DataLoader(rows, batch_size=8, collate_fn=Pinnable, pin_memory=True)
    results = []
    for batch in place.prefetch(loader):
        place.busy()
        results.append((batch.x[:, 0], batch.y))
    return results


@case("Objects die when loop and device are done with them.", verdict=HOLDS, devices=REAL)
def objects_die(place):
    alive = weakref.WeakSet()

    def loader():
        for number in range(10):
            one = ToDevice(x_of(place, number), "a")
            alive.add(one)
            yield one
            del one

    prefetcher = place.prefetch(loader())
    for batch in prefetcher:
        alive.add(batch)
    del batch
    place.settle()
    gc.collect()
    # The last may be remembered until the next pass.
    assert len(alive) <= 2


@case(
    "The object's class answers every attribute, as a mock does, but has no `.to` of its own.",
    verdict=HOLDS,
)
def answers_everything(place):
    class Answers:
        def __getattr__(self, name):
            raise AttributeError(name) if name.startswith("__") else KeyError(name)

    one = Answers()
    assert all(batch[1] is one for batch in place.prefetch([(place.numbers(0, 3), one)] * 2))
