"""Calls by which the host waits reach a listener, with their operation, and are left as they were."""

from __future__ import annotations

import types
from contextlib import contextmanager

import pytest
import torch

from gapless.device import cuda_waits, script_tensors, waiting_calls
from gapless.device.user_line import call_site
from gapless.device.waiting_calls import (
    WaitingFunction,
    intercept_waits,
    read_by,
    waiting_functions,
)
from gapless.device.waiting_operations import READING_METHODS, READING_OPERATORS
from gapless.doctor.advice.causes import CODE_OF
from gapless.unnoticed import Patches


class Heard:
    """Keeps the calls that it hears of, with their lines."""

    def __init__(self):
        self.calls = []
        self.sites = []
        self.are_wanted = True

    @contextmanager
    def around(self, operation, call, detail):
        self.sites.append(call_site())
        self.calls.append((operation, call, detail))
        self.are_wanted = False
        yield
        self.are_wanted = True


@pytest.fixture
def heard(monkeypatch):
    """A listener, where every tensor is on a device."""
    monkeypatch.setattr(script_tensors, "is_on_accelerator", lambda tensor: True)
    heard = Heard()
    with Patches() as patches:
        intercept_waits(heard, patches)
        yield heard


READS = {
    "item": lambda x: x.item(),
    "__bool__": bool,
    "__float__": float,
    "__complex__": complex,
    "__int__": int,
    "__index__": lambda x: [0, 1][x.long()],
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
}


@pytest.mark.parametrize("name", READING_METHODS)
def test_each_read_is_told_with_its_operation_and_line(heard, name):
    """One call of a user is one read, whatever it consists of."""
    x = torch.ones(())
    expected = READING_METHODS[name], f"Tensor.{name}", ""

    READS[name](x)

    assert heard.calls == [expected]
    assert heard.sites[0].startswith("test_waiting_calls.py:")


def test_reads_of_tensors_on_the_host_are_not_told(heard, monkeypatch):
    """Nobody waits for them."""
    monkeypatch.setattr(script_tensors, "is_on_accelerator", lambda tensor: False)

    for read in READS.values():
        read(torch.ones(()))

    assert heard.calls == []


def test_a_copy_is_told_if_it_blocks(heard):
    """And to another type it does not."""
    x = torch.zeros(1 << 18)
    x.numpy(force=True)
    x.to(torch.float64)

    assert heard.calls == [("cpu", "Tensor.numpy", "")]


def test_a_listener_that_wants_nothing_is_told_nothing(heard):
    """As within a wait that it knows of already."""
    heard.are_wanted = False

    torch.ones(()).item()

    assert heard.calls == []


def test_a_function_that_waits_is_told_where_it_is_wanted(monkeypatch):
    """By its public name."""
    driver = types.ModuleType("driver")
    driver.synchronize = lambda: "done"
    one = WaitingFunction(driver, "synchronize", "device", "torch.cuda.synchronize")
    monkeypatch.setattr(waiting_calls, "waiting_functions", lambda: [one])
    heard = Heard()
    with Patches() as patches:
        intercept_waits(heard, patches)
        assert driver.synchronize() == "done"
        heard.are_wanted = False
        assert driver.synchronize() == "done"

    assert heard.calls == [("device", "torch.cuda.synchronize", "")]


def test_no_copy_is_judged_while_a_graph_is_captured(heard, monkeypatch):
    """To ask whether memory is page-locked would break the capture."""
    monkeypatch.setattr(script_tensors, "is_on_accelerator", lambda tensor: False)
    monkeypatch.setattr(script_tensors, "is_accelerator", lambda device: True)
    monkeypatch.setattr(script_tensors, "is_pinned", lambda tensor: False)
    x = torch.zeros(1 << 18)
    x.to("cpu", non_blocking=True)
    monkeypatch.setattr(waiting_calls, "is_capturing", lambda: True)
    x.to("cpu", non_blocking=True)

    assert [call for _, call, _ in heard.calls] == ["Tensor.to"]


BIG = 1 << 15  # more than the driver takes into its command buffer


def rows(*shape):
    return torch.zeros(*shape)


# Host and device tensor of a copy that is not to block, and why it blocks: to the device, to the host.
COPIES = {
    "nothing": (rows(0), rows(0), None, None),
    "nothing, strided": (rows(0, BIG)[:, ::2], rows(0, BIG // 2), None, None),
    "dense": (rows(BIG), rows(BIG), None, None),
    "a few bytes": (rows(8)[::2], rows(4), None, "strided copy"),
    "strided on the host": (rows(2 * BIG)[::2], rows(BIG), "strided copy", "strided copy"),
    "strided on the device": (rows(BIG), rows(2 * BIG)[::2], None, None),
    "strided on both": (rows(2 * BIG)[::2], rows(2 * BIG)[::2], "strided copy", "strided copy"),
    "transposed on the host": (rows(BIG, 2).t(), rows(2, BIG), "strided copy", "strided copy"),
    "transposed on both": (rows(BIG, 2).t(), rows(BIG, 2).t(), None, None),
    "converted": (rows(BIG), rows(BIG).half(), None, None),
    "converted and transposed": (
        *(rows(BIG, 2).t(), rows(BIG, 2).t().half()),
        *("strided copy", "strided copy"),
    ),
}


@pytest.mark.parametrize("to_device", [True, False])
@pytest.mark.parametrize("name", COPIES)
def test_counted_copies_and_those_that_the_doctor_finds_are_the_same(
    heard, monkeypatch, name, to_device
):
    """Page-locked copies: of no bytes, of strided and of converted memory, each by both that judge it."""
    host, device, *causes = COPIES[name]
    monkeypatch.setattr(script_tensors, "is_on_accelerator", lambda tensor: tensor is device)
    monkeypatch.setattr(cuda_waits, "_is_on_gpu", lambda tensor: tensor is device)
    monkeypatch.setattr(script_tensors, "is_pinned", lambda tensor: tensor is host)
    counted = []
    target, source = (device, host) if to_device else (host, device)
    with cuda_waits._BlockingCopies(lambda what, site: counted.append(what)):
        target.copy_(source, non_blocking=True)
    expected = causes[not to_device]

    assert [cause for cause, _, _ in heard.calls] == [expected] * (expected is not None)
    assert len(counted) == len(heard.calls)


def test_no_copy_is_counted_while_a_graph_is_captured(monkeypatch):
    """To ask whether memory is page-locked would break the capture."""
    host, device = rows(BIG), rows(BIG)
    monkeypatch.setattr(cuda_waits, "_is_on_gpu", lambda tensor: tensor is device)
    monkeypatch.setattr(script_tensors, "is_pinned", lambda tensor: False)
    counted = []
    with cuda_waits._BlockingCopies(lambda what, site: counted.append(what)):
        device.copy_(host, non_blocking=True)
        monkeypatch.setattr(cuda_waits, "is_capturing", lambda: True)
        device.copy_(host, non_blocking=True)

    assert counted == ["copy through staging memory"]


def test_methods_are_torchs_own_afterwards():
    """Each of the table, and each function."""
    holders = [(torch.Tensor, name) for name in [*READING_METHODS, "to", "copy_", "pin_memory"]]
    holders += [(one.holder, one.name) for one in waiting_functions()]
    before = [vars(holder).get(name) for holder, name in holders]

    with Patches() as patches:
        intercept_waits(Heard(), patches)
        during = [vars(holder).get(name) for holder, name in holders]

    assert all(now is not then for now, then in zip(during, before, strict=True))
    assert [vars(holder).get(name) for holder, name in holders] == before


def reads_of(call, *given):
    """Return what the operators of a call have read; tensors of whole numbers are "on the host"."""
    found = []

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **kwargs or {})
            tensors = [one for one in args if isinstance(one, torch.Tensor)]
            found.append(
                read_by(func, tensors, result, is_on_host=lambda x: not x.is_floating_point())
            )
            return result

    with Mode():
        call(*given)
    return [one for one in found if one is not None]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda x: x.sum().item(), ["item"]),
        (lambda x: torch.equal(x, x), ["equal"]),
        (lambda x: x.to(torch.int64), ["cpu"]),
        (lambda x: x + 1, []),
        (lambda x: torch.ones((), dtype=torch.int64).item(), []),
    ],
)
def test_operators_tell_of_what_is_read(call, expected):
    """For who sees operators and no calls: what is read from the host itself is none."""
    assert reads_of(call, torch.ones(3)) == expected


def test_one_table_says_what_reads():
    """Every operation is a cause that findings have a code for; what an operator reads is in it too."""
    assert {*READING_METHODS.values(), *READING_OPERATORS.values()} <= set(CODE_OF)
    assert set(waiting_calls._READING.values()) <= set(READING_OPERATORS.values())
    assert all(hasattr(torch.Tensor, name) for name in READING_METHODS)
