"""Kinds of state that a step can read between two calls: of CPython, of torch, of the process.

Each row sets up a step and a change. The change is made once, on the host, between two calls, and stays;
the loop as written gives other results from then on. Rows are written from the kinds of state that there
are, not from what any code looks at.
"""

# Rows are functions of a place; old interfaces have a state of their own.
# ruff: noqa: N805, NPY002, PTH109

from __future__ import annotations

import array
import builtins
import collections
import contextvars
import copy
import ctypes
import dataclasses
import decimal
import enum
import functools
import gc
import io
import itertools
import locale
import math
import mmap
import operator
import os
import random
import struct
import sys
import threading
import time
import types
import warnings
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.modules.module import register_module_forward_hook


if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Channel:
    """One kind of state.

    Attributes:
        name: what it is.
        set_up: takes a `Place`; returns the step and the change.
    """

    name: str
    set_up: Callable[[Any], tuple[Callable[..., Any], Callable[[], Any]]]

    def __str__(self):
        return self.name


CHANNELS: list[Channel] = []

SCALE = 1.0


def channels(rows):
    """Register each function of a class as a row, under its name."""
    CHANNELS.extend(Channel(name, set_up) for name, set_up in vars(rows).items() if name[0] != "_")
    return rows


class Holder:
    """An object with a number."""

    def __init__(self, k=1.0):
        self.k = k


def updated(place, kind=torch.optim.SGD, **settings):
    """Return a step that sets a weight to one half, updates it once, and returns it."""
    layer = place.linear()
    optimizer = kind(layer.parameters(), **settings)

    def step(x):
        with torch.no_grad():
            layer.weight.fill_(0.5)
        optimizer.zero_grad()
        layer(x).sum().backward()
        optimizer.step()
        return layer.weight.detach().clone()

    return step, optimizer


@channels
class NamesAndObjects:
    """What a name or an attribute leads to."""

    def closure(place):
        k = 1.0

        def change():
            nonlocal k
            k = 2.0

        return lambda x: x * k, change

    def module_global(place):
        return lambda x: x * SCALE, lambda: place.patch(sys.modules[__name__], "SCALE", 2.0)

    def globals_by_name(place):
        return lambda x: x * globals()["SCALE"], lambda: place.patch(
            sys.modules[__name__], "SCALE", 2.0
        )

    def attribute(place):
        held = Holder()
        return lambda x: x * held.k, lambda: setattr(held, "k", 2.0)

    def attribute_of_computed_name(place):
        held = Holder()
        return lambda x: x * getattr(held, "".join(["k"])), lambda: setattr(held, "k", 2.0)

    def class_attribute(place):
        class Settings:
            k = 1.0

        return lambda x: x * Settings.k, lambda: setattr(Settings, "k", 2.0)

    def default_argument(place):
        def scaled(x, k=1.0):
            return x * k

        return lambda x: scaled(x), lambda: setattr(scaled, "__defaults__", (2.0,))

    def code_object(place):
        def scaled(x):
            return x * 1.0

        def doubled(x):
            return x * 2.0

        return lambda x: scaled(x), lambda: setattr(scaled, "__code__", doubled.__code__)

    def evaluated_text(place):
        held = {"text": "x * 1.0"}
        return lambda x: eval(held["text"], {"x": x}), lambda: held.update(text="x * 2.0")

    def attribute_of_a_module(place):
        settings = types.ModuleType("settings")
        settings.k = 1.0
        return lambda x: x * settings.k, lambda: setattr(settings, "k", 2.0)

    def import_in_the_step(place):
        def made(k):
            module = types.ModuleType("made_up_settings")
            module.k = k
            sys.modules["made_up_settings"] = module

        def step(x):
            import made_up_settings

            return x * made_up_settings.k

        made(1.0)
        place.at_end(sys.modules.pop, "made_up_settings")
        return step, lambda: made(2.0)

    def constant_bound_at_import(place):
        settings = types.ModuleType("settings")
        exec("BASE = 1.0\nHALF = BASE / 2", settings.__dict__)
        code = "BASE = 4.0\nHALF = BASE / 2"
        return lambda x: x * settings.HALF, lambda: exec(code, settings.__dict__)

    def property_with_state(place):
        state = [1.0]

        class Settings:
            k = property(lambda self: state[0])

        held = Settings()
        return lambda x: x * held.k, lambda: state.__setitem__(0, 2.0)

    def getattr_method(place):
        class Settings:
            def __init__(self):
                self.hidden = {"k": 1.0}

            def __getattr__(self, name):
                return self.__dict__["hidden"][name]

        held = Settings()
        return lambda x: x * held.k, lambda: held.hidden.update(k=2.0)

    def descriptor(place):
        class Number:
            value = 1.0

            def __get__(self, instance, owner=None):
                return self.value

        number = Number()
        held = type("Settings", (), {"k": number})()
        return lambda x: x * held.k, lambda: setattr(number, "value", 2.0)

    def metaclass_attribute(place):
        class Meta(type):
            k = 1.0

        class Settings(metaclass=Meta):
            pass

        return lambda x: x * Settings.k, lambda: setattr(Meta, "k", 2.0)

    def base_classes(place):
        class One:
            k = 1.0

        class Two:
            k = 2.0

        class Settings(One):
            pass

        held = Settings()
        return lambda x: x * held.k, lambda: setattr(Settings, "__bases__", (Two,))

    def method_of_the_object(place):
        class Scaler:
            def scaled(self, x):
                return x * 1.0

        scaler = Scaler()
        return lambda x: scaler.scaled(x), lambda: setattr(scaler, "scaled", lambda x: x * 2.0)

    def slots(place):
        class Slotted:
            __slots__ = ("k",)

        held = Slotted()
        held.k = 1.0
        return lambda x: x * held.k, lambda: setattr(held, "k", 2.0)

    def dataclass_field(place):
        held = dataclasses.make_dataclass("Settings", [("k", float)])(1.0)
        return lambda x: x * held.k, lambda: setattr(held, "k", 2.0)

    def named_tuple(place):
        kind = collections.namedtuple("Settings", "k")  # noqa: PYI024
        held = Holder(kind(1.0))
        return lambda x: x * held.k.k, lambda: setattr(held, "k", kind(2.0))

    def enum_value(place):
        class Mode(enum.Enum):
            ON = 1.0

        return lambda x: x * Mode.ON.value, lambda: setattr(Mode.ON, "_value_", 2.0)


@channels
class Containers:
    """What stands in an object that holds others, or numbers."""

    def dict_entry(place):
        held = {"k": 1.0}
        return lambda x: x * held["k"], lambda: held.update(k=2.0)

    def dict_order(place):
        held = {"a": 1.0, "b": 2.0}
        return lambda x: x * next(iter(held.values())), lambda: held.update(a=held.pop("a"))

    def set_contents(place):
        held = {1.0}
        return lambda x: x * sum(held), lambda: held.add(2.0)

    def deque_item(place):
        held = collections.deque([1.0], maxlen=1)
        return lambda x: x * held[-1], lambda: held.append(2.0)

    def mapping_proxy(place):
        under = {"k": 1.0}
        held = types.MappingProxyType(under)
        return lambda x: x * held["k"], lambda: under.update(k=2.0)

    def array_item(place):
        held = array.array("d", [1.0])
        return lambda x: x * held[0], lambda: held.__setitem__(0, 2.0)

    def bytes_in_place(place):
        held = bytearray(b"\x01")
        return lambda x: x * held[0], lambda: held.__setitem__(0, 2)

    def memory_view(place):
        under = bytearray(b"\x01")
        held = memoryview(under)
        return lambda x: x * held[0], lambda: under.__setitem__(0, 2)

    def packed_bytes(place):
        held = bytearray(struct.pack("d", 1.0))
        return lambda x: x * struct.unpack_from("d", held)[0], lambda: struct.pack_into(
            "d", held, 0, 2.0
        )

    def memory_map(place):
        held = mmap.mmap(-1, 8)
        place.at_end(held.close)
        return lambda x: x * (1 + held[0]), lambda: held.__setitem__(0, 1)

    def c_number(place):
        held = ctypes.c_double(1.0)
        return lambda x: x * held.value, lambda: setattr(held, "value", 2.0)

    def numpy_array(place):
        held = np.ones(3)
        return lambda x: x * float(held[0]), lambda: held.fill(2.0)

    def position_in_a_text(place):
        held = io.StringIO("abc")
        return lambda x: x * (1 + held.tell()), lambda: held.read(1)


@channels
class FunctionsAndIterators:
    """What stands in callable objects, iterators and references."""

    def attrgetter(place):
        held, read = Holder(Holder()), operator.attrgetter("k.k")
        return lambda x: x * read(held), lambda: setattr(held.k, "k", 2.0)

    def itemgetter(place):
        held, read = {"k": 1.0}, operator.itemgetter("k")
        return lambda x: x * read(held), lambda: held.update(k=2.0)

    def partial_keywords(place):
        scaled = functools.partial(lambda x, k: x * k, k=1.0)
        return lambda x: scaled(x), lambda: scaled.keywords.update(k=2.0)

    def single_dispatch(place):
        scale = functools.singledispatch(lambda known: 1.0)
        return lambda x: x * scale(3), lambda: scale.register(int, lambda known: 2.0)

    def cache_contents(place):
        state = [1.0]
        read = functools.lru_cache(lambda: state[0])

        def change():
            state[0] = 2.0
            read.cache_clear()

        return lambda x: x * read(), change

    def position_of_a_list_iterator(place):
        held = iter([1.0, 2.0, 3.0])
        return lambda x: x * next(copy.copy(held)), lambda: next(held)

    def count_that_has_gone_on(place):
        held = itertools.count(1)
        return lambda x: x * int(repr(held)[6:-1]), lambda: next(held)

    def local_of_a_generator(place):
        def numbers():
            for k in range(1, 9):  # noqa: UP028  # the channel
                yield k

        held = numbers()
        next(held)
        return lambda x: x * held.gi_frame.f_locals["k"], lambda: next(held)

    def weak_reference(place):
        held = [Holder()]
        reference = weakref.ref(held[0])
        return lambda x: x * (2 if reference() is None else 1), lambda: held.clear()

    def weak_key_dictionary(place):
        held = Holder()
        known = weakref.WeakKeyDictionary({held: 1.0})
        return lambda x: x * known[held], lambda: known.__setitem__(held, 2.0)


@channels
class PatchedFunctions:
    """Functions of others that are replaced."""

    def patched_math(place):
        return lambda x: x * math.cos(1.0), lambda: place.patch(math, "cos", math.sin)

    def patched_builtin(place):
        return lambda x: x * abs(-1.0), lambda: place.patch(builtins, "abs", lambda number: 2.0)

    def patched_torch_function(place):
        return lambda x: torch.tanh(x), lambda: place.patch(torch, "tanh", torch.sin)

    def patched_functional(place):
        return lambda x: F.relu(x), lambda: place.patch(F, "relu", torch.sin)

    def patched_tensor_method(place):
        return lambda x: x.tanh(), lambda: place.patch(torch.Tensor, "tanh", torch.Tensor.sin)

    def patched_operator_of_tensors(place):
        return lambda x: x // 1.0, lambda: place.patch(
            torch.Tensor, "__floordiv__", lambda x, k: x * 3.0
        )

    def patched_numpy_function(place):
        return lambda x: x * float(np.cos(1.0)), lambda: place.patch(np, "cos", np.sin)

    def patched_class_of_torch(place):
        layer = place.linear()
        return lambda x: layer(x).detach(), lambda: place.patch(
            torch.nn.Linear, "forward", lambda self, x: x @ self.weight.T * 2.0
        )


@channels
class Process:
    """What belongs to the interpreter, the process and its files."""

    def environment_variable(place):
        place.environ("SCALE_OF_THIS_TEST", "1.0")
        return lambda x: x * float(os.environ["SCALE_OF_THIS_TEST"]), lambda: place.environ(
            "SCALE_OF_THIS_TEST", "2.0"
        )

    def file_contents(place):
        path = place.folder / "scale.txt"
        path.write_text("1.0")
        return lambda x: x * float(path.read_text()), lambda: path.write_text("2.0")

    def position_in_a_file(place):
        path = place.folder / "numbers"
        path.write_bytes(b"abc")
        held = path.open("rb")
        place.at_end(held.close)
        return lambda x: x * (1 + held.tell()), lambda: held.read(1)

    def working_folder(place):
        place.at_end(os.chdir, os.getcwd())
        os.chdir(place.folder)
        return lambda x: x * len(os.getcwd()), lambda: os.chdir("/")

    def locale_of_the_process(place):
        place.at_end(locale.setlocale, locale.LC_CTYPE, locale.setlocale(locale.LC_CTYPE))
        locale.setlocale(locale.LC_CTYPE, "C")
        return lambda x: x * len(locale.setlocale(locale.LC_CTYPE)), lambda: locale.setlocale(
            locale.LC_CTYPE, "C.UTF-8"
        )

    def time_zone(place):
        place.at_end(time.tzset)
        place.environ("TZ", "UTC+1")
        time.tzset()

        def change():
            place.environ("TZ", "UTC+2")
            time.tzset()

        return lambda x: x * time.localtime(0).tm_hour, change

    def patched_clock(place):
        place.patch(time, "monotonic", lambda: 1.0)
        return lambda x: x * time.monotonic(), lambda: place.patch(time, "monotonic", lambda: 2.0)

    def decimal_context(place):
        place.at_end(decimal.setcontext, decimal.getcontext().copy())
        one = decimal.Decimal(1)
        return lambda x: x * float(one / 3), lambda: setattr(decimal.getcontext(), "prec", 3)

    def warnings_filters(place):
        def step(x):
            return x * len(warnings.filters[0][0])

        # Not "error": an audit tells by a warning.
        return step, lambda: warnings.simplefilter("default")

    def recursion_limit(place):
        place.at_end(sys.setrecursionlimit, sys.getrecursionlimit())
        return lambda x: x * sys.getrecursionlimit(), lambda: sys.setrecursionlimit(4321)

    def thresholds_of_the_collector(place):
        place.at_end(gc.set_threshold, *gc.get_threshold())
        return lambda x: x * gc.get_threshold()[0], lambda: gc.set_threshold(4321)

    def thread_local(place):
        held = threading.local()
        held.k = 1.0
        return lambda x: x * held.k, lambda: setattr(held, "k", 2.0)

    def context_variable(place):
        held = contextvars.ContextVar("k", default=1.0)
        return lambda x: x * held.get(), lambda: held.set(2.0)

    def state_of_random(place):
        return lambda x: x * (random.getstate()[1][1] % 97), lambda: random.seed(1)

    def state_of_a_generator_of_random(place):
        held = random.Random(0)
        return lambda x: x * copy.copy(held).random(), lambda: held.seed(1)

    def state_of_numpy_random(place):
        return lambda x: x * int(np.random.get_state()[1][1] % 97), lambda: np.random.seed(1)

    def numpy_error_state(place):
        place.at_end(np.seterr, **np.geterr())
        np.seterr(over="warn")
        return lambda x: x * len(np.geterr()["over"]), lambda: np.seterr(over="ignore")


@channels
class SettingsOfTorch:
    """What torch is told once."""

    def default_dtype(place):
        place.at_end(torch.set_default_dtype, torch.get_default_dtype())
        return lambda x: x * torch.finfo(torch.get_default_dtype()).bits, (
            lambda: torch.set_default_dtype(torch.float64)
        )

    def number_of_threads(place):
        place.at_end(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        return lambda x: x * torch.get_num_threads(), lambda: torch.set_num_threads(2)

    def grad_mode(place):
        place.at_end(torch.set_grad_enabled, True)
        layer = place.linear()
        return lambda x: x * (1 + layer(x).requires_grad), lambda: torch.set_grad_enabled(False)

    def autocast(place):
        place.at_end(torch.set_autocast_enabled, "cpu", False)
        layer = place.linear()
        return lambda x: layer(x).detach(), lambda: torch.set_autocast_enabled("cpu", True)

    def anomaly_mode(place):
        place.at_end(torch.autograd.set_detect_anomaly, False)
        return lambda x: x * (1 + torch.is_anomaly_enabled()), (
            lambda: torch.autograd.set_detect_anomaly(True) and None
        )

    def deterministic_algorithms(place):
        place.at_end(
            torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled()
        )
        torch.use_deterministic_algorithms(False)
        return lambda x: x * (1 + torch.are_deterministic_algorithms_enabled()), (
            lambda: torch.use_deterministic_algorithms(True)
        )

    def matmul_precision(place):
        place.at_end(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision("highest")
        return lambda x: x * len(torch.get_float32_matmul_precision()), (
            lambda: torch.set_float32_matmul_precision("high")
        )

    def state_of_an_own_generator(place):
        held = torch.Generator().manual_seed(1)
        return lambda x: x * held.initial_seed(), lambda: held.manual_seed(2)


@channels
class ModulesAndOptimizers:
    """What training objects hold."""

    def hook_of_a_module(place):
        layer = place.linear()
        return lambda x: layer(x).detach(), lambda: layer.register_forward_hook(
            lambda module, args, out: out * 2.0
        )

    def hook_of_all_modules(place):
        layer = place.linear()
        return lambda x: layer(x).detach(), lambda: place.at_end(
            register_module_forward_hook(lambda module, args, out: out * 2.0).remove
        )

    def hook_of_a_weight(place):
        layer = place.linear()

        def step(x):
            layer.zero_grad()
            layer(x).sum().backward()
            return layer.weight.grad.clone()

        return step, lambda: layer.weight.register_hook(lambda gradient: gradient * 2.0)

    def buffer_replaced(place):
        layer = place.linear()
        layer.register_buffer("k", place.on([1.0]))
        return lambda x: x * layer.k, lambda: setattr(layer, "k", place.on([2.0]))

    def buffer_in_place(place):
        layer = place.linear()
        layer.register_buffer("k", place.on([1.0]))
        return lambda x: x * layer.k, lambda: layer.k.fill_(2.0)

    def weight_in_place(place):
        layer = place.linear()
        return lambda x: layer(x).detach(), lambda: layer.weight.data.fill_(2.0)

    def weight_replaced(place):
        layer = place.linear()
        return lambda x: layer(x).detach(), lambda: setattr(
            layer, "weight", torch.nn.Parameter(place.on([[2.0, 2.0, 2.0]]))
        )

    def frozen_weight(place):
        layer = place.linear()

        def step(x):
            return x * (1 + layer(x).requires_grad)

        return step, lambda: layer.requires_grad_(False)

    def training_mode(place):
        layer = torch.nn.Dropout(1.0)
        return lambda x: layer(x), lambda: layer.eval()

    def module_replaced_in_a_sequence(place):
        layers = torch.nn.Sequential(place.linear(), torch.nn.Tanh())
        return lambda x: layers(x).detach(), lambda: layers.__setitem__(1, torch.nn.Sigmoid())

    def parametrization(place):
        layer = place.linear()
        return lambda x: layer(
            x
        ).detach(), lambda: torch.nn.utils.parametrize.register_parametrization(
            layer, "weight", torch.nn.Tanh()
        )

    def host_tensor(place):
        held = torch.ones(3)
        return lambda x: x * float(held.sum()), lambda: held.fill_(2.0)

    def rate(place):
        step, optimizer = updated(place, lr=0.5)
        return step, lambda: optimizer.param_groups[0].update(lr=0.25)

    def rate_on_the_device(place):
        step, optimizer = updated(place, lr=place.on(0.5), foreach=True)
        return step, lambda: optimizer.param_groups[0]["lr"].fill_(0.25)

    def scheduler(place):
        step, optimizer = updated(place, lr=0.5)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        # As a loop does after the first step; torch warns of another order.
        return step, lambda: schedule.step()

    def defaults_of_an_optimizer(place):
        _, optimizer = updated(place, lr=0.5)
        return lambda x: x * optimizer.defaults["lr"], lambda: optimizer.defaults.update(lr=0.25)

    def momentum_in_place(place):
        step, optimizer = updated(place, lr=0.5, momentum=0.5)
        return step, lambda: next(iter(optimizer.state.values()))["momentum_buffer"].fill_(9.0)

    def momentum_replaced(place):
        step, optimizer = updated(place, lr=0.5, momentum=0.5)
        return step, lambda: next(iter(optimizer.state.values())).update(
            momentum_buffer=place.on([[9.0, 9.0, 9.0]])
        )

    def count_of_an_optimizer(place):
        step, optimizer = updated(place, torch.optim.Adam, lr=0.5)
        return step, lambda: next(iter(optimizer.state.values()))["step"].fill_(1000.0)

    def hook_of_an_optimizer(place):
        step, optimizer = updated(place, lr=0.5)
        return step, lambda: optimizer.register_step_pre_hook(
            lambda known, args, kwargs: known.param_groups[0].update(lr=0.25)
        )

    def scale_of_a_grad_scaler(place):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        return lambda x: scaler.scale(x.sum()), lambda: scaler.update(8.0)
