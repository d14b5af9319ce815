"""Backward passes whose gradients may be differentiated are found in the user's code before a capture."""

from __future__ import annotations

import sys
import types
import warnings
import weakref
from functools import partial

import pytest
import torch
from torch import nn

import gapless
from gapless.graphs.modules.create_graph import CreateGraphSearch
from gapless.testing import SimulatedDevice


def site():
    """Return the name of the line that is found from the caller on, "" if there is none."""
    return CreateGraphSearch().site(sys._getframe(1))


# --- what is found ---


def slope_penalty(critic, x):
    x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    return slope.square().mean()


def second_order(loss, weights):
    return torch.autograd.grad(loss, weights, None, None, True)


def curvature(model, x):
    return torch.autograd.functional.hessian(model, x)


def by_a_table(loss):
    options = {"create_graph": True}
    loss.backward(**options)


def late(loss, number):
    loss.backward(create_graph=number > 200)


def with_a_default(loss, create_graph=True):
    loss.backward(create_graph=create_graph)


def helper(critic, x):
    return slope_penalty(critic, x)


BY_PARTIAL = partial(slope_penalty, None)


class Penalty:
    def __init__(self, weight):
        self.weight = weight

    def __call__(self, critic, x):
        return self.weight * slope_penalty(critic, x)


class Loop:
    def __init__(self, weight=1.0):
        self.penalty = Penalty(weight)

    def late(self, critic, x):
        return self.penalty(critic, x)


def run_by_name(loop):
    return site() or loop.late(None, None)


class Idle:
    def run(self):
        return site()

    def never(self, critic, x):
        return slope_penalty(critic, x)


class Module(nn.Module):
    def run(self):
        return site()

    def forward(self, x):
        return slope_penalty(self.inner, x)


def test_a_function_that_is_named_is_found():
    """At the line of its backward pass, whoever calls it."""
    found = site()
    if not found:
        slope_penalty(None, None)

    assert found == f"test_create_graph.py:{slope_penalty.__code__.co_firstlineno + 2}"


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (helper, slope_penalty.__code__.co_firstlineno + 2),
        (second_order, second_order.__code__.co_firstlineno + 1),
        (curvature, curvature.__code__.co_firstlineno + 1),
        (by_a_table, by_a_table.__code__.co_firstlineno + 1),
        (late, late.__code__.co_firstlineno + 1),
        (with_a_default, with_a_default.__code__.co_firstlineno + 1),
    ],
)
def test_ways_to_ask_for_such_gradients(function, line):
    """By a keyword, by place, by a table of arguments, by a default, and by what torch does with it."""
    names = {**globals(), "function": function}
    caller = types.FunctionType(_calls_a_function.__code__, names)

    assert caller() == f"test_create_graph.py:{line}"


def _calls_a_function():
    return site() or function()  # noqa: F821


def test_a_method_counts_once_its_name_stands_somewhere():
    """Nothing on the stack names this one."""
    assert Idle().run() == ""


def test_a_method_that_is_named_leads_on():
    """To the object that its own holds, and to what that calls."""
    assert run_by_name(Loop()) != ""


def test_what_a_class_of_torch_calls_counts_at_once():
    """Nobody has to name `forward`."""
    assert Module().run() != ""


def given(penalty, others=()):
    return site()


def test_what_a_loop_was_given_leads_on():
    """As an argument, or in a container, whatever its name is."""
    kinds = {"slope": slope_penalty}

    assert given(kinds["slope"]) != ""
    assert given(None, [None, kinds["slope"]]) != ""


def test_variables_of_a_loop_are_not_kept():
    """What it lets go of is gone, and what it got from `locals()` stays."""
    held = torch.ones(2)
    alive, table = weakref.ref(held), locals()
    site()
    assert "held" in table

    del table, held
    site()
    assert alive() is None


def test_a_partial_function_leads_on():
    """It is looked into."""
    found = site()
    if not found:
        BY_PARTIAL(None)

    assert found


def test_code_without_lines_to_read_is_found_by_its_names():
    """As it is typed at a prompt."""
    names = {"site": site}
    text = "def loop(loss):\n    return site() or loss.backward(create_graph=loss.is_late)"
    exec(compile(text, "typed.py", "exec"), names)

    assert names["loop"](None) == "typed.py:1"


# --- what is not ---


def plain(loss):
    loss.backward(retain_graph=False, create_graph=False)


def of_an_optimizer(loss, optimizer):
    is_second_order = hasattr(optimizer, "is_second_order") and optimizer.is_second_order
    handed_on(loss, create_graph=is_second_order)
    return site()


def handed_on(loss, create_graph=False, retain_graph=False):
    if loss is not None:
        loss.backward(create_graph=create_graph, retain_graph=retain_graph)


class Switch:
    def __init__(self, order):
        self.order = order

    def run(self):
        self.step(None)
        return site()

    def step(self, loss):
        if loss is not None and self.order > 1:
            loss.backward(create_graph=self.order > 1)


def test_what_is_false_is_nothing():
    """As a constant, and as what an optimizer of first order says."""
    weight = nn.Parameter(torch.ones(1))
    found = site()
    if not found:
        plain(weight.sum())

    assert found == ""


def test_the_order_of_an_optimizer_is_nothing():
    """Many scripts ask for it; one of second order differentiates gradients from the first step on."""
    weight = nn.Parameter(torch.ones(1))

    assert of_an_optimizer(None, torch.optim.SGD([weight], lr=0.1)) == ""


def test_what_is_decided_as_the_loop_runs_counts():
    """Whatever it is now: neither attributes nor branches are followed."""
    assert Switch(1).run() != ""


def test_code_of_a_package_is_nobodys(tmp_path, monkeypatch):
    """A package hands such flags on for everybody."""
    folder = tmp_path / "site-packages" / "aframework"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(
        "def backward(loss):\n    loss.backward(create_graph=True)\n"
    )
    monkeypatch.syspath_prepend(str(folder.parent))
    import aframework

    found = site()
    if found:
        aframework.backward(None)

    assert found == ""


# --- in a loop ---


def train(device, *, is_captured, begins=12, every=1, num=20):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)).to(device.torch_device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if is_captured:
        gapless.capture(model, optimizer, device=device)
    draw = torch.Generator().manual_seed(1)
    for number in range(num):
        x = torch.randn(4, 8, generator=draw).to(device.torch_device)
        loss = model(x).square().mean()
        if number >= begins and number % every == 0:
            grads = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
            loss = loss + sum(grad.square().sum() for grad in grads)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("every", [1, 4])
def test_a_penalty_that_begins_late_leaves_all_bits_as_they_are(every):
    """The module runs as written from the beginning, and a warning names the line; its optimizer is captured."""
    with SimulatedDevice() as device:
        plain = train(device, is_captured=False, every=every)
        with pytest.warns(
            gapless.CaptureWarning, match=r"test_create_graph.py:\d+ may run"
        ) as told:
            model = train(device, is_captured=True, every=every)

        assert [one.tolist() for one in model.parameters()] == [
            one.tolist() for one in plain.parameters()
        ]
    report = gapless.capture_report(model)
    assert (len(told), report.num_graphs, report.num_eager) == (1, 0, 20)
    assert [one.kind for one in report.refusals] == ["create_graph"]


def test_calls_without_gradients_are_captured_all_the_same():
    """Of them nothing is differentiated."""
    with SimulatedDevice() as device, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = train(device, is_captured=True)
        for _ in range(6):
            with torch.no_grad():
                model(torch.ones(4, 8).to(device.torch_device))

    assert gapless.capture_report(model).num_replays > 0


def test_whoever_asks_for_an_error_gets_it():
    """After the call has run as written."""
    with SimulatedDevice() as device:
        model = nn.Linear(8, 1).to(device.torch_device)
        gapless.capture(model, device=device, on_refusal="raise")
        with pytest.raises(gapless.CaptureRefused, match="create_graph=True"):
            slope_penalty(model, torch.ones(2, 8).to(device.torch_device))
