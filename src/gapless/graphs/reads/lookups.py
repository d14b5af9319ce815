"""What a name, an attribute or an item leads to, as far as no code of the user's is run."""

from __future__ import annotations

import builtins
import collections
import contextvars
import functools
import importlib.util
import itertools
import logging
import os
import sys
from collections.abc import Mapping
from types import FunctionType, GetSetDescriptorType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gapless.graphs.reads.arrivals import MOST_ITEMS, Arrivals, is_looked_into
from gapless.graphs.reads.chains import CHANGING_METHODS
from gapless.graphs.reads.code_kinds import FOREIGN_PACKAGES, is_foreign, is_of_the_script
from gapless.graphs.reads.odd_reads import READERS
from gapless.graphs.reads.plain_values import is_plain
from gapless.graphs.reads.value_places import (
    CONTAINERS,
    FIELD_OF_NAMED_TUPLE,
    MISSING,
    PLAIN_DESCRIPTORS,
    base_of,
    class_attribute,
    entries_of,
    items_of,
    shown_key,
    tables_of,
    unwrapped,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


# What a user may put into a module of a library, and has no other place.
_VALUES = (bool, int, float, complex, str, bytes, torch.Tensor)


class Lookups:
    """Looks up what code names.

    Args:
        arrivals: where it is noted what this comes to.

    Attributes:
        listed: ids of modules of which the code asks for all parameters, buffers or modules.
    """

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self.listed: set[int] = set()
        self._parts: dict[int, list[tuple[Any, str]]] = {}

    def parts_of(self, value: Any, name: str) -> list[tuple[Any, str]]:
        """Return a module's modules, parameters and buffers, with itself."""
        if not isinstance(value, nn.Module):
            return [(value, name)]
        parts = self._parts.get(id(value))
        if parts is None:
            named = (value.named_modules(), value.named_parameters(), value.named_buffers())
            parts = self._parts[id(value)] = [(part, key) for each in named for key, part in each]
        return [(part, f"{name}.{key}" if key else name) for part, key in parts]

    def of_global(self, names: dict[str, Any], name: str, site: str) -> Iterable[tuple[Any, str]]:
        """Return what stands for a name in a module."""
        if name not in names and name in vars(builtins):
            return [(vars(builtins)[name], name)]
        # One that is missing may come later; until then it is a NameError.
        is_place = name in names or self._arrivals.is_users
        return self._arrivals.place("dict", names, name, name, site) if is_place else []

    def imported(self, name: str, package: Any, site: str) -> Iterable[tuple[Any, str]]:
        """Return the module of that name."""
        if name.startswith("."):
            if not isinstance(package, str):
                return []
            name = importlib.util.resolve_name(name, package)
        if name.partition(".")[0] in FOREIGN_PACKAGES:
            return [(sys.modules[name], name)] if name in sys.modules else []
        return self._arrivals.place("dict", sys.modules, name, name, site)

    def attribute(self, value: Any, key: str, name: str, site: str) -> Iterable[tuple[Any, str]]:
        """Return what an object's attribute may be."""
        shown = f"{name}.{key}"
        if isinstance(value, ModuleType):
            return self._module_attribute(value, key, shown, site)
        if isinstance(value, type):
            return self._class_attribute(value, key, shown, site)
        if isinstance(value, MethodType):
            if key in ("__self__", "__func__"):
                return [(getattr(value, key), shown)]
            return self.attribute(value.__func__, key, name, site)
        if isinstance(value, logging.Logger):
            self._add_levels(value, name, site)
        if isinstance(value, contextvars.ContextVar) and key == "get":
            return self._arrivals.place("context", value, None, name, site)
        if isinstance(value, functools.partial) and key in ("func", "args", "keywords"):
            return [(getattr(value, key), shown)]
        return self._instance_attribute(value, key, name, site)

    def _add_levels(self, logger: logging.Logger, name: str, site: str) -> None:
        """Take note of what decides whether a logger lets messages through."""
        manager = vars(logging.Logger.manager)
        self._arrivals.place("dict", manager, "_disable", "logging.disable()", site)
        above: logging.Logger | None = logger
        while above is not None:
            for key in ("level", "disabled"):
                self._arrivals.place("dict", vars(above), key, f"{name}.{key}", site, holder=above)
            above = above.parent

    def _instance_attribute(
        self, value: Any, key: str, name: str, site: str
    ) -> Iterable[tuple[Any, str]]:
        shown = f"{name}.{key}"
        entries = entries_of(value)
        if key in ("__class__", "__dict__"):
            if key == "__dict__":
                self._arrivals.use_slots(value, name, site)
            return _of_any_object(value, key, shown)
        for table in (entries, *tables_of(value)):
            if table is not None and key in table:
                return self._arrivals.place("dict", table, key, shown, site, holder=value)
        if isinstance(value, CONTAINERS) and is_foreign(type(value)):
            if key not in CHANGING_METHODS and key != "get":
                self._arrivals.use_whole(value, name, site)
            return []
        found = class_attribute(type(value), key)
        if found is not None:
            self._note_owner(value, key, name, site, found[0])
        self._note_absence(value, key, shown, site, found)
        if found is None:
            # A mapping whose items can be read as attributes.
            if isinstance(value, dict) and class_attribute(type(value), "__getattr__"):
                return self._arrivals.place("dict", value, key, shown, site)
            return []
        return self._inherited(value, found, shown, site)

    def any_attribute(self, value: Any, begin: str, name: str, site: str) -> list[tuple[Any, str]]:
        """Return what an object has by names that begin so."""
        if isinstance(value, ModuleType | type | torch.optim.Optimizer | MethodType):
            return []
        tables = [one for one in (entries_of(value), *tables_of(value)) if one is not None]
        if begin:
            owners = type.__getattribute__(type(value), "__mro__")
            of_users = [vars(owner) for owner in owners if not is_foreign(owner)]
            all_names = itertools.chain(*of_users, *tables)
            beginning_so = dict.fromkeys(key for key in all_names if str(key).startswith(begin))
            return [
                part for key in beginning_so for part in self.attribute(value, key, name, site)
            ]
        found = self._arrivals.use_slots(value, name, site)
        for table in tables:
            self._arrivals.use_whole(table, f"{name}.__dict__", site)
            found += self.each(table, name, site)
        return found

    def _note_owner(self, value: Any, key: str, name: str, site: str, owner: type) -> None:
        """Take note of what an attribute may read that is not the user's."""
        if is_looked_into(owner) and entries_of(value) is not None:
            self._arrivals.use_object_whole(value, name, site)

    def _note_absence(
        self, value: Any, key: str, shown: str, site: str, found: tuple[type, Any] | None
    ) -> None:
        """Take note of where an attribute that is not the object's own may come to stand."""
        owner, attribute = found or (None, MISSING)
        is_taken_for_granted = owner is not None and is_foreign(owner)
        if is_taken_for_granted and (
            not self._arrivals.is_users or isinstance(value, torch.Tensor)
        ):
            return
        for table in (entries_of(value), *tables_of(value)):
            if table is not None and not _is_data_descriptor(attribute):
                self._arrivals.place("dict", table, key, shown, site, holder=value)

    def _inherited(
        self, value: Any, found: tuple[type, Any], shown: str, site: str
    ) -> Iterable[tuple[Any, str]]:
        owner, attribute = found
        key = shown.rpartition(".")[2]
        if isinstance(attribute, (*PLAIN_DESCRIPTORS, GetSetDescriptorType)):
            return self._described(value, attribute, shown, site)
        function = unwrapped(attribute)
        if isinstance(attribute, staticmethod | classmethod | FunctionType):
            self._arrivals.code.note_function(function)
            if self._arrivals.code.is_blind and not isinstance(attribute, staticmethod):
                self._arrivals.code.give(function, value)
        if is_foreign(owner):
            reader = _reader_of_method(value, key)
            if reader is not None:
                name = shown.rpartition(".")[0]
                self._arrivals.states.setdefault((id(value), key), (value, reader, name, site))
            return []
        results = self._arrivals.place("class", owner, key, shown, site)
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
            self._arrivals.arrive(part, shown, site)
            return [(part, shown)]
        if isinstance(attribute, GetSetDescriptorType) or isinstance(value, torch.Tensor):
            return []
        return self._arrivals.place("slot", value, attribute, shown, site, holder=value)

    def _module_attribute(
        self, value: ModuleType, key: str, shown: str, site: str
    ) -> Iterable[tuple[Any, str]]:
        entries = vars(value)
        if value is os and key in ("environ", "getenv"):
            self._arrivals.whole[id(os.environ)] = (os.environ, "os.environ", site)
            return []
        if value.__name__.partition(".")[0] in FOREIGN_PACKAGES:
            found = entries.get(key)
            is_reader = isinstance(found, FunctionType) and found in READERS
            if found is sys.modules or is_reader or isinstance(found, ModuleType | type):
                return [(found, shown)]
            # Anybody may put numbers and tensors there.
            if not isinstance(found, _VALUES):
                return []
        # One that was made by code has no file.
        is_users = entries.get("__file__") is None or is_of_the_script(value)
        if key not in entries and not is_users:
            return []
        return self._arrivals.place("dict", entries, key, shown, site)

    def _class_attribute(
        self, value: type, key: str, shown: str, site: str
    ) -> Iterable[tuple[Any, str]]:
        found = class_attribute(value, key) or class_attribute(type(value), key)
        if found is None:
            return []
        owner, attribute = found
        if isinstance(attribute, staticmethod | classmethod | FunctionType):
            self._arrivals.code.note_function(unwrapped(attribute))
        if is_foreign(owner):
            return []
        return self._arrivals.place("class", owner, key, shown, site)

    def item_of(self, value: Any, key: Any, name: str, site: str) -> Iterable[tuple[Any, str]]:
        """Return what an item of an object may be, by a constant key."""
        shown = f"{name}[{shown_key(key)}]"
        if value is sys.modules:
            return self.imported(key, None, site)
        if isinstance(value, list | tuple | collections.deque):
            # One that is missing may come later; until then it is an IndexError.
            return (
                self._arrivals.place("item", value, key, shown, site)
                if isinstance(key, int)
                else []
            )
        if isinstance(value, dict):
            return self._arrivals.place("dict", value, key, shown, site)
        if isinstance(value, Mapping) and hasattr(value, "data"):
            entries = entries_of(value) or {}
            if isinstance(entries.get("data"), dict):
                return self._arrivals.place("dict", entries["data"], key, shown, site)
        # What stands for all items of an argument, or an object that is asked for one.
        return self.each(value, name, site)

    def each(self, value: Any, name: str, site: str) -> Iterable[tuple[Any, str]]:
        """Return what any item of an object may be."""
        shown = f"{name}[...]"
        if value is sys.modules:
            return []
        if isinstance(value, nn.ModuleList | nn.Sequential | nn.ModuleDict):
            return [(child, f"{name}.{key}") for key, child in value._modules.items()]
        if isinstance(value, contextvars.ContextVar):
            return self._arrivals.place("context", value, None, name, site)
        if isinstance(value, nn.Module | torch.Tensor | ModuleType | type | FunctionType):
            return [(value, name)]
        if isinstance(value, dict):
            return [
                (part, f"{name}[{shown_key(key)}]") for key, part in items_of(value)[:MOST_ITEMS]
            ]
        if isinstance(value, list | tuple | set | frozenset | collections.deque):
            held = list(base_of(value).__iter__(value))
            return [(part, shown) for part in held[:MOST_ITEMS]]
        if is_looked_into(type(value)):
            self._arrivals.use_object_whole(value, name, site)
        return [(value, name)]


def _reader_of_method(value: Any, name: str) -> Callable[[], Any] | None:
    """Return what reads all that a method of torch's depends on, None if others look after it."""
    if isinstance(value, torch.amp.GradScaler):
        return lambda: _state_of_scaler(value)
    if isinstance(value, torch.optim.lr_scheduler.LRScheduler) and name == "get_last_lr":
        return lambda: list(vars(value).get("_last_lr", ()))
    return None


def _state_of_scaler(scaler: torch.amp.GradScaler) -> Any:
    numbers = {name: value for name, value in vars(scaler).items() if is_plain(value)}
    # One that is not enabled has none.
    states = getattr(scaler, "_per_optimizer_states", {})
    return numbers, [(key, state["stage"].name) for key, state in states.items()]


def _is_data_descriptor(attribute: Any) -> bool:
    """Return whether an attribute of a class goes before one of the object's own."""
    return hasattr(type(attribute), "__set__")


def _of_any_object(value: Any, key: str, shown: str) -> list[tuple[Any, str]]:
    """Return an object's class or dictionary; optimizers are guarded by themselves."""
    if key == "__class__":
        return [(type(value), shown)]
    entries = entries_of(value)
    is_guarded = entries is None or isinstance(value, torch.optim.Optimizer)
    return [] if is_guarded else [(entries, shown)]
