"""What a step reads through a function made in C that somebody holds: nobody sees it look."""

from __future__ import annotations

import collections
import contextvars
import copy
import functools
import itertools
import operator
import os
import threading
import types

import numpy as np
import torch
from torch.nn import functional as F

from hazards.captured_found import Weights, weighted
from hazards.captured_harness import CAPTURED, EITHER, captured_case, refused
from hazards.captured_models import losses_of, mlp, sgd, state, updated


def on_device(place, number):
    """Return the number as a tensor on the device."""
    return place.moved(torch.tensor(number))


def working(place, work, num=12):
    """Train by a step that calls `work()` each time."""
    model = mlp(place)
    optimizer = sgd(model)

    def train(pair):
        work()
        return updated(optimizer, F.cross_entropy(model(pair[0]), pair[1]))

    return losses_of(place, place.capture(train), num), state(model)


# ------------------------------------------------------------------------------- bound methods


@captured_case("`get` of a dictionary is kept under a name.", expect=CAPTURED)
def get_of_a_dictionary(place):
    config = {"weight": 1.0}
    get = config.get
    return weighted(place, lambda: get("weight"), lambda: config.update(weight=0.5))


@captured_case("`get` of a dictionary is kept; the entry is a tensor.", expect=CAPTURED)
def get_of_a_dictionary_of_tensors(place):
    config = {"weight": on_device(place, 1.0)}
    get = config.get
    change = functools.partial(operator.setitem, config, "weight", on_device(place, 0.5))
    return weighted(place, lambda: get("weight"), change)


@captured_case("`get` is kept, and the entry comes later.", expect=CAPTURED)
def get_of_an_entry_that_comes_later(place):
    config = {}
    get = config.get
    return weighted(place, lambda: get("weight", 1.0), lambda: config.update(weight=0.5))


@captured_case("`__getitem__` of a list is kept under a name.", expect=CAPTURED)
def getitem_of_a_list(place):
    weights = [1.0, 2.0]
    at = weights.__getitem__
    return weighted(place, lambda: at(0), lambda: operator.setitem(weights, 0, 0.5))


@captured_case("`__getitem__` of a list of tensors is kept under a name.", expect=CAPTURED)
def getitem_of_a_list_of_tensors(place):
    weights = [on_device(place, 1.0)]
    at = weights.__getitem__
    other = on_device(place, 0.5)
    return weighted(place, lambda: at(0), lambda: operator.setitem(weights, 0, other))


@captured_case("`__getitem__` of a dictionary is an attribute of an object.", expect=CAPTURED)
def getitem_as_an_attribute(place):
    config = {"weight": 1.0}
    holder = types.SimpleNamespace(look_up=config.__getitem__)
    return weighted(place, lambda: holder.look_up("weight"), lambda: config.update(weight=0.5))


@captured_case("`get` of a dictionary stands in another dictionary.", expect=CAPTURED)
def get_in_a_dictionary(place):
    config = {"weight": 1.0}
    readers = {"weight": config.get}
    return weighted(place, lambda: readers["weight"]("weight"), lambda: config.update(weight=0.5))


@captured_case("`get` of a dictionary is a default of a function.", expect=CAPTURED)
def get_as_a_default(place):
    config = {"weight": 1.0}

    def weight(get=config.get):
        return get("weight")

    return weighted(place, weight, lambda: config.update(weight=0.5))


@captured_case("`get` of a dictionary is a static method of a class.", expect=CAPTURED)
def get_as_a_static_method(place):
    config = {"weight": 1.0}

    class Reader:
        look_up = staticmethod(config.get)

    reader = Reader()
    return weighted(place, lambda: reader.look_up("weight"), lambda: config.update(weight=0.5))


@captured_case("`get` is given to `map`, and the largest is taken.", expect=CAPTURED)
def get_given_to_map(place):
    weights = {"a": 0.5, "b": 1.0}
    return weighted(
        place, lambda: max(map(weights.get, ["a", "b"])), lambda: weights.update(b=0.75)
    )


@captured_case("`get` is given to `map`; the entries are tensors.", expect=CAPTURED)
def get_of_tensors_given_to_map(place):
    weights = {"a": on_device(place, 0.5), "b": on_device(place, 1.0)}
    other = on_device(place, 0.75)
    return weighted(
        place,
        lambda: torch.stack(list(map(weights.get, ["a", "b"]))).sum(),
        lambda: weights.update(b=other),
    )


@captured_case("`get` of a context variable is kept under a name.", expect=CAPTURED)
def get_of_a_context_variable(place):
    weight = contextvars.ContextVar("weight")
    weight.set(1.0)
    get = weight.get
    return weighted(place, lambda: get(), lambda: weight.set(0.5))


@captured_case("`get` of a context variable of a tensor is kept under a name.", expect=CAPTURED)
def get_of_a_context_variable_of_a_tensor(place):
    weight = contextvars.ContextVar("weight")
    weight.set(on_device(place, 1.0))
    get, other = weight.get, on_device(place, 0.5)
    return weighted(place, lambda: get(), lambda: weight.set(other))


@captured_case("`__getattribute__` of an object is kept under a name.", expect=CAPTURED)
def getattribute_of_an_object(place):
    weights = Weights()
    get = weights.__getattribute__
    return weighted(place, lambda: get("weight"), lambda: setattr(weights, "weight", 0.5))


@captured_case("An attribute is asked for by `__getattribute__`.", expect=CAPTURED)
def getattribute_is_called(place):
    weights = Weights()
    return weighted(
        place,
        lambda: weights.__getattribute__("weight"),
        lambda: setattr(weights, "weight", 0.5),
    )


@captured_case("An attribute is asked for by `object.__getattribute__`.", expect=CAPTURED)
def getattribute_of_object(place):
    weights = Weights()
    return weighted(
        place,
        lambda: object.__getattribute__(weights, "weight"),
        lambda: setattr(weights, "weight", 0.5),
    )


@captured_case("`__len__` of a list is kept under a name.", expect=CAPTURED)
def len_of_a_list(place):
    losses = [1.0]
    length = losses.__len__
    return weighted(place, lambda: float(length()), lambda: losses.append(0.0))


@captured_case("`__contains__` of a set is kept under a name.", expect=CAPTURED)
def contains_of_a_set(place):
    frozen = {"head"}
    is_frozen = frozen.__contains__
    return weighted(place, lambda: 1.0 if is_frozen("head") else 0.5, frozen.clear)


@captured_case("`item` of an array is kept under a name.", expect=CAPTURED)
def item_of_an_array(place):
    weights = np.ones(2)
    item = weights.item
    return weighted(place, lambda: item(0), lambda: weights.fill(0.5))


@captured_case("`get` of a mapping that shows a dictionary is kept under a name.", expect=CAPTURED)
def get_of_a_proxy(place):
    config = {"weight": 1.0}
    get = types.MappingProxyType(config).get
    return weighted(place, lambda: get("weight"), lambda: config.update(weight=0.5))


@captured_case("`get` of a mapping of Python's library is kept under a name.", expect=CAPTURED)
def get_of_a_user_dict(place):
    config = collections.UserDict(weight=1.0)
    get = config.get
    return weighted(place, lambda: get("weight"), lambda: config.update(weight=0.5))


@captured_case("`get` of a chain of mappings is kept under a name.", expect=CAPTURED)
def get_of_a_chain_map(place):
    config = {"weight": 1.0}
    get = collections.ChainMap({}, config).get
    return weighted(place, lambda: get("weight"), lambda: config.update(weight=0.5))


@captured_case("`os.environ.get` is kept under a name.", expect=CAPTURED)
def get_of_the_environment(place):
    os.environ["GAPLESS_TEST_WEIGHT"] = "1.0"
    get = os.environ.get
    try:
        return weighted(
            place,
            lambda: float(get("GAPLESS_TEST_WEIGHT")),
            lambda: os.environ.update(GAPLESS_TEST_WEIGHT="0.5"),
        )
    finally:
        del os.environ["GAPLESS_TEST_WEIGHT"]


@captured_case("`setdefault` of a dictionary is kept under a name.", expect=CAPTURED)
def setdefault_of_a_dictionary(place):
    config = {"weight": 1.0}
    get = config.setdefault
    return weighted(place, lambda: get("weight", 2.0), lambda: config.update(weight=0.5))


@captured_case("A step calls a kept `append` of a list.", expect=refused("append.__self__"))
def append_of_a_list(place):
    seen = []
    append = seen.append
    return working(place, lambda: append(1)), seen


@captured_case("A step calls a kept `pop` of a list.", expect=refused("pop.__self__"))
def pop_of_a_list(place):
    weights = [0.1 * number for number in range(40)]
    pop = weights.pop
    return weighted(place, lambda: pop(), lambda: None)


@captured_case(
    "A step calls a kept `__next__` of a counter.", expect=refused("following.__self__")
)
def next_of_a_counter(place):
    count = itertools.count()
    following = count.__next__
    return weighted(place, lambda: float(following()), lambda: None)


@captured_case("A step calls a kept `set` of a context variable.", expect=refused("number"))
def set_of_a_context_variable(place):
    number = contextvars.ContextVar("number", default=0)
    put = number.set
    return working(place, lambda: put(number.get() + 1)), number.get()


# ------------------------------------------------------------------------- partials and getters


@captured_case("`partial(getattr, ...)` reads an attribute.", expect=CAPTURED)
def partial_of_getattr(place):
    weights = Weights()
    weight = functools.partial(getattr, weights, "weight")
    return weighted(place, weight, lambda: setattr(weights, "weight", 0.5))


@captured_case("`partial(getattr, ...)` reads an attribute that is a tensor.", expect=CAPTURED)
def partial_of_getattr_of_a_tensor(place):
    weights, other = Weights(on_device(place, 1.0)), on_device(place, 0.5)
    weight = functools.partial(getattr, weights, "weight")
    return weighted(place, weight, lambda: setattr(weights, "weight", other))


@captured_case("`partial(getattr, ...)` is given the name of the attribute.", expect=CAPTURED)
def partial_of_getattr_without_a_name(place):
    weights = Weights()
    get = functools.partial(getattr, weights)
    return weighted(place, lambda: get("weight"), lambda: setattr(weights, "weight", 0.5))


@captured_case("`partial(attrgetter(...), ...)` reads an attribute.", expect=CAPTURED)
def partial_of_an_attrgetter(place):
    weights = Weights()
    weight = functools.partial(operator.attrgetter("weight"), weights)
    return weighted(place, weight, lambda: setattr(weights, "weight", 0.5))


@captured_case("`partial(attrgetter(...), ...)` reads attributes of attributes.", expect=CAPTURED)
def partial_of_an_attrgetter_of_a_path(place):
    run = types.SimpleNamespace(weights=Weights(on_device(place, 1.0)))
    weight = functools.partial(operator.attrgetter("weights.weight"), run)
    other = on_device(place, 0.5)
    return weighted(place, weight, lambda: setattr(run.weights, "weight", other))


@captured_case("`attrgetter` is kept in a list.", expect=CAPTURED)
def attrgetter_in_a_list(place):
    weights = Weights()
    getters = [operator.attrgetter("weight")]
    return weighted(
        place,
        lambda: sum(getter(weights) for getter in getters),
        lambda: setattr(weights, "weight", 0.5),
    )


@captured_case("A property of a class is an `attrgetter`.", expect=CAPTURED)
def attrgetter_as_a_property(place):
    class Run:
        weight = property(operator.attrgetter("weights.weight"))

        def __init__(self):
            self.weights = Weights()

    run = Run()
    return weighted(place, lambda: run.weight, lambda: setattr(run.weights, "weight", 0.5))


@captured_case("`partial(lst.__getitem__, 0)` reads an item.", expect=CAPTURED)
def partial_of_getitem(place):
    weights = [1.0, 2.0]
    weight = functools.partial(weights.__getitem__, 0)
    return weighted(place, weight, lambda: operator.setitem(weights, 0, 0.5))


@captured_case("`partial(d.get, ...)` reads an entry.", expect=CAPTURED)
def partial_of_get(place):
    config = {"weight": on_device(place, 1.0)}
    other = on_device(place, 0.5)
    weight = functools.partial(config.get, "weight")
    return weighted(place, weight, lambda: config.update(weight=other))


@captured_case("`partial(next, iter([...]))` and the like hold a list.", expect=EITHER)
def partial_of_next(place):
    weights = [1.0] * 40
    change = functools.partial(operator.setitem, weights, slice(20, 40), [0.5] * 20)
    return weighted(place, functools.partial(next, iter(weights)), change)


@captured_case("`partial(vars, ...)` reads attributes.", expect=CAPTURED)
def partial_of_vars(place):
    weights = Weights()
    entries = functools.partial(vars, weights)
    return weighted(place, lambda: entries()["weight"], lambda: setattr(weights, "weight", 0.5))


@captured_case("`partial(copy.copy, ...)` reads attributes.", expect=CAPTURED)
def partial_of_copy(place):
    weights = Weights()
    copied = functools.partial(copy.copy, weights)
    return weighted(place, lambda: copied().weight, lambda: setattr(weights, "weight", 0.5))


@captured_case("`methodcaller` asks a context variable.", expect=CAPTURED)
def methodcaller_of_a_context_variable(place):
    weight = contextvars.ContextVar("weight")
    weight.set(1.0)
    get = operator.methodcaller("get")
    return weighted(place, lambda: get(weight), lambda: weight.set(0.5))


@captured_case("`partial(methodcaller(...), ...)` asks a dictionary.", expect=CAPTURED)
def partial_of_a_methodcaller(place):
    config = {"weight": 1.0}
    weight = functools.partial(operator.methodcaller("get", "weight"), config)
    return weighted(place, weight, lambda: config.update(weight=0.5))


@captured_case("`getattr` is kept as an attribute of an object.", expect=CAPTURED)
def getattr_as_an_attribute(place):
    weights = Weights()
    tools = types.SimpleNamespace(read=getattr)
    return weighted(
        place, lambda: tools.read(weights, "weight"), lambda: setattr(weights, "weight", 0.5)
    )


@captured_case("`partial(reduce, getattr)` follows a path of names.", expect=CAPTURED)
def partial_of_reduce(place):
    run = types.SimpleNamespace(weights=Weights())
    follow = functools.partial(functools.reduce, getattr)
    return weighted(
        place,
        lambda: follow(["weights", "weight"], run),
        lambda: setattr(run.weights, "weight", 0.5),
    )


@captured_case("A method reads by `getattr` that its object holds.", expect=CAPTURED)
def getattr_held_by_self(place):
    class Reader:
        def __init__(self):
            self.weights, self.read = Weights(), getattr

        def weight(self):
            return self.read(self.weights, "weight")

    reader = Reader()
    return weighted(place, reader.weight, lambda: setattr(reader.weights, "weight", 0.5))


class Slotted:
    """An object whose attributes stand in slots."""

    __slots__ = ("weight",)

    def __init__(self, weight):
        self.weight = weight


@captured_case("`partial(getattr, ...)` reads a slot by a name that it is given.", expect=CAPTURED)
def partial_of_getattr_of_a_slot(place):
    weights = Slotted(1.0)
    get = functools.partial(getattr, weights)
    return weighted(place, lambda: get("weight"), lambda: setattr(weights, "weight", 0.5))


@captured_case("A slot is read by a name that the code does not show.", expect=CAPTURED)
def slot_by_a_name(place):
    weights, names = Slotted(on_device(place, 1.0)), ["weight"]
    other = on_device(place, 0.5)
    return weighted(
        place, lambda: getattr(weights, names[0]), lambda: setattr(weights, "weight", other)
    )


@captured_case("A kept `is_set` of an event is asked.", expect=CAPTURED)
def is_set_of_an_event(place):
    event = threading.Event()
    is_set = event.is_set
    return weighted(place, lambda: 0.5 if is_set() else 1.0, event.set)


@captured_case("A method of a class is a `partialmethod` of `getattr`.", expect=CAPTURED)
def partialmethod_of_a_function(place):
    config = {"weight": 1.0}

    class Reader:
        def read(self, source, key):
            return source[key]

        weight = functools.partialmethod(read, config, "weight")

    reader = Reader()
    return weighted(place, lambda: reader.weight(), lambda: config.update(weight=0.5))


@captured_case("`partial(attrgetter(...))` is called with an object.", expect=CAPTURED)
def partial_of_an_attrgetter_alone(place):
    weights = Weights()
    get = functools.partial(operator.attrgetter("weight"))
    return weighted(place, lambda: get(weights), lambda: setattr(weights, "weight", 0.5))


@captured_case("A kept `__call__` of a function is called.", expect=CAPTURED)
def call_of_a_function(place):
    config = {"weight": 1.0}

    def weight():
        return config["weight"]

    call = weight.__call__
    return weighted(place, lambda: call(), lambda: config.update(weight=0.5))


# ------------------------------------------------------------------------------------ iterators


@captured_case("`itertools.repeat` repeats a list, whose item is read.", expect=CAPTURED)
def repeat_of_a_list(place):
    weights = [1.0]
    always = itertools.repeat(weights)
    return weighted(place, lambda: next(always)[0], lambda: operator.setitem(weights, 0, 0.5))


@captured_case("`itertools.repeat` gives a tensor that is filled in place.", expect=CAPTURED)
def repeat_of_a_tensor(place):
    weight = on_device(place, 1.0)
    always = itertools.repeat(weight)
    return weighted(place, lambda: next(always), lambda: weight.fill_(0.5))


@captured_case("An entry of a thread's own is read by a kept `__getattribute__`.", expect=CAPTURED)
def getattribute_of_a_thread_local(place):
    settings = threading.local()
    settings.weight = 1.0
    get = settings.__getattribute__
    return weighted(place, lambda: get("weight"), lambda: setattr(settings, "weight", 0.5))
