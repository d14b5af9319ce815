"""Loops that keep a part of a batch, or what was computed from it, after the batch is gone."""

from __future__ import annotations

import collections

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hazards.harness import REAL, case


def two_columns(place, num=6, *, pinned=False):
    """Yield pairs of features and labels of each size."""
    for number in range(num):
        rows = [place.tiny, place.medium, place.large][number % 3] // 4
        x, y = place.numbers(number, rows, 4), place.numbers(number, rows, dtype=torch.int64)
        yield (place.pinned(x), place.pinned(y)) if pinned else (x, y)


def equal_batches(place, num=8, width=8):
    """Yield batches of one size, whose memory is easily used again."""
    for number in range(num):
        yield place.numbers(number, place.medium // width, width)


def kept(keep, *, pinned=False):
    def loop(place):
        results = []
        for x, y in place.prefetch(two_columns(place, pinned=pinned)):
            place.busy()
            results.append(keep(x, y))
            del x, y
        return results

    return loop


KEPT = {
    "first_column": ("An evaluation keeps `x[:, 0]` of each batch.", lambda x, y: x[:, 0]),
    "chunks": ("The last of `x.chunk(2)` is kept.", lambda x, y: x.chunk(2)[-1]),
    "as_strided": ("A strided view is kept.", lambda x, y: x.as_strided((2, 2), (1, 2), 1)),
    "one_number": ("One 0-dim element a batch, `y[-1]`, is kept.", lambda x, y: y[-1]),
}
for _name, (_sentence, _keep) in KEPT.items():
    _loop = kept(_keep, pinned=_name in ("first_column", "chunks"))
    _loop.__name__ = _name
    case(_sentence)(_loop)


@case("A batch is given away by DLPack and dropped.", devices=REAL)
def dlpack_kept(place):
    results = []
    for x in place.prefetch(equal_batches(place)):
        results.append(torch.from_dlpack(torch.utils.dlpack.to_dlpack(x)))
        del x
        place.busy()
    return results


@case("Only the storage of a tensor is kept, and a tensor made of it at the end.", devices=REAL)
def storage_kept(place):
    storages = [x.untyped_storage() for x in place.prefetch(equal_batches(place))]
    return [
        torch.empty(0, device=place.torch_device).set_(one, 0, (place.medium // 8 * 8,))
        for one in storages
    ]


@case("The inputs are multiplied in, so backward reads several batches at its end.")
def saved_for_backward(place):
    weight = torch.ones(8, device=place.torch_device, requires_grad=True)
    total = torch.zeros((), device=place.torch_device)
    for x in place.prefetch(equal_batches(place, 7)):
        place.busy()
        total = total + (x * weight * x[:1]).mean()
    total.backward()
    return total, weight.grad


@case("A recomputed block (checkpoint) keeps its input until backward, batches later.")
def checkpointed(place):
    model = nn.Linear(8, 8).to(place.torch_device)
    outputs = []
    for x in place.prefetch(equal_batches(place, 5)):
        x = (x / 1000).requires_grad_() if len(outputs) % 2 else x / 500
        outputs.append(checkpoint(model, x, use_reentrant=False).square().mean())
        place.busy()
    torch.stack(outputs).sum().backward()
    return model.weight.grad


@case("A deque keeps views of the last three batches; the older ones are dropped.")
def window_of_three(place):
    window, results = collections.deque(maxlen=3), []
    for x in place.prefetch(equal_batches(place, 12)):
        place.busy()
        window.append(x[:2])
        results.append(torch.stack(list(window)).sum(0))
    return results, list(window)
