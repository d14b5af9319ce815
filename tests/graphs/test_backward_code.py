"""Backward passes that the user wrote, in modules that are captured where they stand."""

from __future__ import annotations

import sys
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import gapless
from gapless.graphs.reads.host_watch import HostWatch
from gapless.testing import SimulatedDevice


class Acting(torch.autograd.Function):
    """Its backward pass calls a function that it was given."""

    @staticmethod
    def forward(ctx, x, act):
        ctx.act = act
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return ctx.act(gradient), None


class Reversed(torch.autograd.Function):
    """Its backward pass uses nothing but the gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


class Sign(torch.autograd.Function):
    """A straight-through estimator."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() <= 1)


STATE = SimpleNamespace(scale=1.0, count=0, shapes=[])


@torch.library.custom_op("gapless_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def of_twice(ctx, gradient):
    print("twice")
    return gradient * 2


twice.register_autograd(of_twice)


def scaled(gradient):
    return gradient * STATE.scale


def printing(gradient):
    print("a backward pass")
    return gradient


def counting(gradient):
    STATE.count += 1
    return gradient


def collecting(gradient):
    STATE.shapes.append(gradient.shape)
    return gradient


def made_anew(x):
    return Acting.apply(x, eval("lambda gradient: gradient * 2"))


def acting(*acts):
    """Return a layer that goes through a node for each of these."""

    def layer(x):
        for act in acts:
            x = Acting.apply(x, act)
        return x

    return layer


class Net(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.body, self.head, self.layer = nn.Linear(4, 8), nn.Linear(8, 2), layer

    def forward(self, x):
        return self.head(self.layer(torch.tanh(self.body(x))))


def train(layer, *, captured, num=12, num_calls=1, change=lambda number: None):
    """Return the gradients of all calls, what the backward passes have left, and the report."""
    STATE.scale, STATE.count, STATE.shapes = 1.0, 0, []
    found = []
    with SimulatedDevice() as device:
        torch.manual_seed(0)
        model = Net(layer).to(device.torch_device)
        if captured:
            gapless.capture(model, device=device)
        for number in range(num):
            change(number)
            draw = torch.Generator().manual_seed(number)
            x = torch.randn(3, 4, generator=draw).to(device.torch_device)
            model.zero_grad()
            losses = [model(x * (call + 1)).square().mean() for call in range(num_calls)]
            sum(losses).backward()
            found.append([one.grad.tolist() for one in model.parameters()])
        report = gapless.capture_report(model) if captured else None
    return (found, STATE.count, list(STATE.shapes)), report


def refused(layer, **options):
    """Return the one line that says why a module runs as written."""
    expected, _ = train(layer, captured=False, **options)
    with pytest.warns(gapless.CaptureWarning) as told:
        found, report = train(layer, captured=True, **options)

    assert found == expected
    assert report.num_replays == 0
    assert len(told) == len(report.refusals) == 1
    return str(told[0].message)


def line_in(function):
    """Return the first line of a function's body, as messages name it."""
    return f"test_backward_code.py:{function.__code__.co_firstlineno + 1}"


@pytest.mark.parametrize(
    "layer",
    [
        acting(lambda gradient: -0.3 * gradient),
        Sign.apply,
        acting(scaled, torch.neg, scaled),
    ],
    ids=["gradient reversal", "straight through", "several"],
)
def test_backward_passes_that_only_compute_are_captured(layer):
    expected, _ = train(layer, captured=False)
    found, report = train(layer, captured=True)

    assert found == expected
    assert (report.num_graphs, report.refusals) == (1, [])
    assert report.num_replays >= 5


@pytest.mark.parametrize(
    "layer",
    [
        acting(printing),
        acting(torch.neg, printing),
        lambda x: Reversed.apply(Acting.apply(x, printing)),
    ],
    ids=["alone", "before another", "behind another"],
)
def test_a_print_comes_as_often_as_written_and_is_told(capsys, layer):
    """No rehearsal prints either."""
    assert f"{line_in(printing)}: print is work of the host" in refused(layer)
    assert capsys.readouterr().out.count("a backward pass") == 24


def test_a_print_of_a_custom_operator_is_told(capsys):
    assert f"{line_in(of_twice)}: print is work of the host" in refused(twice)
    assert capsys.readouterr().out.count("twice") == 24


@pytest.mark.parametrize(
    ("act", "name"), [(counting, "STATE.count"), (collecting, "STATE.shapes")]
)
def test_what_is_counted_or_collected_is_as_written_and_told(act, name):
    assert name in refused(acting(torch.neg, act))


def test_a_value_that_is_read_is_guarded():
    """Another one gives the gradients as written, from that call on."""

    def change(number):
        STATE.scale = 1.0 if number < 8 else 3.0

    expected, _ = train(acting(scaled), captured=False, num=16, change=change)
    found, report = train(acting(scaled), captured=True, num=16, change=change)

    assert found == expected
    assert (report.num_graphs, report.refusals) == (2, [])


@pytest.mark.parametrize("num_calls", [1, 2])
def test_code_that_first_runs_in_a_later_backward_pass_is_guarded(num_calls):
    """The guards that were made before it ran do not know what it reads."""

    def late(gradient):
        return scaled(gradient) if STATE.count else gradient

    def change(number):
        STATE.count = int(number >= 2)
        STATE.scale = 1.0 if number < 10 else 3.0

    options = {"num": 18, "num_calls": num_calls, "change": change}
    expected, _ = train(acting(late), captured=False, **options)
    found, report = train(acting(late), captured=True, **options)

    assert found == expected
    assert report.num_replays >= 5


def test_of_nodes_that_lead_to_the_same_code_one_is_watched(monkeypatch):
    """A watched run takes as long as many nodes."""
    runs = []
    begin = HostWatch._begin
    monkeypatch.setattr(HostWatch, "_begin", lambda *args: runs.append(args) or begin(*args))

    train(Sign.apply, captured=True)
    num_of_one = len(runs)
    train(lambda x: Sign.apply(Sign.apply(Sign.apply(x))), captured=True)

    assert len(runs) == 2 * num_of_one


def test_what_a_node_has_saved_is_let_go():
    """A watch of its backward pass does not hold it."""
    nodes = []

    def layer(x):
        out = Acting.apply(x, torch.neg)
        nodes.append(weakref.ref(out.grad_fn))
        return out

    with SimulatedDevice() as device:
        model = gapless.capture(Net(layer).to(device.torch_device), device=device)
        for _ in range(3):
            model(torch.ones(3, 4).to(device.torch_device)).sum().backward()
            assert nodes[-1]() is None


def test_code_that_is_made_in_every_backward_pass_is_refused():
    assert "makes new code in each call" in refused(made_anew, num=24)


def test_an_error_in_a_backward_pass_is_the_loops_own():
    """It leaves no profile behind."""

    def raising(gradient):
        raise ValueError("no")

    with SimulatedDevice() as device:
        model = gapless.capture(Net(acting(raising)).to(device.torch_device), device=device)
        for _ in range(4):
            with pytest.raises(ValueError, match="no"):
                model(torch.ones(3, 4).to(device.torch_device)).sum().backward()
            assert sys.getprofile() is None
