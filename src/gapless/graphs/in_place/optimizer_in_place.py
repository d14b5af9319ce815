"""Capture the `step` of an optimizer where it stands.

`optimizer.step` becomes a method of the same form, kept in the optimizer's own attributes. A call of
it is a call of a captured step whose batch are the gradients: a replay copies them into the graph's
memory, and the weights keep the gradients that they have. Everything else is a captured step's:
runs as written at first, guards on rates, weights and state, proof, report.

Of torch's own optimizers a graph holds those whose update has the same bits there
(`gapless.graphs.updates.update_outside`); one that counts on the host, or whose rate a schedule changes, is cut
where that is taken (`gapless.graphs.updates.rate_outside`). The step of a user's own optimizer is captured as
any code of the user is: what it reads from Python is guarded, and what it changes in Python refuses it.

As written run: calls with hooks, calls within a captured step, which are a part of that, closures of
optimizers that call one more than once, and what no graph can take, such as sparse gradients.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch

from gapless.graphs.call_windows import CallWindows
from gapless.graphs.in_place.captor import captor_of, left_out
from gapless.graphs.in_place.first_calls import FIRST_CALLS
from gapless.graphs.modules.module_refusals import COMPILED_AROUND
from gapless.graphs.quick_call import NOT_ALIKE
from gapless.graphs.reads.code_kinds import CodeKind, kind_of
from gapless.graphs.refusal import Refusal
from gapless.graphs.sharded import refusal_of_weights
from gapless.graphs.side_stream import SideStream
from gapless.graphs.step_call import is_within_a_step, within_a_step
from gapless.graphs.updates.step_replaced import is_step_of_the_class, method_in_place_of
from gapless.graphs.updates.update_rules import (
    CALL_A_CLOSURE_ONCE,
    OF_A_SCALER,
    closure_of,
    gradients_replaced,
    has_hooks,
    name_of,
    weights_of,
)
from gapless.pipeline.tree.call_tree import CallTrees


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch.optim import Optimizer

    from gapless.graphs.capture_report import CaptureReport
    from gapless.graphs.capture_settings import CaptureSettings
    from gapless.pipeline.step import Call


_gradient_of = attrgetter("grad")

_SCALE, _FOUND_INF = OF_A_SCALER


class OptimizerInPlace:
    """Runs the steps of one optimizer as graphs.

    Attributes:
        is_traced: whether torch.compile has compiled a step of it.
    """

    def __init__(self, optimizer: Optimizer, settings: CaptureSettings) -> None:
        self.target = optimizer
        self.settings = settings
        self._side = SideStream(settings.device)
        self._trees = CallTrees()
        # What stands in the place of `step`, and what stood there.
        self._method: Any = None
        self._own: Any = None
        self._as_written: Callable[..., Any] = optimizer.step
        self._is_running = False
        self.is_traced = False
        self._code = _code_of_user(optimizer)
        self._limits = settings.limits()
        self._captured = settings.wrap(
            optimizer.step if self._code is None else self._code,
            self._side,
            limits=self._limits,
            work=self._work,
            is_update=True,
        )
        self._windows = CallWindows(
            settings.device,
            self._captured.callee.account,
            self.report,
            has_room=self._limits.have_room,
            captured=self._step,
            as_written=lambda args, kwargs: self._as_written(*args, **kwargs),
            step=lambda: self._captured,
            let_go=self._leave_alone,
        )
        self._fast_path = self._captured.fast_path
        self._is_never_captured = settings.forbid(
            self.report, refusal_of_weights(weights_of(optimizer)), type(optimizer).__name__
        )

    @property
    def report(self) -> CaptureReport:
        """What is captured, and what is not."""
        if self.is_traced:
            self._captured.report.refuse(COMPILED_AROUND)
        return self._captured.report

    __reduce__ = left_out

    # --- in the optimizer ---

    def attach(self) -> None:
        """Let `optimizer.step()` come here."""
        optimizer = self.target
        self._own = vars(optimizer).get("step")
        self._as_written = optimizer.step
        self._method = _method_for(optimizer)
        vars(optimizer)["step"] = self._method

    def detach(self) -> None:
        """Let `optimizer.step()` be what it was."""
        # Otherwise a scheduler has wrapped it, and it finds nothing here from now on.
        self._put_back()
        self._captured.forget()

    def _put_back(self) -> bool:
        kept = vars(self.target)
        if kept.get("step") is not self._method:
            return False
        if self._own is None:
            del kept["step"]
        else:
            kept["step"] = self._own
        return True

    def _leave_alone(self) -> None:
        """Let all steps be as they were; the report stays."""
        if self._put_back():
            self._captured.forget()

    # --- calls ---

    def step(self, as_written: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Do a step, by a graph if there is or can be one; return what it returns.

        Sync: Does not block the host, except where a graph is captured ("capture"), and where
            the step does so itself.
        """
        self._as_written = as_written
        if self._is_running:  # called by `_work`
            return as_written(*args, **kwargs)
        if self._is_never_captured or is_within_a_step():
            self.report.num_eager += 1
            return as_written(*args, **kwargs)
        if FIRST_CALLS.is_waiting:
            FIRST_CALLS.note_step()
        if self._windows.is_on:
            return self._windows.call(None, args, kwargs)
        return self._step(args, kwargs)

    def _step(self, args: Any, kwargs: Any) -> Any:
        as_written = self._as_written
        objection = self._objection_to_call(args, kwargs)
        if objection is not None or self._captured.is_refused:
            return self._run_as_written(objection, partial(as_written, *args, **kwargs))
        return self._after_closure(self._update_by_graph, args, kwargs)

    def _after_closure(self, update: Callable[[], None], args: Any, kwargs: Any) -> Any:
        """Call the closure of a step, if there is one, and update; return its loss."""
        closure = closure_of(args, kwargs)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        update()
        return loss

    def _objection_to_call(self, args: Any, kwargs: Any) -> str | None:
        """Return why no graph can take a call, None if one can."""
        optimizer = self.target
        if has_hooks(optimizer):
            return "has hooks, which a replay would skip; let the loop do what they do"
        closure = closure_of(args, kwargs)
        if closure is not None and type(optimizer) not in CALL_A_CLOSURE_ONCE:
            return "takes a closure, which it may call more than once"
        if len(args) + len(kwargs) > 1 or kwargs.keys() - {"closure"}:
            return "takes arguments; set what it reads as attributes"
        return None

    def _objection_to_gradients(self, gradients: Sequence[torch.Tensor | None]) -> str | None:
        """Return why no graph can take these gradients, None if one can."""
        for gradient in gradients:
            if gradient is None:
                continue
            if type(gradient) is not torch.Tensor:
                return f"finds gradients that are a {type(gradient).__name__}, whose parts change"
            if gradient.layout is not torch.strided:
                kind = str(gradient.layout).removeprefix("torch.")
                return f"finds {kind} gradients, whose memory is of several pieces"
            if gradient.requires_grad:
                return "finds gradients of a backward(create_graph=True), which keep their graph"
            if self.settings.device.needs_copy(gradient):
                here = self.settings.device.torch_device
                return f"finds gradients on {gradient.device}, and is captured on {here}"
        return None

    @property
    def _name(self) -> str:
        return f"{name_of(self.target)}.step"

    def _run_as_written(self, objection: str | None, step: Callable[[], Any]) -> Any:
        self.report.num_eager += 1
        if objection is not None:
            text = f"{self._name}() {objection}"
            self.report.refuse(Refusal("update", text, is_of_call=True))
        out = step()
        self.settings.tell(self.report, self._name)
        return out

    def _update_by_graph(self) -> None:
        """Update as `_update` does, where `optimizer.step` is again what this has put there.

        The loop may have wrapped it since, and what wraps it runs already, around this call.
        """
        own = vars(self.target)
        outer = own.get("step")
        if outer is self._method:
            return self._update()
        own["step"] = self._method
        try:
            return self._update()
        finally:
            if own.get("step") is self._method:
                own["step"] = outer

    def _update(self) -> None:
        """Update by the gradients that the weights have, by a graph if there is or can be one."""
        weights = weights_of(self.target)
        gradients = list(map(_gradient_of, weights))
        own = vars(self.target)
        call = (gradients, own.get(_SCALE), own.get(_FOUND_INF))
        self._captured.callee.account.arrive()
        self._note_call()
        # A user's code is guarded, and reads gradients: it finds none before each call.
        if self._code is None and self._is_replayed(call):
            return
        with gradients_replaced(weights, [None] * len(weights), gradients):
            objection = self._call(call)
        if objection is not None:
            self._run_as_written(objection, self._as_written)

    def _note_call(self) -> None:
        """Let a scheduler know of a step that passes over its wrapper."""
        if hasattr(self._as_written, "_wrapped_by_lr_sched"):
            # It warns if nobody has called the step.
            vars(self.target)["_opt_called"] = True

    def _is_replayed(self, call: tuple[Any, ...]) -> bool:
        """Return whether a call is like the one before, and a graph has taken it."""
        quick_call = self._fast_path.call
        return quick_call is not None and quick_call(call, {}) is not NOT_ALIKE

    def _call(self, call: tuple[Any, ...]) -> str | None:
        """Call the captured step; return why it cannot be, None if it was."""
        if self._code is not None and self._is_replayed(call):
            return None
        objection = self._objection_to_gradients(call[0])
        if objection is None and self._captured.run(self._trees.of(call, {})).way != "replay":
            self._windows.is_on = True
            self.settings.tell(self.report, self._name)
        return objection

    # --- the work of the captured step ---

    def _work(self, call: Call) -> None:
        """Update by the gradients of a call."""
        gradients, scale, found_inf = call.args
        of_a_scaler = {_SCALE: scale, _FOUND_INF: found_inf}
        self._is_running = True
        try:
            with (
                within_a_step(),
                gradients_replaced(weights_of(self.target), gradients, [None] * len(gradients)),
                _replaced(vars(self.target), of_a_scaler),
            ):
                (self.target.step if self._code is None else self._code)()
        finally:
            self._is_running = False
        if scale is not None:
            # Fused kernels unscale them in place, and move no version counter.
            for gradient in gradients:
                if gradient is not None:
                    torch.autograd.graph.increment_version(gradient)


@contextmanager
def _replaced(entries: dict[str, Any], others: dict[str, Any]) -> Iterator[None]:
    """Let entries that there are have other values in the body."""
    before = {name: entries[name] for name in others if name in entries}
    entries.update({name: others[name] for name in before})
    try:
        yield
    finally:
        entries.update(before)


# --- the optimizer's own step ---


def _method_for(optimizer: Optimizer) -> Any:
    """Return what stands in the place of `optimizer.step`: it calls the optimizer's captor."""
    own = vars(optimizer).get("step")
    # Copies of the optimizer may have the same function.
    is_bound = isinstance(own, MethodType) and own.__self__ is optimizer

    def step(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        as_written: Any = own
        if own is None:
            as_written = type(optimizer).step.__get__(optimizer)
        elif is_bound:
            as_written = MethodType(own.__func__, optimizer)
        captor: Any = captor_of(optimizer)
        if captor is None:  # released, or a copy
            return as_written(*args, **kwargs)
        if torch.compiler.is_compiling():
            captor.is_traced = True
            return as_written(*args, **kwargs)
        return captor.step(as_written, args, kwargs)

    return method_in_place_of(optimizer.step, step, optimizer)


def _code_of_user(optimizer: Optimizer) -> Any:
    """Return an optimizer's `step` without what torch puts around it, if it is the user's code.

    None if any of it is torch's, which reads numbers that nobody guards but for torch's own
    optimizers, or if the optimizer has another `step` than its class.
    """
    kinds = [kind for kind in type(optimizer).__mro__ if "step" in vars(kind)]
    steps = [vars(kind)["step"] for kind in kinds if kind is not torch.optim.Optimizer]
    if not all(map(_is_of_user, steps)) or not is_step_of_the_class(optimizer):
        return None
    step = steps[0]
    # Around it are hooks, which are not there.
    return MethodType(step.__wrapped__ if hasattr(step, "hooked") else step, optimizer)


def _is_of_user(step: Any) -> bool:
    function = inspect.unwrap(step)
    code = getattr(function, "__code__", None)
    return code is not None and kind_of(code, function.__globals__) is CodeKind.USER
