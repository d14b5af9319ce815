"""Ways to read Python that no training script has been seen to use are refused in one line."""

from __future__ import annotations

import array
import ctypes
import functools
import io
import itertools
import operator
import types
import weakref

import numpy as np
import pytest
import torch

import gapless
from edited_parts import Part
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


def odd(name, held, read):
    """Return a case: what is held from call to call, and what the step does with it."""
    return pytest.param(name, held, read, id=name)


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
