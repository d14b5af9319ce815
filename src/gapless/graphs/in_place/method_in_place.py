"""Another method than `forward` of a captured module: if the loop calls it, its calls are graphs.

It stands in the module's own attributes, before that of its class. The first calls from outside run as written
and show whether they are work on the device, and alike. Calls from within a captured call are a part of that.
"""

from __future__ import annotations

import inspect
from functools import wraps
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gapless.graphs.in_place.module_calls import ModuleCalls
from gapless.graphs.replay.versions import version_of
from gapless.graphs.step_call import DEPTH
from gapless.pipeline.tree.call_tree import CallTrees


if TYPE_CHECKING:
    from collections.abc import Iterator

    from gapless.graphs.in_place.captor import CaptorOfModule


# Methods of these classes, and a user's in their place, are the frameworks' to call.
_FRAMEWORKS = (
    "torch.", "lightning.", "lightning_fabric.", "pytorch_lightning.", "peft.", "transformers."
)  # fmt: skip

# Calls of which no two have the same structure.
_MANY_UNLIKE = 4


class MethodInPlace:
    """Runs the calls of one method as graphs.

    Attributes:
        bound: what stands in the module's attributes.
        calls: as graphs; None as long as no second call has come that may be one.
    """

    def __init__(self, captor: CaptorOfModule, name: str) -> None:
        self.calls: ModuleCalls | None = None
        self._captor, self._name = captor, name
        self._of_class = getattr(type(captor.target), name)
        self._structures: set[int] = set()
        # Calls run as written, and what they call may be captured.
        self._is_out = False

        @wraps(self._of_class)
        def method(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or DEPTH.depth:
                return getattr(type(module), name)(module, *args, **kwargs)
            return self._call(args, kwargs)

        self.bound = MethodType(method, captor.target)

    def forget(self) -> None:
        """Let go of all graphs; whoever still holds the method runs it as written."""
        self._is_out = True
        if self.calls is not None:
            self.calls.forget()

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        kind = type(self._captor.target)
        if getattr(kind, self._name) is not self._of_class:
            self._of_class = getattr(kind, self._name)
            if self.calls is not None:
                self.calls.take(self._as_written)
        if self._is_out:
            if self.calls is not None:
                self.calls.report.num_eager += 1
            return self._as_written(*args, **kwargs)
        if self.calls is None:
            structure = hash(CallTrees().of(args, kwargs).structure())
            if structure not in self._structures:
                self._structures.add(structure)
                return self._first_call(args, kwargs)
            self.calls = ModuleCalls(
                self._captor,
                self._as_written,
                f"{kind.__name__}.{self._name}",
                let_go=self._leave_alone,
            )
            self.calls.report.num_eager = len(self._structures)
            self.calls.autocast.may_be_captured = self._captor.autocast.may_be_captured
        out = self.calls.call(args, kwargs)
        self._is_out = self.calls.is_refused
        return out

    def _leave_alone(self) -> None:
        """Let calls be as they were; the report stays."""
        self.forget()
        if vars(self._captor.target).get(self._name) is self.bound:
            del vars(self._captor.target)[self._name]

    @property
    def _as_written(self) -> Any:
        return MethodType(self._of_class, self._captor.target)

    def _first_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call as written, and see whether it works where the weights are, and trains nothing."""
        module = self._captor.target
        before, given = _training_state(module), CallTrees().of(args, kwargs).leaves
        held = _held(module, given)
        out = self._as_written(*args, **kwargs)
        weights = {id(weight): weight for weight in (*module.parameters(), *module.buffers())}
        devices = {weight.device for weight in weights.values()}
        found = CallTrees().of((out,), {}).leaves
        # One that changes nothing, such as `reset` of a policy without a state, launches nothing.
        found += [] if held == _held(module, given) else given
        is_work = before == _training_state(module) and any(
            id(leaf) not in weights and leaf.device in devices for leaf in found
        )
        # A number among the arguments may be another in each call, such as that of a batch.
        self._is_out = not is_work or len(self._structures) == _MANY_UNLIKE
        return out


def _training_state(module: nn.Module) -> list[Any]:
    """Return what is another after a backward pass or an update."""
    return [
        (
            version_of(weight),
            weight.grad is not None and (id(weight.grad), version_of(weight.grad)),
        )
        for weight in module.parameters()
    ]


def _held(module: nn.Module, given: list[torch.Tensor]) -> list[Any]:
    """Return what is another after a method that changes its arguments, buffers or attributes."""
    tensors = [*given, *module.buffers()]
    held = [value for part in module.modules() for value in vars(part).values()]
    return [*map(version_of, tensors), *map(id, held)]


def methods_of(module: nn.Module) -> Iterator[str]:
    """Yield the names of methods that a user's class has, and no framework calls."""
    bases = type(module).__mro__
    theirs = [kind for kind in bases if f"{kind.__module__}.".startswith(_FRAMEWORKS)]
    names = {name: value for kind in reversed(bases) for name, value in vars(kind).items()}
    for name, value in names.items():
        is_theirs = any(hasattr(kind, name) for kind in theirs)
        if type(value) is FunctionType and not (name.startswith("_") or is_theirs):
            is_work = not any(ask(inspect.unwrap(value)) for ask in _RUNS_LATER)
            if is_work and name not in vars(module):
                yield name


_RUNS_LATER = (
    inspect.isgeneratorfunction,
    inspect.iscoroutinefunction,
    inspect.isasyncgenfunction,
)
