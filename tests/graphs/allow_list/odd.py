"""What no training script writes, or what no graph can repeat: refused, or at least never stale."""

# Odd on purpose.
# ruff: noqa: NPY002, PTH123

from __future__ import annotations

import contextvars
import decimal
import functools
import itertools
import json
import mmap
import os
import random
import sqlite3
import sys
import time

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


@refused("next", "scales")
def iterator_that_outlives_the_call(place, net):
    scales = itertools.cycle([1.0, 2.0])
    return lambda net, x: net.out(x) * next(scales), None


@captured()
def patched_function_of_the_user(place, net):
    return lambda net, x: doubled(net.out(x)), lambda training, number: place.patch(
        this, "doubled", lambda out: out * 3.0
    )


# ------------------------------------------------------------------------ objects of C


@refused("mmap", "held")
def memory_map(place, net):
    held = mmap.mmap(-1, 8)
    place.at_end(held.close)
    return lambda net, x: net.out(x) * (1 + held[0]), lambda training, number: held.__setitem__(
        0, 1
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
