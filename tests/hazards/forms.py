"""Tensors of every form: they arrive as `.to(device, non_blocking=True)` would have made them."""

from __future__ import annotations

import warnings

import torch
from torch import nn

from hazards.harness import DEVICES, EVERYWHERE, GPU, REAL, case, form_case


def form(name, sentence, make, *, devices=EVERYWHERE):
    form_case(name, "forms", sentence, make, devices=devices)


def sized(place, number):
    return [place.tiny, place.medium, place.large][number % 3]


def image(place, number):
    side = {0: 2, 1: 20, 2: 40}[number % 3]
    return place.numbers(number, 3, 3, side, side)


def pinned_or_not(place, number, tensor):
    return place.pinned(tensor) if number % 2 else tensor


form(
    "channels_last_3d",
    "Videos come in `channels_last_3d`.",
    lambda place, n: image(place, n)[None].to(memory_format=torch.channels_last_3d),
)
form(
    "expanded",
    "A mask is expanded, with a stride of 0.",
    lambda place, n: place.numbers(n, 1, sized(place, n)).expand(3, -1),
)
form(
    "sliced_columns_pinned",
    "A slice of columns of pinned memory is not contiguous.",
    lambda place, n: place.pinned(place.numbers(n, sized(place, n) // 4, 4))[:, 1:3],
)
form(
    "odd_offset",
    "A slice begins at an odd byte.",
    lambda place, n: place.numbers(n, 101, dtype=torch.uint8)[1 + n :],
)
form(
    "empty",
    "Empty tensors of several shapes.",
    lambda place, n: (
        torch.empty(0),
        torch.empty(0, 3),
        torch.empty(3, 0, 2),
        torch.empty(0, dtype=torch.int64),
        torch.ones(2),
    ),
)
form(
    "overlapping",
    "Sliding windows by `unfold`, which overlap.",
    lambda place, n: place.numbers(n, 40).unfold(0, 5, 1),
)

for _dtype in ("bool", "uint8", "int64", "float16", "bfloat16", "complex64", "float8_e4m3fn"):
    form(
        f"dtype_{_dtype}",
        f"Tensors of dtype {_dtype}, pinned and pageable.",
        lambda place, n, name=_dtype: pinned_or_not(
            place, n, place.numbers(n, sized(place, n) // 4, 3).to(getattr(torch, name))
        ),
    )


def conj(place, number):
    return torch.view_as_complex(place.numbers(number, 30, 2)).conj()


form("conjugated", "A lazily conjugated complex tensor.", conj)


def sparse(place, number, **options):
    indices = torch.tensor([[0, 1, 1], [2, 0, 2]])
    values = place.numbers(number, 3)
    return torch.sparse_coo_tensor(indices, values, (2, 3), check_invariants=True, **options)


form(
    "sparse_coo",
    "Bags of words as a sparse COO tensor.",
    lambda place, n: sparse(place, n).coalesce(),
    devices=REAL,
)


def nested(place, number, **options):
    parts = [place.numbers(number, 2 + row, 4) for row in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor(parts, **options)


form(
    "nested_jagged",
    "Sentences of different lengths as a jagged nested tensor.",
    lambda place, n: nested(place, n, layout=torch.jagged),
    devices=REAL,
)
form(
    "parameter",
    "A batch holds an `nn.Parameter`.",
    lambda place, n: nn.Parameter(place.numbers(n, 6)),
)


class Tagged(torch.Tensor):
    """A subclass without methods of its own."""


class CountedTo(torch.Tensor):
    """A subclass with a `.to` of its own that marks what it returns."""

    def to(self, *args, **kwargs):
        moved = torch.Tensor.to(self.as_subclass(torch.Tensor), *args, **kwargs)
        moved = (moved + 1).as_subclass(CountedTo)
        moved.num_moves = getattr(self, "num_moves", 0) + 1
        return moved


form(
    "subclass",
    "A plain subclass of Tensor.",
    lambda place, n: place.numbers(n, sized(place, n)).as_subclass(Tagged),
)


@case("A subclass whose own `.to` does more than move.", devices=REAL)
def subclass_with_own_to(place):
    loader = [place.numbers(number, 4).as_subclass(CountedTo) for number in range(5)]
    return [(one.as_subclass(torch.Tensor), one.num_moves) for one in place.prefetch(loader)]


@case(
    "Leaves of the host require gradients, which are read on the host after backward.",
    devices=REAL,
)
def gradients_reach_the_host(place):
    leaves = [place.numbers(number, sized(place, number)).requires_grad_() for number in range(5)]
    for x in place.prefetch(leaves):
        assert x.requires_grad
        (x * x.detach() / 1000).sum().backward()
    return [leaf.grad.clone() for leaf in leaves], [leaf.is_leaf for leaf in leaves]


@case("The same tensor is in a batch twice, and the step changes one of the two.")
def the_same_tensor_twice(place):
    results = []
    for number in range(4):
        x = pinned_or_not(place, number, place.numbers(number, sized(place, number)))
        for batch in place.prefetch([(x, {"again": x})]):
            batch[0].add_(1)
            results.append(batch)
    return results


@case("Two tensors of a batch are views of one storage, and the step changes one of them.")
def a_shared_storage(place):
    results = []
    for number in range(4):
        whole = pinned_or_not(place, number, place.numbers(number, 60))
        for left, right in place.prefetch([(whole[:40], whole[20:])]):
            left.mul_(2)
            results.append((left, right))
    return results


@case("Some tensors are on the device already, and pass as the very same objects.")
def on_the_device_already(place):
    there = [place.moved(place.numbers(number, 6)) for number in range(4)]
    loader = [(place.numbers(number, 3), one) for number, one in enumerate(there)]
    results = []
    for (host, device), given in zip(place.prefetch(loader), there, strict=True):
        if place.kind != "simulated" or not place.is_reference:
            assert device is given
        results.append((host, device))
    return results


@case("The loader computes on the device, in the loop's stream.", devices=DEVICES)
def made_on_the_device(place):
    def batches():
        for number in range(6):
            x = place.moved(place.numbers(number, place.medium))
            place.busy()
            yield x * 2, place.numbers(number, 3)

    return [(x + 1, y) for x, y in place.prefetch(batches())]


@case(
    "`torch.save` of a row that is cloned, and of a batch, holds what the plain loop's holds.",
    devices=(GPU,),
)
def own_storage(place):
    starts = []
    for x, y in place.prefetch([(place.numbers(0, 10), place.numbers(1, 20))] * 4):
        starts.append(
            (
                x.storage_offset(),
                y.storage_offset(),
                x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr(),
            )
        )
    return starts
