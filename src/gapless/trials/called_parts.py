"""What of a running script can be captured in place: the modules that it calls and the optimizers that it takes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from torch.nn.modules.module import (
    Module,
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gapless.device.torch_private import compiler_counters
from gapless.python_private import getframe


if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from torch import nn
    from torch.optim import Optimizer


def compiles() -> bool:
    """Return whether torch has compiled code of the script, which depends on hooks that there are."""
    return bool(compiler_counters()["frames"]["total"])


class CalledParts:
    """Notes the modules that the training thread calls as a whole, and the optimizers that take steps.

    Attributes:
        optimizers: in the order of their first steps.
    """

    def __init__(self) -> None:
        self.optimizers: list[Optimizer] = []
        self._modules: list[nn.Module] = []
        self._depth = 0
        self._thread = threading.get_ident()
        self._undo: list[Callable[[], None]] = []

    def start(self) -> None:
        """Begin to look."""
        # A pre-hook of steps: torch fails where a post-hook is removed while post-hooks run.
        self._undo = [
            register_module_forward_pre_hook(self._before_module).remove,
            register_module_forward_hook(self._after_module, always_call=True).remove,
            register_optimizer_step_pre_hook(self._before_step).remove,
        ]

    def stop(self) -> None:
        """Take everything out again; nothing happens if it is out."""
        while self._undo:
            self._undo.pop()()

    @property
    def modules(self) -> list[nn.Module]:
        """Those that have weights, none of them within another: target networks and frozen ones are called as well.

        Without an optimizer, as where the loop itself adds gradients to weights: those that have gradients.
        """
        found = [
            module
            for module in self._modules
            if any(self.optimizers or weight.grad is not None for weight in module.parameters())
        ]
        within = {id(part) for module in found for part in module.modules() if part is not module}
        return [module for module in found if id(module) not in within]

    def _before_module(self, module: nn.Module, args: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        self._depth += 1
        if self._depth == 1:
            called = module if next(module.children(), None) is not None else _owner_of(module)
            if not any(called is one for one in self._modules):
                self._modules.append(called)

    def _after_module(self, module: nn.Module, args: Any, result: Any) -> None:
        # Not below 0: a module that was running when this began was not counted on entry.
        if threading.get_ident() == self._thread:
            self._depth = max(0, self._depth - 1)

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not any(optimizer is one for one in self.optimizers):
            self.optimizers.append(optimizer)


def _owner_of(layer: nn.Module) -> nn.Module:
    """Return the module one of whose methods calls a layer of its own; the layer itself where there is none.

    Policies have methods such as `act` and `value` in place of `forward`; a graph of one layer alone is of no use.
    """
    frame: FrameType | None = getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_argcount and code.co_varnames[0] == "self":
            owner = frame.f_locals.get("self")
            if isinstance(owner, Module) and owner is not layer and layer in set(owner.modules()):
                return owner
        frame = frame.f_back
    return layer
