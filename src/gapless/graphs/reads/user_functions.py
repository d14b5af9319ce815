"""The functions of the user that code leads to, by the names that stand in it.

Read before any of them runs. Code of installed packages is left out: what it does, it does for everybody.
Values are judged by their type: what an object says of its class is code of the user's, which may raise.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass, field
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from gapless.device.user_line import UserCode, module_that_runs
from gapless.graphs.reads.value_places import entries_of


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType


# More is not read.
_MOST_FUNCTIONS = 2_000
_MOST_VALUES = 20_000
_MOST_ITEMS = 64

# How far objects lead on that others hold.
_DEPTH = 2

# A frame, a variable and the call that counts them.
_NUM_HOLDERS = 3

_PLAIN = (bool, int, float, str, type(None))
_CONTAINERS = (list, tuple, dict)


@dataclass
class UserFunctions:
    """The user's functions that code leads to, by the names in it.

    A method counts once its name stands somewhere, or if a class of a package has one of that name, which
    calls it.

    Attributes:
        own: tells the user's code from others'.
        places: of these functions the variables around them by name, the innermost first.
        names: that stand in them, of variables and of attributes.
    """

    own: UserCode = field(default_factory=lambda: UserCode(module_that_runs()))
    places: dict[CodeType, Sequence[dict[str, Any]]] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    _variables: dict[FrameType, dict[str, Any]] = field(default_factory=dict)
    _todo: list[CodeType] = field(default_factory=list)
    # What adds functions of classes and modules whose names stand nowhere yet.
    _waiting: dict[str, list[Callable[[], None]]] = field(default_factory=dict)
    _seen: dict[int, Any] = field(default_factory=dict)

    def add_frame(self, frame: FrameType) -> None:
        """Add a function that is on the stack, and the class that it stands in."""
        self._variables[frame] = _variables_of(frame)

    def frames_key(self) -> tuple[Any, ...]:
        """Return what tells the functions on the stack, and what they were given, from others."""
        kinds = [
            tuple([_kind_of(part) for part in self._parts_of_variable(value)])
            for variables in self._variables.values()
            for value in variables.values()
        ]
        return (*[frame.f_code for frame in self._variables], *kinds)

    def _parts_of_variable(self, value: Any) -> list[Any]:
        items = _items_of(value) if type(value) in _CONTAINERS else self._attributes_of(value)
        return [value, *items]

    def _attributes_of(self, value: Any) -> list[Any]:
        if issubclass(type(value), (*_PLAIN, type, ModuleType)) or not self.owns_class(
            type(value)
        ):
            return []
        return list((entries_of(value) or {}).values())[:_MOST_ITEMS]

    def _follow_frame(self, frame: FrameType) -> None:
        for value in self._variables[frame].values():
            for part in (value, *_items_of(value)):
                self._add(part, _DEPTH)
        owner: Any = None
        *outer, _ = frame.f_code.co_qualname.split(".")
        for number, name in enumerate(outer):
            owner = vars(owner).get(name) if number else frame.f_globals.get(name)
            if not isinstance(owner, type):
                break
            self._add_class(owner)
        self._add_code(frame.f_code, [frame.f_globals])

    def follow(self) -> None:
        """Add all that the functions so far lead to."""
        for frame in self._variables:
            self._follow_frame(frame)
        while self._todo:
            code = self._todo.pop()
            for name in code.co_names:
                for scope in self.places[code]:
                    self._add(scope.get(name), _DEPTH)
                self._add(sys.modules.get(name), _DEPTH)
                if name not in self.names:
                    self.names.add(name)
                    for add in self._waiting.pop(name, ()):
                        add()

    def forget(self) -> None:
        """End the cycle that would hold all that was found, such as the loop's batches, until a collection."""
        self._waiting = {}

    def owns_class(self, kind: type) -> bool:
        """Return whether a class is the user's."""
        module = sys.modules.get(kind.__module__)
        return module is not None and self.owns_module(module)

    def owns_module(self, module: ModuleType) -> bool:
        """Return whether a module is the user's."""
        names = vars(module)
        return self.own.owns(names.get("__file__") or "<", names)

    def _add_code(self, code: CodeType, scopes: Sequence[dict[str, Any]]) -> None:
        if code in self.places or len(self.places) >= _MOST_FUNCTIONS:
            return
        self.places[code] = scopes
        self._todo.append(code)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._add_code(constant, scopes)

    def _add(self, value: Any, depth: int) -> None:
        """Add what a value holds that can be called, if it is the user's."""
        if issubclass(type(value), _PLAIN) or id(value) in self._seen:
            return
        if len(self._seen) >= _MOST_VALUES:
            return
        self._seen[id(value)] = value  # held, so that no other gets its id
        if issubclass(type(value), FunctionType):
            self._add_function(value)
        elif issubclass(type(value), type):
            self._add_class(value)
        elif issubclass(type(value), ModuleType):
            self._add_later(value)
        else:
            for part in self._parts_of(value) if depth > 0 else ():
                self._add(part, depth - 1)

    def _parts_of(self, value: Any) -> list[Any]:
        if issubclass(type(value), MethodType):
            return [value.__func__, value.__self__]
        if issubclass(type(value), partial):
            return [value.func, *value.args, *value.keywords.values()]
        if not self.owns_class(type(value)):
            return []
        return [type(value), *self._attributes_of(value)]

    def _add_function(self, function: FunctionType) -> None:
        cells = dict(zip(function.__code__.co_freevars, _contents(function), strict=True))
        if self.own.owns(function.__code__.co_filename, function.__globals__):
            self._add_code(function.__code__, [cells, function.__globals__])
        # A package's decorator may stand around the user's function.
        for value in [*cells.values(), vars(function).get("__wrapped__")]:
            self._add(value, _DEPTH)

    def _add_class(self, kind: type) -> None:
        if not self.owns_class(kind):
            return
        others = [one for one in kind.__mro__ if one is not object and not self.owns_class(one)]
        for name, value in vars(kind).items():
            function = _function_of(value)
            if function is None:
                continue
            is_called = name.startswith("__") or any(hasattr(other, name) for other in others)
            self._add_by_name(name, partial(self._add_function, function), is_named=is_called)
        for base in kind.__bases__:
            self._add(base, 1)

    def _add_later(self, module: ModuleType) -> None:
        if not self.owns_module(module):
            return
        for name, value in list(vars(module).items()):
            self._add_by_name(name, partial(self._add, value, 1))

    def _add_by_name(self, name: str, add: Callable[[], None], *, is_named: bool = False) -> None:
        if is_named or name in self.names:
            add()
        else:
            self._waiting.setdefault(name, []).append(add)


def _variables_of(frame: FrameType) -> dict[str, Any]:
    """Return the variables of a function that runs; those of a file are its globals."""
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return {}
    kept = frame.f_locals
    found = dict(kept)
    # Up to Python 3.12 the frame keeps this table, and with it objects that the function lets go of. It may
    # be the result of somebody's `locals()`, and a debugger writes what it finds there into the frame.
    tracer = type(sys.gettrace())
    may_write = tracer is not type(None) and not tracer.__module__.startswith("coverage.")
    if type(kept) is dict and sys.getrefcount(kept) <= _NUM_HOLDERS and not may_write:
        kept.clear()
    return found


def _kind_of(value: Any) -> Any:
    """Return what code a value leads to."""
    if issubclass(type(value), partial):
        return _kind_of(value.func)
    function = value.__func__ if issubclass(type(value), MethodType) else value
    # Others are not asked: settings that look attributes up among their entries raise a KeyError.
    if issubclass(type(function), FunctionType):
        return function.__code__
    return function if issubclass(type(function), type) else type(function)


def _items_of(value: Any) -> list[Any]:
    """Return what a small container holds, such as the losses of a loop."""
    if type(value) not in _CONTAINERS or len(value) > _MOST_ITEMS:
        return []
    return list(value.values() if type(value) is dict else value)


def _contents(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not set yet
            yield None


def _function_of(value: Any) -> Any:
    """Return the function of a method, a property or the like; None if there is none."""
    if issubclass(type(value), classmethod | staticmethod):
        value = value.__func__
    elif issubclass(type(value), property):
        value = value.fget
    return value if issubclass(type(value), FunctionType) else None
