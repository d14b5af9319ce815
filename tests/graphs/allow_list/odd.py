"""What no training script writes, or what no graph can repeat: refused, or at least never stale."""

# Odd on purpose.
# ruff: noqa: NPY002, PTH123

from __future__ import annotations

import array
import collections
import contextvars
import ctypes
import decimal
import functools
import io
import itertools
import json
import mmap
import operator
import os
import random
import re
import sqlite3
import struct
import sys
import time
import types
import weakref
from unittest import mock

import numpy as np
import torch

from graphs.allow_list.harness import Case, register


ODD: list[Case] = []

captured, refused, either, audited = register(ODD, "odd")

SCALE = 1.0

this = sys.modules[__name__]


class Holder:
    """An object with a number."""

    def __init__(self, k=1.0):
        self.k = k


def doubled(out):
    return out * 2.0


# ------------------------------------------------------------------------ ways past names


@either()
def attrgetter_of_a_computed_path(place, net):
    net.kind, net.held = "held", Holder()
    return lambda net, x: net.out(x) * operator.attrgetter(f"{net.kind}.k")(net), (
        lambda training, number: setattr(net.held, "k", 2.0)
    )


@either()
def itemgetter_of_a_computed_key(place, net):
    net.kind, weights = "main", {"main": 1.0}
    return lambda net, x: net.out(x) * operator.itemgetter(net.kind)(weights), (
        lambda training, number: weights.update(main=2.0)
    )


@either()
def fields_of_a_format(place, net):
    held = Holder()
    return lambda net, x: net.out(x) * float(f"{'{0.k}'}".format(held)), (
        lambda training, number: setattr(held, "k", 2.0)
    )


@refused("globals")
def globals_by_a_computed_name(place, net):
    net.kind = "SCALE"
    return lambda net, x: net.out(x) * globals()[net.kind], lambda training, number: place.patch(
        this, "SCALE", 2.0
    )


@either()
def vars_of_an_object(place, net):
    held = Holder()
    return lambda net, x: net.out(x) * vars(held)["k"], lambda training, number: setattr(
        held, "k", 2.0
    )


@either()
def getattr_method(place, net):
    class Settings:
        def __init__(self):
            self.hidden = {"k": 1.0}

        def __getattr__(self, name):
            return self.__dict__["hidden"][name]

    held = Settings()
    return lambda net, x: net.out(x) * held.k, lambda training, number: held.hidden.update(k=2.0)


@either()
def descriptor(place, net):
    class Number:
        value = 1.0

        def __get__(self, instance, owner=None):
            return self.value

    number_of = Number()
    held = type("Settings", (), {"k": number_of})()
    return lambda net, x: net.out(x) * held.k, lambda training, number: setattr(
        number_of, "value", 2.0
    )


@refused("num_reads")
def property_that_counts(place, net):
    class Settings:
        num_reads = 0

        @property
        def k(self):
            self.num_reads += 1
            return 1.0 + self.num_reads / 10

    held = Settings()
    return lambda net, x: net.out(x) * held.k, None


@either()
def cached_property_that_is_made_anew(place, net):
    class Settings:
        base = 1.0

        @functools.cached_property
        def k(self):
            return self.base * 2.0

    held = Settings()

    def change(training, number):
        held.base = 2.0
        del held.k

    return lambda net, x: net.out(x) * held.k, change


@audited()
def bases_of_a_class(place, net):
    class One:
        k = 1.0

    class Two:
        k = 2.0

    class Settings(One):
        pass

    held = Settings()
    return lambda net, x: net.out(x) * held.k, lambda training, number: setattr(
        Settings, "__bases__", (Two,)
    )


# ------------------------------------------------------------------------ functions and references


@either()
def single_dispatch(place, net):
    scale = functools.singledispatch(lambda known: 1.0)
    return lambda net, x: net.out(x) * scale(3), lambda training, number: scale.register(
        int, lambda known: 2.0
    )


@either()
def cached_function(place, net):
    state = [1.0]

    @functools.lru_cache
    def scale(name):
        return state[0]

    def change(training, number):
        state[0] = 2.0
        scale.cache_clear()

    return lambda net, x: net.out(x) * scale("main"), change


@either()
def context_variable(place, net):
    held = contextvars.ContextVar("k", default=1.0)

    def change(training, number):
        place.at_end(held.reset, held.set(2.0))

    return lambda net, x: net.out(x) * held.get(), change


@either()
def weak_reference(place, net):
    owned = [Holder()]
    reference = weakref.ref(owned[0])
    return lambda net, x: net.out(x) * (2.0 if reference() is None else 1.0), (
        lambda training, number: owned.clear()
    )


@either()
def weak_value_dictionary(place, net):
    owned = [Holder()]
    known = weakref.WeakValueDictionary(k=owned[0])

    def change(training, number):
        owned.append(Holder(2.0))
        known["k"] = owned[-1]

    return lambda net, x: net.out(x) * known["k"].k, change


@refused("next", "scales")
def iterator_that_outlives_the_call(place, net):
    scales = itertools.cycle([1.0, 2.0])
    return lambda net, x: net.out(x) * next(scales), None


@refused("next", "numbers")
def generator_that_outlives_the_call(place, net):
    def endless():
        number = 0.0
        while True:
            number += 1.0
            yield number

    numbers = endless()
    return lambda net, x: net.out(x) * next(numbers), None


@captured()
def patched_function_of_the_user(place, net):
    return lambda net, x: doubled(net.out(x)), lambda training, number: place.patch(
        this, "doubled", lambda out: out * 3.0
    )


@captured()
def patched_method_of_the_user(place, net):
    class Loss:
        def of(self, out):
            return out * 2.0

    def change(training, number):
        patch = mock.patch.object(Loss, "of", lambda self, out: out * 3.0)
        patch.start()
        place.at_end(patch.stop)

    loss = Loss()
    return lambda net, x: loss.of(net.out(x)), change


@either()
def index_and_bool_of_an_object(place, net):
    class Level:
        level = 1

        def __index__(self):
            return self.level

        def __bool__(self):
            return self.level > 1

    level, scales = Level(), (0.5, 1.0, 2.0)

    def forward(net, x):
        out = net.out(x) * scales[level]
        return out + 1.0 if level else out

    return forward, lambda training, number: setattr(level, "level", 2)


# ------------------------------------------------------------------------ objects of C


@either()
def position_in_a_text(place, net):
    held = io.StringIO("abc")
    return lambda net, x: net.out(x) * (1 + held.tell()), lambda training, number: held.read(1)


@either()
def number_of_ctypes(place, net):
    held = ctypes.c_double(1.0)
    return lambda net, x: net.out(x) * held.value, lambda training, number: setattr(
        held, "value", 2.0
    )


@either()
def mapping_proxy(place, net):
    under = {"k": 1.0}
    held = types.MappingProxyType(under)
    return lambda net, x: net.out(x) * held["k"], lambda training, number: under.update(k=2.0)


@either()
def ordered_dictionary(place, net):
    held = collections.OrderedDict(a=1.0, b=2.0)
    return lambda net, x: net.out(x) * next(iter(held.values())), (
        lambda training, number: held.move_to_end("a")
    )


@refused("array", "held")
def item_of_an_array(place, net):
    held = array.array("d", [1.0])
    return lambda net, x: net.out(x) * held[0], lambda training, number: held.__setitem__(0, 2.0)


@refused("memoryview", "held")
def item_of_a_memory_view(place, net):
    under = bytearray(b"\x01")
    held = memoryview(under)
    return lambda net, x: net.out(x) * held[0], lambda training, number: under.__setitem__(0, 2)


@refused("unpack_from", "Struct", "held")
def numbers_unpacked(place, net):
    form, held = struct.Struct("d"), bytearray(struct.pack("d", 1.0))
    return lambda net, x: net.out(x) * form.unpack_from(held)[0], (
        lambda training, number: form.pack_into(held, 0, 2.0)
    )


@refused("mmap", "held")
def memory_map(place, net):
    held = mmap.mmap(-1, 8)
    place.at_end(held.close)
    return lambda net, x: net.out(x) * (1 + held[0]), lambda training, number: held.__setitem__(
        0, 1
    )


@either()
def match_of_a_text(place, net):
    net.found = re.match(r"scale (\d)", "scale 1")
    return lambda net, x: net.out(x) * int(net.found.group(1)), lambda training, number: setattr(
        net, "found", re.match(r"scale (\d)", "scale 2")
    )


@refused("execute", "Connection", "connection", "fetchone")
def row_of_a_database(place, net):
    connection = sqlite3.connect(":memory:")
    place.at_end(connection.close)
    connection.execute("create table scales (k real)")
    connection.execute("insert into scales values (1.0)")

    def forward(net, x):
        return net.out(x) * connection.execute("select k from scales").fetchone()[0]

    return forward, lambda training, number: connection.execute("update scales set k = 2.0")


@refused("numpy", "ndarray", "held")
def item_of_a_large_numpy_array(place, net):
    held = np.ones(100_000)
    return lambda net, x: net.out(x) * float(held[0]), lambda training, number: held.fill(2.0)


@captured()
def item_of_a_numpy_array(place, net):
    held = np.ones(3)
    return lambda net, x: net.out(x) * float(held[0]), lambda training, number: held.fill(2.0)


@captured()
def mean_of_a_numpy_array(place, net):
    held = np.ones(3)
    return lambda net, x: net.out(x) * float(held.mean()), lambda training, number: held.fill(2.0)


@captured()
def flags_of_a_numpy_array(place, net):
    held = np.ones(3)
    return lambda net, x: net.out(x) * (1 + held.flags.writeable), (
        lambda training, number: held.setflags(write=False)
    )


@refused("decimal", "Decimal")
def decimal_context(place, net):
    place.at_end(decimal.setcontext, decimal.getcontext().copy())
    one = decimal.Decimal(1)
    return lambda net, x: net.out(x) * float(one / 3), lambda training, number: setattr(
        decimal.getcontext(), "prec", 3
    )


# ------------------------------------------------------------------------ torch and the process


@refused("get_num_threads")
def number_of_threads(place, net):
    place.at_end(torch.set_num_threads, torch.get_num_threads())
    torch.set_num_threads(1)
    return lambda net, x: net.out(x) * torch.get_num_threads(), (
        lambda training, number: torch.set_num_threads(2)
    )


@refused("initial_seed")
def seed_of_torch(place, net):
    return lambda net, x: net.out(x) * (1 + torch.initial_seed() % 7), (
        lambda training, number: torch.manual_seed(5)
    )


@refused("initial_seed")
def seed_of_a_generator(place, net):
    held = torch.Generator().manual_seed(1)
    return (
        lambda net, x: net.out(x) * held.initial_seed(),
        lambda training, number: held.manual_seed(2),
    )


@either(shows=False)
def memory_figures(place, net):
    return lambda net, x: net.out(x) * (1 + torch.cuda.memory_allocated()), None


@either(shows=False)
def current_stream(place, net):
    return lambda net, x: net.out(x) * (2.0 if torch.cpu.current_stream() is None else 1.0), None


@either()
def environment_variable(place, net):
    place.environ("SCALE_OF_THIS_TEST", "1.0")
    return lambda net, x: net.out(x) * float(os.environ["SCALE_OF_THIS_TEST"]), (
        lambda training, number: place.environ("SCALE_OF_THIS_TEST", "2.0")
    )


@refused("time")
def clock(place, net):
    return lambda net, x: net.out(x) + (time.perf_counter() < 0), None


@refused("random")
def number_drawn(place, net):
    return lambda net, x: net.out(x) * random.random(), lambda training, number: random.seed(7)


@refused("random", "draws")
def number_drawn_by_numpy(place, net):
    return lambda net, x: net.out(x) * float(np.random.rand()), (
        lambda training, number: np.random.seed(7)
    )


@refused("random", "held")
def number_drawn_by_an_own_generator(place, net):
    held = random.Random(0)
    return lambda net, x: net.out(x) * held.random(), lambda training, number: held.seed(7)


@refused("open")
def file_opened(place, net):
    path = place.folder / "scale.json"
    path.write_text("1.0")

    def forward(net, x):
        with open(path) as file:
            return net.out(x) * json.load(file)

    return forward, lambda training, number: path.write_text("2.0")


@refused("print")
def printed(place, net):
    def forward(net, x):
        print("", end="")
        return net.out(x)

    return forward, None
