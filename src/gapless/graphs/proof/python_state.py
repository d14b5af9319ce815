"""The Python objects that a step reaches, as they stand before it has run at all, and put back in their place.

What a run changes is known only once it was watched. Ahead of a run the first run must not count either, so
that all is kept that its code can reach: containers and attributes of objects, variables of functions and
files, gradients, generators. Copies are shallow; the values of tensors are kept by whoever sees them written.
"""

from __future__ import annotations

import array
import collections
import random
import sys
import threading
from collections import OrderedDict, deque
from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any
from weakref import ProxyTypes

import torch

from gapless.device.torch_private import MODULE_PARTS
from gapless.graphs.reads.user_functions import UserFunctions
from gapless.pipeline.tree.tensor_layout import has_address


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


# Beyond that nobody can say what a step changes.
_MOST_OBJECTS = 300_000

# Larger containers are kept, but not looked into: they hold data.
_MOST_ITEMS = 10_000

# Larger arrays are data.
_MOST_BYTES = 1 << 26

_PLAIN = (bool, int, float, complex, str, bytes, type(None))

# A step writes to none of them, or threads do.
_LEFT_ALONE = (
    torch.utils.data.DataLoader,
    torch.utils.data.Dataset,
    torch.utils.data.Sampler,
    threading.Thread,
)

# What these of Python's own modules hold belongs to threads, files and the like; of the others it is data.
_OF_PYTHON = frozenset(sys.stdlib_module_names) - {
    "argparse", "builtins", "collections", "functools", "types",
}  # fmt: skip

# These keep beside their Python what C++ knows; only the modules in them are the user's.
_OF_TORCH = ("torch.distributed.", "torch.nn.parallel.", "torch._")

_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)

_OURS = __name__.partition(".")[0]
_AS_THE_USERS = f"{_OURS}.nmt."


class PythonState:
    """All that a step reaches in Python, as it is now.

    Args:
        step: whose code leads to it.
        others: objects that it is known to change, such as an optimizer.

    Attributes:
        objection: what cannot be put back, "" if all can.
        scalers: of gradients, which are left to the caller.
    """

    def __init__(self, step: Any, others: Iterable[Any]) -> None:
        self.objection = ""
        self.generators: list[Any] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.scalers: list[torch.amp.GradScaler] = []
        self._undo: list[Callable[[], None]] = []
        self._seen: dict[int, Any] = {}
        self._functions = UserFunctions()
        self._functions.add(step)
        self._functions.follow()
        self._todo: list[Any] = [step, *others]
        for scope, name in self._functions.variables():
            self._keep_variable(scope, name)
        while self._todo:
            self._visit(self._todo.pop())
            if len(self._seen) > _MOST_OBJECTS:
                self.objection = "the step reaches too many objects to put them back"
                break
        self._functions.forget()

    def restore(self) -> None:
        """Put everything back."""
        for undo in self._undo:
            undo()

    def _visit(self, value: Any) -> None:
        # What is gone cannot be asked what it is.
        if type(value) in ProxyTypes or isinstance(value, _PLAIN) or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        for kinds, keep in _KEEPERS:
            if isinstance(value, kinds):
                keep(self, value)
                return
        self._keep_object(value)

    # --- kinds of objects ---

    def _keep_tensor(self, tensor: torch.Tensor) -> None:
        if not tensor.is_leaf:
            return
        gradient, needs = tensor.grad, tensor.requires_grad
        is_plain = type(tensor) in _PLAIN_TENSORS and has_address(tensor)
        there = tensor.detach() if is_plain else None

        def undo() -> None:
            if there is not None and tensor.data_ptr() != there.data_ptr():
                tensor.data = there
            if tensor.grad is not gradient:
                tensor.grad = gradient
            if tensor.requires_grad is not needs:
                tensor.requires_grad_(needs)

        self._undo.append(undo)
        self._todo.append(gradient)
        self._todo.append(getattr(tensor, "__dict__", None))

    def _keep_table(self, table: dict[Any, Any]) -> None:
        kind: Any = OrderedDict if isinstance(table, OrderedDict) else dict
        before = list(kind.items(table))

        def undo() -> None:
            now = list(kind.items(table))
            if len(now) == len(before) and all(
                key is other and value is was
                for (key, value), (other, was) in zip(now, before, strict=True)
            ):
                return
            kind.clear(table)
            for key, value in before:
                kind.__setitem__(table, key, value)

        self._undo.append(undo)
        if len(before) <= _MOST_ITEMS:
            for key, value in before:
                self._todo += (key, value)
                if isinstance(key, str) and key in self._functions.names:
                    self._object_to_iterator(key, value)

    def _keep_container(self, value: Any) -> None:
        before = list(value)
        if isinstance(value, list | deque) and len(before) <= _MOST_ITEMS:
            self._todo += before

        def undo() -> None:
            if len(value) == len(before) and all(
                one is other or (isinstance(one, int) and one == other)
                for one, other in zip(value, before, strict=True)
            ):
                return
            if isinstance(value, set | deque):
                value.clear()
                (value.update if isinstance(value, set) else value.extend)(before)
            elif isinstance(value, array.array):
                value[:] = array.array(value.typecode, before)
            else:
                value[:] = before

        self._undo.append(undo)

    def reach(self, values: Iterable[Any]) -> None:
        """Look into these values as well."""
        self._todo += values

    def _keep_function(self, function: FunctionType) -> None:
        self._todo += [function.__defaults__, function.__kwdefaults__, vars(function)]
        names = function.__code__.co_freevars
        for name, cell in zip(names, function.__closure__ or (), strict=True):
            self._keep_cell(cell, name, is_users=self._functions.has(function))

    def _keep_module(self, module: ModuleType) -> None:
        if self._functions.owns_module(module):
            for name in self._functions.names & vars(module).keys():
                self._keep_variable(vars(module), name)

    def _keep_cell(self, cell: CellType, name: str, *, is_users: bool) -> None:
        try:
            before = cell.cell_contents
        except ValueError:  # not set yet
            return

        def undo() -> None:
            cell.cell_contents = before

        self._undo.append(undo)
        self._todo.append(before)
        if is_users:
            self._object_to_iterator(name, before)

    def _keep_variable(self, scope: dict[str, Any], name: str) -> None:
        before = scope.get(name, _MISSING)

        def undo() -> None:
            if before is _MISSING:
                scope.pop(name, None)
            elif scope.get(name, _MISSING) is not before:
                scope[name] = before

        self._undo.append(undo)
        if before is not _MISSING:
            self._todo.append(before)
            self._object_to_iterator(name, before)

    def _keep_class(self, kind: type) -> None:
        if not self._functions.owns_class(kind):
            return
        before = {name: value for name, value in vars(kind).items() if _is_data(name, value)}
        self._todo += before.values()

        def undo() -> None:
            now = {name: value for name, value in vars(kind).items() if _is_data(name, value)}
            for name in now.keys() - before.keys():
                delattr(kind, name)
            for name, value in before.items():
                if now.get(name, _MISSING) is not value:
                    setattr(kind, name, value)

        self._undo.append(undo)

    def _keep_object(self, value: Any) -> None:
        module = type(value).__module__
        if isinstance(value, torch.Generator | random.Random) or _is_numpys(value, "Generator"):
            self.generators.append(value)
            return
        if _is_numpys(value, "ndarray") and value.nbytes <= _MOST_BYTES:
            self._keep_array(value)
            return
        if isinstance(value, _LEFT_ALONE) or _is_left_alone(module):
            return
        if module.startswith(_OF_TORCH):
            self._todo.append(getattr(value, MODULE_PARTS, None))
            return
        if isinstance(value, torch.amp.GradScaler):
            self.scalers.append(value)
            return
        if isinstance(value, torch.optim.Optimizer):
            self.optimizers.append(value)
        self._todo.append(type(value))
        kept = getattr(value, "__dict__", None)
        if type(kept) is dict:
            self._todo.append(kept)
        for name in _slots_of(type(value)):
            self._keep_slot(value, name)

    def _keep_array(self, value: Any) -> None:
        before = value.copy()

        def undo() -> None:
            if value.flags.writeable:
                value[...] = before

        self._undo.append(undo)

    def _keep_slot(self, value: Any, name: str) -> None:
        before = getattr(value, name, _MISSING)
        if before is _MISSING:
            return

        def undo() -> None:
            if getattr(value, name, _MISSING) is not before:
                object.__setattr__(value, name, before)

        self._undo.append(undo)
        self._todo.append(before)

    def _object_to_iterator(self, name: str, value: Any) -> None:
        """Object to what goes on when it is asked, and cannot be asked to go back."""
        kind = type(value)
        is_iterator = isinstance(value, collections.abc.Iterator) and not hasattr(value, "fileno")
        if is_iterator and not self._functions.owns_class(kind):
            self.objection = (
                f"the step may take from {name}, a {kind.__name__}, which cannot be put back"
            )


_KEEPERS: tuple[tuple[Any, Callable[[PythonState, Any], None]], ...] = (
    (torch.Tensor, PythonState._keep_tensor),
    (dict, PythonState._keep_table),
    ((list, deque, set, bytearray, array.array), PythonState._keep_container),
    (
        (tuple, frozenset),
        lambda state, some: state.reach(some if len(some) <= _MOST_ITEMS else ()),
    ),
    (FunctionType, PythonState._keep_function),
    (MethodType, lambda state, method: state.reach((method.__func__, method.__self__))),
    (partial, lambda state, some: state.reach((some.func, some.args, some.keywords))),
    (type, PythonState._keep_class),
    (ModuleType, PythonState._keep_module),
)

_MISSING: Any = object()


def _is_left_alone(module: str) -> bool:
    package = module.partition(".")[0]
    return package in _OF_PYTHON or (package == _OURS and not module.startswith(_AS_THE_USERS))


def _is_data(name: str, value: Any) -> bool:
    """Return whether an attribute of a class is no code."""
    is_code = callable(value) or hasattr(type(value), "__get__")
    return not (is_code or (name.startswith("__") and name.endswith("__")))


def _is_numpys(value: Any, name: str) -> bool:
    if "numpy" not in sys.modules:
        return False
    numpy = sys.modules["numpy"]
    kinds = {"ndarray": numpy.ndarray, "Generator": numpy.random.Generator}
    return isinstance(value, kinds[name])


def _slots_of(kind: type) -> Iterator[str]:
    for one in kind.__mro__:
        slots = vars(one).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if isinstance(name, str) and not name.startswith("__"):
                yield name
