"""Loops that keep a part of a batch, or what was computed from it, after the batch is gone."""

from __future__ import annotations

import collections

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hazards.harness import CPU, EVERYWHERE, REAL, SAME, case


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
    "squeezed": ("`squeeze`, `view` and `reshape` are kept.", lambda x, y: y[:, None].squeeze(1)),
    "reshaped": (
        "`x.view(-1)` and `x.flatten()` are kept.",
        lambda x, y: (x.view(-1), x.flatten()),
    ),
    "chunks": ("The last of `x.chunk(2)` is kept.", lambda x, y: x.chunk(2)[-1]),
    "transposed": ("`x.t()` is kept.", lambda x, y: x.t()),
    "every_second_row": ("`x[::2]` is kept.", lambda x, y: x[::2]),
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


@case("Predictions of a pinned loader are kept as slices and concatenated at the end.")
def concatenated_at_the_end(place):
    firsts, labels = [], []
    for x, y in place.prefetch(two_columns(place, 9, pinned=True)):
        place.busy()
        firsts.append(x[:, :1])
        labels += y.split(50)
    return torch.cat(firsts), torch.cat(labels)


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


@case("Losses are kept with their graphs and summed into one backward after three batches.")
def gradients_of_several_batches(place):
    model = nn.Linear(8, 4).to(place.torch_device)
    losses, results = [], []
    for number, x in enumerate(place.prefetch(equal_batches(place, 9))):
        place.busy()
        losses.append((model(x / 1000) ** 2).mean())
        if number % 3 == 2:
            sum(losses).backward()
            losses.clear()
            results.append(model.weight.grad.clone())
    return results


@case("The inputs are multiplied in, so backward reads several batches at its end.")
def saved_for_backward(place):
    weight = torch.ones(8, device=place.torch_device, requires_grad=True)
    total = torch.zeros((), device=place.torch_device)
    for x in place.prefetch(equal_batches(place, 7)):
        place.busy()
        total = total + (x * weight * x[:1]).mean()
    total.backward()
    return total, weight.grad


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x[1:])
        ctx.first = x[0]
        return (x * weight).sum()

    @staticmethod
    def backward(ctx, grad):
        (rest,) = ctx.saved_tensors
        return None, grad * (rest.sum(0) + ctx.first)


@case("A custom autograd function saves views of the batch for backward.")
def custom_function(place):
    weight = torch.ones(8, device=place.torch_device, requires_grad=True)
    losses = []
    for x in place.prefetch(equal_batches(place, 6)):
        losses.append(Scale.apply(x, weight))
        place.busy()
    torch.stack(losses).sum().backward()
    return weight.grad


@case("The state of a recurrent network lives over three batches and is then detached.")
def recurrent_state(place):
    torch.manual_seed(0)
    cell = nn.RNNCell(8, 8).to(place.torch_device)
    state, total, grads = None, 0.0, []
    for number, x in enumerate(place.prefetch(equal_batches(place, 9))):
        place.busy()
        state = cell(x[:6] / 1000, state)
        total = total + state.mean()
        if number % 3 == 2:
            total.backward()
            grads.append(cell.weight_ih.grad.clone())
            state, total = state.detach(), 0.0
    return grads, state


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


@case("A closure over the batch is called batches later, as LBFGS or delayed logging do.")
def closures(place):
    later = []
    for x in place.prefetch(equal_batches(place)):
        later.append(lambda x=x: x[:4].sum(1))
        place.busy()
    return [one() for one in later]


@case("A forward hook keeps the input of a layer.")
def hooked_inputs(place):
    model, seen = nn.Identity(), []
    handle = model.register_forward_hook(lambda module, args, out: seen.append(args[0].detach()))
    for x in place.prefetch(equal_batches(place)):
        model(x[1:])
        place.busy()
    handle.remove()
    return seen


@case("The last rows of each batch are attributes of the model, used with the next batch.")
def memory_bank(place):
    model, results = nn.Module(), []
    model.last = torch.zeros(2, 8, device=place.torch_device)
    for x in place.prefetch(equal_batches(place)):
        place.busy()
        results.append((x[:2] - model.last).sum(0))
        model.last = x[-2:]
    return results, model.last


@case("A deque keeps views of the last three batches; the older ones are dropped.")
def window_of_three(place):
    window, results = collections.deque(maxlen=3), []
    for x in place.prefetch(equal_batches(place, 12)):
        place.busy()
        window.append(x[:2])
        results.append(torch.stack(list(window)).sum(0))
    return results, list(window)


@case("A parameter's `.data` is the first row of the batch.")
def parameter_data(place):
    weight, results = nn.Parameter(torch.zeros(8, device=place.torch_device)), []
    for number, x in enumerate(place.prefetch(equal_batches(place))):
        results.append(weight * 1)
        if number % 3 == 0:
            weight.data = x[0]
        place.busy()
    return results, weight


@case("Gradients with respect to the batch are kept, as adversarial training does.")
def gradients_of_the_input(place):
    grads = []
    for x in place.prefetch(equal_batches(place)):
        x.requires_grad_()
        (x * x[:1].detach()).sum().backward()
        grads.append(x.grad[:3])
        place.busy()
    return grads


@case("Best and worst batches so far are kept whole; the others are dropped.")
def some_batches_kept(place):
    kept_ones = {}
    for number, (x, y) in enumerate(place.prefetch(two_columns(place, 12))):
        place.busy()
        if number in (0, 3, 4, 10):
            kept_ones[number] = (x, y[1:])
    return kept_ones


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


@case(
    "An iterator over the rows of a batch is used up after the next batches.",
    verdict=SAME,
    devices=EVERYWHERE,
)
def rows_read_late(place):
    rows = []
    for x in place.prefetch(equal_batches(place)):
        rows.append(iter(x))
        place.busy()
    return [next(one) + next(one) for one in rows]
