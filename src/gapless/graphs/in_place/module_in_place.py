"""Capture a module where it stands: its forward pass, and the backward pass behind it.

`module.forward` becomes a function that is kept in the module's own attributes. With gradients, a
call is a forward pass by a graph, and a node of autograd whose backward pass is a graph as well.
Without gradients it is a captured step. Everything else is a captured step's: runs as written at
first, guards on what the code reads, proof, report.
"""

from __future__ import annotations

from functools import partial, wraps
from threading import local
from types import CodeType
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn

from gapless.graphs.capture_report import CaptureReport
from gapless.graphs.in_place.captor import ATTRIBUTE, left_out
from gapless.graphs.in_place.create_graph import SecondOrder
from gapless.graphs.in_place.shared_casts import AutocastBlocks
from gapless.graphs.modules.forward_runs import Runs
from gapless.graphs.modules.gradient_paths import number_of_next_node
from gapless.graphs.modules.module_refusals import (
    COMPILED_AROUND,
    COPIED,
    SCRIPTED,
)
from gapless.graphs.modules.module_trial import ModuleTrial
from gapless.graphs.objections import (
    objection_to_modes,
    objection_to_tensors,
    objection_to_transforms,
)
from gapless.graphs.quick_call import NOT_ALIKE
from gapless.graphs.refusal import Refusal
from gapless.graphs.sharded import refusal_of_module
from gapless.graphs.side_stream import SideStream
from gapless.graphs.step_call import is_within_a_step, work_of
from gapless.pipeline.tree.call_tree import CallTrees
from gapless.python_private import getframe


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from gapless.graphs.capture_settings import CaptureSettings
    from gapless.graphs.captured_step import CapturedStep
    from gapless.graphs.fast_path import FastPath
    from gapless.pipeline.tree.flatten import Tree

    _Kind: TypeAlias = tuple[Hashable, tuple[bool, ...] | None]


# What stands in a module's attributes while it is captured, beside its captor.
_FORWARD, _STATE = "forward", "__getstate__"

# Torch's own code that calls `forward` of the module that it is in.
_CALLERS = {
    nn.Module._call_impl.__code__,
    nn.Module._slow_forward.__code__,
    *(one for one in nn.Module._call_impl.__code__.co_consts if isinstance(one, CodeType)),
}


class ModuleInPlace:
    """Runs the calls of one module as graphs.

    Attributes:
        kind_of_call: what an integration knows of the call of now. Calls of different kinds share
            no graph, and one kind is no change of another.
        autocast: knows which calls within a block of autocast run as written.
    """

    def __init__(self, module: nn.Module, settings: CaptureSettings) -> None:
        self.target = module
        self.settings = settings
        self._report = CaptureReport(rates=settings.rates)
        self._is_traced = False
        self._side = SideStream(settings.device)
        self._trees = CallTrees()
        # Of training and evaluation together.
        self._limits = settings.limits()
        self._runs = Runs(
            module,
            device=settings.device,
            host_waits=settings.new_host_waits(),
            side=self._side,
            report=self._report,
        )
        self._own: Any = None
        self._of_class: Any = None
        self._forward: Callable[..., Any] | None = None
        self._state: Callable[..., Any] | None = None
        self.autocast = AutocastBlocks(settings.device.torch_device.type, refuse=self._refuse)
        self.kind_of_call: Callable[[], Hashable] = lambda: None
        # By kind, and by which tensors among the arguments need gradients; None: no gradients at all.
        self._steps: dict[_Kind, CapturedStep] = {}
        # By kind of call.
        self._newest: dict[Hashable, FastPath] = {}
        # The call of now, in each thread.
        self._now = local()
        self._second_order = SecondOrder(module, self._report)
        refusal = SCRIPTED if _is_scripted(module) else refusal_of_module(module)
        self._is_never_captured = settings.forbid(self.report, refusal, type(module).__name__)

    @property
    def report(self) -> CaptureReport:
        """What is captured, and what is not."""
        if self._is_traced:
            self._report.refuse(COMPILED_AROUND)
        return self._report

    __reduce__ = left_out

    # --- in the module ---

    def attach(self) -> None:
        """Let `module.forward()` come here, unless it is code of torch.jit."""
        if _is_scripted(self.target):
            return
        kept = vars(self.target)
        self._own = kept.get(_FORWARD)
        self._runs.forward = self.target.forward
        self._of_class = type(self.target).forward

        @wraps(self._runs.forward)
        def forward(*args: Any, **kwargs: Any) -> Any:
            if type(self.target).forward is not self._of_class and self._own is None:
                self._take_other_forward()
            # The compiler cannot follow what comes after.
            if torch.compiler.is_compiling():
                self._is_traced = True
                return self._runs.forward(*args, **kwargs)
            called = _called_module()
            # A copy of all attributes, and not just this `forward` as its own.
            is_copy = called is not None and vars(called).get(ATTRIBUTE) is self
            if called is not None and called is not self.target and is_copy:
                return self._call_copy(called, args, kwargs)
            return self.call(args, kwargs)

        self._forward = kept[_FORWARD] = forward
        self._state = kept[_STATE] = self._state_as_written

    @property
    def is_called(self) -> bool:
        """Whether `module.forward()` still comes here first."""
        return self._forward is not None and vars(self.target).get(_FORWARD) is self._forward

    def detach(self) -> None:
        """Let `module.forward()` be what it was."""
        kept = vars(self.target)
        if self.is_called:
            del kept[_FORWARD]
            if self._own is not None:
                kept[_FORWARD] = self._own
        if self._state is not None and kept.get(_STATE) is self._state:
            del kept[_STATE]
        # Whoever still holds `forward` runs the module as written.
        self._is_never_captured = True
        self._forget()

    def _take_other_forward(self) -> None:
        """Let calls be those of the class's `forward` of now: it, or the class, is another one."""
        kept = vars(self.target)
        ours = kept.pop(_FORWARD)
        try:
            self._of_class = type(self.target).forward
            self._runs.forward = self.target.forward
        finally:
            kept[_FORWARD] = ours
        self._forget()

    def _call_copy(self, copy: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call an object that was given the module's attributes, as it would be without a capture."""
        self._refuse(COPIED)
        as_written = self._own or partial(type(copy).forward, copy)
        return as_written(*args, **kwargs)

    def _forget(self) -> None:
        for step in self._steps.values():
            step.forget()
        self._steps, self._newest = {}, {}

    def _state_as_written(self) -> Any:
        """Return the module's state for copies and files, as it would be without a capture."""
        kept = vars(self.target)
        ours = {_FORWARD: self._forward, _STATE: self._state, ATTRIBUTE: self}
        removed = {name: kept.pop(name) for name, value in ours.items() if kept.get(name) is value}
        try:
            if self._own is not None and _FORWARD in removed:
                kept[_FORWARD] = self._own
            state = self.target.__getstate__()
            return dict(state) if state is kept else state
        finally:
            kept.update(removed)

    # --- calls ---

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the module, by a graph if there is or can be one; return what it returns.

        Sync: Does not block the host, except where a graph is captured ("capture"), and where
            the module does so itself.
        """
        if self._must_run_as_written():
            self.report.num_eager += 1
            since = number_of_next_node()
            out = self._runs.as_written(args, kwargs)
            self.autocast.end_as_written(out, since=since)
            return out
        kind = self.kind_of_call()
        newest = self._newest.get(kind)
        quick_call = None if newest is None else newest.call
        if quick_call is not None:
            out = quick_call(args, kwargs)
            if out is not NOT_ALIKE:
                return out
        tree = self._trees.of(args, kwargs)
        if torch.is_grad_enabled():
            if self._second_order.is_asked and self._second_order.is_due():
                self.report.num_eager += 1
                out = self._runs.as_written(args, kwargs)
                self.settings.tell(self.report, type(self.target).__name__)
                return out
            step = self._step_for(kind, tuple([leaf.requires_grad for leaf in tree.leaves]))
            if not self._runs.is_free():
                self.report.refuse(_SECOND_FORWARD)
        else:
            step = self._step_for(kind, None)
        self._newest[kind], self._now.tree = step.fast_path, tree
        has_grad = torch.is_grad_enabled()
        try:
            done = step.run(tree)
        finally:
            del self._now.tree
        if done.way != "replay":
            if torch.is_grad_enabled() is not has_grad:
                self._is_never_captured = True
                self.report.refuse(_SETS_GRAD_MODE)
            self.report.kinds.add(tree)
            self.settings.tell(self.report, type(self.target).__name__)
        return done.out

    def _must_run_as_written(self) -> bool:
        if self._is_never_captured or is_within_a_step():
            return True
        objection = objection_to_transforms()
        if objection is not None:
            self._refuse(objection)
            return True
        return self.autocast.begin_call()

    def _step_for(self, kind: Hashable, needs_grad: tuple[bool, ...] | None) -> CapturedStep:
        """Return what captures calls of a kind.

        Args:
            kind: of the calls.
            needs_grad: which tensors among the arguments need gradients; None: there are none at all.
        """
        step = self._steps.get((kind, needs_grad))
        if step is not None:
            return step
        forward = self._runs.forward
        options: dict[str, Any] = {"work": work_of(forward)}
        if needs_grad is not None:
            trial = partial(
                ModuleTrial,
                self._runs,
                needs_grad=needs_grad,
                may_be_differentiated=self._second_order.is_due,
            )
            options = {
                "work": lambda _: made.learning.trial.seen.observed(self._now.tree),
                "plain_work": lambda call: self._runs.as_written(call.args, call.kwargs),
                "make_trial": trial,
                "objection": self._objection,
                "chooses_stream": True,
            }
        made: Any = self.settings.wrap(
            forward,
            self._side,
            limits=self._limits,
            report=self.report,
            compares_replays=self.settings.compares_replays,
            **options,
        )
        self._steps[kind, needs_grad] = made
        return self._steps[kind, needs_grad]

    def _refuse(self, refusal: Refusal) -> None:
        self.settings.refuse(self.report, refusal, type(self.target).__name__)

    def _objection(self, tree: Tree) -> Refusal | None:
        """Return why no graph can take a call with gradients, None if one can."""
        return (
            objection_to_tensors(tree, needs_copy=self.settings.device.needs_copy)
            or objection_to_modes()
            or _objection_to_hooks()
        )


def _called_module() -> nn.Module | None:
    """Return the module whose `forward` is called; None if that is not torch's own call of a module."""
    frame = getframe(2)
    return frame.f_locals.get("self") if frame.f_code in _CALLERS else None


def _is_scripted(module: nn.Module) -> bool:
    return isinstance(module, torch.jit.ScriptModule)


def _objection_to_hooks() -> Refusal | None:
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    if top is None or top(True) is None:
        return None
    return Refusal(
        "hook",
        "the module is called inside saved-tensor hooks, such as those of torch.utils.checkpoint, "
        "which see tensors that a replay does not save; leave them before the call",
        name="saved-tensor hooks",
        is_of_call=True,
    )


_SECOND_FORWARD = Refusal(
    "second_forward",
    "a forward pass came before the backward pass of the one before (or its loss is still held "
    "with its graph), whose activations a replay would overwrite: it runs as written; capture the "
    "whole step, or let go of the loss",
    name="a second forward pass",
)
_SETS_GRAD_MODE = Refusal(
    "host_write",
    "the module leaves torch.set_grad_enabled otherwise than it finds it, which a replay would not "
    "do; use it as a context",
    name="torch.set_grad_enabled",
)
