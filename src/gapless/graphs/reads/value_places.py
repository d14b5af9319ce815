"""Where values stand: a place, and what an object holds, read without running code of the user's."""

from __future__ import annotations

import collections
import functools
import threading
from types import CellType, FunctionType, MemberDescriptorType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gapless.graphs.reads.chains import Chain
from gapless.graphs.reads.code_kinds import is_foreign
from gapless.graphs.reads.stand_in import StandIn


if TYPE_CHECKING:
    from collections.abc import Mapping


MISSING: Any = type("Missing", (), {"__repr__": lambda _: "nothing"})()


def shown_key(key: Any) -> str:
    """Return a short text for a key of a dict; the text of a tensor would need its values."""
    return repr(key) if isinstance(key, str | bytes | int | float) else "..."


CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)


def base_of(value: Any) -> Any:
    """Return which of `CONTAINERS` a value is, whatever class it names; None if it is none.

    Its methods show what is held, where those of a user's subclass may raise.
    """
    kind = type(value)
    return next((base for base in CONTAINERS if issubclass(kind, base)), None)


HOOK_TABLES = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_post_accumulate_grad_hooks",
)


FIELD_OF_NAMED_TUPLE: Any = type(vars(Chain)["root"])

# To ask them runs no code of the user's.
PLAIN_DESCRIPTORS = (MemberDescriptorType, FIELD_OF_NAMED_TUPLE)


class Place:
    """Where a value stands.

    Attributes:
        kind: "dict" (an entry), "item" (of a list, tuple or deque), "cell", "slot" (a descriptor
            made in C), "class" (an attribute of a class) or "context" (a context variable).
        owner: the dictionary, container, cell, object or class.
        key: the key, index or attribute.
        name: as the code says it, such as `self.alpha`.
        site: where it says so, `file:line`; "" if that is not known.
        holder: the object whose attribute it is, None if it is none.
    """

    __slots__ = ("holder", "key", "kind", "name", "owner", "site")

    def __init__(
        self,
        kind: str,
        owner: Any,
        key: Any,
        *,
        name: str,
        site: str,
        holder: Any = None,
    ) -> None:
        self.kind = kind
        self.owner = owner
        self.key = key
        self.name = name
        self.site = site
        self.holder = holder

    def read(self) -> Any:
        """Return what stands there, `MISSING` if nothing does."""
        try:
            if self.kind == "cell":
                return self.owner.cell_contents
            if self.kind == "context":
                return self.owner.get(MISSING)
            if self.kind == "slot":
                return self.key.__get__(self.owner)
            if self.kind == "class":
                return vars(self.owner)[self.key]
            if isinstance(self.owner, dict):
                # Not the user's `__getitem__` or `__missing__`.
                return dict.get(self.owner, self.key, MISSING)
            return self.owner[self.key]
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            return MISSING

    def write(self, value: Any) -> None:
        """Put a value there."""
        if self.kind == "cell":
            self.owner.cell_contents = value
        elif self.kind == "slot":
            self.key.__set__(self.owner, value)
        elif self.kind == "class":
            setattr(self.owner, self.key, value)
        else:
            self.owner[self.key] = value

    def without_holder(self) -> Place:
        """Return the same place, which holds on to what it is in and not to whose it is."""
        return Place(self.kind, self.owner, self.key, name=self.name, site=self.site)

    @property
    def id(self) -> tuple[str, int, Any]:
        """The same for two objects that stand for one place; valid while the owner lives."""
        return (self.kind, id(self.owner), self.key)


def entries_of(value: Any) -> dict[str, Any] | None:
    """Return an object's own attributes, None if it has no dictionary of them."""
    entries: Any
    try:
        if isinstance(value, threading.local):
            entries = value.__dict__
        else:
            entries = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError, RuntimeError):
        return None
    return entries if isinstance(entries, dict) else None


def items_of(table: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    """Return the items of a dictionary in their order, without the methods of a user's class."""
    if isinstance(table, collections.OrderedDict):
        return list(collections.OrderedDict.items(table))
    return list(dict.items(table) if isinstance(table, dict) else table.items())


def slots_of(kind: type) -> list[tuple[str, MemberDescriptorType]]:
    """Return the names and descriptors of the slots of a class, and of the user's that it is derived from."""
    return [
        (key, slot)
        for owner in type.__getattribute__(kind, "__mro__")
        if not is_foreign(owner)
        for key, slot in vars(owner).items()
        if isinstance(slot, MemberDescriptorType)
    ]


def tables_of(value: Any) -> list[dict[str, Any]]:
    """Return the tables in which a module has attributes, and what stands in for a function; else none."""
    if isinstance(value, StandIn):
        entries = entries_of(value.stood_for)
        return [] if entries is None else [entries]
    if not isinstance(value, nn.Module):
        return []
    entries = vars(value)
    tables = (entries.get(name) for name in ("_parameters", "_buffers", "_modules"))
    return [table for table in tables if isinstance(table, dict)]


def put_on(tensor: torch.Tensor) -> dict[str, Any]:
    """Return the attributes that code has put on a tensor, the compiler's notes left out."""
    entries = entries_of(tensor) or {}
    return {name: one for name, one in entries.items() if not is_note_of_compiler(name)}


def is_note_of_compiler(name: object) -> bool:
    """Return whether an attribute of a tensor is a note of torch's compiler for itself.

    It says which sizes change, for example. Compiled code leaves such notes on what it is given and
    on what it returns.
    """
    return isinstance(name, str) and ("_dynamo_" in name or name == "_specialize_on")


def content_of(cell: CellType) -> Any:
    """Return what a cell holds, None if its name is not bound yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def class_attribute(kind: type, name: str) -> tuple[type, Any] | None:
    """Return the class of a class's bases that has an attribute, and the attribute; None without one."""
    for owner in type.__getattribute__(kind, "__mro__"):
        entries = type.__getattribute__(owner, "__dict__")
        if name in entries:
            return owner, entries[name]
    return None


def unwrapped(attribute: Any) -> Any:
    """Return the function behind an attribute of a class."""
    if isinstance(attribute, staticmethod | classmethod):
        return attribute.__func__
    if isinstance(attribute, property):
        return attribute.fget
    if isinstance(attribute, functools.cached_property):
        return attribute.func
    return attribute


def default_of(function: FunctionType, name: str) -> Any:
    """Return the default of a parameter, `MISSING` if it has none."""
    if function.__kwdefaults__ and name in function.__kwdefaults__:
        return function.__kwdefaults__[name]
    defaults = function.__defaults__ or ()
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    with_default = names[len(names) - len(defaults) :]
    return defaults[with_default.index(name)] if name in with_default else MISSING
