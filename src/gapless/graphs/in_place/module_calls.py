"""The calls of a module's forward pass, or of another of its methods, as graphs.

With gradients, a call is a forward pass by a graph, and a node of autograd whose backward pass is a
graph as well. Without gradients it is a captured step. Everything else is a captured step's: runs as
written at first, guards on what the code reads, proof, report.
"""

from __future__ import annotations

from functools import partial
from threading import local
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from gapless.device.torch_private import next_sequence_number
from gapless.graphs.account import account_of
from gapless.graphs.call_windows import CallWindows
from gapless.graphs.capture_report import CaptureReport
from gapless.graphs.in_place.first_calls import FIRST_CALLS
from gapless.graphs.in_place.shared_casts import AutocastBlocks
from gapless.graphs.modules.create_graph import SecondOrder
from gapless.graphs.modules.forward_runs import Runs
from gapless.graphs.modules.module_refusals import COMPILED_AROUND
from gapless.graphs.modules.module_trial import ModuleTrial
from gapless.graphs.objections import (
    objection_to_modes,
    objection_to_tensors,
    objection_to_transforms,
)
from gapless.graphs.quick_call import NOT_ALIKE
from gapless.graphs.refusal import Refusal
from gapless.graphs.step_call import is_within_a_step, work_of
from gapless.pipeline.tree.call_tree import CallTrees


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from gapless.graphs.captured_step import CapturedStep
    from gapless.graphs.in_place.captor import CaptorOfModule
    from gapless.pipeline.tree.flatten import Tree

    _Kind: TypeAlias = tuple[Hashable, tuple[bool, ...] | None, Runs]


class ModuleCalls:
    """Runs the calls of one method as graphs.

    Args:
        captor: of the module; all methods share what it has.
        function: the method, bound to the module.
        name: of it, for people.
        let_go: puts the method back as it was, as no calls are captured any more.
        give_way: lets parts of the module be captured, as no call of it can be.

    Attributes:
        is_never_captured: whether all calls run as written.
        is_refused: whether calls were refused for good, and there are no graphs.
        autocast: knows which calls within a block of autocast run as written.
    """

    def __init__(
        self,
        captor: CaptorOfModule,
        function: Callable[..., Any],
        name: str,
        *,
        let_go: Callable[[], None],
        give_way: Callable[[], None] | None = None,
    ) -> None:
        self.captor, self.name = captor, name
        self._give_way = give_way
        self.settings = captor.settings
        self.is_traced = self.is_never_captured = self.is_refused = False
        self._report = CaptureReport()
        self._account = account_of(captor.settings.device)
        self._trees = CallTrees()
        self.runs = self._new_runs(function)
        # Of calls that come before the backward pass of the one before, as a discriminator's do.
        self._second: Runs | None = None
        self._device_type = captor.settings.device.torch_device.type
        self.autocast = AutocastBlocks(self._device_type, refuse=self.refuse)
        # By kind, by which tensors among the arguments need gradients, None: no gradients at all, and by memory.
        self._steps: dict[_Kind, CapturedStep] = {}
        # By kind of call and by memory, and that of the last call.
        self._newest: dict[tuple[Hashable, Runs], CapturedStep] = {}
        self._last: CapturedStep | None = None
        self._windows = CallWindows(
            captor.settings.device,
            self._account,
            self._report,
            has_room=captor.limits.have_room,
            captured=self._call,
            as_written=self._call_as_written,
            step=lambda: self._last,
            let_go=let_go,
        )
        # The call of now, in each thread.
        self._now = local()
        self._second_order = SecondOrder(captor.target, self._report)

    @property
    def report(self) -> CaptureReport:
        """What is captured, and what is not."""
        if self.is_traced:
            self._report.refuse(COMPILED_AROUND)
        return self._report

    def take(self, function: Callable[..., Any]) -> None:
        """Let calls be those of another function: no graph is of it."""
        self.runs.forward = function
        self.forget()

    def forget(self) -> None:
        """Let go of all graphs."""
        for step in self._steps.values():
            step.forget()
        self._steps, self._newest, self._second, self._last = {}, {}, None, None
        self._windows.forget()

    def _new_runs(self, function: Callable[..., Any]) -> Runs:
        settings = self.captor.settings
        return Runs(
            self.captor.target,
            function,
            device=settings.device,
            host_waits=settings.new_host_waits(),
            side=self.captor.side,
            report=self._report,
        )

    def _free_runs(self) -> Runs:
        """Return the memory for a call: the second one, if a backward pass may come that reads the first."""
        if self.runs.is_free() or not torch.is_grad_enabled():
            return self.runs
        if self._second is None:
            self._second = self._new_runs(self.runs.forward)
        return self._second

    def refuse(self, refusal: Refusal) -> None:
        """Add a reason why not all is captured, and tell the user."""
        self._report.refuse(refusal)
        self._tell()

    def _tell(self) -> None:
        self.settings.tell(self.report, self.name)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the module, by a graph if there is or can be one; return what it returns.

        Sync: Does not block the host, except where a graph is captured ("capture"), and where
            the module does so itself.
        """
        # Calls in autocast share casts, and all of them are looked at.
        if self._windows.is_on and not torch.is_autocast_enabled(self._device_type):
            first: Any = args[0] if args else next(iter(kwargs.values()), None)
            form = first.shape if issubclass(type(first), torch.Tensor) else type(first)
            return self._windows.call((torch.is_grad_enabled(), form), args, kwargs)
        return self._call(args, kwargs)

    def _call_as_written(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.runs.forward(*args, **kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._last = None
        if self._must_run_as_written():
            self.report.num_eager += 1
            since = next_sequence_number()
            out = self.runs.as_written(args, kwargs)
            self.autocast.end_as_written(out, since=since)
            return out
        self._account.arrive()
        kind = self.captor.kind_of_call()
        runs = self._free_runs()
        newest = self._newest.get((kind, runs))
        quick_call = None if newest is None else newest.fast_path.call
        if quick_call is not None:
            out = quick_call(args, kwargs)
            if out is not NOT_ALIKE:
                self._last = newest
                return out
        tree = self._trees.of(args, kwargs)
        if torch.is_grad_enabled():
            if self._second_order.is_asked and self._second_order.is_due():
                self.report.num_eager += 1
                out = self.runs.as_written(args, kwargs)
                self._tell()
                return out
            step = self._step_for(kind, tuple([leaf.requires_grad for leaf in tree.leaves]), runs)
            if not runs.is_free():
                self.report.refuse(_SECOND_FORWARD)
        else:
            step = self._step_for(kind, None, runs)
        self._newest[kind, runs] = self._last = step
        self._now.tree = tree
        has_grad = torch.is_grad_enabled()
        try:
            done = step.run(tree)
        finally:
            del self._now.tree
        if done.way != "replay":
            self._windows.is_on = True
            if torch.is_grad_enabled() is not has_grad:
                self.is_never_captured = True
                self.report.refuse(_SETS_GRAD_MODE)
            self.is_refused = all(step.is_refused for step in self._steps.values())
            if self.is_refused and self._give_way is not None:
                self._give_way()
            self._tell()
        return done.out

    def _must_run_as_written(self) -> bool:
        if self.is_never_captured or (self.captor.is_awaited and self._is_heard()):
            return True
        if is_within_a_step():
            return True
        objection = objection_to_transforms()
        if objection is not None:
            self.refuse(objection)
            return True
        return self.autocast.begin_call()

    def _is_heard(self) -> bool:
        """Take note of the first call; return whether that is all that is wanted of it."""
        captor = self.captor
        if not captor.is_listener:
            FIRST_CALLS.wait_no_more(captor)
        elif not is_within_a_step():
            captor.was_called = True
        return captor.is_listener

    def _step_for(
        self, kind: Hashable, needs_grad: tuple[bool, ...] | None, runs: Runs
    ) -> CapturedStep:
        """Return what captures calls of a kind.

        Args:
            kind: of the calls.
            needs_grad: which tensors among the arguments need gradients; None: there are none at all.
            runs: whose memory it takes.
        """
        step = self._steps.get((kind, needs_grad, runs))
        if step is not None:
            return step
        forward = runs.forward
        options: dict[str, Any] = {"work": work_of(forward)}
        if needs_grad is not None:
            trial = partial(
                ModuleTrial,
                runs,
                needs_grad=needs_grad,
                may_be_differentiated=self._second_order.is_due,
            )
            options = {
                "work": lambda _: made.learning.trial.seen.observed(self._now.tree),
                "plain_work": lambda call: runs.as_written(call.args, call.kwargs),
                "make_trial": trial,
                "objection": self._objection,
            }
        made: Any = self.settings.wrap(
            forward,
            self.captor.side,
            limits=self.captor.limits,
            report=self.report,
            **options,
        )
        self._steps[kind, needs_grad, runs] = made
        return self._steps[kind, needs_grad, runs]

    def _objection(self, tree: Tree) -> Refusal | None:
        """Return why no graph can take a call with gradients, None if one can."""
        return (
            objection_to_tensors(tree, needs_copy=self.settings.device.needs_copy)
            or objection_to_modes()
            or _objection_to_hooks()
        )


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
    "a forward pass came before the backward passes of the two before (or their loss is still held "
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
