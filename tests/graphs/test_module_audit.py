"""Graphs of modules in use are compared with the module as written, both passes each as they come."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import gapless
from gapless.graphs.modules.module_audit import BackwardHalf
from gapless.graphs.modules.module_graph import ModuleGraph
from gapless.graphs.proof import same_results
from gapless.testing import SimulatedDevice
from toy_steps import read_back


NUM_CALLS = 12


@pytest.fixture
def device(request):
    """The simulated device, which runs what is queued as soon as it may, unless a test says otherwise."""
    scheduler = getattr(request, "param", "asap")
    with SimulatedDevice(scheduler=scheduler) as device, device.allow_waits():
        yield device


def batch(device, number, *shape):
    draw = torch.Generator().manual_seed(number)
    return torch.randn(*(shape or (3, 4)), generator=draw).to(device.torch_device)


# --- modules ---


def mlp():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def dropout():
    return nn.Sequential(
        nn.Linear(4, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 2), nn.Dropout(0.3)
    )


def norm():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def frozen():
    model = mlp()
    model[0].weight.requires_grad_(False)
    return model


class Uses(nn.Module):
    """A weight and an input are used several times."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x, scale):
        h = torch.tanh(x @ self.weight) + x
        return (h @ self.weight) * scale + x.sum()


@dataclass
class Result:
    hidden: torch.Tensor
    loss: torch.Tensor
    best: torch.Tensor
    num: int = 3


class Outputs(nn.Module):
    """Returns outputs of which others are computed, and some that need no gradient."""

    def __init__(self, kind):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)
        self.kind = kind

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        out = self.second(hidden)
        loss = out.square().mean()
        if self.kind == "tuple":
            return hidden, loss, out.argmax(1)
        if self.kind == "dict":
            return {"hidden": hidden, "loss": loss, "best": out.argmax(1)}
        return Result(hidden, loss, out.argmax(1))


class View(nn.Module):
    """Returns a view of what it computes."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 6)

    def forward(self, x):
        return self.layer(x).view(-1, 2, 3).transpose(1, 2)


# --- loops ---


class Loop:
    """One call, and what becomes of it."""

    def __init__(self, model, device):
        self.model, self.device = model, device
        self.outer = nn.Linear(4, 4).to(device.torch_device)
        self.optimizer = torch.optim.SGD([*model.parameters(), *self.outer.parameters()], 0.001)
        self.scaler = torch.amp.GradScaler(device.torch_device.type, init_scale=8.0)
        self.seen = []

    def plain(self, number):
        self.model(batch(self.device, number)).square().mean().backward()

    def twice(self, number):
        first = self.model(batch(self.device, number))
        second = self.model(batch(self.device, number + 100))
        (first * second).sum().backward()

    def accumulates(self, number):
        self.plain(number)
        self.plain(number + 100)

    def scaled(self, number):
        loss = self.model(batch(self.device, number)).square().mean()
        self.scaler.scale(loss).backward()

    def hooks(self, number):
        out = self.model(batch(self.device, number))
        out.register_hook(lambda gradient: gradient * 2)
        out.retain_grad()
        out.square().mean().backward()
        self.seen.append(out.grad)

    def in_place(self, number):
        out = self.model(batch(self.device, number))
        out += 1
        out[0].mul_(2)
        torch.relu_(out).sum().mul(3.0).backward()

    def evaluates(self, number):
        self.plain(number)
        with torch.no_grad():
            self.seen.append(self.model(batch(self.device, number + 100)))

    def inputs(self, number):
        x = batch(self.device, number).requires_grad_()
        x.register_hook(lambda gradient: gradient * 3)
        scale = batch(self.device, number + 50)
        (self.model(x, scale).square().mean() + x.sum()).backward()
        self.seen.append(x.grad)

    def between(self, number):
        h = self.outer(batch(self.device, number))
        h.retain_grad()
        h.register_hook(lambda gradient: gradient * 3)
        out = self.model(h, batch(self.device, number + 50))
        (out.square().mean() + h.square().sum()).backward()
        self.seen.append(h.grad)

    def one_output(self, number):
        out = self.model(batch(self.device, number))
        loss = (
            out.loss
            if isinstance(out, Result)
            else out["loss"]
            if isinstance(out, dict)
            else out[1]
        )
        loss.backward()
        best = (
            out.best
            if isinstance(out, Result)
            else out["best"]
            if isinstance(out, dict)
            else out[2]
        )
        assert not best.requires_grad
        self.seen.append(best)

    def both_outputs(self, number):
        hidden, loss, best = self.model(batch(self.device, number))
        (hidden.square().sum() + loss * 2 + best.sum()).backward()

    def one_after_the_other(self, number):
        hidden, loss, _ = self.model(batch(self.device, number))
        hidden.square().sum().backward(retain_graph=True)
        (loss * 2).backward()

    def twice_backward(self, number):
        loss = self.model(batch(self.device, number)).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()

    def now_and_then_another(self, number):
        out = self.model(batch(self.device, number))
        if number % 4 == 3:
            out[0].sum().backward()
        elif number % 4 == 2:
            weights = list(self.model.parameters())
            self.seen += torch.autograd.grad(out.square().mean(), weights[:1])
        else:
            out.square().mean().backward()

    def penalty(self, number):
        x = batch(self.device, number).requires_grad_()
        out = self.model(x)
        if number >= 8:
            (gradient,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            (out.square().mean() + gradient.norm()).backward()
        else:
            out.square().mean().backward()

    def autocast(self, number):
        with torch.autocast(self.device.torch_device.type, dtype=torch.bfloat16):
            out = self.model(batch(self.device, number))
        out.float().square().mean().backward()

    def lost(self, number):
        out = self.model(batch(self.device, number))
        if number % 3:
            out.square().mean().backward()


LOOPS = {
    "plain": (mlp, Loop.plain),
    "dropout": (dropout, Loop.plain),
    "norm": (norm, Loop.plain),
    "frozen": (frozen, Loop.plain),
    "twice": (dropout, Loop.twice),
    "accumulates": (norm, Loop.accumulates),
    "scaled": (mlp, Loop.scaled),
    "hooks": (mlp, Loop.hooks),
    "in_place": (mlp, Loop.in_place),
    "in_place_on_a_view": (View, Loop.in_place),
    "evaluates": (norm, Loop.evaluates),
    "inputs": (Uses, Loop.inputs),
    "between": (Uses, Loop.between),
    "tuple": (lambda: Outputs("tuple"), Loop.one_output),
    "dict": (lambda: Outputs("dict"), Loop.one_output),
    "dataclass": (lambda: Outputs("dataclass"), Loop.one_output),
    "both_outputs": (lambda: Outputs("tuple"), Loop.both_outputs),
    "one_after_the_other": (lambda: Outputs("tuple"), Loop.one_after_the_other),
    "twice_backward": (dropout, Loop.twice_backward),
    "now_and_then_another": (mlp, Loop.now_and_then_another),
    "penalty": (mlp, Loop.penalty),
    "lost": (mlp, Loop.lost),
    "autocast": (mlp, Loop.autocast),
    "uses_up": (lambda: Reads("uses_up"), Loop.plain),
}

# Audits whose both halves are compared.
WHOLE = [
    "plain",
    "dropout",
    "norm",
    "frozen",
    "accumulates",
    "scaled",
    "hooks",
    "in_place",
    "evaluates",
    "inputs",
    "between",
    "tuple",
    "dict",
    "dataclass",
    "both_outputs",
    "autocast",
    "uses_up",
]


def run(name, device, *, num=NUM_CALLS, at=None, change=None, captured=True, **options):
    """Return what is seen of some calls, and the report."""
    torch.manual_seed(0)
    make, call = LOOPS[name] if isinstance(name, str) else (name, Loop.plain)
    model = make().to(device.torch_device)
    loop, seen = Loop(model, device), []
    if captured:
        gapless.capture(model, device=device, **options)
    for number in range(num):
        if number == at:
            change(loop)
        call(loop, number)
        weights = list(loop.optimizer.param_groups[0]["params"])
        loop.optimizer.step()
        found = [*weights, *model.buffers(), *loop.seen]
        found += [weight.grad for weight in weights if weight.grad is not None]
        seen.append([read_back(device, one).tolist() for one in found])
        seen.append([weight.grad is None for weight in weights])
        seen.append(torch.rand(1).tolist() if number % 5 == 4 else [])
        loop.seen.clear()
        if number % 2:
            loop.optimizer.zero_grad()
    return seen, gapless.capture_report(model) if captured else None


def check(name, device, *, every):
    num = 16 if name == "autocast" else NUM_CALLS
    expected, _ = run(name, device, num=num, captured=False)
    found, report = run(name, device, num=num, audit_every=every)

    assert found == expected
    assert report.audits.differences == []
    if name in WHOLE:
        assert report.audits.num_equal >= 1
        assert report.audits.num_halves == 0
    return report


@pytest.mark.quick_cases(4)
@pytest.mark.filterwarnings("ignore::gapless.CaptureWarning")
@pytest.mark.parametrize("name", LOOPS)
def test_an_audited_call_is_the_call_as_written(device, name):
    """Weights, gradients, buffers, outputs and random numbers are those of the loop as written."""
    report = check(name, device, every=1)

    assert report.num_replays == 0 or name not in WHOLE


@pytest.mark.quick_cases(2)
@pytest.mark.filterwarnings("ignore::gapless.CaptureWarning")
@pytest.mark.parametrize("device", ["lazy"], indirect=True)
@pytest.mark.parametrize("name", [name for name in LOOPS if name != "penalty"])
def test_replays_go_on_behind_an_audit(device, name):
    """They do so on a device that is late, too."""
    report = check(name, device, every=2)

    assert report.num_replays > 0 or name not in WHOLE


class Reads(nn.Module):
    """Reads a function that no guard compares, in one of its passes."""

    def __init__(self, where):
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.where = where
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, x):
        out = self.layer(x)
        if self.where == "forward":
            return out * math.cos(1.0)
        if self.where == "buffer":
            with torch.no_grad():
                self.mean.add_(out.detach().mean(0) * math.cos(1.0))
            return out * 2
        if self.where == "ways":
            bias = self.layer.bias
            return nn.functional.linear(
                x, self.layer.weight, bias.detach() if math.cos(1.0) > 1 else bias
            )
        if self.where == "uses_up":
            return UsesUp.apply(out)
        return Scaled.apply(out)


class UsesUp(torch.autograd.Function):
    """Its backward pass changes what was saved for it, and cannot run twice."""

    @staticmethod
    def forward(ctx, x):
        ctx.factor = torch.full_like(x, 2.0)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        ctx.factor.mul_(gradient)
        return ctx.factor


class Scaled(torch.autograd.Function):
    """Its backward pass reads a function that no guard compares."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2 * math.cos(1.0)


def patched(monkeypatch, value=5.0):
    cos = math.cos

    def change(_):
        monkeypatch.setattr(math, "cos", lambda x: value)

    def undo():
        monkeypatch.setattr(math, "cos", cos)

    return change, undo


@pytest.mark.parametrize(
    ("where", "what"),
    [
        ("forward", "output 1"),
        ("buffer", "mean"),
        ("backward", "the gradient of layer.weight"),
        ("ways", "gradients take other ways"),
    ],
)
def test_a_change_that_no_guard_sees_is_found(device, monkeypatch, where, what):
    """With an audit at every call nothing is other than as written, and it is captured anew."""
    change, undo = patched(monkeypatch)
    make = lambda: Reads(where)  # noqa: E731
    expected, _ = run(make, device, num=24, at=10, change=change, captured=False)
    undo()
    with pytest.warns(gapless.CaptureWarning, match=r"audit found a difference in call 11"):
        found, report = run(make, device, num=24, at=10, change=change, audit_every=1)

    assert found == expected
    (text,) = report.audits.differences
    assert what in text
    assert report.num_graphs == 2
    assert report.refusals == []


def test_a_second_difference_refuses_the_call(device, monkeypatch):
    values = iter(range(1, 1000))

    def change(_):
        monkeypatch.setattr(math, "cos", lambda x: float(next(values)))

    with pytest.warns(gapless.CaptureWarning, match="audit found a difference"):
        _, report = run(
            lambda: Reads("forward"), device, num=30, at=10, change=change, audit_every=1
        )
    assert report.refusal.kind == "proved_wrong"


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_without_its_node_the_backward_half_finds_nothing(device, monkeypatch, where):
    """It takes each half to find what is in its pass alone."""
    change, _ = patched(monkeypatch)
    monkeypatch.setattr(BackwardHalf, "note_given", lambda *_: None)
    if where == "forward":
        with pytest.warns(gapless.CaptureWarning, match="output 1"):
            run(lambda: Reads(where), device, at=6, change=change, audit_every=1)
    else:
        _, report = run(lambda: Reads(where), device, at=6, change=change, audit_every=1)
        assert report.audits.differences == []
        assert report.audits.num_halves == report.audits.num_equal > 0


class Spread(nn.Module):
    """Adds by an operator that may give other bits each time, which only its backward pass has."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        index = torch.zeros(x.shape[0], 4, dtype=torch.long, device=x.device)
        return self.layer(x).gather(1, index[:, :3]) * math.cos(1.0)


def test_what_does_not_repeat_its_bits_is_proved_anew(device, monkeypatch):
    """Beyond the tolerance nothing is reported: the next graph is proved against two runs as written."""
    change, _ = patched(monkeypatch)
    _, report = run(Spread, device, num=24, at=8, change=change, audit_every=1)

    assert report.audits.differences == []
    assert report.audits.num_equal > 2
    assert report.num_graphs == 2


def test_audits_without_a_backward_pass_are_counted(device):
    """The report says so after eight in a row, and the block gets no longer."""
    torch.manual_seed(0)
    model = gapless.capture(mlp().to(device.torch_device), device=device, audit_every=1)
    for number in range(24):
        out = model(batch(device, number))
        if number < 5:
            out.square().mean().backward()
        del out
    report = gapless.capture_report(model)

    assert report.audits.num_halves >= 8
    assert "the last 8 audits compared the forward pass alone" in report.note
    assert "without the backward pass" in str(report)


@pytest.mark.filterwarnings("ignore::gapless.CaptureWarning")
def test_an_audit_waits_for_its_backward_pass(device):
    """Calls in between run as written, and its memory is free when the pass is over."""
    torch.manual_seed(0)
    model = gapless.capture(mlp().to(device.torch_device), device=device, audit_every=4)
    report = gapless.capture_report(model)
    while not report.audits.num:
        out = model(batch(device, report.num_steps)).square().mean()
        if not report.audits.num:
            out.backward()
    num = report.num_replays
    for number in range(3):
        model(batch(device, number)).square().mean().backward()
    assert (report.num_replays, report.audits.num_equal) == (num, 0)

    out.backward()
    model(batch(device, 9)).square().mean().backward()
    assert (report.num_replays, report.audits.num_equal) == (num + 1, 1)


def test_nothing_is_held_when_an_audit_is_over(device):
    """Neither by torch's nodes nor by the graph."""
    model = gapless.capture(mlp().to(device.torch_device), device=device, audit_every=1)
    for number in range(8):
        x = batch(device, number).requires_grad_(False)
        out = model(x)
        out.square().mean().backward()
    assert gapless.capture_report(model).audits.num > 2
    held = weakref.ref(x), weakref.ref(out), weakref.ref(out.grad_fn)
    del x, out

    assert [one() for one in held] == [None, None, None]


def test_what_needs_more_memory_than_there_is_ends_audits(device, monkeypatch):
    prove = same_results.prove

    def finds_no_memory(*args, num_written=2, **how):
        if num_written == 1:
            raise same_results.NotProved("no memory for a copy")
        return prove(*args, num_written=num_written, **how)

    expected, _ = run("norm", device, captured=False)
    monkeypatch.setattr("gapless.graphs.modules.module_trial.prove", finds_no_memory)
    found, report = run("norm", device, audit_every=4)

    assert found == expected
    assert report.audits.num == 0
    assert report.note == "no further audits: no memory for a copy"
    assert report.num_replays > 3


def test_no_memory_in_the_backward_pass_ends_audits(device, monkeypatch):
    """Nothing is raised there."""

    def finds_no_memory(*_):
        raise torch.OutOfMemoryError

    expected, _ = run("norm", device, captured=False)
    monkeypatch.setattr(ModuleGraph, "audited_backward", finds_no_memory)
    found, report = run("norm", device, audit_every=1)

    assert found == expected
    assert report.audits.num == 1
    assert report.note == "no further audits: no memory for a copy of the gradients"
    assert report.num_replays > 3
