"""Guards for what a step reads from Python, as one generated function.

Each check compares what stands in a place with what stood there when the guards were made: by
identity, and plain values also by value, so that `self.alpha = 0.1` anew changes nothing.
"""

from __future__ import annotations

import collections
import functools
import gc
import io
import os
import weakref
from dataclasses import dataclass
from functools import partial
from operator import is_
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from gapless.device.environment import environment_readers
from gapless.device.torch_gpu import STREAM_TYPES
from gapless.graphs.addresses import address_of, lie_where
from gapless.graphs.code_kinds import CodeKind, is_foreign, site_of
from gapless.graphs.code_reads import compares_objects
from gapless.graphs.plain_values import (
    is_array,
    is_number_like,
    is_plain,
    is_scalar_of_numpy,
    same,
    shown,
)
from gapless.graphs.same_tensors import are_the_same
from gapless.graphs.value_places import (
    BUFFERS,
    HOOK_TABLES,
    MISSING,
    Place,
    entries_of,
    names_another_class,
)
from gapless.pipeline.tree.tensor_layout import comparison_with


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from gapless.graphs.reach import Reach


# Items of longer containers are compared in a loop.
_MOST_INLINE = 8
_MOST_BYTES = 1 << 20

# Of each value of these there is one object.
_SINGLE = (bool, torch.dtype)

# Subclasses may compare as they like.
_TENSORS = (torch.Tensor, torch.nn.Parameter)

# What torch's compiler uses for dictionaries.
_of_compiler: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
_dict_version: Any = getattr(_of_compiler, "dict_version", None)


@dataclass(frozen=True)
class Change:
    """Something that is no longer as it was.

    Attributes:
        name: as the code says it, such as `self.alpha`.
        site: where the code reads it, `file:line`; "" if that is not known.
        before: a short text for the value that the guards were made with.
        after: the same for the value now.
        is_memory: whether an object, a tensor or its memory is another, rather than a plain value.
    """

    name: str
    site: str
    before: str
    after: str
    is_memory: bool


@dataclass(slots=True)
class _Check:
    """One thing to compare.

    Attributes:
        test: an expression that is true if it has changed; `{n}` stands for `parts[n]`. "" if
            what it stands in is compared as a whole.
        parts: what the expression is about.
        read: returns what there is now.
        expected: what there was.
        name: of it.
        site: where the code reads it.
        is_memory: as of `Change`.
        by_value: whether an equal value is as good.
        behind: as of `Place`.
        table: the dictionary that cannot change without a new version of it, None if there is none.
    """

    test: str
    parts: tuple[Any, ...]
    read: Callable[[], Any]
    expected: Any
    name: str
    site: str
    is_memory: bool
    by_value: bool
    table: dict[Any, Any] | None = None
    behind: Any = MISSING

    @property
    def before(self) -> str:
        """What there was, as text; of an attribute that hides its class's, the class's."""
        return _shown(self.behind if self.expected is MISSING else self.expected)

    def holds(self, now: Any) -> bool:
        return now is self.expected or (self.by_value and same(self.expected, now))


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
        compares_objects: whether the user's code may ask whether two objects are the same one.
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
        self._checks: list[_Check] = []
        self._seen: set[tuple[Any, ...]] = set()
        self.tensors: list[torch.Tensor] = []
        self._tensors: dict[int, tuple[torch.Tensor, str, str]] = {}
        # Names of tensors that are keys, by their ids.
        self._keys: dict[int, str] = {}
        # Lists of tensors, as they were, and as they are.
        self._lists: list[list[Any]] = []
        self._lists_now: list[list[Any]] = []
        # Owners of what is compared: their ids must not be given to others.
        self._owners: list[Any] = []
        self._compiled_modules = reach.compiled
        self._listed = reach.listed
        self.compares_objects = any(
            executed.kind is CodeKind.USER and compares_objects(executed.code)
            for executed in reach.codes.values()
        )
        self._add_environment(device_type)
        self._num_of_environment = len(self._checks)
        for place in reach.places.values():
            self._add_place(place)
        for value, name, site in reach.whole.values():
            self._add_container(value, name, site)
        for value, name in reach.objects.values():
            self._add_object(value, name)
        for module, name in reach.modules.values():
            self._add_module(module, name)
        for executed in reach.codes.values():
            if executed.kind is CodeKind.USER:
                for function in reach.functions.get(id(executed.code), []):
                    self._add_function(function)
        for _, reader, name, site in reach.of_torch.values():
            self._add_state(reader, name, site)
        for tensor, name, site in reach.tensors.values():
            self._add_tensor(tensor, name, site)
        self._add_tensors()
        self._add_hooks_of_all_modules()
        self._form = _Form(list(self._tensors.values()), list(reach.modules.values()))
        self.holds: Callable[[], bool] = self._compiled()

    def names_by_address(self) -> dict[int, str]:
        """Return what the step's code calls the memory of `tensors`, such as model.0.weight."""
        names: dict[int, str] = {}
        for tensor, name, _ in self._tensors.values():
            if self._on_device(tensor):
                names.setdefault(address_of(tensor), name)
        return names

    def compares(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor's memory, shape and `requires_grad` are compared."""
        return self._form.compares(tensor)

    def first_changed(self, *, in_environment: bool = True) -> Change | None:
        """Return the first thing that is not as it was, None if all is.

        Args:
            in_environment: look at the modes of torch, too.

        Sync: Does not block the host.
        """
        for check in self._checks[0 if in_environment else self._num_of_environment :]:
            now = check.read()
            if not check.holds(now):
                before, after = check.before, _shown(now)
                if before == after:
                    is_part = before.startswith("its ")
                    after = f"other {before[4:]}" if is_part else f"another {type(now).__name__}"
                return Change(check.name, check.site, before, after, check.is_memory)
        return self._form.first_changed()

    # --- what is compared ---

    def _add(
        self,
        test: str,
        parts: tuple[Any, ...],
        *,
        read: Callable[[], Any],
        expected: Any,
        name: str,
        site: str,
        is_memory: bool | None = None,
        table: Any = None,
    ) -> None:
        by_value = True
        if is_memory is None:
            by_value = _is_value(expected) or is_scalar_of_numpy(expected)
            is_memory = not by_value and expected is not MISSING
        table = table if type(table) is dict else None
        check = _Check(test, parts, read, expected, name, site, is_memory, by_value, table)
        self._checks.append(check)

    def _add_environment(self, device_type: str) -> None:
        for name, reader in environment_readers(device_type):
            value = reader()
            test = "{0}() is not {1}" if isinstance(value, _SINGLE) else "{0}() != {1}"
            self._add(test, (reader, value), read=reader, expected=value, name=name, site="")

    def _add_place(self, place: Place, *, is_in_whole: bool = False) -> None:
        if place.id in self._seen or place.id in self._carried:
            return
        self._seen.add(place.id)
        self._owners.append(place.owner)
        place = place.without_holder()
        value = place.read()
        access, owner = _access(place)
        parts: tuple[Any, ...]
        if value is MISSING and type(place.owner) is dict:
            test, parts = "{0} in {1}", (place.key, place.owner)
        elif value is MISSING and place.kind == "class":
            test, parts = "{0} in {1}", (place.key, vars(place.owner))
        elif value is MISSING:
            test, parts = "{0}() is not {1}", (place.read, MISSING)
        elif _is_value(value):
            test = f"{access} is not {{2}} and not same({{2}}, {access})"
            parts = (owner, place.key, value)
        elif is_scalar_of_numpy(value):
            test, parts = f"not same({{2}}, {access})", (owner, place.key, value)
        else:
            test, parts = f"{access} is not {{2}}", (owner, place.key, value)
        if is_in_whole:
            test, parts = "", ()
        self._add(
            test, parts, read=place.read, expected=value, name=place.name, site=place.site,
            table=None if is_scalar_of_numpy(value) else place.owner,
        )  # fmt: skip
        self._checks[-1].behind = place.behind
        if not names_another_class(value):
            self._add_array_or_tensor(value, place.name, place.site)

    def _add_array_or_tensor(self, value: Any, name: str, site: str) -> None:
        if is_array(value):
            self._add_array(value, name, site)
        elif isinstance(value, torch.Tensor):
            self._add_tensor(value, name, site)

    def _add_array(self, value: Any, name: str, site: str) -> None:
        key = ("array", id(value))
        if key in self._seen or value.nbytes > _MOST_BYTES:
            return
        self._seen.add(key)
        if value.dtype.hasobject:
            items = value.ravel().tolist()
            self._add(
                "changed({0}.ravel().tolist(), {1})", (value, items), name=name, site=site,
                read=lambda: value.ravel().tolist(), expected=items, is_memory=False,
            )  # fmt: skip
            return
        content = value.tobytes()
        self._add(
            "{0}() != {1}", (value.tobytes, content), read=lambda: _Content(value.tobytes()),
            expected=_Content(content), name=name, site=site, is_memory=False,
        )  # fmt: skip

    def _add_object(self, value: Any, name: str) -> None:
        """Compare an object's class, and what those are asked for that are made in C."""
        if isinstance(value, functools._lru_cache_wrapper):
            self._add_results_of(value, name)
        elif isinstance(value, io.StringIO | io.BytesIO) and not names_another_class(value):
            self._add_text(value, name)
        elif isinstance(value, BUFFERS) and not names_another_class(value):
            data: Any = value
            content = bytes(data)
            if len(content) <= _MOST_BYTES:
                self._add(
                    "bytes({0}) != {1}", (value, content), read=lambda: _Content(bytes(data)),
                    expected=_Content(content), name=name, site="", is_memory=False,
                )  # fmt: skip
        elif not is_foreign(type(value)) and entries_of(value) is not None:
            # It may be let go: a weak reference of the step's would show it.
            kind, referent = type(value), _referent_of(value)
            self._add(
                "type({0}()) is not {1}", (referent, kind),
                read=lambda: _kind_shown(referent()), expected=_kind_shown(value), name=name,
                site="", is_memory=False,
            )  # fmt: skip
            entries = entries_of(value)
            self._add(
                "entries_of({0}()) is not {1}", (referent, entries), expected=entries,
                read=lambda: entries_of(referent()), name=f"{name}.__dict__", site="",
            )  # fmt: skip
            self._add_bases(kind)

    def _add_results_of(self, function: Any, name: str) -> None:
        """Compare whether a cache holds what it held: one that is cleared makes new results."""
        now = partial(_results_of, function)
        self._add(
            "changed({0}(), {1})", (now, now()), read=lambda: _Shown("other results"),
            expected=_Shown("its results"), name=name, site="", is_memory=False,
        )  # fmt: skip
        kept = now()
        self._checks[-1].read = lambda: _Shown(
            "other results" if _changed(now(), kept) else "its results"
        )

    def _add_text(self, text: Any, name: str) -> None:
        if text.closed or len(text.getvalue()) <= _MOST_BYTES:
            told = lambda: None if text.closed else (text.getvalue(), text.tell())  # noqa: E731
            self._add_told(told, "its text", name)

    def _add_told(self, ask: Callable[[], Any], what: str, name: str) -> None:
        """Compare what an object made in C tells of itself."""
        told = ask()
        self._add(
            "{0}() != {1}", (ask, told), read=lambda: _Shown(what if ask() == told else "another one"),
            expected=_Shown(what), name=name, site="", is_memory=False,
        )  # fmt: skip

    def _add_bases(self, kind: type) -> None:
        """Compare in which order classes are asked for what a class has not."""
        key = ("bases", id(kind))
        if key not in self._seen:
            self._seen.add(key)
            bases = kind.__mro__
            self._add(
                "{0}.__mro__ is not {1}", (kind, bases), read=lambda: kind.__mro__,
                expected=bases, name=f"the bases of {kind.__name__}", site="", is_memory=False,
            )  # fmt: skip

    def _add_state(self, reader: Callable[[], Any], name: str, site: str) -> None:
        value = reader()
        self._add(
            "not same({1}, {0}())", (reader, value), read=reader, expected=value,
            name=f"the state of {name}", site=site, is_memory=False,
        )  # fmt: skip

    def _add_container(self, value: Any, name: str, site: str) -> None:
        if isinstance(value, dict | MappingProxyType | set | frozenset):
            # Looked up by what they are, not by their values.
            found = [key for key in value if isinstance(key, torch.Tensor)]
            self._owners += found
            self._keys |= {id(key): f"a key of {name}" for key in found}
        if isinstance(value, type(os.environ)):
            data: dict[Any, Any] = vars(value)["_data"]
            copy = dict(data)
            self._add(
                "{0} != {1}", (data, copy), read=lambda: dict(data), expected=copy,
                name=name, site=site, is_memory=False,
            )  # fmt: skip
        elif isinstance(value, dict | MappingProxyType):
            self._add_mapping(value, name, site)
        elif isinstance(value, list | tuple | collections.deque):
            self._add_sequence(value, name, site)
        elif isinstance(value, set | frozenset) and all(map(is_plain, value)):
            members = frozenset(value)
            self._add(
                "{0} != {1}", (value, members), read=lambda: frozenset(value),
                expected=members, name=name, site=site, is_memory=False,
            )  # fmt: skip
        elif isinstance(value, set):
            self._add_set(value, name, site)

    def _add_set(self, value: set[Any], name: str, site: str) -> None:
        """Compare which objects a set holds; their own `__eq__` is not asked."""
        self._owners += value
        members = _Members(map(id, value))
        self._add(
            "set(map(id, {0})) != {1}", (value, members), read=lambda: _Members(map(id, value)),
            expected=members, name=name, site=site, is_memory=False,
        )  # fmt: skip

    def _add_mapping(self, value: Any, name: str, site: str) -> None:
        self._owners.append(value)
        keys = list(value)
        if all(map(is_plain, keys)):
            self._add(
                "not same({1}, list({0}))", (value, keys), read=lambda: list(value),
                expected=keys, name=name, site=site, is_memory=False, table=value,
            )  # fmt: skip
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
            self._add(
                "changed({0}, {1})", (value, items), read=lambda: list(value), expected=items,
                name=name, site=site, is_memory=not all(map(is_number_like, items)),
            )  # fmt: skip
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
                elif is_array(item):
                    self._add_array(item, f"{name}[{index}]", site)
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
        number = len(value)
        self._add(
            "len({0}) != {1}", (value, number), read=lambda: _Shown(f"{len(value)} items"),
            expected=_Shown(f"{number} items"), name=name, site=site, is_memory=False, table=value,
        )  # fmt: skip

    def _add_module(self, module: nn.Module, name: str) -> None:
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
        if isinstance(module, torch.jit.ScriptModule):
            self._add_script(module, name)
        for table in HOOK_TABLES:
            if entries.get(table):
                self._add_length(entries[table], f"{name}.{table}", "")

    def _add_parts(self, parts: dict[str, Any], name: str) -> None:
        """Compare which parts a module has, and their order: that in which they are called."""
        keys = list(parts)

        def read() -> _Shown:
            is_mixed = set(parts) == set(keys) and list(parts) != keys
            return _Shown("another order" if is_mixed else f"{len(parts)} items")

        self._add(
            "list({0}) != {1}", (parts, keys), read=read, expected=_Shown(f"{len(keys)} items"),
            name=name, site="", is_memory=False, table=parts,
        )  # fmt: skip

    def _add_script(self, module: Any, name: str) -> None:
        """Compare the attributes of a scripted module, which stand in no dictionary."""
        read = module._c.getattr
        for key in module._concrete_type.get_attributes():
            value = read(key)
            if _is_value(value) or isinstance(value, list | dict):
                self._add(
                    "not same({1}, {0}({2}))", (read, value, key), read=partial(read, key),
                    expected=value, name=f"{name}.{key}", site="", is_memory=False,
                )  # fmt: skip

    def _add_function(self, function: Any) -> None:
        key = ("function", id(function))
        if key in self._seen:
            return
        self._seen.add(key)
        code = function.__code__
        for part in ("__code__", "__defaults__", "__kwdefaults__"):
            value = getattr(function, part)
            if value is not None:
                self._add(
                    f"{{0}}.{part} is not {{1}}", (function, value),
                    read=_attribute_reader(function, part), expected=value,
                    name=function.__qualname__, site=site_of(code, None), is_memory=True,
                )  # fmt: skip
        # Those of keywords stand in a dictionary, which may be changed in place.
        defaults = function.__kwdefaults__
        for name in defaults or ():
            site = site_of(code, None)
            self._add_place(Place("dict", defaults, name, name=name, site=site))

    def _add_tensor(self, tensor: torch.Tensor, name: str, site: str) -> None:
        if id(tensor) in self._tensors:
            return
        self._tensors[id(tensor)] = (tensor, name, site)

    def name_of_any(self, tensors: Iterable[torch.Tensor]) -> str | None:
        """Return what the code calls one of these tensors, None if it compares it with nothing it reaches.

        Sync: Does not block the host.
        """
        names = dict(self._keys)
        if self.compares_objects:
            names |= {key: name for key, (_, name, _) in self._tensors.items()}
        return next((names[id(one)] for one in tensors if id(one) in names), None)

    def ids_of_tensors(self) -> frozenset[int]:
        """Return the ids of the tensors that the code may compare with others.

        Sync: Does not block the host.
        """
        return frozenset(self._keys).union(self._tensors if self.compares_objects else ())

    def _add_tensors(self) -> None:
        known = list(self._tensors.values())
        self.tensors = [tensor for tensor, _, _ in known if self._on_device(tensor)]
        for tensor, name, site in known:
            self._add_hooks(tensor, name)
            if not self._on_device(tensor):
                self._add_version(tensor, name, site)
                self._add_content(tensor, name, site)

    def _add_hooks(self, tensor: torch.Tensor, name: str) -> None:
        for table in HOOK_TABLES:
            hooks = getattr(tensor, table, None)
            if hooks:
                self._add_length(hooks, f"{name}.{table}", "")

    def _add_hooks_of_all_modules(self) -> None:
        for name, hooks in _tables_of_all_modules().items():
            if hooks:
                self._add_length(hooks, f"torch.nn.modules.module.{name}", "")

    def _add_content(self, tensor: torch.Tensor, name: str, site: str) -> None:
        """Compare the bytes: writes through `.data` and numpy move no version."""
        memory = _memory_of(tensor)
        if memory is None:
            return
        address, content = tensor.data_ptr(), memory.tobytes()
        self._add(
            "{0}.data_ptr() != {1}", (tensor, address), read=lambda: _Shown("other memory"),
            expected=_Shown("its memory"), name=name, site=site, is_memory=True,
        )  # fmt: skip
        self._checks[-1].read = lambda: _Shown(
            "its memory" if tensor.data_ptr() == address else "other memory"
        )
        self._add(
            "{0}() != {1}", (memory.tobytes, content), read=lambda: _Content(memory.tobytes()),
            expected=_Content(content), name=name, site=site, is_memory=False,
        )  # fmt: skip

    def _add_version(self, tensor: torch.Tensor, name: str, site: str) -> None:
        if tensor.is_inference():
            return
        version = tensor._version
        self._add(
            "{0}._version != {1}", (tensor, version),
            read=lambda: _Shown(f"its content, version {tensor._version}"),
            expected=_Shown(f"its content, version {version}"), name=name, site=site,
            is_memory=False,
        )  # fmt: skip

    # --- the function ---

    def _compiled(self) -> Callable[[], bool]:
        values: dict[int, Any] = {}

        def constant(value: Any) -> str:
            values[id(value)] = value
            return f"c{id(value)}"

        def test_of(check: _Check) -> str:
            return check.test.format(*map(constant, check.parts))

        lines = []
        versions: list[int] = []
        for table, checks in _by_table([check for check in self._checks if check.test]):
            indent = " " * 12
            if table is not None and _dict_version is not None:
                # As long as it has the version at which all was seen to be as it was, it is.
                versions.append(-1)
                version = f"versions[{len(versions) - 1}]"
                lines.append(f"{indent}if dict_version({constant(table)}) != {version}:")
                indent += " " * 4
                lines += [f"{indent}if {test_of(check)}: return False" for check in checks]
                lines.append(f"{indent}{version} = dict_version({constant(table)})")
            else:
                lines += [f"{indent}if {test_of(check)}: return False" for check in checks]
        if self._lists:
            lists, lists_now = constant(self._lists), constant(self._lists_now)
            lines.append(f"            if not are_the_same({lists}, {lists_now}): return False")
        lines.append(f"            return {constant(self._form.holds)}()")
        text = "\n".join(
            [
                "def make(values, same, changed, are_the_same, versions, dict_version, failures, entries_of):",
                f"    {', '.join(f'c{key}' for key in values)}, = values",
                "    def holds():",
                "        try:",
                *lines,
                "        except failures:",
                "            return False",
                "    return holds",
            ]
        )
        namespace: dict[str, Any] = {}
        exec(text, namespace)
        made: Callable[[], bool] = namespace["make"](
            list(values.values()),
            same,
            _changed,
            are_the_same,
            versions,
            _dict_version,
            _FAILURES,
            entries_of,
        )
        return made


_FAILURES = (LookupError, AttributeError, ValueError)

# A version costs as much as two or three comparisons.
_LEAST_PER_VERSION = 4


def _by_table(
    checks: list[_Check],
) -> Iterator[tuple[dict[Any, Any] | None, list[_Check]]]:
    """Return the checks of each dictionary that has several, and all others."""
    tables: dict[int, list[_Check]] = {}
    for check in checks:
        tables.setdefault(id(check.table) if check.table is not None else 0, []).append(check)
    rest = tables.pop(0, [])
    for group in list(tables.values()):
        if len(group) < _LEAST_PER_VERSION:
            rest += group
        else:
            yield group[0].table, group
    yield None, rest


class _Shown(str):
    """What is shown for a state that is no value."""

    __slots__ = ()


class _Content(bytes):
    """The content of an array."""


class _Members(frozenset[int]):
    """The ids of a set's members."""


def _may_walk_parts(module: nn.Module) -> bool:
    """Return whether a module may call parts that it has not yet; torch's own have all of theirs."""
    is_container = isinstance(module, nn.Sequential | nn.ModuleList | nn.ModuleDict)
    return is_container or not is_foreign(type(module))


def _shown(value: Any) -> str:
    if isinstance(value, _Shown):
        return str(value)
    if isinstance(value, _Members):
        return "its members"
    return "its content" if isinstance(value, _Content) else shown(value)


def _kind_shown(value: Any) -> _Shown:
    """Return what is shown for an object by its class; None stands for one that is gone."""
    return _Shown("another" if value is None else f"one {type(value).__name__}")


def _memory_of(tensor: torch.Tensor) -> Any:
    """Return an array of the bytes of a plain tensor on the host, None of others."""
    is_plain_tensor = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    if not is_plain_tensor or tensor.device.type != "cpu" or tensor.layout != torch.strided:
        return None
    if not tensor.is_contiguous() or tensor.nbytes > _MOST_BYTES or tensor.is_conj():
        return None
    return tensor.detach().view(-1).view(torch.uint8).numpy()


def _results_of(function: Any) -> list[Any]:
    """Return what a cache of results holds: the ends of a long one, and how often it was asked in vain."""
    info = function.cache_info()
    tables = [part for part in gc.get_referents(function) if type(part) is dict]
    found = next((table for table in tables if table is not vars(function)), {})
    results = list(found.values())
    ends = results if len(results) <= _MOST_RESULTS else [results[0], results[-1]]
    return [info.misses, info.currsize, *ends]


# Whoever clears a cache makes all of its results anew.
_MOST_RESULTS = 100


def _referent_of(value: Any) -> Callable[[], Any]:
    """Return a function that returns a value, None once nobody else holds it."""
    # Torch leaves weak references to its streams and events behind.
    has_refs = type(value).__weakrefoffset__ and not isinstance(value, STREAM_TYPES)
    return weakref.ref(value) if has_refs else lambda: value


def _attribute_reader(thing: Any, name: str) -> Callable[[], Any]:
    return lambda: getattr(thing, name)


def _is_value(value: Any) -> bool:
    """Return whether a value stands for itself, so that an equal one is as good."""
    if issubclass(type(value), tuple | frozenset):
        return all(map(_is_value, value))
    return is_plain(value)


def _access(place: Place) -> tuple[str, Any]:
    """Return an expression for what stands in a place, and the owner that it is about."""
    if place.kind == "cell":
        return "{0}.cell_contents", place.owner
    if place.kind == "slot":
        return "{1}.__get__({0})", place.owner
    if place.kind == "context":
        return "{0}.get({1})", place.owner
    if place.kind == "class":
        return "{0}[{1}]", vars(place.owner)
    if type(place.owner) in (dict, list, tuple, collections.deque, MappingProxyType):
        return "{0}[{1}]", place.owner
    if isinstance(place.owner, dict):
        return "dict.get({0}, {1})", place.owner
    return "{0}[{1}]", place.owner


def _changed(value: Any, items: list[Any]) -> bool:
    if len(value) != len(items):
        return True
    return not all(map(is_, value, items)) and not all(map(same, items, value))


class _Form:
    """Addresses and shapes of tensors, compared many at a time, and hooks that are new.

    Args:
        tensors: with names and sites.
        modules: whose hooks count.
    """

    def __init__(
        self, tensors: list[tuple[torch.Tensor, str, str]], modules: list[tuple[nn.Module, str]]
    ) -> None:
        self._known = [each for each in tensors if _has_address(each[0])]
        self._tensors = [tensor for tensor, _, _ in self._known]
        self._ids = frozenset(map(id, self._tensors))
        self._lie_still = partial(lie_where(self._tensors), self._tensors)
        self._addresses = list(map(_address_of, self._tensors))
        self._forms = list(map(_form_of, self._tensors))
        self._match: Callable[..., bool] | None = None
        self._hooked: list[tuple[Any, str]] = [(None, "torch.nn"), *modules]
        self._hooked += [(tensor, name) for tensor, name, _ in tensors]
        self._hooks = self._hooks_now()
        self._next_hook = RemovableHandle.next_id
        self._modules = [module for module, _ in modules]
        self._classes = list(map(type, self._modules))
        self._names = [name for _, name in modules]

    def compares(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is one of these."""
        return id(tensor) in self._ids

    def holds(self) -> bool:
        if RemovableHandle.next_id != self._next_hook:
            if self._hooks_now() != self._hooks:
                return False
            self._next_hook = RemovableHandle.next_id
        return (
            self._lie_still()
            and self._have_their_classes()
            and ((self._match is not None and self._match(*self._tensors)) or self._forms_hold())
        )

    def _have_their_classes(self) -> bool:
        """Return whether modules have the classes they had, and so their methods."""
        return list(map(type, self._modules)) == self._classes

    def _forms_hold(self) -> bool:
        """Compare the forms one by one, and let torch do so from now on."""
        if list(map(_form_of, self._tensors)) != self._forms:
            return False
        # It compares modes as well, which are no part of a form.
        self._match = comparison_with(self._tensors)
        return True

    def _hooks_now(self) -> list[list[tuple[int, int]]]:
        return [_hooks_of(thing) for thing, _ in self._hooked]

    def first_changed(self) -> Change | None:
        known = zip(self._known, self._addresses, self._forms, strict=True)
        for (tensor, name, site), address, form in known:
            if tensor.data_ptr() != address:
                return Change(name, site, "its memory", "other memory", is_memory=True)
            now = _form_of(tensor)
            for part, before, after in zip(_FORM, form, now, strict=True):
                if before != after:
                    shown_name = f"{name}.{part}"
                    is_memory = part != "requires_grad"
                    return Change(shown_name, site, str(before), str(after), is_memory)
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


_FORM = ("requires_grad", "shape", "dtype", "stride")
_address_of = torch.Tensor.data_ptr


def _form_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (tensor.requires_grad, tensor.shape, tensor.dtype, tensor.stride())


def _tables_of_all_modules() -> dict[str, dict[int, Any]]:
    """Return the tables of hooks that torch calls for every module, by name."""
    entries = vars(torch.nn.modules.module).items()
    return {
        name: table
        for name, table in entries
        if name.startswith("_global_") and isinstance(table, dict)
    }


def _hooks_of(thing: Any) -> list[tuple[int, int]]:
    """Return keys and ids of the hooks of a module or tensor; None stands for those of all modules."""
    tables: list[Any]
    if thing is None:
        tables = list(_tables_of_all_modules().values())
    elif isinstance(thing, torch.Tensor):
        tables = [getattr(thing, name, None) for name in HOOK_TABLES]
    else:
        tables = [vars(thing).get(name) for name in HOOK_TABLES]
    # Another hook may lie where one lay that is gone.
    return [(key, id(hook)) for table in tables if table for key, hook in table.items()]


def _has_address(tensor: torch.Tensor) -> bool:
    try:
        tensor.data_ptr()
        tensor.stride()
    except (RuntimeError, NotImplementedError, ValueError):
        return False
    return True
