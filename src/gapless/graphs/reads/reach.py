"""What the code of a step reaches: every place that it names, and what stands there now.

A place is where a name leads to a value: an entry of an object's or a module's dictionary, a
global, a variable of an enclosing function, an item of a list. Nothing of the user's is called to
look there: neither properties nor `__getattr__`.
"""

from __future__ import annotations

import argparse
import builtins
import collections
import contextvars
import functools
import importlib.util
import itertools
import logging
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from types import (
    BuiltinFunctionType,
    CellType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    SimpleNamespace,
)
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gapless.device.torch_private import MODULE_TENSORS
from gapless.graphs.reads.chains import CHANGING_METHODS, Chain
from gapless.graphs.reads.code_kinds import (
    FOREIGN_PACKAGES,
    CodeKind,
    is_foreign,
    is_of_the_script,
    is_own,
    kind_of,
    site_of,
)
from gapless.graphs.reads.code_reads import reads_of
from gapless.graphs.reads.executed import Executed
from gapless.graphs.reads.made_in_c import (
    ATTRIBUTE_READERS,
    ONLY_CHANGING,
    reads_attributes,
)
from gapless.graphs.reads.odd_reads import (
    OddRead,
    advice_on_arguments,
    advice_on_call,
    advice_on_object,
    shown_name,
)
from gapless.graphs.reads.torch_objects import reader_of_method
from gapless.graphs.reads.value_places import (
    CONTAINERS,
    FIELD_OF_NAMED_TUPLE,
    HOOK_TABLES,
    MISSING,
    PLAIN_DESCRIPTORS,
    Place,
    base_of,
    class_attribute,
    content_of,
    default_of,
    entries_of,
    items_of,
    names_another_class,
    shown_key,
    tables_of,
    unwrapped,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gapless.graphs.reads.chains import Store


# Longer containers are not looked into item by item, unless their items are plain.
_MOST_ITEMS = 10_000
_DEPTH = 6
_MOST_UNSEEN = 500
_MOST_ROUNDS = 8

# What a user may put into a module of a library, and has no other place.
_VALUES = (bool, int, float, complex, str, bytes, torch.Tensor)


class Reach:
    """What code reaches.

    Args:
        step: the step itself.
        executed: the code that ran, by id.
        least_runs: in how many watched runs an argument must have been seen to count.
        skip: ids of objects that are left out, such as the batch.

    Attributes:
        places: where values stand that the code reads or stores, by `Place.id`.
        read: ids of the places that it reads.
        stored: ids of those that it stores to.
        whole: containers that are used as a whole, by id, with name and site.
        objects: objects on the way, with their names, by id.
        modules: modules of torch that are reached, with their names, by id.
        tensors: tensors reached, with name and site, by id.
        compiled: ids of modules whose compiled code runs in place of their own.
        listed: ids of modules of which the code asks for all parameters, buffers or modules.
        of_torch: objects of torch whose methods are named: each with what reads all that these
            depend on, its name and site.
        functions: functions reached, by id of their code.
        odd: ways to read of the user's code that are not followed.
        codes: all code followed, by id: what ran, and what is followed without having run.
    """

    def __init__(
        self,
        step: object,
        executed: Iterable[Executed],
        *,
        least_runs: int = 1,
        skip: Iterable[int] = (),
    ) -> None:
        self.places: dict[tuple[str, int, Any], Place] = {}
        self.read: set[tuple[str, int, Any]] = set()
        self.stored: set[tuple[str, int, Any]] = set()
        self._is_store = False
        self.only_stored: set[tuple[str, int, Any]] = set()
        self.whole: dict[int, tuple[Any, str, str]] = {}
        self.objects: dict[int, tuple[Any, str]] = {}
        self.modules: dict[int, tuple[nn.Module, str]] = {}
        self.tensors: dict[int, tuple[torch.Tensor, str, str]] = {}
        self.compiled: set[int] = set()
        self.listed: set[int] = set()
        self.of_torch: dict[object, tuple[Any, Callable[[], Any], str, str]] = {}
        self.functions: dict[int, list[FunctionType]] = {}
        self.codes: dict[int, Executed] = {}
        self.odd: dict[str, OddRead] = {}
        self._given: dict[tuple[int, str], dict[int, Any]] = {}
        self._least_runs = least_runs
        self._skip = _Skipped(skip)
        self._executed = {id(each.code): each for each in executed}
        # Whether the functions that are found are followed, since nobody saw which of them run.
        self._is_blind = not self._executed
        # Whether the code that is followed is the user's.
        self._is_users = True
        # What chains stand for, by id of the code.
        self._memo: dict[int, dict[Chain, list[tuple[Any, str]]]] = {}
        # Ids of code of which more is known by now than when it was followed.
        self._again: set[int] = set()
        # Methods made in C that were come to, by id.
        self._bound: dict[int, Any] = {}
        # What holds for all objects of a class, by its id.
        self._proxies: dict[int, bool] = {}
        self._parts: dict[int, list[tuple[Any, str]]] = {}
        self._queue: list[Executed] = []
        self._functions_of_autograd: set[type] = set()
        self._num_unseen = _MOST_UNSEEN
        self._root(step)
        self._note_searched_for()
        self._follow_all()
        self._follow_methods()

    @property
    def met_skipped(self) -> bool:
        """Whether the code came to something that is left out."""
        return self._skip.was_met

    def follow_functions(self) -> None:
        """Follow functions that were searched for since."""
        self._note_searched_for()
        self._follow_methods(must_follow=True)

    def _note_searched_for(self) -> None:
        for each in self._executed.values():
            for function in each.alive_functions():
                self._note_function(function)

    # --- what is followed ---

    def _root(self, step: object) -> None:
        name = getattr(step, "__name__", None) or type(step).__name__
        self._arrive(step, name, "", in_full=True)
        call = class_attribute(type(step), "__call__")
        if not isinstance(step, FunctionType | MethodType | nn.Module) and call is not None:
            self._note_function(unwrapped(call[1]), must_follow=True)

    def _follow_all(self) -> None:
        # The user's own code first: it has the names that people know.
        ran = sorted(self._executed.values(), key=lambda each: each.kind is not CodeKind.USER)
        for executed in ran:
            self._add(executed)
        self._follow_queue()

    def _follow_queue(self) -> None:
        # Functions found on the way may bind cells of code that was followed before.
        for _ in range(_MOST_ROUNDS):
            while self._queue:
                self._follow(self._queue.pop(0))
            if not self._again:
                break
            self._queue = [each for key, each in self.codes.items() if key in self._again]
        self._again = set()

    def _follow_methods(self, *, must_follow: bool = False) -> None:
        # Variables of enclosing functions that these read are found with them alone.
        while self._note_methods() or must_follow:
            must_follow = False
            self._queue = [each for key, each in self.codes.items() if key in self._again]
            self._follow_queue()

    def _note_methods(self) -> bool:
        """Take note of methods that ran and that no code names, such as `__call__` and `__mul__`.

        Return whether this led to functions that were not known.
        """
        num_known = sum(map(len, self.functions.values()))
        found = (*self.objects.values(), *self.modules.values())
        kinds = {type(value) for value, _ in found} | self._functions_of_autograd
        owners = {owner for kind in kinds for owner in type.__getattribute__(kind, "__mro__")}
        for owner in filter(lambda each: not is_foreign(each), owners):
            for key, attribute in list(vars(owner).items()):
                code = getattr(unwrapped(attribute), "__code__", None)
                if code is not None and id(code) in self._executed:
                    name = f"{owner.__name__}.{key}"
                    self._place("class", owner, key, name, site_of(code, None))
        return sum(map(len, self.functions.values())) > num_known

    def _add(self, executed: Executed) -> None:
        if id(executed.code) not in self.codes:
            self.codes[id(executed.code)] = executed
            self._queue.append(executed)

    def _follow(self, executed: Executed) -> None:
        self._again.discard(id(executed.code))
        self._memo.pop(id(executed.code), None)
        self._is_blind = id(executed.code) not in self._executed
        self._is_users = executed.kind is CodeKind.USER
        for chain, line in executed.reads.reads.items():
            values = self._values(executed, chain, line)
            if chain in executed.reads.whole:
                for value, name in values:
                    self._use_whole(value, name, site_of(executed.code, line))
                    if issubclass(type(value), Collection) and _is_looked_into(type(value)):
                        self._use_object_whole(value, name, site_of(executed.code, line))
        for store in executed.reads.stores:
            self._follow_store(executed, store)
        for chain, line in executed.reads.called.items() if self._is_users else ():
            for value, name in self._values(executed, chain, line):
                self._note_odd(value, name, advice_on_call(value), site_of(executed.code, line))
                advice = advice_on_arguments(value)
                if advice is not None and self._is_given_an_object(executed, chain, line):
                    self._note_odd(value, name, advice, site_of(executed.code, line))
        self._follow_readers(executed)

    def _is_given_an_object(self, executed: Executed, function: Chain, line: int) -> bool:
        """Return whether a function is given an object that lasts, whose attributes it may read.

        What another call has returned is taken for made in this one.
        """
        return any(
            entries_of(value) is not None
            and not isinstance(value, (torch.Tensor, FunctionType, type, *CONTAINERS))
            for chain in executed.reads.given.get(function, ())
            if chain.kind != "result" and ("each", None) not in chain.links
            for value, _ in self._values(executed, chain, line)
        )

    def _follow_readers(self, executed: Executed) -> None:
        """Take note of objects whose attributes are read by a function of Python's library."""
        for chain, given in executed.reads.given.items():
            line = executed.reads.reads.get(chain)
            for function, _ in self._values(executed, chain, line):
                if reads_attributes(function):
                    for each in given:
                        for value, name in self._values(executed, each, line):
                            self._use_attributes(value, name, site_of(executed.code, line))
                            if function is dir or function is vars:
                                self._use_whole(
                                    entries_of(value), name, site_of(executed.code, line)
                                )

    def _follow_store(self, executed: Executed, store: Store) -> None:
        """Take note of where a value is stored: whoever stores another there has to be seen."""
        site = site_of(executed.code, store.line)
        owners = [
            (value, name)
            for chain in store.bases
            for value, name in self._values(executed, chain, store.line)
            if id(value) not in self._skip and not isinstance(value, torch.Tensor)
        ]
        self._is_store = True
        if store.kind == "global":
            self._place("dict", executed.names, store.key, store.key, site)
        for value, name in owners:
            if store.kind == "attr":
                self._attribute(value, store.key, name, site)
            elif store.kind == "item" and isinstance(store.key, str | int):
                self._item(value, store.key, name, site)
        self._is_store = False

    def reads(self, place: Place) -> bool:
        """Return whether the code reads a place, or what it is a part of as a whole."""
        wholes = (id(place.owner), id(place.holder))
        return place.id in self.read or any(whole in self.whole for whole in wholes)

    def values_of(self, executed: Executed, chain: Chain) -> list[Any]:
        """Return what a chain stands for."""
        return [value for value, _ in self._values(executed, chain, None)]

    # --- chains ---

    def _values(self, executed: Executed, chain: Chain, line: int | None) -> list[tuple[Any, str]]:
        memo = self._memo.setdefault(id(executed.code), {})
        found = memo.get(chain)
        if found is None:
            memo[chain] = []
            site = site_of(executed.code, line)
            found = memo[chain] = list(self._new_values(executed, chain, line, site))
            for value, name in found if self._is_users else ():
                advice = advice_on_object(value)
                if advice is not None and not executed.is_passing(chain, value):
                    self._note_odd(value, name, advice, site)
        return found

    def _note_odd(self, value: Any, name: str, advice: str | None, site: str) -> None:
        """Take note of a way to read that is not followed, once for each line."""
        if advice is not None and id(value) not in self._skip:
            self.odd.setdefault(site, OddRead(shown_name(value, name), site, advice))

    def _new_values(
        self, executed: Executed, chain: Chain, line: int | None, site: str
    ) -> Iterator[tuple[Any, str]]:
        if not chain.links:
            yield from self._roots(executed, chain, site)
            return
        base = chain._replace(links=chain.links[:-1])
        kind, key = chain.links[-1]
        for value, name in self._values(executed, base, line):
            if id(value) in self._skip:
                continue
            if kind == "attr":
                found = self._attribute(value, key, name, site)
            elif kind == "item":
                found = self._item(value, key, name, site)
            elif kind == "super":
                found = [(_Super(value), name)]
            elif kind == "any":
                found = self._any_attribute(value, key or "", name, site)
            elif kind == "parts":
                found = self._parts_of(value, name)
                self.listed.update(id(part) for part, _ in found if isinstance(part, nn.Module))
            else:
                found = self._each(value, name, site)
            yield from found
        yield from self._led_to(executed, chain, site)

    def _parts_of(self, value: Any, name: str) -> list[tuple[Any, str]]:
        """Return a module's modules, parameters and buffers, with itself."""
        if not isinstance(value, nn.Module):
            return [(value, name)]
        parts = self._parts.get(id(value))
        if parts is None:
            named = (value.named_modules(), value.named_parameters(), value.named_buffers())
            parts = self._parts[id(value)] = [(part, key) for each in named for key, part in each]
        return [(part, f"{name}.{key}" if key else name) for part, key in parts]

    def _led_to(self, executed: Executed, chain: Chain, site: str) -> Iterator[tuple[Any, str]]:
        """Return what objects led to that are gone."""
        led = executed.led.get((chain.root, chain.links))
        if led is not None:
            for value in led.alive(self._least_runs):
                if id(value) not in self._skip:
                    name = self.name_of(value) or chain.text
                    self._arrive(value, name, site)
                    yield value, name

    def _roots(self, executed: Executed, chain: Chain, site: str) -> Iterator[tuple[Any, str]]:
        name = chain.root
        if chain.kind == "argument" or chain.kind == "result":
            yield from self._observed(executed, name, site)
        elif executed.kind is CodeKind.MODULE:
            return
        elif chain.kind == "module":
            yield from self._imported(name, executed.names.get("__package__"), site)
        elif chain.kind == "cell":
            for function in self.functions.get(id(executed.code), []):
                cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
                for free, cell in cells:
                    if free == name:
                        yield from self._place("cell", cell, None, name, site)
        else:
            yield from self._global(executed.names, name, site)

    def _global(self, names: dict[str, Any], name: str, site: str) -> Iterable[tuple[Any, str]]:
        """Return what stands for a name in a module."""
        if name not in names and name in vars(builtins):
            return self._builtin(name, site)
        # One that is missing may come later; until then it is a NameError.
        is_place = name in names or self._is_users
        return self._place("dict", names, name, name, site) if is_place else []

    def _builtin(self, name: str, site: str) -> Iterable[tuple[Any, str]]:
        """Return what stands for a name in all modules; some tools put something there."""
        value = vars(builtins)[name]
        if isinstance(value, BuiltinFunctionType | type):
            return [(value, name)]
        return self._place("dict", vars(builtins), name, name, site)

    def _imported(self, name: str, package: Any, site: str) -> Iterable[tuple[Any, str]]:
        """Return the module of that name, of "" the table of all modules."""
        if not name:
            return [(sys.modules, "sys.modules")]
        if name.startswith("."):
            if not isinstance(package, str):
                return []
            name = importlib.util.resolve_name(name, package)
        if name.partition(".")[0] in FOREIGN_PACKAGES:
            return [(sys.modules[name], name)] if name in sys.modules else []
        return self._place("dict", sys.modules, name, name, site)

    def _observed(self, executed: Executed, name: str, site: str) -> Iterator[tuple[Any, str]]:
        """Return what an argument was seen to be, and its default."""
        observed = executed.observed.get(name)
        seen = observed.alive(self._least_runs) if observed is not None else []
        given = self._given.get((id(executed.code), name), {})
        for value in {id(each): each for each in (*seen, *given.values())}.values():
            if id(value) not in self._skip:
                shown = name or type(value).__name__
                if executed.kind is not CodeKind.USER:
                    shown = self.name_of(value) or shown
                self._arrive(value, shown, site)
                yield value, shown
        for function in self.functions.get(id(executed.code), []) if name else ():
            default = default_of(function, name)
            if default is not MISSING:
                self._arrive(default, name, site)
                yield default, name

    def name_of(self, value: object) -> str:
        """Return the name under which an object was reached, "" if it was not."""
        for table in (self.modules, self.objects):
            found = table.get(id(value))
            if found is not None:
                return found[1]
        return ""

    def _is_proxy(self, value: object) -> bool:
        """Return `names_another_class` of an object, which each of its class is or is not."""
        kind = type(value)
        found = self._proxies.get(id(kind))
        if found is None:
            found = self._proxies[id(kind)] = names_another_class(value)
        return found

    def _attribute(self, value: Any, key: str, name: str, site: str) -> Iterable[tuple[Any, str]]:
        if self._is_proxy(value):
            return self._instance_attribute(value, key, name, site)
        return self._attribute_by_kind(value, key, name, site)

    def _attribute_by_kind(
        self, value: Any, key: str, name: str, site: str
    ) -> Iterable[tuple[Any, str]]:
        shown = f"{name}.{key}"
        if isinstance(value, ModuleType):
            return self._module_attribute(value, key, shown, site)
        if isinstance(value, type):
            return self._class_attribute(value, key, shown, site)
        if isinstance(value, MethodType):
            if key in ("__self__", "__func__"):
                return [(getattr(value, key), shown)]
            return self._attribute(value.__func__, key, name, site)
        if isinstance(value, logging.Logger):
            self._add_levels(value, name, site)
        if isinstance(value, contextvars.ContextVar) and key == "get":
            return self._place("context", value, None, name, site)
        if isinstance(value, functools.partial) and key in ("func", "args", "keywords"):
            return [(getattr(value, key), shown)]
        if isinstance(value, _Super):
            return self._super_attribute(value.of, key, shown, site)
        return self._instance_attribute(value, key, name, site)

    def _super_attribute(
        self, value: Any, key: str, shown: str, site: str
    ) -> Iterable[tuple[Any, str]]:
        """Return an attribute of any of an object's classes."""
        kind = value if isinstance(value, type) else type(value)
        found: list[tuple[Any, str]] = []
        for owner in type.__getattribute__(kind, "__mro__"):
            entries = type.__getattribute__(owner, "__dict__")
            if key in entries:
                found += self._inherited(value, (owner, entries[key]), shown, site)
        return found

    def _add_levels(self, logger: logging.Logger, name: str, site: str) -> None:
        """Take note of what decides whether a logger lets messages through."""
        manager = vars(logging.Logger.manager)
        self._place("dict", manager, "_disable", "logging.disable()", site)
        above: logging.Logger | None = logger
        while above is not None:
            self._place("dict", vars(above), "level", f"{name}.level", site, holder=above)
            self._place("dict", vars(above), "disabled", f"{name}.disabled", site, holder=above)
            above = above.parent

    def _instance_attribute(
        self, value: Any, key: str, name: str, site: str
    ) -> Iterable[tuple[Any, str]]:
        shown = f"{name}.{key}"
        entries = entries_of(value)
        if key in ("__class__", "__dict__"):
            if key == "__dict__":
                self._use_slots(value, name, site)
            return _of_any_object(value, key, shown)
        for table in (entries, *tables_of(value)):
            if table is not None and key in table:
                return self._place("dict", table, key, shown, site, holder=value)
        if isinstance(value, CONTAINERS) and is_foreign(type(value)):
            if key not in CHANGING_METHODS and key != "get":
                self._use_whole(value, name, site)
            return []
        found = class_attribute(type(value), key)
        if found is not None:
            self._note_owner(value, key, name, site, found[0])
        self._note_absence(value, key, shown, site, found)
        if found is None:
            # A mapping whose items can be read as attributes.
            if isinstance(value, dict) and class_attribute(type(value), "__getattr__"):
                return self._place("dict", value, key, shown, site)
            return []
        return self._inherited(value, found, shown, site)

    def _any_attribute(
        self, value: Any, begin: str, name: str, site: str
    ) -> list[tuple[Any, str]]:
        """Return what an object, a class or a module of the user's has by names that begin so.

        Where nothing is known of the name, containers of a module or class are left out: what the loop collects
        there would be taken for what is read.
        """
        if isinstance(value, ModuleType):
            return self._any_of_module(value, begin, name, site)
        if isinstance(value, torch.optim.Optimizer | MethodType):
            return []  # guarded by themselves
        kind = value if isinstance(value, type) else type(value)
        owners = [
            owner for owner in type.__getattribute__(kind, "__mro__") if not is_foreign(owner)
        ]
        is_object = not isinstance(value, type)
        own = [entries_of(value), *tables_of(value)] if is_object else []
        tables = [table for table in own if table is not None]
        if begin:
            all_names = itertools.chain(*map(vars, owners), *tables)
            beginning_so = dict.fromkeys(key for key in all_names if str(key).startswith(begin))
            return [
                part for key in beginning_so for part in self._attribute(value, key, name, site)
            ]
        found = [
            part
            for owner in owners
            for part in self._entries("class", owner, _names_in(vars(owner), ""), name, site)
        ]
        if isinstance(value, tuple) and hasattr(type(value), "_fields"):
            found += self._each(value, name, site)
        if is_object:
            found += self._use_slots(value, name, site)
        for table in tables:
            self._use_whole(table, f"{name}.__dict__", site)
            found += self._each(table, name, site)
        return found

    def _any_of_module(
        self, module: ModuleType, begin: str, name: str, site: str
    ) -> list[tuple[Any, str]]:
        entries = vars(module)
        if str(entries.get("__name__")).partition(".")[0] in FOREIGN_PACKAGES:
            return []
        return self._entries("dict", entries, _names_in(entries, begin), name, site)

    def _entries(
        self, kind: str, owner: Any, names: Iterable[str], name: str, site: str
    ) -> list[tuple[Any, str]]:
        """Take note of some names of a class or a module; return what they are."""
        return [
            part for key in names for part in self._place(kind, owner, key, f"{name}.{key}", site)
        ]

    def _note_owner(self, value: Any, key: str, name: str, site: str, owner: type) -> None:
        """Take note of what an attribute may read that is not the user's."""
        if _is_looked_into(owner) and entries_of(value) is not None:
            self._use_object_whole(value, name, site)

    def _note_absence(
        self, value: Any, key: str, shown: str, site: str, found: tuple[type, Any] | None
    ) -> None:
        """Take note of where an attribute that is not the object's own may come to stand."""
        owner, attribute = found or (None, MISSING)
        is_taken_for_granted = owner is not None and is_foreign(owner)
        if is_taken_for_granted and (not self._is_users or isinstance(value, torch.Tensor)):
            return
        for table in (entries_of(value), *tables_of(value)):
            if table is not None and not _is_data_descriptor(attribute):
                self._place("dict", table, key, shown, site, holder=value, behind=attribute)
        self._note_classes(type(value), key, shown, site, owner)

    def _note_classes(
        self, kind: type, key: str, shown: str, site: str, owner: type | None
    ) -> None:
        """Take note of the user's classes that are asked for an attribute before its owner is."""
        for each in type.__getattribute__(kind, "__mro__"):
            if each is owner:
                return
            if not is_foreign(each):
                self._place("class", each, key, shown, site)

    def _inherited(
        self, value: Any, found: tuple[type, Any], shown: str, site: str
    ) -> Iterable[tuple[Any, str]]:
        owner, attribute = found
        key = shown.rpartition(".")[2]
        if isinstance(attribute, (*PLAIN_DESCRIPTORS, GetSetDescriptorType)):
            return self._described(value, attribute, shown, site)
        function = unwrapped(attribute)
        if isinstance(attribute, staticmethod | classmethod | FunctionType):
            self._note_function(function)
            if self._is_blind and not isinstance(attribute, staticmethod):
                self._give(function, value)
        if is_foreign(owner):
            reader = reader_of_method(value, key)
            if reader is not None:
                name = shown.rpartition(".")[0]
                self.of_torch.setdefault((id(value), key), (value, reader, name, site))
            return []
        results = self._place("class", owner, key, shown, site)
        if isinstance(attribute, property | functools.cached_property):
            return []
        return results

    def _described(
        self, value: Any, attribute: Any, shown: str, site: str
    ) -> list[tuple[Any, str]]:
        """Return what a descriptor that is made in C leads to, as far as no code is run."""
        if isinstance(attribute, FIELD_OF_NAMED_TUPLE):
            # It stays what it is; what it holds may change.
            part = attribute.__get__(value)
            self._arrive(part, shown, site)
            return [(part, shown)]
        if isinstance(attribute, GetSetDescriptorType) or isinstance(value, torch.Tensor):
            return []
        return self._place("slot", value, attribute, shown, site, holder=value)

    def _module_attribute(
        self, value: ModuleType, key: str, shown: str, site: str
    ) -> Iterable[tuple[Any, str]]:
        entries = vars(value)
        if value is os and key in ("environ", "getenv"):
            self.whole[id(os.environ)] = (os.environ, "os.environ", site)
            return []
        if value.__name__.partition(".")[0] in FOREIGN_PACKAGES:
            found = entries.get(key)
            is_reader = isinstance(found, FunctionType) and found in ATTRIBUTE_READERS
            if found is sys.modules or is_reader or isinstance(found, ModuleType | type):
                return [(found, shown)]
            is_of_python = value.__name__.partition(".")[0] in sys.stdlib_module_names
            # Anybody may put numbers and tensors there.
            is_value = isinstance(found, _VALUES)
            if not is_value and not (is_of_python and isinstance(found, list | dict)):
                return []
        # One that was made by code has no file.
        is_users = entries.get("__file__") is None or is_of_the_script(value)
        if key not in entries and not is_users:
            return []
        return self._place("dict", entries, key, shown, site)

    def _class_attribute(
        self, value: type, key: str, shown: str, site: str
    ) -> Iterable[tuple[Any, str]]:
        found = class_attribute(value, key)
        self._note_classes(value, key, shown, site, found[0] if found is not None else None)
        found = found or class_attribute(type(value), key)
        if found is None:
            return []
        owner, attribute = found
        if isinstance(attribute, staticmethod | classmethod | FunctionType):
            self._note_function(unwrapped(attribute))
        if is_foreign(owner):
            return []
        return self._place("class", owner, key, shown, site)

    def _item(self, value: Any, key: Any, name: str, site: str) -> Iterable[tuple[Any, str]]:
        shown = f"{name}[{shown_key(key)}]"
        if self._is_proxy(value):
            return [(value, name)]
        if value is sys.modules:
            return self._imported(key, None, site)
        if isinstance(value, list | tuple | collections.deque):
            # One that is missing may come later; until then it is an IndexError.
            return self._place("item", value, key, shown, site) if isinstance(key, int) else []
        if isinstance(value, dict):
            return self._place("dict", value, key, shown, site)
        if isinstance(value, nn.ParameterDict) and isinstance(key, str):
            return self._attribute(value, key, name, site)
        if isinstance(value, nn.ModuleList | nn.Sequential | nn.ModuleDict | nn.ParameterList):
            return self._each(value, name, site)
        if isinstance(value, Mapping) and hasattr(value, "data"):
            entries = entries_of(value) or {}
            if isinstance(entries.get("data"), dict):
                return self._place("dict", entries["data"], key, shown, site)
        # What stands for all items of an argument, or an object that is asked for one.
        return self._each(value, name, site)

    def _each(self, value: Any, name: str, site: str) -> Iterable[tuple[Any, str]]:
        if self._is_proxy(value):
            return [(value, name)]
        return self._each_by_kind(value, name, site)

    def _each_by_kind(self, value: Any, name: str, site: str) -> Iterable[tuple[Any, str]]:
        shown = f"{name}[...]"
        if value is sys.modules:
            modules = list(sys.modules.values())
            return [(each, each.__name__) for each in modules if is_of_the_script(each)]
        if isinstance(value, nn.ModuleList | nn.Sequential | nn.ModuleDict):
            return [(child, f"{name}.{key}") for key, child in value._modules.items()]
        if isinstance(value, nn.ParameterList | nn.ParameterDict):
            return self._each_of_parameters(value, name, site)
        if isinstance(value, contextvars.ContextVar):
            return self._place("context", value, None, name, site)
        if isinstance(value, nn.Module | torch.Tensor | ModuleType | type | FunctionType):
            return [(value, name)]
        if isinstance(value, dict):
            return [
                (part, f"{name}[{shown_key(key)}]") for key, part in items_of(value)[:_MOST_ITEMS]
            ]
        if isinstance(value, list | tuple | set | frozenset | collections.deque):
            held = list(base_of(value).__iter__(value))
            return [(part, shown) for part in held[:_MOST_ITEMS]]
        if _is_looked_into(type(value)):
            return [(value, name), *self._use_object_whole(value, name, site)]
        return [(value, name)]

    def _each_of_parameters(
        self, value: nn.ParameterList | nn.ParameterDict, name: str, site: str
    ) -> list[tuple[Any, str]]:
        """Return what a list or dictionary of parameters holds, which may be anything."""
        entries = vars(value)
        # How many there are, and by which keys.
        for key in ("_size", "_keys"):
            if key in entries:
                self._use_whole(entries[key], name, site)
                self._place("dict", entries, key, f"len({name})", site, holder=value)
        keys = entries.get("_keys", range(entries.get("_size", 0)))
        return [part for key in keys for part in self._attribute(value, str(key), name, site)]

    # --- arriving at a value ---

    def _place(
        self,
        kind: str,
        owner: Any,
        key: Any,
        name: str,
        site: str,
        *,
        holder: Any = None,
        behind: Any = MISSING,
    ) -> list[tuple[Any, str]]:
        place = Place(kind, owner, key, name=name, site=site, holder=holder, behind=behind)
        known = self.places.setdefault(place.id, place)
        (self.stored if self._is_store else self.read).add(place.id)
        value = known.read()
        if value is MISSING or id(value) in self._skip:
            return []
        self._arrive(value, name, site)
        return [(value, name)]

    def _arrive(self, value: Any, name: str, site: str, *, in_full: bool = False) -> None:
        """Take note of a value that the code comes to."""
        if id(value) in self._skip:
            return
        if self._is_proxy(value):
            self.objects.setdefault(id(value), (value, name))
        else:
            self._arrive_by_kind(value, name, site, in_full=in_full)

    def _arrive_by_kind(self, value: Any, name: str, site: str, *, in_full: bool) -> None:
        if isinstance(value, torch.Tensor):
            self.tensors.setdefault(id(value), (value, name, site))
        elif isinstance(value, nn.Module):
            self._arrive_at_module(value, name)
        elif isinstance(value, FunctionType):
            self._note_function(value, must_follow=in_full)
        elif isinstance(value, MethodType):
            self._arrive_at_method(value, name, site, in_full=in_full)
        elif isinstance(value, functools.partial | functools.partialmethod):
            self._arrive_at_partial(value, name, site, in_full=in_full)
        elif isinstance(value, type):
            self._arrive_at_type(value)
        elif isinstance(value, BuiltinFunctionType | MethodWrapperType):
            self._arrive_at_bound(value, name, site, in_full=in_full)
        elif isinstance(value, property | staticmethod | classmethod):
            self._note_function(unwrapped(value))
        elif not isinstance(value, ModuleType | CellType):
            self._arrive_at_object(value, name, site)

    def _arrive_at_method(
        self, method: MethodType, name: str, site: str, *, in_full: bool
    ) -> None:
        value = method.__self__
        self._note_function(method.__func__, must_follow=in_full)
        self._arrive(value, name.rpartition(".")[0] or "self", site)
        if in_full:
            self._give(method.__func__, value)
        if not isinstance(method.__func__, FunctionType):
            # Made in C, such as those of numpy's generators: it may read and change all of it.
            held = (value,)
            self.whole.setdefault(id(held), (held, f"{name}.__self__", site))
        # Code of Python's library is not followed.
        found = class_attribute(type(value), method.__func__.__name__)
        if value is os.environ:
            self.whole[id(os.environ)] = (os.environ, "os.environ", site)
        elif found is not None and _is_looked_into(found[0]) and not isinstance(value, type):
            self._use_object_whole(value, f"{name}.__self__", site)

    def _arrive_at_partial(
        self,
        value: functools.partial[Any] | functools.partialmethod[Any],
        name: str,
        site: str,
        *,
        in_full: bool,
    ) -> None:
        if id(value) not in self.objects:
            self.objects[id(value)] = (value, name)
            self._arrive(value.func, name, site, in_full=in_full)
            self._use_whole(value.args, name, site)
            self._use_whole(value.keywords, name, site)
            given = [*value.args, *value.keywords.values()]
            for part in given:
                self._note_odd(part, name, advice_on_object(part), site)
            if not isinstance(value.func, _FOLLOWED) or reads_attributes(value.func):
                for part in given:
                    self._use_attributes(part, name, site)

    def _arrive_at_bound(self, method: Any, name: str, site: str, *, in_full: bool) -> None:
        """Take note of what a method made in C is bound to."""
        value, key, name = method.__self__, method.__name__, f"{name}.__self__"
        if value is None or isinstance(value, ModuleType | type) or id(method) in self._bound:
            return
        self._bound[id(method)] = method
        self._note_odd(value, name, advice_on_object(value), site)
        self._arrive(value, name, site, in_full=in_full)
        if id(value) not in self._skip and not isinstance(value, torch.Tensor | nn.Module):
            # It may change what nobody looks at otherwise, such as an array.
            self.objects.setdefault(id(value), (value, name))
        if key in ONLY_CHANGING:
            return
        if isinstance(value, contextvars.ContextVar):
            self._place("context", value, None, name, site)
        else:
            held = (value,)
            self.whole.setdefault(id(held), (held, name, site))
            self._use_whole(value, name, site)
            if _is_looked_into(type(value)):
                self._use_object_whole(value, name, site)

    def _arrive_at_type(self, value: type) -> None:
        if issubclass(value, torch.autograd.Function):
            self._functions_of_autograd.add(value)
            # Backward runs in threads of torch, where nobody watches.
            for function in ("forward", "backward", "setup_context", "jvp", "vjp"):
                found = class_attribute(value, function)
                if found is not None and not is_foreign(found[0]):
                    self._note_function(unwrapped(found[1]), must_follow=True)

    def _arrive_at_object(self, value: Any, name: str, site: str) -> None:
        entries = entries_of(value)
        if entries is not None or isinstance(value, CONTAINERS) or not is_foreign(type(value)):
            self.objects.setdefault(id(value), (value, name))
        if type(value).__module__.startswith(_LOOKED_INTO_OF_TORCH):
            # It may be called or asked for an item, which names none of its attributes.
            self._use_object_whole(value, name, site)
        original = (entries or {}).get("__wrapped__")
        if isinstance(original, FunctionType):
            self._note_function(original)

    def _arrive_at_module(self, value: nn.Module, name: str) -> None:
        if id(value) in self.modules:
            return
        todo = [(value, name)]
        while todo:
            module, shown = todo.pop()
            if id(module) in self.modules or id(module) in self._skip:
                continue
            self.modules[id(module)] = (module, shown)
            entries = vars(module)
            for part in reversed(MODULE_TENSORS):
                for key, tensor in (entries.get(part) or {}).items():
                    if isinstance(tensor, torch.Tensor):
                        self.tensors.setdefault(id(tensor), (tensor, f"{shown}.{key}", ""))
                        self._follow_hooks(tensor)
            self._follow_hooks(module)
            if isinstance(module, nn.ParameterList | nn.ParameterDict):
                self._each_of_parameters(module, shown, "")
            self._note_what_torch_calls(module, shown)
            children = entries.get("_modules") or {}
            todo += [
                (child, f"{shown}.{key}")
                for key, child in children.items()
                if isinstance(child, nn.Module)
            ]
            # Those of a scripted module have no `get`.
            original = dict(children.items()).get("_orig_mod")
            if isinstance(original, nn.Module):
                self._follow_statically(original)

    def _note_what_torch_calls(self, module: nn.Module, name: str) -> None:
        """Take note of methods of a module's class, or of one that comes before it and has none yet."""
        for key in ("forward", "__call__"):
            owner, _ = class_attribute(type(module), key) or (None, None)
            self._note_classes(type(module), key, f"{name}.{key}", "", owner)
            # Users patch `forward` of torch's classes, and torch.fx writes it anew.
            if owner is not None and (key == "forward" or not is_foreign(owner)):
                self._place("class", owner, key, f"{name}.{key}", "")

    def _follow_statically(self, module: nn.Module) -> None:
        """Follow the code of modules whose compiled code runs in place of it."""
        for part in module.modules():
            self.compiled.add(id(part))
            found = class_attribute(type(part), "forward")
            if found is not None:
                function = unwrapped(found[1])
                self._give(function, part)
                self._note_function(function, must_follow=True)

    def _follow_hooks(self, value: Any) -> None:
        """Follow functions that torch calls, in its own threads too."""
        for table in HOOK_TABLES:
            is_tensor = isinstance(value, torch.Tensor)
            hooks = getattr(value, table, None) if is_tensor else vars(value).get(table)
            for hook in list(hooks.values()) if isinstance(hooks, dict) else ():
                self._arrive(hook, "hook", "", in_full=True)

    def _use_whole(self, value: Any, name: str, site: str) -> None:
        """Take note of a container that is used as a whole, and what it contains."""
        todo: list[tuple[Any, str]] = [(value, name)]
        while todo:
            value, name = todo.pop()
            # Not what the object says of its class: a proxy has no length of its own.
            if not issubclass(type(value), CONTAINERS) or id(value) in self._skip:
                continue
            if id(value) in self.whole or value is sys.modules:
                continue
            self.whole[id(value)] = (value, name, site)
            self.objects.setdefault(id(value), (value, name))
            if len(value) > _MOST_ITEMS:
                continue
            for part, shown in _items_of(value, name):
                if self._is_users:
                    self._note_odd(part, shown, advice_on_object(part), site)
                self._arrive(part, shown, site)
                todo.append((part, shown))

    def _use_object_whole(
        self, value: Any, name: str, site: str, depth: int = _DEPTH
    ) -> list[tuple[Any, str]]:
        """Take note of all that an object of a library has, whose code is not followed.

        Returns what its containers lead to.
        """
        entries = entries_of(value)
        if entries is None or id(value) in self._skip or depth == 0 or is_own(type(value)):
            return []
        self._use_whole(entries, name, site)
        found: list[tuple[Any, str]] = []
        todo: list[Any] = [entries]
        seen: set[int] = set()
        while todo:
            part = todo.pop()
            if id(part) in seen or len(seen) > _MOST_ITEMS:
                continue
            seen.add(id(part))
            if isinstance(part, CONTAINERS):
                todo += part.values() if isinstance(part, dict) else part
                todo += part if isinstance(part, dict) else ()
            elif _is_looked_into(type(part)):
                found += self._use_object_whole(part, name, site, depth - 1)
            elif entries_of(part) is not None:
                found.append((part, name))
        return found

    def _use_attributes(self, value: Any, name: str, site: str) -> None:
        """Take note of all that an object has, and of what it contains."""
        todo = [(value, name)]
        seen: set[int] = set()
        while todo and len(seen) < _MOST_ITEMS:
            value, name = todo.pop(0)
            if id(value) in self._skip or id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, CONTAINERS):
                self._use_whole(value, name, site)
                todo += _items_of(value, name)
                continue
            self._note_odd(value, name, advice_on_object(value), site)
            self._arrive(value, name, site)
            if isinstance(value, _NOT_READ_AS_A_WHOLE) or is_own(type(value)):
                continue
            todo += self._use_slots(value, name, site)
            entries = entries_of(value) or {}
            for key, part in list(entries.items()):
                self._place("dict", entries, key, f"{name}.{key}", site, holder=value)
                todo.append((part, f"{name}.{key}"))

    def _use_slots(self, value: Any, name: str, site: str) -> list[tuple[Any, str]]:
        """Take note of the attributes of an object that stand in slots; return what they are."""
        return [
            part
            for owner in type.__getattribute__(type(value), "__mro__")
            if not is_foreign(owner)
            for key, slot in vars(owner).items()
            if isinstance(slot, MemberDescriptorType)
            for part in self._place("slot", value, slot, f"{name}.{key}", site, holder=value)
        ]

    # --- functions ---

    def _note_function(self, function: Any, *, must_follow: bool = False) -> None:
        """Take note of a function, to find its cells; follow it if it has run or may have."""
        while isinstance(function, FunctionType):
            code = function.__code__
            if must_follow or self._is_blind:
                self._add_unseen(function)
            known = self.functions.setdefault(id(code), [])
            if any(each is function for each in known):
                return
            known.append(function)
            self._again.add(id(code))
            for cell in function.__closure__ or ():
                content = content_of(cell)
                if isinstance(content, FunctionType):
                    self._note_function(content, must_follow=must_follow)
            compiled = vars(function).get("_torchdynamo_orig_callable")
            must_follow |= compiled is not None
            function = compiled or vars(function).get("__wrapped__")

    def _add_unseen(self, function: FunctionType) -> None:
        """Follow a function that was not seen to run."""
        code, kind = function.__code__, kind_of(function.__code__, function.__globals__)
        is_known = id(code) in self._executed or id(code) in self.codes
        if kind in (CodeKind.USER, CodeKind.MODULE) and not is_known and self._num_unseen:
            self._num_unseen -= 1
            self._add(Executed(code, function.__globals__, reads_of(code), kind))

    def _give(self, function: Any, value: Any) -> None:
        """Let a function's first argument be known, as if it had been seen."""
        if not isinstance(function, FunctionType):
            return
        code = function.__code__
        if code.co_argcount > 0:
            given = self._given.setdefault((id(code), code.co_varnames[0]), {})
            if id(value) not in given:
                given[id(value)] = value
                self._again.add(id(code))


# Functions of these are seen to run.
_FOLLOWED = (FunctionType, MethodType, nn.Module, functools.partial, type)


def _items_of(value: Any, name: str) -> list[tuple[Any, str]]:
    """Return what a container holds, with names."""
    parts: Iterable[tuple[str, Any]]
    if isinstance(value, dict):
        parts = [(shown_key(key), part) for key, part in items_of(value)]
    elif isinstance(value, list | tuple | collections.deque):
        parts = [(str(index), part) for index, part in enumerate(value)]
    else:
        parts = [("...", part) for part in value]
    return [(part, f"{name}[{key}]") for key, part in parts]


# Guarded in their own way, or too much to be meant as a whole.
_NOT_READ_AS_A_WHOLE = (
    type,
    ModuleType,
    FunctionType,
    torch.Tensor,
    nn.Module,
    torch.optim.Optimizer,
)


def _is_data_descriptor(attribute: Any) -> bool:
    """Return whether an attribute of a class goes before one of the object's own."""
    return hasattr(type(attribute), "__set__")


def _names_in(entries: Mapping[str, Any], begin: str) -> list[str]:
    """Return the names that begin so, of all but Python's own; without a beginning, not those of containers."""
    return [
        key
        for key, part in list(entries.items())
        if key.startswith(begin)
        and not key.startswith("__")
        and (begin or not isinstance(part, CONTAINERS))
    ]


class _Skipped(set[int]):
    """Ids of objects that are left out; knows whether one of them was met."""

    was_met = False

    def __contains__(self, key: object) -> bool:
        if set.__contains__(self, key):
            self.was_met = True
            return True
        return False


class _Super:
    """An object whose attributes are looked up in its classes."""

    def __init__(self, of: Any) -> None:
        self.of = of


# Of torch's objects that are no modules, those which a step computes with.
_LOOKED_INTO_OF_TORCH = (
    "torch.distributions",
    "torch.utils.data.dataset",
    "torch.utils.data.sampler",
)


def _is_looked_into(kind: type) -> bool:
    """Return whether a class is a library's, whose objects are compared with all they have."""
    if issubclass(
        kind, (type, argparse.Namespace, SimpleNamespace, logging.Logger, nn.Module, *CONTAINERS)
    ):
        return False
    package = kind.__module__.partition(".")[0]
    if kind is object:
        return False
    if package == "torch":
        return kind.__module__.startswith(_LOOKED_INTO_OF_TORCH)
    return package in sys.stdlib_module_names and package != "builtins"


def _of_any_object(value: Any, key: str, shown: str) -> list[tuple[Any, str]]:
    """Return an object's class or dictionary; optimizers are guarded by themselves."""
    if key == "__class__":
        return [(type(value), shown)]
    entries = entries_of(value)
    is_guarded = entries is None or isinstance(value, torch.optim.Optimizer)
    return [] if is_guarded else [(entries, shown)]
