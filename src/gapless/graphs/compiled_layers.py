"""Compile the layers of what is captured, where `capture(..., compile=True)` asks for it.

Layers that repeat are compiled one by one, as torch's recipe for regional compilation does: all of a class
share the code. A module in which nothing repeats is compiled as a whole. Shapes are part of the code, or all
of them vary; what torch does by itself, first the one and then the other, would change bits with what came
before. Each piece of code is tried before it is used: both passes run on copies, and one that raises runs
uncompiled, as what the compiler fails at does, and layers whose gradients the loop may differentiate or whose
graph it may retain: compiled code saves nothing for that.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import get_ident
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gapless.device.cuda_waits import is_capturing
from gapless.device.torch_private import (
    allow_recompiles,
    compile_by_inductor,
    compile_in_place,
    compiled_or_eager,
    first_line,
    forget_compiled_call,
    is_compiled_in_place,
)
from gapless.graphs.capture_settings import warn
from gapless.graphs.modules.create_graph import CREATES, RETAINS, where_it_may_be
from gapless.graphs.proof.device_state import RandomStates
from gapless.graphs.replay.alignment import copy_of, with_strides
from gapless.python_private import getframe
from gapless.unnoticed import Patches


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gapless.device.base import Device
    from gapless.graphs.capture_report import CaptureReport


# Layers of all classes share what torch knows of `nn.Module.__call__`: by class, shape, mode and need of gradients.
_MAX_VARIANTS = 64

_CONTAINERS = (nn.ModuleList, nn.ModuleDict)

# Of others nobody knows what a copy is.
_TRIED = frozenset([torch.Tensor, nn.Parameter, nn.Buffer])

# What a backward pass may ask for that compiled code raises at. Code that keeps its graph would be another one than
# `torch.compile` makes, with other bits, and torch takes either from its cache on the disk.
_RAISES_AT = {
    CREATES: "{} may run a backward pass with create_graph=True, and compiled code is not differentiated twice",
    RETAINS: "{} may run a backward pass with retain_graph=True, and compiled code retains no graph",
}

_NO_ROOM = torch.OutOfMemoryError


@dataclass(eq=False)
class LayerCompiler:
    """Compiles the layers of one captured object, and lets go of them.

    Attributes:
        device: where the layers run.
        is_dynamic: whether code is for all shapes; if not, for each its own.
        report: is told what was compiled, and what could not be.
    """

    device: Device
    is_dynamic: bool
    report: CaptureReport
    _asked_of: list[nn.Module] = field(default_factory=list)
    _compiled: list[nn.Module] = field(default_factory=list)
    _was_called: bool = False

    @classmethod
    def of(
        cls, setting: bool | Literal["dynamic"], device: Device, report: CaptureReport
    ) -> LayerCompiler | None:
        """Return one for the setting `compile` of a capture; None if nothing is to be compiled."""
        return cls(device, setting == "dynamic", report) if setting else None

    def compile(self, module: nn.Module) -> None:
        """Let the layers of a module compile when they are called, but for those that are compiled already.

        Sync: Does not block the host. The first call of a layer does, for seconds.
        """
        allow_recompiles(_MAX_VARIANTS)
        self._asked_of.append(module)
        for layer in layers_of(module):
            if not (is_compiled_in_place(layer) or isinstance(layer, torch.jit.ScriptModule)):
                compile_in_place(layer, **self._options())
                self._compiled.append(layer)

    def compile_in_place(
        self, module: nn.Module, forward: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Let the layers of a module compile when they are called; return what to call for `forward` of it.

        In a module that is compiled as a whole the parts are compiled as well, for its other methods.
        """
        if layers_of(module) != [module]:
            self.compile(module)
            return forward
        for part in parts_of(module):
            self.compile(part)
        self._asked_of.append(module)
        return compiled_or_eager(forward, **self._options())

    def undo(self) -> None:
        """Let the layers run eagerly again."""
        for layer in self._compiled:
            forget_compiled_call(layer)
        self._compiled = []

    @contextmanager
    def in_first_call(self) -> Iterator[None]:
        """Compile the layers of the modules with weights that the first body calls, as it calls them."""
        if self._was_called:
            yield
            return
        call, thread, patches = nn.Module.__call__, get_ident(), Patches()

        def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or get_ident() != thread:
                return call(module, *args, **kwargs)
            # What it calls itself is a part of it.
            patches.take_out()
            try:
                if next(module.parameters(), None) is not None:
                    self.compile(module)
                return module(*args, **kwargs)
            finally:
                patches.put(nn.Module, "__call__", called)

        with patches:
            patches.put(nn.Module, "__call__", called)
            yield
        self._was_called = True

    def _options(self) -> dict[str, Any]:
        return {"failed": self._note, "backend": self._backend, "dynamic": self.is_dynamic}

    def _backend(self, graph: Any, inputs: list[Any]) -> Any:
        """Compile as torch does by default; what cannot be compiled, or raises when it is tried, runs eagerly."""
        # The compiler may change the graph.
        plain = graph.forward
        for asks_for, text in _RAISES_AT.items():
            for module in self._asked_of:
                site = where_it_may_be(module, getframe(1), asks_for)[0]
                if site:
                    self._note(text.format(site))
                    return plain
        started, reason = perf_counter(), ""
        try:
            found, reason = compile_by_inductor(graph, inputs)
        finally:
            self.report.compile_seconds += perf_counter() - started
        if reason:
            self._note(reason)
            return plain
        return self._tried_first(found, plain)

    def _tried_first(self, found: Callable[..., Any], plain: Callable[..., Any]) -> Any:
        """Return compiled code that is tried when it is first called."""
        chosen: Callable[..., Any] | None = None

        def run(*args: Any) -> Any:
            nonlocal chosen
            if chosen is None:
                started = perf_counter()
                reason = self._why_it_fails(found, args)
                # The backward pass is compiled when it first runs.
                self.report.compile_seconds += perf_counter() - started
                chosen = plain if reason else found
                if reason:
                    self._note(reason)
                else:
                    self.report.num_compiled += 1
            return chosen(*args)

        return run

    def _why_it_fails(self, found: Callable[..., Any], args: Sequence[Any]) -> str:
        """Run both passes of compiled code on copies; return what it raises, "" if nothing."""
        if is_capturing() or any(type(one) not in _TRIED for one in args if _is_tensor(one)):
            return ""
        random, leaves = RandomStates(self.device), list[torch.Tensor]()
        states = random.read()

        def copied(value: Any) -> Any:
            if not _is_tensor(value) or not value.requires_grad:
                return copy_of(value) if _is_tensor(value) else value
            leaves.append(value.detach().requires_grad_())
            return with_strides(leaves[-1])

        try:
            # Hooks of the loop's own count what is saved.
            with torch.autograd.graph.saved_tensors_hooks(_same, _same), suppress(_NO_ROOM):
                outs = [one for one in found(*map(copied, args)) if _is_tensor(one)]
                outs = [one for one in outs if one.requires_grad]
                if outs and leaves:
                    given = list(map(torch.zeros_like, outs))
                    torch.autograd.grad(outs, leaves, given, allow_unused=True)
        except Exception as error:
            return first_line(error)
        finally:
            random.write(states)
        return ""

    def _note(self, reason: str) -> None:
        """Say once why something runs eagerly."""
        text = f"a layer is not compiled: {reason}"
        if text not in self.report.not_compiled:
            self.report.not_compiled.append(text)
            warn(text)


def layers_of(module: nn.Module) -> list[nn.Module]:
    """Return the parts of a module that are compiled, each in one piece."""
    if isinstance(module, DistributedDataParallel):
        return layers_of(module.module)
    if isinstance(module, _CONTAINERS) or any(map(_repeats, module.modules())):
        return [layer for part in parts_of(module) for layer in layers_of(part)]
    return [module]


def parts_of(module: nn.Module) -> list[nn.Module]:
    """Return the children of a module that have children; alone, others are not worth a kernel of their own."""
    return [child for child in module.children() if next(child.children(), None) is not None]


def _repeats(module: nn.Module) -> bool:
    """Return whether a module is a list of layers of one class."""
    children = list(module.children())
    return (
        isinstance(module, nn.ModuleList | nn.Sequential)
        and len(children) > 1
        and len(set(map(type, children))) == 1
        and len(parts_of(module)) == len(children)
    )


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
