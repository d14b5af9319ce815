"""What objects of the user's raise where a step is looked at refuses it, in one line, and never reaches the loop."""

from __future__ import annotations

import gc
import sys
import warnings

import pytest
import torch

import gapless
from gapless.graphs.reads.host_run import KeptPath
from gapless.graphs.reads.host_watch import _as_before
from gapless.graphs.reads.value_places import Place
from gapless.testing import SimulatedDevice
from inner_doors import replayed_whatever_it_takes


pytestmark = pytest.mark.quick_tests(14)

CALLS, AT = 14, 8


class OddError(Exception):
    """Raised by the objects below, and by nobody else."""


class Switch:
    """Whether the objects below raise; they do not hold it, so that no step reads it."""

    is_on = True
    error = OddError


def raise_if_on():
    if Switch.is_on:
        raise Switch.error("it is odd")


# ------------------------------------------------------------------------------- odd objects


class NamesNoClass:
    weight = 2.0

    @property
    def __class__(self):
        raise_if_on()
        return NamesNoClass


class HasNoAttributes:
    def __getattribute__(self, name):
        if name == "weight":
            return 2.0
        raise_if_on()
        return object.__getattribute__(self, name)


class ListWithoutLength(list):
    weight = 2.0

    def __len__(self):
        raise_if_on()
        return super().__len__()


class TableWithoutKeys(dict):
    weight = 2.0

    def __iter__(self):
        raise_if_on()
        return super().__iter__()

    def keys(self):
        raise_if_on()
        return super().keys()


class NoTruth:
    """Nothing that a look asks for."""

    weight = 2.0

    def __bool__(self):
        raise_if_on()
        return True

    def __len__(self):
        raise_if_on()
        return 1

    def __eq__(self, other):
        raise_if_on()
        return self is other

    def __hash__(self):
        raise_if_on()
        return 1

    @property
    def settings(self):
        raise_if_on()
        return {}

    def __getattr__(self, name):
        raise_if_on()
        raise AttributeError(name)


# What each raises in, None of those that nothing asks.
OBJECTS = {
    NamesNoClass: "NamesNoClass.__class__",
    HasNoAttributes: "HasNoAttributes.__getattribute__",
    lambda: ListWithoutLength([1.0]): "ListWithoutLength.__len__",
    lambda: TableWithoutKeys(a=1.0): "TableWithoutKeys.__iter__",
    NoTruth: None,
}
ALL = [pytest.param(make, by, id=by or type(make()).__name__) for make, by in OBJECTS.items()]
THAT_RAISE = [one for one in ALL if one.values[1] is not None]
FORMS = pytest.mark.parametrize("form", ["step", "in_place"])


# ---------------------------------------------------------------------------------- harness


class Net(torch.nn.Module):
    """A layer, and an object that its code reads."""

    def __init__(self, make):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
        self.make = make
        self.held = []

    def forward(self, x):
        if not self.held:
            self.held.append(self.make())
        return self.layer(x) * weight_of(self.held[0])


def weight_of(held):
    return [held][0].weight


def state_of_the_thread():
    return sys.getprofile(), gc.isenabled(), torch._C._is_multithreading_enabled()


def train(make, form, *, turned_on_at=0, is_made_late=False):
    """Return losses and weights of a loop, and its report; without a form, of the loop as written."""
    Switch.is_on = False
    torch.manual_seed(0)
    with (
        warnings.catch_warnings(),
        SimulatedDevice() as device,
        device.allow_waits(),
        replayed_whatever_it_takes(),
    ):
        warnings.simplefilter("ignore")
        net = Net(make).to(device.torch_device)
        if not is_made_late:
            net.held.append(make())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def train_step(x):
            loss = net(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        call, report_of = train_step, lambda: None
        if form == "in_place":
            gapless.capture(net, optimizer, device=device)
            report_of = lambda: gapless.capture_report(net)  # noqa: E731
        elif form == "step":
            call = gapless.capture(train_step, device=device)
            report_of = lambda: call.report  # noqa: E731
        results = []
        before = state_of_the_thread()
        for number in range(CALLS):
            Switch.is_on = number >= turned_on_at
            results.append(call(torch.full((2, 3), number + 1.0).to(device.torch_device)).item())

            assert state_of_the_thread() == before
        Switch.is_on = False
        return [*results, *net.layer.weight.flatten().tolist()], report_of()


@pytest.fixture(autouse=True)
def switch():
    yield
    Switch.is_on, Switch.error = False, OddError


# ------------------------------------------------------------------------------------ cases


def is_refused_in_one_line(report, form, by):
    (refusal,) = [one for one in report.refusals if one.kind == "unreadable"]
    of = "Net.forward" if form == "in_place" else "train_step"
    return refusal.text.startswith(
        f"reading what {of} uses raised OddError: it is odd in {by} (test_failed_looks.py:"
    )


@FORMS
@pytest.mark.parametrize(("make", "by"), ALL)
def test_a_step_that_uses_an_object_that_raises_when_it_is_looked_at_runs_as_written(
    make, by, form
):
    """With the losses and weights of the loop as written, and one line in the report."""
    results, report = train(make, form)

    assert results == train(make, None)[0]
    assert (report.num_replays == 0) == (by is not None)
    assert by is None or is_refused_in_one_line(report, form, by)


@FORMS
@pytest.mark.parametrize(("make", "by"), THAT_RAISE)
def test_an_object_that_the_first_call_makes_may_raise_after_it(make, by, form):
    """The call's result is the loop's all the same."""
    results, report = train(make, form, is_made_late=True)

    assert results == train(make, None, is_made_late=True)[0]
    assert report.num_replays == 0
    assert is_refused_in_one_line(report, form, by)


@FORMS
@pytest.mark.parametrize(("make", "by"), THAT_RAISE[1:])  # without one that is always refused
def test_a_guard_that_raises_does_not_hold(make, by, form):
    """Objects that raise later on make calls run as written, whether they are compared or not."""
    results, report = train(make, form, turned_on_at=AT)

    assert results == train(make, None)[0]
    assert report.num_replays
    assert all(one.kind == "unreadable" for one in report.refusals)


@FORMS
def test_what_a_user_stops_a_look_with_ends_the_loop(form):
    """A KeyboardInterrupt is no error of an object."""
    Switch.error = KeyboardInterrupt
    before = state_of_the_thread()

    with pytest.raises(KeyboardInterrupt):
        train(lambda: ListWithoutLength([1.0]), form)
    assert state_of_the_thread() == before


@FORMS
def test_an_error_of_the_step_itself_is_the_loops(form):
    """Where a look has failed before it, too."""

    class Raises(ListWithoutLength):
        @property
        def weight(self):
            if Switch.is_on:
                raise ValueError("of the step")
            return 2.0

    with pytest.raises(ValueError, match="of the step"):
        train(lambda: Raises([1.0]), form)


class TextlessError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def test_an_error_without_a_text_is_named_by_its_type():
    """Its text is asked for once, and may raise as well."""
    Switch.error = TextlessError
    _, report = train(lambda: ListWithoutLength([1.0]), "step")

    assert "uses raised TextlessError in ListWithoutLength.__len__" in report.refusals[0].text
    assert report.refusals


class Growing(dict):
    """Numbers that must not become less."""

    def __setitem__(self, key, value):
        if value < self[key]:
            raise ValueError("less")
        super().__setitem__(key, value)


def test_what_cannot_be_set_keeps_nothing_else_from_being_put_back():
    """Plain values stand as they stood before the run while guards are made."""
    table, growing = {"rows": 2}, Growing(rows=2)
    paths = [
        KeptPath(Place("dict", one, "rows", name="", site=""), "", "", is_plain=True, before=1)
        for one in (table, growing)
    ]
    with pytest.raises(ValueError, match="less"), _as_before(paths):
        pass

    assert (table, growing) == ({"rows": 2}, {"rows": 2})


class Rate(float):
    def __eq__(self, other):
        raise_if_on()
        return super().__eq__(other)

    __hash__ = float.__hash__

    def hex(self):
        raise_if_on()
        return super().hex()


def test_a_rate_that_raises_when_it_is_compared_does_not_hold():
    """Numbers of optimizers are compared apart from what the step reads."""

    def losses(*, captured):
        Switch.is_on = False
        with warnings.catch_warnings(), SimulatedDevice() as device, device.allow_waits():
            warnings.simplefilter("ignore")
            weight = torch.ones(3).to(device.torch_device).requires_grad_()
            optimizer = torch.optim.SGD([weight], lr=Rate(0.1))

            def train_step(x):
                loss = (weight * x).square().sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                return loss.detach()

            step = gapless.capture(train_step, device=device) if captured else train_step
            found = []
            for number in range(CALLS):
                if number == AT:
                    optimizer.param_groups[0]["lr"] = Rate(0.2)
                    Switch.is_on = True
                found.append(step(torch.ones(3).to(device.torch_device)).item())
            Switch.is_on = False
            return found, step.report.num_replays if captured else None

    found, num_replays = losses(captured=True)

    assert found == losses(captured=False)[0]
    assert num_replays
