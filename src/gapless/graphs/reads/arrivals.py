"""What the code of a step comes to: values, places, and what is used as a whole."""

from __future__ import annotations

import argparse
import collections
import functools
import logging
import os
import sys
from types import (
    BuiltinFunctionType,
    CellType,
    FunctionType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    SimpleNamespace,
)
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gapless.device.torch_private import MODULE_TENSORS, is_compiled_in_place, module_of_compiled
from gapless.graphs.reads.code_kinds import is_foreign, is_own
from gapless.graphs.reads.inner_states import content_of, is_small_array
from gapless.graphs.reads.odd_reads import OddRead, advice_on_object, shown_name
from gapless.graphs.reads.value_places import (
    CONTAINERS,
    HOOK_TABLES,
    MISSING,
    Place,
    class_attribute,
    entries_of,
    items_of,
    shown_key,
    slots_of,
    unwrapped,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gapless.graphs.reads.followed_code import FollowedCode


# Longer containers are not looked into item by item, unless their items are plain.
MOST_ITEMS = 10_000


class Arrivals:
    """All that code comes to.

    Args:
        code: that is followed.
        skip: ids of objects that are left out, such as the batch.

    Attributes:
        code: that is followed.
        skip: ids of objects that are left out.
        is_store: whether places are stored to.
        is_users: whether the code that is followed is the user's.
        functions_of_autograd: classes with a forward and a backward pass of their own.
        states: objects with what reads all that is compared of them, their name and site.
    """

    def __init__(self, code: FollowedCode, skip: Iterable[int]) -> None:
        self.code = code
        self.skip = _Skipped(skip)
        self.is_store = False
        self.is_users = True
        self.places: dict[tuple[str, int, Any], Place] = {}
        self.read: set[tuple[str, int, Any]] = set()
        self.stored: set[tuple[str, int, Any]] = set()
        self.whole: dict[int, tuple[Any, str, str]] = {}
        self.objects: dict[int, tuple[Any, str]] = {}
        self.modules: dict[int, tuple[nn.Module, str]] = {}
        self.tensors: dict[int, tuple[torch.Tensor, str, str]] = {}
        self.compiled: set[int] = set()
        self.odd: dict[str, OddRead] = {}
        self.functions_of_autograd: set[type] = set()
        self.states: dict[object, tuple[Any, Callable[[], Any], str, str]] = {}

    def name_of(self, value: object) -> str:
        """Return the name under which an object was reached, "" if it was not."""
        for table in (self.modules, self.objects):
            found = table.get(id(value))
            if found is not None:
                return found[1]
        return ""

    def note_odd(self, value: Any, name: str, advice: str | None, site: str) -> None:
        """Take note of a way to read that is not followed, once for each line."""
        if advice is not None and id(value) not in self.skip:
            self.odd.setdefault(site, OddRead(shown_name(value, name), site, advice))

    def place(
        self,
        kind: str,
        owner: Any,
        key: Any,
        name: str,
        site: str,
        *,
        holder: Any = None,
    ) -> list[tuple[Any, str]]:
        """Take note of a place; return what stands there, with its name."""
        place = Place(kind, owner, key, name=name, site=site, holder=holder)
        known = self.places.setdefault(place.id, place)
        (self.stored if self.is_store else self.read).add(place.id)
        value = known.read()
        if value is MISSING or id(value) in self.skip:
            return []
        self.arrive(value, name, site)
        return [(value, name)]

    def arrive(self, value: Any, name: str, site: str, *, in_full: bool = False) -> None:
        """Take note of a value that the code comes to."""
        if id(value) in self.skip:
            return
        if isinstance(value, torch.Tensor):
            self.tensors.setdefault(id(value), (value, name, site))
        elif isinstance(value, nn.Module):
            self._arrive_at_module(value, name)
        elif isinstance(value, FunctionType):
            self._arrive_at_function(value, site, in_full=in_full)
        elif isinstance(value, MethodType):
            self._arrive_at_method(value, name, site, in_full=in_full)
        elif isinstance(value, functools.partial):
            self._arrive_at_partial(value, name, site, in_full=in_full)
        elif isinstance(value, type):
            self._arrive_at_type(value)
        elif isinstance(value, property | staticmethod | classmethod):
            self.code.note_function(unwrapped(value))
        elif not isinstance(value, _LEAD_NOWHERE):
            self._arrive_at_object(value, name, site)

    def _arrive_at_function(self, function: FunctionType, site: str, *, in_full: bool) -> None:
        self.code.note_function(function, must_follow=in_full)
        module = module_of_compiled(function)
        if module is not None:
            self.arrive(module, "self", site)
            self._follow_statically(module)

    def _arrive_at_method(
        self, method: MethodType, name: str, site: str, *, in_full: bool
    ) -> None:
        value = method.__self__
        self.code.note_function(method.__func__, must_follow=in_full)
        self.arrive(value, name.rpartition(".")[0] or "self", site)
        if in_full:
            self.code.give(method.__func__, value)
        # Code of Python's library is not followed.
        found = class_attribute(type(value), method.__func__.__name__)
        if value is os.environ:
            self.whole[id(os.environ)] = (os.environ, "os.environ", site)
        elif found is not None and is_looked_into(found[0]) and not isinstance(value, type):
            self.use_object_whole(value, f"{name}.__self__", site)

    def _arrive_at_partial(
        self, value: functools.partial[Any], name: str, site: str, *, in_full: bool
    ) -> None:
        if id(value) not in self.objects:
            self.objects[id(value)] = (value, name)
            self.arrive(value.func, name, site, in_full=in_full)
            self.use_whole(value.args, name, site)
            self.use_whole(value.keywords, name, site)
            for part in (*value.args, *value.keywords.values()):
                self.note_odd(part, name, advice_on_object(part), site)

    def _arrive_at_type(self, value: type) -> None:
        if issubclass(value, torch.autograd.Function):
            self.functions_of_autograd.add(value)
            # Backward runs in threads of torch, where nobody watches.
            for function in ("forward", "backward", "setup_context", "jvp", "vjp"):
                found = class_attribute(value, function)
                if found is not None and not is_foreign(found[0]):
                    self.code.note_function(unwrapped(found[1]), must_follow=True)

    def _arrive_at_object(self, value: Any, name: str, site: str) -> None:
        if is_small_array(value):
            read = functools.partial(content_of, value)
            self.states.setdefault((id(value), "content"), (value, read, name, site))
            return
        entries = entries_of(value)
        if entries is not None or isinstance(value, CONTAINERS) or not is_foreign(type(value)):
            self.objects.setdefault(id(value), (value, name))
        if type(value).__module__.startswith(_LOOKED_INTO_OF_TORCH):
            # It may be called or asked for an item, which names none of its attributes.
            self.use_object_whole(value, name, site)
        original = (entries or {}).get("__wrapped__")
        if isinstance(original, FunctionType):
            self.code.note_function(original)

    def _arrive_at_module(self, value: nn.Module, name: str) -> None:
        if id(value) in self.modules:
            return
        todo = [(value, name)]
        while todo:
            module, shown = todo.pop()
            if id(module) in self.modules or id(module) in self.skip:
                continue
            self.modules[id(module)] = (module, shown)
            entries = vars(module)
            for part in reversed(MODULE_TENSORS):
                for key, tensor in (entries.get(part) or {}).items():
                    if isinstance(tensor, torch.Tensor):
                        self.tensors.setdefault(id(tensor), (tensor, f"{shown}.{key}", ""))
                        self._follow_hooks(tensor)
            self._follow_hooks(module)
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
            if is_compiled_in_place(module):
                self._follow_statically(module)

    def _note_what_torch_calls(self, module: nn.Module, name: str) -> None:
        """Take note of methods of a module's class."""
        for key in ("forward", "__call__"):
            owner, _ = class_attribute(type(module), key) or (None, None)
            # Users patch `forward` of torch's classes, and torch.fx writes it anew.
            if owner is not None and (key == "forward" or not is_foreign(owner)):
                self.place("class", owner, key, f"{name}.{key}", "")

    def _follow_statically(self, module: nn.Module) -> None:
        """Follow the code of modules whose compiled code runs in place of it."""
        for part in module.modules():
            self.compiled.add(id(part))
            found = class_attribute(type(part), "forward")
            if found is not None:
                function = unwrapped(found[1])
                self.code.give(function, part)
                self.code.note_function(function, must_follow=True)

    def _follow_hooks(self, value: Any) -> None:
        """Follow functions that torch calls, in its own threads too."""
        for table in HOOK_TABLES:
            is_tensor = isinstance(value, torch.Tensor)
            hooks = getattr(value, table, None) if is_tensor else vars(value).get(table)
            for hook in list(hooks.values()) if isinstance(hooks, dict) else ():
                self.arrive(hook, "hook", "", in_full=True)

    def use_whole(self, value: Any, name: str, site: str) -> None:
        """Take note of a container that is used as a whole, and what it contains."""
        todo: list[tuple[Any, str]] = [(value, name)]
        while todo:
            value, name = todo.pop()
            # Not what the object says of its class: a proxy has no length of its own.
            if not issubclass(type(value), CONTAINERS) or id(value) in self.skip:
                continue
            if id(value) in self.whole or value is sys.modules:
                continue
            self.whole[id(value)] = (value, name, site)
            self.objects.setdefault(id(value), (value, name))
            if len(value) > MOST_ITEMS:
                continue
            for part, shown in _items_of(value, name):
                if self.is_users:
                    self.note_odd(part, shown, advice_on_object(part), site)
                self.arrive(part, shown, site)
                todo.append((part, shown))

    def use_object_whole(self, value: Any, name: str, site: str) -> None:
        """Take note of all that an object of a library has, whose code is not followed."""
        if id(value) not in self.skip and not is_own(type(value)):
            self.use_whole(entries_of(value), name, site)

    def use_slots(self, value: Any, name: str, site: str) -> list[tuple[Any, str]]:
        """Take note of the attributes of an object that stand in slots; return what they are."""
        return [
            part
            for key, slot in slots_of(type(value))
            for part in self.place("slot", value, slot, f"{name}.{key}", site, holder=value)
        ]


_LEAD_NOWHERE = (BuiltinFunctionType, MethodWrapperType, ModuleType, CellType)


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


class _Skipped(set[int]):
    """Ids of objects that are left out; knows whether one of them was met."""

    was_met = False

    def __contains__(self, key: object) -> bool:
        if set.__contains__(self, key):
            self.was_met = True
            return True
        return False


# Of torch's objects that are no modules, those which a step computes with.
_LOOKED_INTO_OF_TORCH = (
    "torch.distributions",
    "torch.utils.data.dataset",
    "torch.utils.data.sampler",
)


def is_looked_into(kind: type) -> bool:
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
