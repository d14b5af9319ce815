"""Loops that keep a part of a batch, or what was computed from it, after the batch is gone."""

from __future__ import annotations

import collections

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hazards.harness import CPU, REAL, case


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
    "detached_labels": ("An evaluation keeps `y.detach()`.", lambda x, y: y.detach()),
    "unbound_rows": (
        "Rows are kept by `unbind`, as `list.extend(x)` does.",
        lambda x, y: list(x[:3].unbind()),
    ),
    "reshaped": (
        "`x.view(-1)` and `x.flatten()` are kept.",
        lambda x, y: (x.view(-1), x.flatten()),
    ),
    "chunks": ("The last of `x.chunk(2)` is kept.", lambda x, y: x.chunk(2)[-1]),
    "as_strided": ("A strided view is kept.", lambda x, y: x.as_strided((2, 2), (1, 2), 1)),
    "bits": ("The bits are kept: `x.view(torch.int32)`.", lambda x, y: x.view(torch.int32)),
    "expanded": ("`x[:1].expand(5, -1)` is kept.", lambda x, y: x[:1].expand(5, -1)),
    "a_view_of_a_view": ("A view of a view is kept.", lambda x, y: x.view(-1)[1:].detach()[2:]),
    "one_number": ("One 0-dim element a batch, `y[-1]`, is kept.", lambda x, y: y[-1]),
    "data_attribute": ("`x.data` is kept.", lambda x, y: x.data),
    "complex_view": (
        "`torch.view_as_complex(x)` is kept.",
        lambda x, y: torch.view_as_complex(x.view(-1, 2)),
    ),
    "alias_by_to": (
        "`x.to(x.device)` and `x.float()` give the same tensor, which is kept.",
        lambda x, y: (x.to(x.device), x.float().contiguous()),
    ),
}
for _name, (_sentence, _keep) in KEPT.items():
    _loop = kept(_keep, pinned=_name in ("first_column", "chunks", "detached_labels"))
    _loop.__name__ = _name
    case(_sentence)(_loop)


@case("Labels are kept as `y.numpy()`.", devices=(CPU,))
def numpy_kept(place):
    return [y.numpy() for _, y in place.prefetch(two_columns(place))]


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


@case("`tensor.set_` and `.data =` point older tensors at the batch's memory.", devices=REAL)
def memory_adopted(place):
    adopted = []
    for x in place.prefetch(equal_batches(place)):
        mine = torch.zeros(1, device=place.torch_device)
        mine.set_(x) if len(adopted) % 2 else setattr(mine, "data", x[2:])
        adopted.append(mine)
        del x
        place.busy()
    return adopted


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


@case("A generator between prefetch and loop keeps one batch to yield pairs of neighbours.")
def neighbours(place):
    def pairs(batches):
        last = None
        for batch in batches:
            if last is not None:
                yield last, batch[:3]
            last = batch[3:6]

    results = []
    for left, right in pairs(place.prefetch(equal_batches(place))):
        place.busy()
        results.append(left - right)
    return results


@case("A tensor is the value of a weak-keyed table and of an exception's argument.")
def odd_holders(place):
    held = []
    for x in place.prefetch(equal_batches(place)):
        try:
            raise ValueError(x[0])
        except ValueError as error:
            held.append(error)
        place.busy()
    return [error.args[0] for error in held]
