"""Where the updates of a step's optimizers run: inside its graphs, or between two segments of one.

A graph repeats kernels with the numbers they had. An optimizer that counts its steps on the host
has new numbers at every step, and its `capturable=True` is another formula with other bits. So a
graph is cut at the `step()` of such an optimizer, and every replay calls the real `step()` there, as
it is written: with its hooks, what a scheduler has wrapped around it, and the numbers it has then.

Inside are only updates that have the same bits there, by what is known of torch's own optimizers
(exact types, torch 2.11 to 2.13):

    optimizer                             inside                                 else
    SGD                                   always; its rate outside once that     -
                                          changes, as for Adam and AdamW below
    Adam, AdamW, Adagrad                  fused=True (it counts on the device)   counts on the host
    Adam, AdamW, NAdam, RAdam, Adamax,
    Adadelta, RMSprop, Rprop, ASGD        capturable=True                        counts on the host
    Adadelta, RMSprop; Adam and AdamW     all but what takes numbers of the      -
    over lists of weights (foreach)       rate and of the count
    SparseAdam, Adafactor, Muon,
    subclasses, optimizers of others      never                                  may use new numbers

and of these only if all of this holds:

* Numbers such as the rate are Python's own. A rate may be a tensor on the device for `fused=True`, and with
  `capturable=True` for Adam and AdamW, and for Adadelta and RMSprop over lists of weights; other tensors are
  read on the host, each step.
* All weights with gradients, their gradients (dense) and their state are on the device, and the
  state exists.
* There are no hooks, and nobody but a scheduler has replaced `step`.
* No number has been seen to change (`Updates.number_changed`), or none but the rate of SGD, or any of a fused Adam
  or AdamW: a graph then holds all but what takes it.

LBFGS runs the model again as often as its numbers say, and `differentiable=True` trains through the
update: these can be neither inside nor outside.
"""

from __future__ import annotations

import weakref
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch._compile import _disable_dynamo
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gapless.graphs.reads.observation import is_of_the_step_in
from gapless.graphs.refusal import Refusal, Refused
from gapless.graphs.updates.rate_outside import (
    RateOutside,
    may_take_rate_last,
    numbers_read_anew,
    takes_rate_last,
    unchecked,
)
from gapless.graphs.updates.step_replaced import step_replaced
from gapless.graphs.updates.update_calls import (
    UpdateAsWritten,
    capturable,
    optimizer_restored_on_failure,
    scalers_restored_on_failure,
)
from gapless.graphs.updates.update_changes import UpdateAsCaptured, UpdateChange
from gapless.graphs.updates.update_rules import (
    CALL_A_CLOSURE_ONCE,
    closure_of,
    gradients_of,
    name_of,
    objection,
    reason_outside,
    same_objects,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from torch.optim import Optimizer

    from gapless.device.base import Cut, Device
    from gapless.graphs.reads.guard_rows import GuardRows


@dataclass
class _Known:
    """An optimizer that the step was seen to call.

    Attributes:
        objection: why a graph can hold its update neither inside nor outside.
        changed: names of its numbers that have changed too often to be in a graph.
    """

    reference: weakref.ref[Optimizer]
    objection: str | None = None
    changed: set[str] = field(default_factory=set)


class _OnStep:
    """Hooks of all optimizers, which somebody listens to for a while.

    They are always the same two functions, into which torch's compiler does not look: with others it
    would compile a step anew that calls an optimizer.
    """

    def __init__(self) -> None:
        self._listeners = (_do_nothing, _do_nothing)
        self._thread = 0

        @_disable_dynamo
        def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            self._tell(0, optimizer, args[1:], kwargs)

        @_disable_dynamo
        def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            self._tell(1, optimizer, args[1:], kwargs)

        self._before, self._after = before, after

    @contextmanager
    def tell(self, before: Callable[..., None], after: Callable[..., None]) -> Iterator[None]:
        """Call these at every `step` in the body, with the optimizer and its arguments."""
        with ExitStack() as stack:
            stack.callback(setattr, self, "_listeners", self._listeners)
            self._listeners, self._thread = (before, after), get_ident()
            stack.callback(register_optimizer_step_pre_hook(self._before).remove)
            stack.callback(register_optimizer_step_post_hook(self._after).remove)
            yield

    def _tell(self, number: int, *about: Any) -> None:
        # Other threads train other models.
        if is_of_the_step_in(self._thread):
            self._listeners[number](*about)


class Updates:
    """The updates of all optimizers that a step calls.

    Args:
        may_cut: whether a graph may be cut at an update that cannot be inside; otherwise such
            an update refuses the step.

    Attributes:
        is_updating: whether an optimizer's `step()` runs that is watched.
    """

    def __init__(self, device: Device, *, may_cut: bool = True) -> None:
        self.device = device
        self.may_cut = may_cut
        self.is_updating = False
        self._known: dict[int, _Known] = {}
        self._on_step = _OnStep()

    # --- runs as written ---

    @contextmanager
    def watch(self) -> Iterator[list[int]]:
        """Watch a run of the step as written; yield the ids of the optimizers it calls, in order."""
        calls: list[int] = []
        gradients: list[list[Any]] = []

        def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            calls.append(id(optimizer))
            self.is_updating = True
            known = self._know(optimizer)
            known.objection = known.objection or objection(optimizer, args, kwargs)
            gradients.append(gradients_of(optimizer))

        def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            self.is_updating = False
            had = gradients.pop()
            if closure_of(args, kwargs) is None and not same_objects(gradients_of(optimizer), had):
                self._know(optimizer).objection = (
                    f"{name_of(optimizer)}.step(), or a hook of it, replaces gradients; let it "
                    "write to those that are there"
                )

        with ExitStack() as stack:
            stack.enter_context(self._on_step.tell(before, after))
            for known, optimizer in self._alive():
                if type(optimizer) not in CALL_A_CLOSURE_ONCE:
                    call = _noting_result(known, optimizer)
                    stack.enter_context(step_replaced(optimizer, call))
            try:
                yield calls
            finally:
                self.is_updating = False

    def objection(self) -> str | None:
        """Return why no graph can hold an update of the step, None if one can."""
        return next((known.objection for known, _ in self._alive() if known.objection), None)

    def number_changed(self, optimizer: Optimizer, name: str) -> None:
        """Keep a number of an optimizer outside from the next capture on, or all of its update."""
        self._know(optimizer).changed.add(name)

    def may_read_anew(self, optimizer: Optimizer, name: str) -> bool:
        """Return whether replays can go on with another number of an optimizer than that of the capture."""
        is_read = may_take_rate_last(optimizer) and name in numbers_read_anew(optimizer)
        return self.may_cut or is_read

    def _know(self, optimizer: Optimizer) -> _Known:
        known = self._known.get(id(optimizer))
        if known is None or known.reference() is not optimizer:
            known = self._known[id(optimizer)] = _Known(weakref.ref(optimizer))
        return known

    def optimizers(self) -> list[Optimizer]:
        """Return the optimizers that the step was seen to call, as long as they live."""
        return [optimizer for _, optimizer in self._alive()]

    def _alive(self) -> list[tuple[_Known, Optimizer]]:
        pairs = [(known, known.reference()) for known in self._known.values()]
        return [(known, optimizer) for known, optimizer in pairs if optimizer is not None]

    # --- captures ---

    @contextmanager
    def during_capture(self, cut: Cut) -> Iterator[CapturedUpdates]:
        """Capture the updates of the body, or cut them out; for the work of `Device.capture`.

        What is yielded belongs to the graph: its `before_replay` has to be called before each
        replay. After a failure all optimizers, and gradient scalers, are as they were on the host.

        Raises:
            RuntimeError: from a call of an optimizer that can be neither inside nor outside, or
                that the runs before have not called in this way.
        """
        capture = _Capture(self, cut)
        with ExitStack() as stack:
            stack.enter_context(scalers_restored_on_failure())
            stack.enter_context(self._on_step.tell(capture.check, _do_nothing))
            for known, optimizer in self._alive():
                stack.enter_context(optimizer_restored_on_failure(optimizer))
                call = capture.in_place_of_step(optimizer, known)
                stack.enter_context(step_replaced(optimizer, call))
            yield capture.captured

    def reason_outside(self, optimizer: Optimizer) -> str | None:
        """Return why the update of an optimizer is outside now, None if it can be inside."""
        outside = numbers_read_anew(optimizer) if may_take_rate_last(optimizer) else ()
        if not self._know(optimizer).changed.issubset(outside):
            return "its rate or another number has changed"
        return reason_outside(optimizer, needs_copy=self.device.needs_copy)

    def takes_rate_last(self, optimizer: Optimizer) -> bool:
        """Return whether the rate of an optimizer inside is read anew by each replay."""
        return takes_rate_last(optimizer) or bool(self._know(optimizer).changed)


class _Capture:
    """The updates of a step that is being captured."""

    def __init__(self, updates: Updates, cut: Cut) -> None:
        self.captured = CapturedUpdates()
        self._updates = updates
        self._cut = cut
        # Optimizers whose own `step` runs now because it is captured.
        self._inside: list[Optimizer] = []

    def check(self, optimizer: Optimizer, *_: Any) -> None:
        """Refuse a `step` that runs although another call has taken its place."""
        if not any(optimizer is one for one in self._inside):
            raise RuntimeError(
                f"{name_of(optimizer)}.step() is called in another way than in the runs before"
            )

    def in_place_of_step(self, optimizer: Optimizer, known: _Known) -> Callable[..., Any]:
        """Return what takes the place of an optimizer's `step`: capture the update, or cut."""
        as_written = optimizer.step

        def step(*args: Any, **kwargs: Any) -> Any:
            why = known.objection or objection(optimizer, args, kwargs)
            if why is not None:
                raise RuntimeError(why)
            loss, args, kwargs = _call_closure(args, kwargs)
            reason = self._updates.reason_outside(optimizer)
            if reason is None and self._updates.takes_rate_last(optimizer):
                self._capture_but_rate(optimizer, lambda: as_written(*args, **kwargs))
            elif reason is None:
                self._capture(optimizer, lambda: as_written(*args, **kwargs))
            elif not self._updates.may_cut:
                text = f"the update of {name_of(optimizer)} cannot be a graph: {reason}"
                raise Refused(Refusal("update", text))
            else:
                self.captured.add_outside(optimizer, reason)
                device_type = self._updates.device.torch_device.type
                update = UpdateAsWritten(optimizer, args, kwargs, device_type=device_type)
                self.captured.gradients.append(update.gradients)
                self._cut(partial(self.captured.call, update))
            return loss

        return step

    def _capture(self, optimizer: Optimizer, step: Callable[[], object]) -> None:
        with self._runs(optimizer), capturable(optimizer):
            step()
        self.captured.add_inside(optimizer)

    def _capture_but_rate(self, optimizer: Optimizer, step: Callable[[], object]) -> None:
        """Capture an update, and cut the graph where it takes its rate."""
        rest = RateOutside(optimizer, gradients_of(optimizer))
        with self._runs(optimizer), unchecked(optimizer), rest:
            step()
        self.captured.add_inside(optimizer, but=numbers_read_anew(optimizer))
        if rest.reads_gradients:
            self.captured.gradients.append(rest.gradients)
        self._cut(rest.call)

    @contextmanager
    def _runs(self, optimizer: Optimizer) -> Iterator[None]:
        self._inside.append(optimizer)
        try:
            yield
        finally:
            self._inside.pop()


class CapturedUpdates:
    """The updates that one graph has captured, or has been cut at.

    Attributes:
        inside: optimizers whose updates are captured: what they are must stay.
        outside: the others, whose `step()` a replay calls, each with the reason.
        gradients: what each of these calls finds, in its own list.
        on_update: to be called after each of these calls.
    """

    def __init__(self) -> None:
        self.on_update: Callable[[], object] = _do_nothing
        self.inside: list[Optimizer] = []
        self.attributes: list[dict[str, Any]] = []
        self.outside: dict[Optimizer, str] = {}
        self.gradients: list[list[torch.Tensor | None]] = []
        self._as_captured: list[UpdateAsCaptured] = []

    def call(self, update: UpdateAsWritten) -> None:
        """Call an update between two segments of a replay."""
        update()
        self.on_update()

    def before_replay(self) -> None:
        """Let schedulers know of a replay."""
        for optimizer in self.inside:
            # A scheduler warns if it is called before its optimizer.
            if "step" in vars(optimizer) and hasattr(optimizer.step, "_wrapped_by_lr_sched"):
                vars(optimizer)["_opt_called"] = True

    def changed(self) -> UpdateChange | None:
        """Return the first thing that is not as it was captured; None if all is.

        These are, of optimizers inside, numbers, weights, hooks, and which tensors their state consists of.
        """
        found = (one.change() for one in self._as_captured)
        return next((change for change in found if change is not None), None)

    def compare_in(self, rows: GuardRows) -> None:
        """Let rows say whether `changed` returns None."""
        for one in self._as_captured:
            one.compare_in(rows)

    def lines_of_outside(self) -> list[str]:
        """Return for each update that a replay calls, why it is no part of the graph."""
        return [
            f"every replay calls {name_of(optimizer)}.step() as written: {reason}"
            for optimizer, reason in self.outside.items()
        ]

    def add_outside(self, optimizer: Optimizer, reason: str) -> None:
        """Note that a replay calls the update of an optimizer."""
        if optimizer not in self.outside:
            self._as_captured.append(UpdateAsCaptured(optimizer, is_inside=False))
        self.outside[optimizer] = reason

    def add_inside(self, optimizer: Optimizer, *, but: Collection[str] = ()) -> None:
        """Note that the update of an optimizer has been captured, but for some of its numbers."""
        if any(optimizer is one for one in self.inside):
            return
        self.inside.append(optimizer)
        self.attributes.append(vars(optimizer))
        as_captured = UpdateAsCaptured(optimizer, is_inside=True, but=but)
        self._as_captured.append(as_captured)


def _do_nothing(*_: Any) -> None:
    pass


def _call_closure(args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
    """Call a closure as torch's own optimizers do; return its loss, and the other arguments."""
    closure = closure_of(args, kwargs)
    if closure is None:
        return None, args, kwargs
    with torch.enable_grad():
        loss = closure()
    return loss, args[1:], {name: kwargs[name] for name in kwargs if name != "closure"}


def _noting_result(known: _Known, optimizer: Optimizer) -> Callable[..., Any]:
    """Return what calls `step` as written, and notes whether a graph could do without its result."""
    as_written = optimizer.step

    def step(*args: Any, **kwargs: Any) -> Any:
        result = as_written(*args, **kwargs)
        if result is not None and closure_of(args, kwargs) is None:
            known.objection = (
                f"{name_of(optimizer)}.step() returns a value, which a graph that is cut there "
                "cannot have"
            )
        return result

    return step
