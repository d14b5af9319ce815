"""Says when a step of a script ends: hooks on what scripts call once a step."""

from __future__ import annotations

import sys
import threading
from functools import partial, wraps
from inspect import getattr_static
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from gapless.device.torch_gpu import call_after_replays, graph_class
from gapless.device.torch_private import RUN_BACKWARD, LoaderIterator, current_node, dataset_of
from gapless.doctor.watching.step_source import Caller, StepSource
from gapless.python_private import getframe
from gapless.unnoticed import Patches, is_of_signal_handler, unseen


if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.utils.hooks import RemovableHandle

# How far above a hook the step of a class is looked for that calls the step of its base.
_FRAMES = 8


class StepHooks:
    """Tells of the end of every step, in the thread that trains.

    The hooks change nothing, and `remove` removes them.

    Args:
        source: decides which calls are steps.
        on_step: called at the end of a step.
    """

    def __init__(self, source: StepSource, *, on_step: Callable[[], None]) -> None:
        self._source = source
        self._on_step = on_step
        self._is_in = False
        self._patches = Patches()
        self._optimizer_hook: RemovableHandle | None = None
        self._replay_hook: RemovableHandle | None = None
        self._is_in_optimizer_hook = False

    def install(self) -> None:
        """Put the hooks in. If that fails, nothing is left behind."""
        try:
            self._put_in()
        except BaseException:
            self.remove()
            raise

    def _put_in(self) -> None:
        self._is_in = True
        self._optimizer_hook = register_optimizer_step_post_hook(self._after_optimizer)
        if LoaderIterator is not None:
            self._patches.put_method(LoaderIterator, "__next__", self._loader_next)
        # Below `torch.autograd.backward`: replaced itself, it could not be pickled for other processes.
        if RUN_BACKWARD.is_there:
            tell = partial(self._called, Caller("backward", "backward"))
            self._patches.put(*RUN_BACKWARD, telling_backward(RUN_BACKWARD.value, tell))
        caller = Caller("replay", "CUDAGraph.replay")
        self._replay_hook = call_after_replays(partial(self._called, caller))
        graphs = graph_class()
        if graphs is not None and self._replay_hook is None:
            self._patches.put_method(graphs, "replay", self._counted(caller))

    def remove(self) -> None:
        """Take the hooks out; nothing happens if they are out.

        Within the hook of an optimizer that hook stays, and does nothing: torch is iterating over its
        hooks, and fails where one is removed. Call this again later.
        """
        self._is_in = False
        if self._optimizer_hook is not None and not self._is_in_optimizer_hook:
            self._optimizer_hook.remove()
            self._optimizer_hook = None
        if self._replay_hook is not None:
            self._replay_hook.remove()
            self._replay_hook = None
        self._patches.take_out()

    def step(self) -> None:
        """Note that the script itself has said that a step has ended."""
        self._called(Caller("call", "gapless.doctor.step"))

    def optimizer_called(self, optimizer: Any) -> None:
        """Note a step of an optimizer for which torch calls no hooks."""
        name = f"{type(optimizer).__name__}.step"
        self._called(Caller("optimizer", name, id(optimizer)))

    def _called(self, caller: Caller) -> None:
        if self._is_in and not _is_within_backward():
            self._look_for_function()
            if self._source.called(caller):
                self._on_step()

    def _after_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._is_in or torch.compiler.is_compiling():
            return
        if _is_called_by_another_step(optimizer):
            return
        self._is_in_optimizer_hook = True
        try:
            self.optimizer_called(optimizer)
        finally:
            self._is_in_optimizer_hook = False

    def _loader_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def next_batch(iterator: Any) -> Any:
            with unseen:
                batch = original(iterator)
                if self._is_in:
                    self._called(Caller("loader", "DataLoader", id(dataset_of(iterator))))
                return batch

        return next_batch

    def _counted(self, caller: Caller) -> Callable[[Callable[..., Any]], Any]:
        def counted(original: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(original)
            def call(*args: Any, **kwargs: Any) -> Any:
                with unseen:
                    result = original(*args, **kwargs)
                    self._called(caller)
                    return result

            return call

        return counted

    def _look_for_function(self) -> None:
        """Count the calls of the function that was asked for, once the script has defined it."""
        asked = self._source.asked
        if asked in _KINDS or any(one.kind == "function" for one in self._source.calls):
            return
        try:
            owner, name = _owner_of(asked)
            function = getattr(owner, name, None)
            is_function = callable(function) and not isinstance(function, type)
            if is_function and not getattr(function, "is_counted_by_the_doctor", False):
                self._count(owner, name, function)
        except Exception as error:  # of a property, or of a class that nobody can change
            if is_of_signal_handler(error):
                raise

    def _count(self, owner: Any, name: str, function: Any) -> None:
        counted: Any = self._counted(Caller("function", self._source.asked))(function)
        counted.is_counted_by_the_doctor = True
        is_static = isinstance(getattr_static(owner, name, None), staticmethod)
        self._patches.put(owner, name, staticmethod(counted) if is_static else counted)


def telling_backward(original: Callable[..., Any], tell: Callable[[], None]) -> Callable[..., Any]:
    """Return a function that runs backward passes, and tells of those of `torch.autograd.backward`."""
    of_backward = torch.autograd.backward.__code__

    @wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        with unseen:
            result = original(*args, **kwargs)
            # A pass that times backward passes may stand between.
            if of_backward in (getframe(1).f_code, getframe(2).f_code):
                tell()
            return result

    return run


_KINDS = ("auto", "optimizer", "loader")


def _owner_of(dotted: str) -> tuple[Any, str]:
    """Return the module or class that holds a function, or would; None for one that is not there."""
    path, _, name = dotted.replace(":", ".").rpartition(".")
    if not path:
        return sys.modules["__main__"], name
    if path in sys.modules:
        return sys.modules[path], name
    owner, last = _owner_of(path)
    return getattr(owner, last, None), name


def _is_within_backward() -> bool:
    """Whether a backward pass calls this in a thread of its own, where no pass can begin."""
    if threading.current_thread() is threading.main_thread():
        return False
    return current_node() is not None


def _is_called_by_another_step(optimizer: Optimizer) -> bool:
    """Whether the step of a derived class has called that of its base: there is one more to come."""
    hooked = getframe(2)
    frame = hooked.f_back
    for _ in range(_FRAMES):
        if frame is None:
            return False
        if frame.f_code is hooked.f_code and frame.f_locals.get("self") is optimizer:
            return True
        frame = frame.f_back
    return False
