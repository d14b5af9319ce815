"""Capture a module where it stands: its forward pass and other methods, and the backward passes behind them.

`module.forward` becomes a function that is kept in the module's own attributes, and so do the methods
of its class (`gapless.graphs.in_place.method_in_place`). What becomes of their calls is said in
`gapless.graphs.in_place.module_calls`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial, wraps
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gapless.graphs.capture_report import summed
from gapless.graphs.capture_settings import warn
from gapless.graphs.compiled_layers import LayerCompiler
from gapless.graphs.in_place.captor import ATTRIBUTE, captor_of, left_out, set_captor
from gapless.graphs.in_place.first_calls import FIRST_CALLS
from gapless.graphs.in_place.method_in_place import MethodInPlace, methods_of
from gapless.graphs.in_place.module_calls import ModuleCalls
from gapless.graphs.in_place.parts_to_capture import parts_to_capture
from gapless.graphs.modules.module_refusals import COPIED, SCRIPTED
from gapless.graphs.sharded import refusal_of_module
from gapless.graphs.side_stream import SideStream
from gapless.python_private import getframe


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from gapless.graphs.capture_report import CaptureReport
    from gapless.graphs.capture_settings import CaptureSettings
    from gapless.graphs.graph_limits import GraphLimits
    from gapless.graphs.in_place.shared_casts import AutocastBlocks


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
        limits: of all graphs together: of training and evaluation, of all methods.
        kind_of_call: what an integration knows of the call of now. Calls of different kinds share
            no graph, and one kind is no change of another.
        parts: captured in the place of the module, as the loop calls them, or as it cannot be captured.
        is_awaited: whether the next call is to be known: see `FirstCalls`.
        is_listener: whether calls run as written, and only `was_called` is to be known.
        num_steps_before: steps of optimizers before the first call.
    """

    def __init__(
        self, module: nn.Module, settings: CaptureSettings, *, limits: GraphLimits | None = None
    ) -> None:
        self.target = module
        self.settings = settings
        self.side = SideStream(settings.device)
        self.limits = settings.limits() if limits is None else limits
        self.kind_of_call: Callable[[], Hashable] = lambda: None
        self.parts: list[ModuleInPlace] = []
        self._listeners: list[ModuleInPlace] = []
        self.is_awaited = self.is_listener = self.was_called = False
        self.num_steps_before = 0
        self._calls = ModuleCalls(
            self,
            module.forward,
            type(module).__name__,
            let_go=self._leave_alone,
            give_way=self._give_way,
        )
        self._own: Any = None
        self._of_class: Any = None
        self._forward: Callable[..., Any] | None = None
        self._state: Callable[..., Any] | None = None
        self._methods: dict[str, MethodInPlace] = {}
        self._layers = LayerCompiler.of(settings.compile, settings.device, self._calls.report)
        refusal = SCRIPTED if _is_scripted(module) else refusal_of_module(module)
        name = type(module).__name__
        self._calls.is_never_captured = settings.forbid(self._calls.report, refusal, name)

    @property
    def autocast(self) -> AutocastBlocks:
        """What knows which calls within a block of autocast run as written."""
        return self._calls.autocast

    @property
    def report(self) -> CaptureReport:
        """What is captured, and what is not: of all methods, and of parts that the loop calls."""
        methods = [method.calls for method in self._methods.values()]
        others = [one.report for one in (*methods, *self.parts) if one is not None]
        return summed([self._calls.report, *others]) if others else self._calls.report

    @property
    def is_capturing(self) -> bool:
        """Whether calls may be captured at all."""
        return not self._calls.is_never_captured

    __reduce__ = left_out

    # --- in the module ---

    def attach(self) -> None:
        """Let `module.forward()` come here, unless it is code of torch.jit."""
        if _is_scripted(self.target):
            return
        kept = vars(self.target)
        self._own = kept.get(_FORWARD)
        self._calls.runs.forward = self._with_layers_compiled(self.target.forward)
        self._of_class = type(self.target).forward

        @wraps(self.target.forward)
        def forward(*args: Any, **kwargs: Any) -> Any:
            if type(self.target).forward is not self._of_class and self._own is None:
                self._take_other_forward()
            # The compiler cannot follow what comes after.
            if torch.compiler.is_compiling():
                self._calls.is_traced = self.was_called = True
                return self._calls.runs.forward(*args, **kwargs)
            called = _called_module()
            # A copy of all attributes, and not just this `forward` as its own.
            is_copy = called is not None and vars(called).get(ATTRIBUTE) is self
            if called is not None and called is not self.target and is_copy:
                return self._call_copy(called, args, kwargs)
            return self._calls.call(args, kwargs)

        self._forward = kept[_FORWARD] = forward
        self._state = kept[_STATE] = self._state_as_written
        if not self._calls.is_never_captured:
            self._methods = {name: MethodInPlace(self, name) for name in methods_of(self.target)}
            kept.update({name: method.bound for name, method in self._methods.items()})

    @property
    def is_called(self) -> bool:
        """Whether `module.forward()` still comes here first."""
        return self._forward is not None and vars(self.target).get(_FORWARD) is self._forward

    def _leave_alone(self) -> None:
        """Let all calls be as they were, unless other methods are captured; the report stays."""
        if all(method.calls is None for method in self._methods.values()):
            for name, method in self._methods.items():
                if vars(self.target).get(name) is method.bound:
                    del vars(self.target)[name]
            self._put_back()
            self._calls.forget()

    def _put_back(self) -> None:
        kept = vars(self.target)
        if self.is_called:
            del kept[_FORWARD]
            if self._own is not None:
                kept[_FORWARD] = self._own

    def detach(self) -> None:
        """Let `module.forward()` be what it was."""
        kept = vars(self.target)
        self._put_back()
        if self._state is not None and kept.get(_STATE) is self._state:
            del kept[_STATE]
        if self._layers is not None:
            self._layers.undo()
        # Whoever still holds `forward` runs the module as written.
        self._calls.is_never_captured = True
        self._calls.forget()
        for name, method in self._methods.items():
            if kept.get(name) is method.bound:
                del kept[name]
            method.forget()
        FIRST_CALLS.wait_no_more(self)
        for part in self.parts:
            part.let_go()

    def tell_not_called(self, text: str) -> None:
        """Warn the user that nothing of the module is called."""
        self._calls.report.note = text
        if self.settings.is_told:
            warn(f"{self._calls.name} is not captured: {text}")

    # --- children that are called in its place ---

    def listen(self) -> None:
        """Hear of the calls of all parts that nobody has captured."""
        for part in self.target.modules():
            is_apart = captor_of(part) is None and not _is_scripted(part)
            if is_apart and next(part.parameters(), None) is not None:
                listener = ModuleInPlace(part, replace(self.settings, compile=False))
                listener.is_listener = listener.is_awaited = True
                listener.attach()
                set_captor(part, listener)
                self._listeners.append(listener)

    def capture_called_parts(self) -> None:
        """Capture the parts that were called, none of them within another."""
        called = [one.target for one in self._listeners if one.was_called]
        within = {id(part) for one in called for part in one.modules() if part is not one}
        self.parts = [
            one for one in self._listeners if one.was_called and id(one.target) not in within
        ]
        for part in self.parts:
            part.is_listener = part.is_awaited = False
        self.listen_no_more()

    def listen_no_more(self) -> None:
        """Leave parts alone, but for those that are captured."""
        for one in self._listeners:
            if one.is_listener:
                one.let_go()
        self._listeners = []

    def _give_way(self) -> None:
        """Capture parts of the module in its place, if no other method of it is captured."""
        settings, report = self.settings, self._calls.report
        is_alone = all(method.calls is None for method in self._methods.values())
        if not (settings.gives_way and settings.on_refusal == "eager" and is_alone):
            return
        found = parts_to_capture(self.target, report.refusals)
        free = {name: part for name, part in found.items() if captor_of(part) is None}
        in_autocast = torch.is_autocast_enabled(settings.device.torch_device.type)
        if not free or self._layers is not None or in_autocast:
            return
        # The module's own capture goes first: within its calls parts run as written.
        self._leave_alone()
        report.in_its_place = list(free)
        for part in free.values():
            captor = ModuleInPlace(part, settings, limits=self.limits)
            captor.kind_of_call = lambda: self.kind_of_call()
            # The module's own code may use weights of a part in the same block, now or later.
            captor.autocast.may_be_captured = False
            captor.attach()
            set_captor(part, captor)
            self.parts.append(captor)
        FIRST_CALLS.wait_for(self.parts, has_optimizer=False)

    def let_go(self) -> None:
        """Leave the module as it was, unless something else has captured it."""
        if captor_of(self.target) is self:
            self.detach()
            set_captor(self.target, None)

    def _take_other_forward(self) -> None:
        """Let calls be those of the class's `forward` of now: it, or the class, is another one."""
        kept = vars(self.target)
        ours = kept.pop(_FORWARD)
        try:
            self._of_class = type(self.target).forward
            self._calls.take(self._with_layers_compiled(self.target.forward))
        finally:
            kept[_FORWARD] = ours

    def _with_layers_compiled(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return what to call for the module's `forward`, with its layers compiled if that is asked for."""
        if self._layers is None:
            return forward
        return self._layers.compile_in_place(self.target, forward)

    def _call_copy(self, copy: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call an object that was given the module's attributes, as it would be without a capture."""
        self._calls.refuse(COPIED)
        for name, method in self._methods.items():
            # Bound to the original.
            if vars(copy).get(name) is method.bound:
                del vars(copy)[name]
        as_written = self._own or partial(type(copy).forward, copy)
        return as_written(*args, **kwargs)

    def _state_as_written(self) -> Any:
        """Return the module's state for copies and files, as it would be without a capture."""
        kept = vars(self.target)
        ours = {_FORWARD: self._forward, _STATE: self._state, ATTRIBUTE: self}
        ours |= {name: method.bound for name, method in self._methods.items()}
        removed = {name: kept.pop(name) for name, value in ours.items() if kept.get(name) is value}
        try:
            if self._own is not None and _FORWARD in removed:
                kept[_FORWARD] = self._own
            state = self.target.__getstate__()
            return dict(state) if state is kept else state
        finally:
            kept.update(removed)


def _called_module() -> nn.Module | None:
    """Return the module whose `forward` is called; None if that is not torch's own call of a module."""
    frame = getframe(2)
    return frame.f_locals.get("self") if frame.f_code in _CALLERS else None


def _is_scripted(module: nn.Module) -> bool:
    return isinstance(module, torch.jit.ScriptModule)
