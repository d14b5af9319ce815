"""What torch calls of modules and tensors beside the code of a step: their hooks, and their classes' methods."""

from __future__ import annotations

from collections import OrderedDict
from operator import call, is_
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.hooks import RemovableHandle

from gapless.device.torch_private import hooks_of_all_modules
from gapless.graphs.reads.read_check import Change
from gapless.graphs.reads.value_places import HOOK_TABLES


if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from gapless.graphs.reads.guard_rows import GuardRows


class HooksAndClasses:
    """Hooks of modules, tensors and all modules, and classes of modules, as they are now.

    Who registers a hook moves a number of torch's. Who puts one into a module's table by hand, or takes one
    out, moves none, so tables of modules are looked at each time: 5 ns for one that is empty. A tensor's take
    more than 100, and are looked at only when the number has moved.

    Args:
        modules: with names.
        tensors: with names.
    """

    def __init__(
        self, modules: list[tuple[nn.Module, str]], tensors: list[tuple[torch.Tensor, str]]
    ) -> None:
        self._hooked: list[tuple[Any, str]] = [(None, "torch.nn"), *modules, *tensors]
        self._modules = [module for module, _ in modules]
        self._names = [name for _, name in modules]
        self._classes = list(map(type, self._modules))
        self._tensors = [tensor for tensor, _ in tensors]
        self._hooks = self._hooks_now()
        self._empty: list[Any] = []
        # What is asked of tables that have hooks, if there are any.
        self._asked: list[Callable[[], bool]] = []
        self._know_tables(self._tables_now())

    def compare_in(self, rows: GuardRows) -> None:
        """Let rows say whether there are no other hooks and classes."""
        rows.equal("empty tables of hooks", any, [self._empty])
        rows.equal("classes of modules", type, self._modules)
        self._of_filled = rows.equal("tables with hooks", call, self._asked)
        self._newest = rows.equal(
            "the newest hook",
            getattr,
            [RemovableHandle],
            ["next_id"],
            otherwise=self._are_no_others,
        )

    def _filled_hold(self) -> bool:
        return all(_hooks_in(table) == hooks for table, hooks in self._filled)

    def _are_no_others(self) -> bool:
        """Return whether the hooks that were registered since are none of these modules and tensors."""
        tables = self._tables_now()
        if not all(map(is_, tables, self._tables)):
            if self._hooks_now() != self._hooks:
                return False
            self._know_tables(tables)
            self._of_filled.expected = [True] * len(self._asked)
        self._newest.renew()
        return True

    def first_changed(self) -> Change | None:
        """Return the first thing with other hooks, or module of another class; None if there is none."""
        for (_, name), ids_before, ids_after in zip(
            self._hooked, self._hooks, self._hooks_now(), strict=True
        ):
            if ids_before != ids_after:
                before, after = f"{len(ids_before)} hooks", f"{len(ids_after)} hooks"
                others = f"{len(ids_after)} others" if before == after else after
                return Change(f"hooks of {name}", "", before, others, is_memory=False)
        for module, name, kind in zip(self._modules, self._names, self._classes, strict=True):
            if type(module) is not kind:
                before, after = kind.__name__, type(module).__name__
                return Change(f"the class of {name}", "", before, after, is_memory=False)
        return None

    def _hooks_now(self) -> list[list[tuple[int, int]]]:
        """Return the hooks of each thing."""
        return [
            [hook for table in _tables_of(thing) if table for hook in _hooks_in(table)]
            for thing, _ in self._hooked
        ]

    def _tables_now(self) -> list[Any]:
        """Return all tables of hooks, in the order in which they are known; None stands for one that is not there."""
        tables: list[Any] = list(hooks_of_all_modules().values())
        for entries in map(vars, self._modules):
            tables += map(entries.get, HOOK_TABLES)
        for name in _OF_TENSORS:
            tables += [getattr(tensor, name, None) for tensor in self._tensors]
        return tables

    def _know_tables(self, tables: list[Any]) -> None:
        """Look at these tables from now on, whose hooks are known."""
        self._tables = tables
        self._empty[:] = [table for table in tables if type(table) in _PLAIN and not table]
        self._filled = [(table, _hooks_in(table)) for table in tables if table]
        self._asked[:] = [self._filled_hold] if self._filled else []


_OF_TENSORS = [name for name in HOOK_TABLES if hasattr(torch.Tensor, name)]

# That are asked for nothing but whether they are empty.
_PLAIN = (dict, OrderedDict)


def _hooks_in(table: Any) -> list[tuple[int, int]]:
    """Return the keys of hooks, and their ids: another may lie where one lay that is gone."""
    return [(key, id(hook)) for key, hook in table.items()]


def _tables_of(thing: Any) -> list[Any]:
    """Return the tables of hooks of a module or a tensor; None stands for all modules."""
    if thing is None:
        return list(hooks_of_all_modules().values())
    if isinstance(thing, torch.Tensor):
        return [getattr(thing, name, None) for name in HOOK_TABLES]
    return [vars(thing).get(name) for name in HOOK_TABLES]
