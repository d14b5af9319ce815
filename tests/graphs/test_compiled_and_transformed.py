"""What stands inside torch.compile or a transform of torch.func runs as written there, and says so."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gapless
from gapless.device.cpu import CpuDevice


class Accelerator(CpuDevice):
    """A CPU that passes for an accelerator, on which nothing is captured yet."""

    is_accelerator = True

    def needs_copy(self, tensor):
        return tensor.device != self.torch_device


def model_of(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))


def batch():
    return torch.linspace(-1, 1, 32).reshape(8, 4), torch.arange(8) % 4


def compiled_itself(model):
    model.compile(backend="eager")
    return lambda x, y: F.cross_entropy(model(x), y)


def compiled_around(model):
    compiled = torch.compile(model, backend="eager")
    return lambda x, y: F.cross_entropy(compiled(x), y)


def called_by_compiled_code(model):
    return torch.compile(lambda x, y: F.cross_entropy(model(x), y), backend="eager")


@pytest.fixture(autouse=True)
def nothing_stays_compiled():
    """Let each test compile anew."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def losses_of(loss_of, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = loss_of(*batch())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.filterwarnings("default")
def test_a_captured_module_is_compiled_in_one_piece():
    """`fullgraph=True` raises where the compiler cannot follow."""
    plain, captured = model_of(), gapless.capture(model_of(), device=Accelerator())
    compiled = torch.compile(captured, backend="eager", fullgraph=True)
    assert torch.equal(compiled(batch()[0]), plain(batch()[0]))
    gapless.release(captured)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("form", [compiled_itself, compiled_around, called_by_compiled_code])
def test_a_captured_module_is_compiled_as_written(form):
    """The compiler sees the module's own code, the losses are the same, and the report says why."""
    plain, captured = model_of(), gapless.capture(model_of(), device=Accelerator())

    assert losses_of(form(captured), captured) == losses_of(form(plain), plain)

    report = gapless.capture_report(captured)
    assert [refusal.kind for refusal in report.refusals] == ["compiled"]


@pytest.mark.filterwarnings("default")
def test_a_captured_step_is_compiled_as_written():
    """So is a captured function that compiled code calls."""
    model = model_of()
    inner = gapless.capture(lambda x: model(x) * 2, device=Accelerator())

    out = torch.compile(lambda x: inner(x) + 1, backend="eager")(batch()[0])

    assert torch.equal(out, model(batch()[0]) * 2 + 1)
    assert [refusal.kind for refusal in inner.report.refusals] == ["compiled"]


TRANSFORMS = {
    "vmap": lambda call, x: torch.func.vmap(call)(x),
    "jvp": lambda call, x: torch.func.jvp(call, (x,), (torch.ones_like(x),))[1],
    "grad": lambda call, x: torch.func.grad(lambda v: call(v).square().sum())(x),
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
@pytest.mark.parametrize("in_place", [True, False])
def test_a_call_within_a_transform_runs_as_written(transform, in_place):
    """Its tensors have no memory of their own, and the result is that of the plain module."""
    device = Accelerator()
    plain, model = model_of(), model_of()
    captured = gapless.capture(model if in_place else (lambda x: model(x)), device=device)

    found = transform(captured, batch()[0])

    assert torch.equal(found, transform(plain, batch()[0]))
    report = gapless.capture_report(model) if in_place else captured.report
    assert "transform of torch.func" in str(report)


def test_gradients_of_each_sample_with_a_captured_module():
    """`functional_call` puts tensors without memory in the place of the weights."""
    plain, captured = model_of(), gapless.capture(model_of(), device=Accelerator())

    def gradients(model):
        def loss_of(weights, x, y):
            out = torch.func.functional_call(model, weights, (x[None],))
            return F.cross_entropy(out, y[None])

        weights = {name: one.detach() for name, one in model.named_parameters()}
        return torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0, 0))(weights, *batch())

    expected, found = gradients(plain), gradients(captured)

    assert all(torch.equal(expected[name], found[name]) for name in expected)
