"""Guards for what a step reads from Python.

Each check compares what stands in a place with what stood there when the guards were made: by
identity, and plain values also by value, so that `self.alpha = 0.1` anew changes nothing.
"""

from __future__ import annotations

import collections
import os
from functools import partial
from operator import call
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gapless.device.environment import environment_readers, settings_of_torch
from gapless.device.torch_modes import kinds_of_modes, readers_of_modes
from gapless.graphs.reads.addresses import address_of
from gapless.graphs.reads.bulk_checks import BulkChecks
from gapless.graphs.reads.code_kinds import CodeKind, is_foreign, site_of
from gapless.graphs.reads.guard_rows import GuardRows
from gapless.graphs.reads.hooks_and_classes import HooksAndClasses
from gapless.graphs.reads.plain_values import (
    are_same_items,
    is_number_like,
    is_plain,
    same,
)
from gapless.graphs.reads.read_check import Shown, check_of, check_of_length
from gapless.graphs.reads.tensor_forms import TensorForms
from gapless.graphs.reads.value_places import (
    Place,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from gapless.graphs.reads.reach import Reach
    from gapless.graphs.reads.read_check import Change


# Items of longer containers are compared in a loop.
_MOST_INLINE = 8

# Subclasses may compare as they like.
_TENSORS = (torch.Tensor, torch.nn.Parameter)


class ReadGuards:
    """What a step reads, as it is now.

    Strong references are held to all that is compared, but not to objects whose attributes are.

    Args:
        reach: what the step's code reaches.
        on_device: whether a tensor is on the device.
        carried: places that are left out, by `Place.id`.
        device_type: such as "cuda": whose autocast is guarded.

    Attributes:
        tensors: tensors on the device that the code reaches.
        rows: say whether all is as it was.
    """

    def __init__(
        self,
        reach: Reach,
        *,
        on_device: Callable[[torch.Tensor], bool],
        carried: Collection[tuple[str, int, Any]] = (),
        device_type: str = "cuda",
    ) -> None:
        self._on_device = on_device
        self._carried = set(carried)
        self._checks = BulkChecks()
        self._seen: dict[tuple[Any, ...], str] = {}
        self.tensors: list[torch.Tensor] = []
        self._tensors: dict[int, tuple[torch.Tensor, str, str]] = {}
        # Lists of tensors, as they were, and as they are.
        self._lists: list[list[Any]] = []
        self._lists_now: list[list[Any]] = []
        # Owners of what is compared: their ids must not be given to others.
        self._owners: list[Any] = []
        self._compiled_modules = reach.compiled
        self._listed = reach.listed
        self.rows = GuardRows()
        self._add_environment(device_type)
        self._num_of_environment = len(self._checks)
        for place in reach.places.values():
            self._add_place(place)
        for value, name, site in reach.whole.values():
            self._add_container(value, name, site)
        for value, name in reach.objects.values():
            self._seen["object", id(value)] = name
        for module, name in reach.modules.values():
            self._add_module(module, name)
        for executed in reach.codes.values():
            if executed.kind is CodeKind.USER:
                for function in reach.functions.get(id(executed.code), []):
                    self._add_function(function)
        for _, reader, name, site in reach.states.values():
            self._add_state(reader, name, site)
        for tensor, name, site in reach.tensors.values():
            self._add_tensor(tensor, name, site)
        self._add_tensors()
        known = list(self._tensors.values())
        self._forms = TensorForms(known)
        self._hooks = HooksAndClasses(
            list(reach.modules.values()), [(tensor, name) for tensor, name, _ in known]
        )
        self._compare()

    def holds(self) -> bool:
        """Return whether all is as it was.

        Sync: Does not block the host.
        """
        return self.rows.hold()

    def names_by_address(self) -> dict[int, str]:
        """Return what the step's code calls the memory of `tensors`, such as model.0.weight."""
        names: dict[int, str] = {}
        for tensor, name, _ in self._tensors.values():
            if self._on_device(tensor):
                names.setdefault(address_of(tensor), name)
        return names

    def named(self) -> dict[tuple[Any, ...], str]:
        """Return what is compared with its name: by `Place.id`, or by what it is and its object's id."""
        tensors = {("tensor", key): name for key, (_, name, _) in self._tensors.items()}
        return self._seen | tensors

    def compares(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor's memory, shape and `requires_grad` are compared."""
        return self._forms.compares(tensor)

    def first_changed(self, *, in_environment: bool = True) -> Change | None:
        """Return the first thing that is not as it was, None if all is.

        Args:
            in_environment: look at the modes of torch, too.

        Sync: Does not block the host.
        """
        begin = 0 if in_environment else self._num_of_environment
        return (
            self._checks.first_change(begin)
            or self._forms.first_changed()
            or self._hooks.first_changed()
        )

    # --- what is compared ---

    def _add_environment(self, device_type: str) -> None:
        for name, reader in environment_readers(device_type):
            self._checks.tell(check_of(reader, reader(), name=name))
        in_c = [setting.read_in_c for setting in settings_of_torch(device_type)]
        kinds, settings = kinds_of_modes(), list(map(call, in_c))

        def are_as_good() -> bool:
            """Modes may be others of the same kinds."""
            if kinds_of_modes() != kinds or list(map(call, in_c)) != settings:
                return False
            row.columns = ([*readers_of_modes(), *in_c],)
            row.renew()
            return True

        readers = [*readers_of_modes(), *in_c]
        row = self.rows.ask_first("settings of torch", readers, otherwise=are_as_good)

    def _add_place(self, place: Place, *, is_in_whole: bool = False) -> None:
        if place.id in self._seen or place.id in self._carried:
            return
        self._seen[place.id] = place.name
        self._owners.append(place.owner)
        place = place.without_holder()
        value = place.read()
        check = check_of(place.read, value, name=place.name, site=place.site)
        if is_in_whole:
            self._checks.tell(check)
        else:
            self._checks.add_place(place, check)
        if isinstance(value, torch.Tensor):
            self._add_tensor(value, place.name, place.site)

    def _add_state(self, reader: Callable[[], Any], name: str, site: str) -> None:
        value = reader()
        check = check_of(reader, value, name=f"the state of {name}", site=site, is_memory=False)
        self._checks.add(check, lambda: same(value, reader()))

    def _add_container(self, value: Any, name: str, site: str) -> None:
        self._seen["whole", id(value)] = name
        if isinstance(value, type(os.environ)):
            data: dict[Any, Any] = vars(value)["_data"]
            copy = dict(data)
            check = check_of(lambda: dict(data), copy, name=name, site=site, is_memory=False)
            self._checks.add(check, lambda: data == copy)
        elif isinstance(value, dict):
            self._add_mapping(value, name, site)
        elif isinstance(value, list | tuple | collections.deque):
            self._add_sequence(value, name, site)
        elif isinstance(value, set | frozenset) and all(map(is_plain, value)):
            members = frozenset(value)
            check = check_of(
                lambda: frozenset(value), members, name=name, site=site, is_memory=False
            )
            self._checks.add(check, lambda: bool(value == members))
        elif isinstance(value, set):
            self._owners += value
            self._add_length(value, name, site)

    def _add_mapping(self, value: Any, name: str, site: str) -> None:
        self._owners.append(value)
        keys = list(value)
        if all(map(is_plain, keys)):
            check = check_of(lambda: list(value), keys, name=name, site=site, is_memory=False)
            self._checks.add_keys(value, keys, check)
        else:
            self._add_length(value, name, site)
        for key in keys:
            shown_key = repr(key) if is_plain(key) else "..."
            self._add_place(Place("dict", value, key, name=f"{name}[{shown_key}]", site=site))

    def _add_sequence(self, value: Any, name: str, site: str) -> None:
        self._owners.append(value)
        items = list(value)
        if (
            not isinstance(value, tuple)
            and len(items) > _MOST_INLINE
            and (all(map(is_number_like, items)) or len(items) > 1_000)
        ):
            is_memory = not all(map(is_number_like, items))
            check = check_of(lambda: list(value), items, name=name, site=site, is_memory=is_memory)
            self._checks.add(check, lambda: are_same_items(items, value))
            return
        is_whole = self._is_compared_as_a_whole(value)
        if is_whole:
            self._lists.append(items)
            self._lists_now.append(value)
        if not isinstance(value, tuple):
            self._add_length(value, name, site)
        for index, item in enumerate(items):
            if isinstance(value, tuple):
                if isinstance(item, torch.Tensor):
                    self._add_tensor(item, f"{name}[{index}]", site)
            else:
                place = Place("item", value, index, name=f"{name}[{index}]", site=site)
                self._add_place(place, is_in_whole=is_whole)

    def _is_compared_as_a_whole(self, value: Any) -> bool:
        """Return whether a list holds tensors alone, none of which is carried."""
        if type(value) is not list or not all(type(item) in _TENSORS for item in value):
            return False
        # Items of one list have ids that differ in their index alone.
        return not any(kind == "item" and owner == id(value) for kind, owner, _ in self._carried)

    def _add_length(self, value: Any, name: str, site: str) -> None:
        self._checks.add_length(value, check_of_length(value, name, site))

    def _add_module(self, module: nn.Module, name: str) -> None:
        self._seen["module", id(module)] = name
        entries = vars(module)
        if id(module) in self._compiled_modules:
            self._add_place(
                Place("dict", entries, "training", name=f"{name}.training", site="", holder=module)
            )
        # What torch calls, if it stands there.
        self._add_place(Place("dict", entries, "forward", name=f"{name}.forward", site=""))
        for table in ("_parameters", "_buffers", "_modules"):
            parts = entries.get(table)
            for key in list(parts) if isinstance(parts, dict) else ():
                shown_name = f"{name}.{key}"
                self._add_place(Place("dict", parts, key, name=shown_name, site="", holder=module))
            is_walked = table == "_modules" and (parts or _may_walk_parts(module))
            if isinstance(parts, dict) and (is_walked or id(module) in self._listed):
                self._add_parts(parts, name)
        if isinstance(module, nn.ParameterList):
            self._add_place(Place("dict", entries, "_size", name=f"len({name})", site=""))
        if isinstance(module, nn.ParameterDict):
            self._add_container(entries["_keys"], f"{name}.keys()", "")

    def _add_parts(self, parts: dict[str, Any], name: str) -> None:
        """Compare which parts a module has, and their order: that in which they are called."""
        keys = list(parts)

        def read() -> Shown:
            is_mixed = set(parts) == set(keys) and list(parts) != keys
            return Shown("another order" if is_mixed else f"{len(parts)} items")

        check = check_of(read, Shown(f"{len(keys)} items"), name=name, is_memory=False)
        self._checks.add_keys(parts, keys, check)

    def _add_function(self, function: Any) -> None:
        key = ("function", id(function))
        if key in self._seen:
            return
        self._seen[key] = function.__qualname__
        code = function.__code__
        for part in ("__code__", "__defaults__", "__kwdefaults__"):
            value = getattr(function, part)
            if value is not None:
                check = check_of(
                    partial(getattr, function, part), value, name=function.__qualname__,
                    site=site_of(code, None), is_memory=True,
                )  # fmt: skip
                # An equal one can be written to later, which nobody would see.
                check.by_value = False
                self._checks.add_attribute(function, part, check)

    def _add_tensor(self, tensor: torch.Tensor, name: str, site: str) -> None:
        if id(tensor) in self._tensors:
            return
        self._tensors[id(tensor)] = (tensor, name, site)

    def _add_tensors(self) -> None:
        known = list(self._tensors.values())
        self.tensors = [tensor for tensor, _, _ in known if self._on_device(tensor)]
        for tensor, name, site in known:
            if not self._on_device(tensor) and not tensor.is_inference():
                self._add_version(tensor, name, site)

    def _add_version(self, tensor: torch.Tensor, name: str, site: str) -> None:
        """Compare the version of a tensor on the host; writes through `.data` and numpy, which move none, audits tell."""
        version = tensor._version
        check = check_of(
            lambda: Shown(f"its content, version {tensor._version}"),
            Shown(f"its content, version {version}"), name=name, site=site, is_memory=False,
        )  # fmt: skip
        self._checks.add(check, lambda: tensor._version == version)

    def _compare(self) -> None:
        self._checks.compare_in(self.rows)
        for now, before in zip(self._lists_now, self._lists, strict=True):
            self.rows.lists(now, before)
        self._forms.compare_in(self.rows)
        self._hooks.compare_in(self.rows)


def _may_walk_parts(module: nn.Module) -> bool:
    """Return whether a module may call parts that it has not yet; torch's own have all of theirs."""
    is_container = isinstance(module, nn.Sequential | nn.ModuleList | nn.ModuleDict)
    return is_container or not is_foreign(type(module))
