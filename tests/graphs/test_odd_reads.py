"""Ways to read Python that no training script has been seen to use are refused in one line."""

from __future__ import annotations

import array
import collections
import contextvars
import ctypes
import dataclasses
import datetime as dt
import decimal
import functools
import io
import itertools
import mmap
import operator
import types
import unittest.mock
import warnings
import weakref

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import gapless
from edited_parts import Part
from gapless.graphs.reads.known_classes import is_known
from gapless.testing import SimulatedDevice


SCALE = 2.0


@functools.singledispatch
def scale_of(part):
    return 1.0


@scale_of.register(Part)
def _(part):
    return part.weight


def generator(parts):
    yield from parts


def first_of(part):
    return float(part.weight[0])


@dataclasses.dataclass
class Weighed:
    weight: float = 1.0


FACTOR = contextvars.ContextVar("FACTOR")


def odd(name, held, read):
    """Return a case: what is held from call to call, and what the step does with it."""
    return pytest.param(name, held, read, id=name)


# Small ones are compared.
LARGE = np.ones(100_000)

ODD = [
    odd("attrgetter", Part(), lambda part: operator.attrgetter("weight")(part)),
    odd("attrgetter", operator.attrgetter("weight"), lambda read: read(Part())),
    odd("methodcaller", Part(), lambda part: operator.methodcaller("value")(part)),
    odd("globals", None, lambda _: globals()["SCALE"]),
    odd("scale_of", Part(), lambda part: scale_of(part)),
    odd("mappingproxy", types.MappingProxyType({"a": 1.0}), lambda table: table["a"]),
    odd("StringIO", io.StringIO("2.0"), lambda text: float(text.getvalue())),
    odd("array.array", array.array("d", [2.0]), lambda numbers: numbers[0]),
    odd("bytearray", bytearray(b"2"), lambda numbers: numbers[0]),
    odd("memoryview", memoryview(b"2"), lambda numbers: numbers[0]),
    odd("ctypes.c_double", ctypes.c_double(2.0), lambda number: number.value),
    odd("generator", generator([1.0] * 99), lambda numbers: next(numbers)),
    odd("list_iterator", functools.partial(next, iter([1.0] * 99)), lambda read: read()),
    odd("list_iterator", iter([1.0] * 99), lambda numbers: next(numbers)),
    odd("itertools.count", itertools.count(), lambda numbers: next(numbers) + 1.0),
    odd("dict_values", {"a": 1.0}.values(), lambda numbers: sum(numbers)),
    odd("weakref.WeakKeyDictionary", weakref.WeakKeyDictionary(), lambda table: len(table) + 1.0),
    odd("ReferenceType", Part(), lambda part: weakref.ref(part)().weight),
    odd("WeakSet", weakref.WeakSet(), lambda parts: len(parts) + 1.0),
    odd("numpy.ndarray", np.array([2.0, "a"], dtype=object), lambda table: table[0]),
    odd("numpy.ndarray", LARGE, lambda array: float(array.mean())),
    odd("numpy.ndarray", Part(LARGE), lambda part: first_of(part)),
    odd("numpy.ndarray", [LARGE], lambda arrays: float(np.stack(arrays).mean())),
    odd("numpy.void", np.ones(1, dtype=[("a", "f8")])[0], lambda record: float(record["a"])),
    odd("decimal.Decimal", decimal.Decimal(2), lambda number: float(number / 3)),
    odd("mmap.mmap", mmap.mmap(-1, 8), lambda memory: memory[0] + 1.0),
    odd("Context", contextvars.Context(), lambda context: context.get(FACTOR, 2.0)),
    odd("asdict", Weighed(), lambda settings: dataclasses.asdict(settings)["weight"]),
    odd("dict.get", {"a": 1.0}.get, lambda get: get("a")),
    odd("Mock", unittest.mock.Mock(spec=Part, weight=2.0), lambda mock: mock.weight),
]


@pytest.mark.parametrize(("name", "held", "read"), ODD)
def test_an_odd_read_is_refused_with_its_line(name, held, read):
    """And the step runs as written."""
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        step = gapless.capture(lambda x: x.sum() * read(held), device=device)
        x = torch.ones(2).to(device.torch_device)
        with pytest.warns(gapless.CaptureWarning, match=f"uses .*{name}"):
            calls(step, x)

        first = step.report.refusals[0]
        assert (name in first.name, first.is_final) == (True, True)
        assert first.site.startswith("test_odd_reads.py:")
        assert step.report.num_replays == 0


def calls(step, x):
    for _ in range(8):
        step(x)


def in_the_step(name, read):
    return pytest.param(read, id=name)


@pytest.mark.parametrize(
    "read",
    [
        in_the_step("zip", lambda parts: sum(a * b for a, b in zip(parts, parts, strict=True))),
        in_the_step("next", lambda parts: next(iter(parts))),
        in_the_step("generator", lambda parts: sum(generator(parts))),
        in_the_step("items", lambda parts: sum(v for _, v in dict(enumerate(parts)).items())),
        in_the_step("handed on", lambda parts: total_of(generator(parts))),
    ],
)
def test_iterators_that_the_step_makes_are_followed(read):
    """It is captured, and what it reads through them is compared."""
    parts = [1.0, 2.0]
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        step = gapless.capture(lambda x: x.sum() * read(parts), device=device)
        for number in range(16):
            parts[0] = 3.0 if number >= 8 else 1.0
            x = torch.full((2,), number + 1.0).to(device.torch_device)

            assert step(x).item() == (x.sum() * read(parts)).item()
        assert step.report.num_replays


def total_of(numbers):
    return sum(numbers)


class Settings(dict):
    """Looks attributes up among its entries, and can be called."""

    __getattr__ = dict.__getitem__

    def __call__(self, rows):
        return rows * self["scale"]


def test_a_called_object_is_not_asked_for_attributes_that_it_may_not_have():
    """It raises a KeyError for them, which is none of the loop's."""
    settings = Settings(scale=2.0)
    with SimulatedDevice() as device:
        step = gapless.capture(lambda rows: settings(rows).sum(), device=device)
        rows = torch.ones(3, device=device.torch_device)
        assert [step(rows).item() for _ in range(6)] == [6.0] * 6


length_of = operator.length_hint


class Length:
    """An object that says how long it is."""

    def __init__(self):
        self.length = 2

    def __length_hint__(self):
        return self.length


@pytest.mark.parametrize("is_foreign", [True, False])
def test_a_function_of_a_package_made_in_c_is_given_no_objects(is_foreign, monkeypatch):
    """What it reads of them, nobody sees; Python's own call methods, which are seen."""
    if is_foreign:
        monkeypatch.setattr(length_of, "__module__", "some_extension")
    held = Length()
    step, report = captured(lambda x: x.sum() * length_of(held))
    step()

    assert [first.name for first in report().refusals] == [
        "some_extension.length_hint"
    ] * is_foreign
    assert bool(report().num_replays) != is_foreign


def captured(read):
    """Return what calls a step eight times, and its report."""
    device = SimulatedDevice(scheduler="asap")
    step = gapless.capture(read, device=device)

    def call():
        with device, device.allow_waits(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for number in range(8):
                step(torch.full((2,), number + 1.0).to(device.torch_device))

    return call, lambda: step.report


@pytest.mark.parametrize(
    ("read", "name"),
    [
        (lambda x: x.sum() * float("{.real}".format(2.0)), "str.format"),  # noqa: UP032
        (lambda x: x.sum() * float("{[a]}".format({"a": 2.0})), "str.format"),
        (lambda x: x.sum() * torch.initial_seed(), "torch.initial_seed"),
        (lambda x: x.sum() * torch.get_num_threads(), "torch.get_num_threads"),
        (lambda x: x.sum() * torch.get_rng_state().numel(), "torch.get_rng_state"),
        (lambda x: x.sum() + torch.cuda.memory_allocated(), "torch.memory_allocated"),
    ],
)
def test_readers_of_what_no_name_says_are_refused(read, name):
    """Each with its name, and with what to do instead."""
    step, report = captured(read)
    step()

    assert report().num_replays == 0
    assert name in report().refusals[0].text


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.sum() * float("{}.{:d}".format(2, 0)),  # noqa: UP032
        lambda x: checkpoint(torch.sin, x.requires_grad_(), use_reentrant=False).sum(),
        lambda x: x.sum() * float(np.asarray(x.shape).mean()),
        lambda x: x.sum() * np.float64(2.0),
    ],
    ids=["numbers of a text", "checkpoint", "array that is made", "scalar of numpy"],
)
def test_what_people_write_is_captured(read):
    """Torch's own code asks for the state of generators; arrays that a call makes are its own."""
    step, report = captured(read)
    step()

    assert report().refusals == []
    assert report().num_replays > 0


def test_an_array_that_a_call_returns_is_made_in_it():
    """The loop keeps it, and no other call reads it."""
    kept = []

    def step(x):
        sizes = sizes_of(x)
        kept.append(sizes)
        return x.sum() * float(sizes[0])

    call, report = captured(step)
    call()

    assert not any("numpy" in refusal.text for refusal in report().refusals)


def sizes_of(x):
    return np.array(x.shape)


class Odd(type):
    """A class of classes that answers nothing."""

    def __getattribute__(cls, name):
        raise KeyError(name)


@pytest.mark.parametrize(
    ("kind", "is_read"),
    [
        (np.ndarray, False), (np.recarray, False), (np.void, False), (decimal.Decimal, False),
        (mmap.mmap, False), (np.float64, True), (np.random.Generator, True), (Part, True),
        (torch.Generator, True), (torch.distributed.ReduceOp, True), (dt.datetime, True),
        (collections.OrderedDict, True), (types.SimpleNamespace, True), (Odd("Class", (), {}), True),
        (type("Array", (np.ndarray,), {}), False), (type("Text", (str,), {}), True),
    ],
    ids=lambda each: "" if isinstance(each, type) else str(each),
)  # fmt: skip
def test_classes_made_in_c_are_known_or_not(kind, is_read):
    """A class of the user's is what its base made in C is."""
    assert is_known(kind) == is_read
