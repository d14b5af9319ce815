"""The state of a step on the host, before and after a run: what differs.

Copies are shallow and short-lived: values that stood in a place are held until the run is over.
"""

from __future__ import annotations

import collections
import functools
import logging
from operator import is_
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from gapless.graphs.reads.code_kinds import CodeKind, is_foreign, is_own, kind_of
from gapless.graphs.reads.inner_states import (
    Text,
    about,
    groups_of,
    inner_state_of,
    state_by,
    version_of,
)
from gapless.graphs.reads.plain_values import is_plain, same
from gapless.graphs.reads.value_places import (
    HOOK_TABLES,
    MISSING,
    Place,
    entries_of,
    is_note_of_compiler,
    items_of,
    shown_key,
    slots_of,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from gapless.graphs.reads.reach import Reach


_MOST_ITEMS = 10_000
_DEPTH = 3

# Torch's own entries of modules and optimizers.
_TABLES = ("_parameters", "_buffers", "_modules")

_GRAD: Any = torch.Tensor.grad

# Whose methods run no code of the user's.
_DICTS = (dict, collections.OrderedDict)

# Of most entries, which cannot change in themselves.
_FLAT = frozenset((bool, int, float, str, type(None)))


class Difference(NamedTuple):
    """Something that a run has changed.

    Attributes:
        place: where, None if it is no place but an object that has changed in itself.
        owner: the object or container that was changed.
        name: of the place or object, as the code says it.
        site: where the code names it, "" if unknown.
        before: the value, or a text about the object.
        after: the same.
        is_fill: whether something was put where nothing was, as caches are filled.
    """

    place: Place | None
    owner: Any
    name: str
    site: str
    before: Any
    after: Any
    is_fill: bool = False


# Where a tensor lies that was moved, in a difference.
OTHER_MEMORY = Text("other memory")


class _Layout(NamedTuple):
    """What a tensor is beside its values."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    requires_grad: bool

    def __str__(self) -> str:
        return f"shape {self.shape}, strides {self.strides}, requires_grad={self.requires_grad}"


class EveryName:
    """All names that there are."""

    def __contains__(self, name: object) -> bool:
        return True


class HostState:
    """What stands in all places that a step reaches, as of now.

    Args:
        reach: what the step reaches.
        on_device: whether a tensor is on the device.
        skip: ids of objects that are left out, such as the batch.
    """

    def __init__(
        self,
        reach: Reach,
        *,
        on_device: Callable[[torch.Tensor], bool],
        skip: set[int],
    ) -> None:
        self._on_device = on_device
        self._stored_names: Container[str] = ()
        self._skip = skip
        self._places: list[tuple[Place, Any]] = []
        self._dicts: dict[int, tuple[dict[Any, Any], dict[Any, Any], str, str, Any]] = {}
        self._lists: dict[int, tuple[Any, list[Any], str, str]] = {}
        self._sets: dict[int, tuple[Any, set[Any], str, str]] = {}
        self._inner: dict[int, tuple[Any, Any, Callable[[Any], Any], str, str]] = {}
        self._layouts: list[tuple[torch.Tensor, _Layout, str, str]] = []
        # Their gradients are the optimizer's affair.
        self._weights = {id(weight) for weight in _weights_of_optimizers(reach)}
        self._take(reach)
        self._take_states(reach)

    # --- before ---

    def _take(self, reach: Reach) -> None:
        for place in reach.places.values():
            if place.kind in ("cell", "class", "slot") or self._is_global(place):
                value = place.read()
                self._places.append((place, value))
                self._take_value(value, place.name, place.site)
        for module, name in reach.modules.values():
            self._take_module(module, name)
        # A dictionary of an object comes after it: some of its entries are torch's.
        for value, name in sorted(reach.objects.values(), key=_is_dict):
            self._take_object(value, name)
        for value, name, site in reach.whole.values():
            self._take_value(value, name, site)
        for function in {id(f): f for known in reach.functions.values() for f in known}.values():
            if kind_of(function.__code__, function.__globals__) is CodeKind.USER:
                self._take_dict(vars(function), function.__name__, "", holder=function)
        for tensor, name, site in reach.tensors.values():
            self._take_tensor(tensor, name, site)
        self._take_the_rest(reach)

    def _take_the_rest(self, reach: Reach) -> None:
        """Take places of what is not taken with all it has, such as modules made at run time."""
        for place in reach.places.values():
            owners = {id(place.owner), id(place.holder)}
            is_taken = place.kind != "dict" or id(place.owner) in self._dicts
            if not (is_taken or self._is_global(place) or owners & self._skip):
                self._places.append((place, place.read()))

    def _take_states(self, reach: Reach) -> None:
        for value, reader, name, site in reach.states.values():
            # That a step calls a schedule is seen by itself.
            if not isinstance(value, torch.optim.lr_scheduler.LRScheduler):
                state = state_by(reader)
                self._inner[id(value)] = (value, state(value), state, name, site)

    @staticmethod
    def _is_global(place: Place) -> bool:
        return place.kind == "dict" and place.holder is None and "__builtins__" in place.owner

    def _take_object(self, value: Any, name: str) -> None:
        if id(value) in self._skip or is_own(type(value)):
            return
        if isinstance(value, logging.Logger | ModuleType):
            return
        self._take_value(value, name, "")
        entries = entries_of(value)
        if isinstance(value, torch.optim.Optimizer):
            self._take_optimizer(value, name)
        elif entries is not None:
            self._take_dict(entries, name, "", holder=value)
        for key, slot in slots_of(type(value)):
            place = Place("slot", value, slot, name=f"{name}.{key}", site="", holder=value)
            content = place.read()
            self._places.append((place, content))
            self._take_value(content, place.name, "")

    def _take_optimizer(self, value: torch.optim.Optimizer, name: str) -> None:
        for index, group in enumerate(value.param_groups):
            self._take_dict(group, f"{name}.param_groups[{index}]", "")
        for table in _HOOKS_OF_OPTIMIZERS:
            hooks = vars(value).get(table)
            if isinstance(hooks, dict):
                self._take_dict(hooks, f"{name}.{table}", "")
        shown = f"{name}.param_groups"
        self._inner[id(value.param_groups)] = (value, groups_of(value), groups_of, shown, "")
        if is_foreign(type(value)):
            return
        self._take_dict(vars(value), name, "", holder=value)
        for state in list(value.state.values())[:_MOST_ITEMS]:
            if isinstance(state, dict):
                self._take_dict(state, f"{name}.state[...]", "")

    def _take_module(self, module: nn.Module, name: str) -> None:
        entries = vars(module)
        self._take_dict(entries, name, "", holder=module)
        for table in _TABLES:
            if isinstance(entries.get(table), dict):
                self._take_dict(entries[table], name, "", holder=module)
        for table in HOOK_TABLES:
            if isinstance(entries.get(table), dict):
                self._take_dict(entries[table], f"{name}.{table}", "")

    def _take_dict(self, value: dict[Any, Any], name: str, site: str, holder: Any = None) -> None:
        if id(value) in self._dicts or id(value) in self._skip or len(value) > _MOST_ITEMS:
            return
        items = items_of(value)
        self._dicts[id(value)] = (value, dict(items), name, site, holder)
        if not items:
            return
        is_module, keeps_accounts = isinstance(holder, nn.Module), _keeps_accounts(holder)
        for key, part in items:
            if type(part) in _FLAT:
                continue
            # Keys of other dictionaries may be of the user's classes, and be compared by their code.
            if is_module and key in _TABLES:
                continue
            if keeps_accounts and isinstance(part, dict | list | set):
                continue
            shown = f"{name}.{key}" if holder is not None else f"{name}[{shown_key(key)}]"
            self._take_value(part, shown, site)

    def _take_value(self, value: Any, name: str, site: str, depth: int = _DEPTH) -> None:
        """Copy what a value contains, if it can change in itself."""
        if id(value) in self._skip or is_plain(value) or depth == 0:
            return
        if isinstance(value, torch.Tensor):
            self._take_tensor(value, name, site)
        elif isinstance(value, dict):
            self._take_dict(value, name, site)
        elif isinstance(value, list | collections.deque | tuple):
            self._take_sequence(value, name, site, depth)
        elif isinstance(value, set):
            if id(value) not in self._sets and len(value) <= _MOST_ITEMS:
                self._sets[id(value)] = (value, set(value), name, site)
        elif isinstance(value, nn.Module):
            return
        else:
            state = inner_state_of(value)
            if state is not None and id(value) not in self._inner:
                self._inner[id(value)] = (value, state(value), state, name, site)

    def _take_sequence(self, value: Any, name: str, site: str, depth: int) -> None:
        if id(value) in self._lists or len(value) > _MOST_ITEMS:
            return
        if not isinstance(value, tuple):
            self._lists[id(value)] = (value, list(value), name, site)
        for index, part in enumerate(value):
            self._take_value(part, f"{name}[{index}]", site, depth - 1)

    def _take_tensor(self, value: torch.Tensor, name: str, site: str) -> None:
        if is_lazy(value):  # a lazy layer's, which has no memory yet
            return
        layout = _layout(value)
        if layout is not None:
            self._layouts.append((value, layout, name, site))
        self._take_attributes(value, name, site)
        if not self._on_device(value) and id(value) not in self._inner:
            self._inner[id(value)] = (value, version_of(value), version_of, name, site)

    def _take_attributes(self, value: torch.Tensor, name: str, site: str) -> None:
        entries = entries_of(value)
        if entries is None or id(entries) in self._dicts:
            return
        self._take_dict(entries, name, site, holder=value)
        for table in HOOK_TABLES:
            hooks = getattr(value, table, None)
            if isinstance(hooks, dict):
                self._take_dict(hooks, f"{name}.{table}", site)
        if not value.requires_grad and id(value) not in self._weights:
            grad = Place("slot", value, _GRAD, name=f"{name}.grad", site=site, holder=value)
            self._places.append((grad, grad.read()))

    # --- after ---

    def differences(self, stored_names: Container[str]) -> Iterator[Difference]:
        """Return what differs now.

        Args:
            stored_names: attributes that the user's code stores. Torch changes attributes of
                modules too; those that are not among these are torch's.

        Sync: Does not block the host.
        """
        self._stored_names = stored_names
        for place, before in self._places:
            after = place.read()
            if not same(before, after):
                is_fill = before is MISSING or before is None
                yield Difference(
                    place, place.owner, place.name, place.site, before, after, is_fill
                )
        for value, copy, name, site, holder in self._dicts.values():
            if not _is_as_copied(value, copy):
                yield from self._dict_differences(value, copy, name, site, holder)
        for sequence, items, name, site in self._lists.values():
            yield from _list_differences(sequence, items, name, site)
        yield from self._inner_differences()

    def _inner_differences(self) -> Iterator[Difference]:
        for members, before_members, name, site in self._sets.values():
            if members != before_members:
                before, after = (Text(f"{len(each)} items") for each in (before_members, members))
                is_fill = len(members) > len(before_members)
                yield Difference(None, members, name, site, before, after, is_fill)
        for thing, before_state, state, name, site in self._inner.values():
            after_state = state(thing)
            if before_state != after_state:
                before, after = about(before_state), about(after_state)
                is_fill = isinstance(thing, functools._lru_cache_wrapper)
                yield Difference(None, thing, name, site, before, after, is_fill)
        for tensor, layout, name, site in self._layouts:
            now = _layout(tensor)
            if now is None or now.address != layout.address:
                before, after = Text("its memory"), OTHER_MEMORY
                yield Difference(None, tensor, name, site, before, after)
            elif now != layout:
                yield Difference(None, tensor, name, site, Text(layout), Text(now))

    def _dict_differences(
        self, value: dict[Any, Any], copy: dict[Any, Any], name: str, site: str, holder: Any
    ) -> Iterator[Difference]:
        is_torchs = isinstance(holder, (nn.Module, *_KEEPING_ACCOUNTS))
        if holder is None and _have_another_order(copy, value):
            before, after = Text("one order"), Text("another")
            yield Difference(None, value, name, site, before, after)
        for key in {**copy, **dict(items_of(value))}:
            # Not the `get` of a user's class.
            before, after = copy.get(key, MISSING), dict.get(value, key, MISSING)
            if before is after:
                continue
            if isinstance(holder, torch.Tensor) and is_note_of_compiler(key):
                continue
            if is_torchs and key not in self._stored_names:
                # Torch changes attributes of modules, but no parts.
                if isinstance(holder, nn.Module) and value is not vars(holder):
                    is_fill = before is MISSING
                    shown = f"{name}.{key}"
                    yield Difference(None, value, shown, site, before, after, is_fill)
                continue
            if isinstance(holder, torch.optim.Optimizer) and key in _OF_OPTIMIZERS:
                continue
            if not same(before, after):
                shown = f"{name}.{key}" if holder is not None else f"{name}[{shown_key(key)}]"
                place = Place("dict", value, key, name=shown, site=site, holder=holder)
                owner = holder if holder is not None else value
                is_fill = before is MISSING or before is None
                yield Difference(place, owner, shown, site, before, after, is_fill)


_HOOKS_OF_OPTIMIZERS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_OF_OPTIMIZERS = {"state", "_opt_called", "_step_count", "param_groups"}


# Of torch, with attributes that its own code sets in every step, and that no step reads.
_KEEPING_ACCOUNTS = (torch.amp.GradScaler, torch.optim.lr_scheduler.LRScheduler)


def _keeps_accounts(holder: Any) -> bool:
    """Return whether an object has containers that torch alone looks after."""
    is_of_torch = type(holder).__module__.partition(".")[0] == "torch"
    return isinstance(holder, _KEEPING_ACCOUNTS) or (isinstance(holder, nn.Module) and is_of_torch)


def _is_as_copied(value: dict[Any, Any], copy: dict[Any, Any]) -> bool:
    """Return whether a dictionary has the very objects of its copy, in their order."""
    if type(value) not in _DICTS or len(value) != len(copy):
        return False
    return all(map(is_, value, copy)) and all(map(is_, value.values(), copy.values()))


def _have_another_order(some: dict[Any, Any], others: dict[Any, Any]) -> bool:
    """Return whether two dictionaries of the same keys have them in another order."""
    if len(some) != len(others):
        return False
    is_ordered = isinstance(others, collections.OrderedDict)
    keys = (collections.OrderedDict if is_ordered else dict).__iter__(others)
    if all(map(same, some, keys)):
        return False
    return all(dict.__contains__(others, key) for key in some)


def _is_dict(known: tuple[Any, str]) -> bool:
    return isinstance(known[0], dict)


def _weights_of_optimizers(reach: Reach) -> Iterator[torch.Tensor]:
    for value, _ in reach.objects.values():
        if isinstance(value, torch.optim.Optimizer):
            for group in value.param_groups:
                yield from group["params"]


def _list_differences(value: Any, items: list[Any], name: str, site: str) -> Iterator[Difference]:
    if len(value) != len(items):
        before, after = (Text(f"{len(each)} items") for each in (items, value))
        is_fill = len(value) > len(items)
        yield Difference(None, value, name, site, before, after, is_fill)
        return
    for index, (before, after) in enumerate(zip(items, list(value), strict=True)):
        if not same(before, after):
            shown = f"{name}[{index}]"
            place = Place("item", value, index, name=shown, site=site)
            yield Difference(place, value, shown, site, before, after)


def _layout(value: torch.Tensor) -> _Layout | None:
    try:
        return _Layout(value.data_ptr(), tuple(value.shape), value.stride(), value.requires_grad)
    except (RuntimeError, NotImplementedError, ValueError):
        # Sparse tensors, weights of lazy modules and other subclasses have no address of their own.
        return None
