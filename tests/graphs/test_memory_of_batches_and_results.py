"""Memory that batches, results and kept tensors share or are written to: a replay does as the step does."""

from __future__ import annotations

import gc
from collections import OrderedDict, deque
from collections.abc import Mapping

import pytest
import torch

import gapless
from gapless.pipeline.tree.containers import tensors_inside
from gapless.testing.simulated.simulated_device import SimulatedDevice


NUM = 14


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        yield device


def numbers(n, *, like=0.01):
    return torch.full((3,), float(n % 3) + 1.0) * like


@torch.library.custom_op("gapless_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


# Each is a loop: it makes its step, hands it to `wrap`, and returns the step and all that it saw.


def put_and_returned(wrap, device):
    def step(batch):
        batch["logits"] = batch["x"] * 2
        return batch["logits"]

    step, seen = wrap(step), []
    for n in range(NUM):
        batch = {"x": numbers(n).to(device.torch_device)}
        logits = step(batch)
        logits.sub_(logits.amax())
        seen.append((batch["logits"].tolist(), batch["logits"] is logits))
    return step, seen


def put_and_kept(wrap, device):
    kept = {}

    def step(batch):
        batch["sum"] = batch["x"] + kept.get("sum", 0.0)
        kept["sum"] = batch["sum"]
        return batch["x"].mean()

    step, seen = wrap(step), []
    for n in range(NUM):
        batch = {"x": numbers(n).to(device.torch_device)}
        step(batch)
        batch["sum"].mul_(0.5)
        seen.append((batch["sum"].tolist(), kept["sum"].tolist(), kept["sum"] is batch["sum"]))
    return step, seen


def batch_returned(wrap, device):
    """The loop goes on to fill what the step returns, which is its batch."""

    def step(batch):
        batch["parts"]["sum"] = batch["x"].sum()
        return batch["x"].mean(), batch

    step, seen = wrap(step), []
    for n in range(NUM):
        batch = {"x": numbers(n).to(device.torch_device), "parts": {}}
        mean, out = step(batch)
        out["number"] = n
        out["parts"]["mean"] = mean
        seen.append((out is batch, list(batch), batch["number"]))
        seen.append({name: value.item() for name, value in batch["parts"].items()})
    return step, seen


def batch_returned_unchanged(wrap, device):
    def step(batch):
        return batch, batch["x"] * 2

    step, seen = wrap(step), []
    for n in range(NUM):
        batch = {"x": numbers(n).to(device.torch_device)}
        out, double = step(batch)
        seen.append((out is batch, out["x"] is batch["x"], double.tolist()))
    return step, seen


def written_through_data(wrap, device):
    def step(x):
        x.data.clamp_(max=2.0)
        return x.sum()

    step, seen = wrap(step), []
    for n in range(NUM):
        x = torch.full((3,), 1.0 if n < 4 else 5.0).to(device.torch_device)
        seen.append((step(x).item(), x.tolist()))
    return step, seen


def written_beside_what_is_read(wrap, device):
    """The step also reads the buffer that its batches are parts of."""
    with torch.inference_mode():
        data = torch.ones(16, 2, 6).to(device.torch_device)
        data[12:] *= 5

    @torch.inference_mode()
    def step(x):
        x.clamp_(max=2.0)
        return (x - data[0]).sum()

    step = wrap(step)
    with torch.inference_mode():
        seen = [step(data[n]).item() for n in range(1, 16)]
    return step, [*seen, data.sum((1, 2)).tolist()]


def expanded_and_not_written(wrap, device):
    """The other tensor of the batch is written."""

    @torch.inference_mode()
    def step(a, mask):
        return a.clamp_(max=2.0).mul(mask).sum()

    step, seen = wrap(step), []
    with torch.inference_mode():
        for n in range(NUM):
            a = torch.full((3, 4), float(n)).to(device.torch_device)
            mask = torch.ones(3, 1).to(device.torch_device).expand(3, 4)
            seen.append((step(a, mask).item(), a.tolist(), mask.tolist()))
    return step, seen


def batch_saved_for_a_backward_pass_outside(wrap, device):
    """A write that counts no version invalidates nothing that autograd has saved."""
    weight = torch.ones(3, device=device.torch_device, requires_grad=True)

    def step(x):
        x.data.clamp_(max=100.0)
        return x.sum()

    step, seen = wrap(step), []
    for n in range(NUM):
        x = numbers(n).to(device.torch_device)
        product = (weight * x).sum()
        total = step(x).item()
        product.backward()
        seen.append((total, weight.grad.tolist(), x._version))
    return step, seen


def written_elsewhere_in_the_storage(wrap, device):
    data = torch.arange(128.0).reshape(16, 8).to(device.torch_device)

    def step(a, b):
        data[0].add_(a + b)
        return data[0].sum()

    step = wrap(step)
    return step, [step(data[n], data[15]).item() for n in range(1, 15)]


def trained_and_returned(wrap, device):
    """Also in the runs as written, whose results are let go of their graphs of gradients."""
    weight = torch.ones(3, device=device.torch_device, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.01)

    def step(batch):
        optimizer.zero_grad()
        loss = (weight * batch["x"]).sum()
        loss.backward()
        optimizer.step()
        return loss, batch

    step, seen = wrap(step), []
    for n in range(NUM):
        batch = {"x": numbers(n).to(device.torch_device)}
        loss, out = step(batch)
        out["number"] = n
        seen.append((loss.item(), out is batch, batch.get("number")))
    return step, seen


def changed_beside_compiled_code(wrap, device):
    compiled = torch.compile(lambda x: x * 2, backend="eager")

    def step(batch):
        batch["y"] = compiled(batch["x"])
        batch["x"].add_(1)
        return batch["x"].sum(), batch

    step, seen = wrap(step), []
    for n in range(NUM):
        batch = {"x": numbers(n).to(device.torch_device)}
        total, out = step(batch)
        parts = {name: value.tolist() for name, value in batch.items()}
        seen.append((total.item(), parts, out is batch, out["x"] is batch["x"]))
    return step, seen


def put_in_another_order(kind):
    """Items of a mapping that is no dict, one of which is taken out and put in again."""

    def loop(wrap, device):
        def step(batch):
            batch["labels"] = batch.pop("labels") * 2
            return batch["x"].sum()

        step, seen = wrap(step), []
        for n in range(NUM):
            x = numbers(n).to(device.torch_device)
            batch = kind({"labels": x + 1, "x": x})
            step(batch)
            seen.append([(name, value.tolist()) for name, value in batch.items()])
        return step, seen

    return loop


REPLAYED = [
    put_and_returned,
    put_in_another_order(OrderedDict),
    put_and_kept,
    batch_returned,
    batch_returned_unchanged,
    written_through_data,
    written_beside_what_is_read,
    expanded_and_not_written,
    batch_saved_for_a_backward_pass_outside,
    written_elsewhere_in_the_storage,
    trained_and_returned,
    changed_beside_compiled_code,
]


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("loop", REPLAYED)
def test_a_replay_does_as_the_step(device, loop):
    _, expected = loop(lambda step: step, device)

    step, seen = loop(lambda step: gapless.capture(step, device=device), device)

    assert seen == expected
    assert step.report.num_replays > 0, step.report.refusals


def returned_and_kept_in_both_kinds(wrap, device):
    kept = {}

    def step(x):
        y = x * 2 + (kept["a"].sum() if kept else 0.0)
        with torch.inference_mode():
            kept["a"] = torch.empty(0, device=x.device).set_(y)
        return y

    step, seen = wrap(step), []
    for n in range(NUM):
        y = step(numbers(n).to(device.torch_device))
        y.mul_(0.1)
        seen.append(y.tolist())
    return step, seen


def written_where_two_share_memory(wrap, device):
    def step(a, mask):
        return a.clamp_(max=2.0).sum() + mask.sum()

    step, seen = wrap(step), []
    for n in range(NUM):
        both = torch.full((2, 3, 4), float(n)).to(device.torch_device)
        seen.append((step(both[0], both[1]).item(), both.tolist()))
    return step, seen


def put_before_its_backward_pass(wrap, device):
    weight = torch.ones(3, device=device.torch_device, requires_grad=True)

    def step(batch):
        batch["loss"] = (weight * batch["x"]).sum()
        return batch["x"].sum()

    step, seen = wrap(step), []
    for n in range(NUM):
        batch = {"x": numbers(n).to(device.torch_device)}
        step(batch)
        batch["loss"].backward()
        seen.append(weight.grad.tolist())
    return step, seen


class ReadOnly(Mapping):
    """A mapping that nobody can make anew with other tensors."""

    def __init__(self, parts, /, *, secret):
        self._parts = parts

    def __getitem__(self, name):
        return self._parts[name]

    def __iter__(self):
        return iter(self._parts)

    def __len__(self):
        return len(self._parts)


def returned_in_what_cannot_be_made_anew(wrap, device):
    """Beside compiled code, for which the last run as written is on a copy of the batch."""
    compiled = torch.compile(lambda x: x * 2, backend="eager")

    def step(batch):
        return ReadOnly({"x": batch["x"], "y": compiled(batch["x"])}, secret=1)

    step, seen = wrap(step), []
    for n in range(NUM):
        out = step({"x": numbers(n).to(device.torch_device)})
        seen.append({name: value.tolist() for name, value in out.items()})
    return step, seen


class Named(dict):
    """A dictionary with attributes."""


def put_in_a_deque(batch):
    batch["aux"] = deque([batch["x"] * 2])


def put_in_an_attribute(batch):
    batch["aux"] = Named(double=batch["x"] * 2)
    batch["aux"].mask = batch["x"] > 0.02


def set_as_an_attribute(batch):
    batch.double = batch["x"] * 2


def attributes_of(change):
    def loop(wrap, device):
        def step(batch):
            change(batch)
            return batch["x"].sum()

        step, kept = wrap(step), []
        for n in range(NUM):
            batch = Named(x=numbers(n).to(device.torch_device))
            step(batch)
            kept.append(batch)
        tensors = [tensors_inside(batch) for batch in kept]
        return step, [[tensor.tolist() for tensor in found] for found in tensors]

    return loop


def one_dictionary_twice(wrap, device):
    def step(a, b):
        a["y"] = a["x"] * 2
        b["z"] = b["x"] * 3
        return a["x"].sum()

    step, seen = wrap(step), []
    for n in range(NUM):
        batch = {"x": numbers(n).to(device.torch_device)}
        step(batch, batch)
        seen.append({name: value.tolist() for name, value in batch.items()})
    return step, seen


@pytest.mark.parametrize(
    ("loop", "reason"),
    [
        (returned_in_what_cannot_be_made_anew, "which a replay cannot make anew"),
        (put_before_its_backward_pass, "still needs its backward pass"),
        (attributes_of(put_in_a_deque), "a deque that holds tensors of its batch"),
        (attributes_of(put_in_an_attribute), "a Named that holds tensors of its batch"),
        (attributes_of(set_as_an_attribute), "an attribute of a Named of its batch"),
        (one_dictionary_twice, "a batch in which one container stands twice"),
        (
            returned_and_kept_in_both_kinds,
            "one memory as tensors of two dtypes, as a conjugate and not, or in inference mode",
        ),
        (written_where_two_share_memory, "of which two share memory"),
    ],
)
def test_what_no_replay_can_do_is_refused(device, loop, reason):
    """With its reason, and what the step as written does is done."""
    _, expected = loop(lambda step: step, device)

    step, seen = loop(lambda step: gapless.capture(step, device=device), device)

    assert seen == expected
    assert step.report.num_replays == 0
    assert reason in str(step.report)


@pytest.mark.parametrize("num_kinds", [1, 5])
def test_no_batch_of_a_refused_step_is_held(device, num_kinds):
    """As without capture, what a refused step has seen of its batches is let go with them."""
    weight = torch.nn.Parameter(torch.ones(4, device=device.torch_device))

    @gapless.capture(device=device)
    def step(x):
        loss = (x * weight).sum()
        loss.backward()
        return loss * min(loss.item(), 1.0)

    def bytes_held():
        gc.collect()
        return device.reserved_memory_bytes()

    before = bytes_held()
    for n in range(NUM * num_kinds):
        x = torch.ones(1024 * (1 + n % num_kinds), 4).to(device.torch_device)
        step(x)
        del x

    assert not step.report.num_graphs
    assert bytes_held() - before < 1024 * 4 * 4
