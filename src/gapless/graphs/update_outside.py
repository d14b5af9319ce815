"""Where the updates of a step's optimizers run: inside its graphs, or between two segments of one.

A graph repeats kernels with the numbers they had. An optimizer that counts its steps on the host
has new numbers at every step, and its `capturable=True` is another formula with other bits. So a
graph is cut at the `step()` of such an optimizer, and every replay calls the real `step()` there, as
it is written: with its hooks, what a scheduler has wrapped around it, and the numbers it has then.

Inside are only updates that have the same bits there, by what is known of torch's own optimizers
(exact types, torch 2.11 to 2.13):

    optimizer                             inside                                 else
    SGD                                   always                                 -
    Adam, AdamW, Adagrad                  fused=True (it counts on the device)   counts on the host
    Adam, AdamW, NAdam, RAdam, Adamax,
    Adadelta, RMSprop, Rprop, ASGD        capturable=True                        counts on the host
    SparseAdam, Adafactor, Muon,
    subclasses, optimizers of others      never                                  may use new numbers

and of these only if all of this holds:

* Numbers such as the rate are Python's own. A rate may be a tensor on the device for `fused=True`,
  and for Adam and AdamW with `capturable=True`; other tensors are read on the host, each step.
* All weights with gradients, their gradients (dense) and their state are on the device, and the
  state exists.
* There are no hooks, and nobody but a scheduler has replaced `step`.
* No number has been seen to change (`Updates.number_changed`), but for the rate with
  `rates="tensor"`.

LBFGS runs the model again as often as its numbers say, and `differentiable=True` trains through the
update: these can be neither inside nor outside.
"""

from __future__ import annotations

import weakref
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import update_wrapper
from itertools import chain
from operator import attrgetter, is_, itemgetter
from types import MethodType
from typing import TYPE_CHECKING, Any, Literal, Never, TypeAlias

import torch
from torch.optim import optimizer as torch_optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.overrides import TorchFunctionMode


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.optim import Optimizer

    from gapless.device.base import Cut, Device


# "exact": a rate is the Python number of the loop as written. "tensor": a number in float32 on the
# device, filled anew when it has changed, where the update can read it there.
Rates: TypeAlias = Literal["exact", "tensor"]

_optim: Any = torch.optim
_HAVE_FUSED = frozenset({_optim.SGD, _optim.Adam, _optim.AdamW, _optim.Adagrad})
_HAVE_CAPTURABLE = frozenset(
    getattr(torch.optim, name)
    for name in (
        "Adadelta",
        "Adam",
        "AdamW",
        "Adamax",
        "ASGD",
        "NAdam",
        "RAdam",
        "RMSprop",
        "Rprop",
    )
)
# All of torch's own but LBFGS, before their update.
_CALL_A_CLOSURE_ONCE = (
    _HAVE_FUSED
    | _HAVE_CAPTURABLE
    | {
        getattr(torch.optim, name)
        for name in ("Adafactor", "Muon", "SparseAdam")
        if hasattr(torch.optim, name)
    }
)
_TAKE_A_RATE_ON_THE_DEVICE = frozenset({_optim.Adam, _optim.AdamW})

# By these GradScaler hands an optimizer its tensors for the time of a step.
_OF_A_SCALER = ("grad_scale", "found_inf")


@dataclass
class _Known:
    """An optimizer that the step was seen to call.

    Attributes:
        reference: to it.
        objection: why a graph can hold its update neither inside nor outside.
        moved: why it is outside although it could be inside.
        rates: of its groups, on the device.
    """

    reference: weakref.ref[Optimizer]
    objection: str | None = None
    moved: str | None = None
    rates: list[_Rate] = field(default_factory=list)


class _Rate:
    """The rate of a group as a tensor on the device.

    Args:
        value: of the rate.
        device: of the weights.
    """

    def __init__(self, value: float, device: torch.device) -> None:
        self.tensor = torch.full((), value, dtype=torch.float32, device=device)
        self._value = value

    def fill(self, value: Any) -> None:
        """Make the tensor equal to a number, if it is not."""
        if isinstance(value, torch.Tensor):
            self.tensor.copy_(value)
        elif value != self._value:
            self.tensor.fill_(value)
            self._value = value


class Updates:
    """The updates of all optimizers that a step calls.

    Args:
        device: where the step runs.
        rates: "exact" or "tensor".

    Attributes:
        device: where the step runs.
    """

    def __init__(self, device: Device, *, rates: Rates = "exact") -> None:
        self.device = device
        self._rates = rates
        self._known: dict[int, _Known] = {}

    # --- runs as written ---

    @contextmanager
    def watch(self) -> Iterator[list[int]]:
        """Watch a run of the step as written; yield the ids of the optimizers it calls, in order.

        Sync: Does not block the host.
        """
        calls: list[int] = []
        gradients: list[list[Any]] = []

        def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            calls.append(id(optimizer))
            known = self._know(optimizer)
            known.objection = known.objection or _objection(optimizer, args, kwargs)
            gradients.append(_gradients_of(optimizer))

        def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            had = gradients.pop()
            if _closure_of(args[1:], kwargs) is None and not _same(_gradients_of(optimizer), had):
                self._know(optimizer).objection = (
                    f"{_name(optimizer)}.step(), or a hook of it, replaces gradients; let it "
                    "write to those that are there"
                )

        with ExitStack() as stack:
            stack.callback(register_optimizer_step_pre_hook(before).remove)
            stack.callback(register_optimizer_step_post_hook(after).remove)
            for known, optimizer in self._alive():
                if type(optimizer) not in _CALL_A_CLOSURE_ONCE:
                    call = _noting_result(known, optimizer)
                    stack.enter_context(_step_replaced(optimizer, call))
            yield calls
        self._make_rates()

    def objection(self) -> str | None:
        """Return why no graph can hold an update of the step, None if one can."""
        return next((known.objection for known, _ in self._alive() if known.objection), None)

    def number_changed(self, optimizer: Optimizer) -> None:
        """Keep an optimizer outside from the next capture on: a number of it has changed."""
        self._know(optimizer).moved = "a number of it changes from step to step"

    def _know(self, optimizer: Optimizer) -> _Known:
        known = self._known.get(id(optimizer))
        if known is None or known.reference() is not optimizer:
            known = self._known[id(optimizer)] = _Known(weakref.ref(optimizer))
        return known

    def _alive(self) -> list[tuple[_Known, Optimizer]]:
        pairs = [(known, known.reference()) for known in self._known.values()]
        return [(known, optimizer) for known, optimizer in pairs if optimizer is not None]

    def _make_rates(self) -> None:
        """Make tensors of rates, which cannot be made in a capture."""
        if self._rates != "tensor":
            return
        for known, optimizer in self._alive():
            for group in optimizer.param_groups[len(known.rates) :]:
                value = group.get("lr")
                number = value if isinstance(value, float | int) else 0.0
                known.rates.append(_Rate(number, self.device.torch_device))

    # --- captures ---

    @contextmanager
    def during_capture(self, cut: Cut) -> Iterator[CapturedUpdates]:
        """Capture the updates of the body, or cut them out; for the work of `Device.capture`.

        What is yielded belongs to the graph: its `before_replay` has to be called before each
        replay. After a failure all optimizers are as they were.

        Args:
            cut: what the device gave to the work.

        Raises:
            RuntimeError: from a call of an optimizer that can be neither inside nor outside, or
                that no run as written has called.
        """
        captured = CapturedUpdates()
        through: list[Optimizer] = []

        def check(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            if not any(optimizer is one for one in through):
                raise RuntimeError(
                    f"{_name(optimizer)}.step() is called in another way than in the runs before"
                )

        with ExitStack() as stack:
            stack.callback(register_optimizer_step_pre_hook(check).remove)
            for known, optimizer in self._alive():
                stack.enter_context(_restored_on_failure(optimizer))
                call = _CapturedCall(self, known, optimizer, cut, captured, through)
                stack.enter_context(_step_replaced(optimizer, call))
            yield captured

    def reason_outside(self, optimizer: Optimizer) -> str | None:
        """Return why the update of an optimizer is outside now, None if it can be inside.

        Sync: Does not block the host.
        """
        known = self._know(optimizer)
        groups = optimizer.param_groups
        return (
            known.moved
            or _is_foreign(optimizer)
            or next(filter(None, (self._group_reason(optimizer, group) for group in groups)), None)
        )

    def _group_reason(self, optimizer: Optimizer, group: dict[str, Any]) -> str | None:
        return (
            _counts_on_the_host(optimizer, group)
            or self._has_tensor_numbers(optimizer, group)
            or self._is_not_on_the_device(optimizer, group)
        )

    def _has_tensor_numbers(self, optimizer: Optimizer, group: dict[str, Any]) -> str | None:
        for name, value in group.items():
            parts = value if isinstance(value, tuple | list) else (value,)
            if name == "params" or not any(isinstance(part, torch.Tensor) for part in parts):
                continue
            if name != "lr" or not _takes_a_rate_tensor(optimizer, group):
                return f"its {name} is a tensor that is read on the host"
            if self.device.needs_copy(value):
                return f"its {name} is a tensor that is not on the device"
        return None

    def _is_not_on_the_device(self, optimizer: Optimizer, group: dict[str, Any]) -> str | None:
        needs_state = type(optimizer) is not _optim.SGD or group["momentum"] != 0
        for weight in group["params"]:
            gradient = weight.grad
            if gradient is None:
                continue
            state = optimizer.state.get(weight) or {}
            if needs_state and not state:
                return "it has no state for a weight yet"
            for part in (weight, gradient, *state.values()):
                if not isinstance(part, torch.Tensor) or part.layout is not torch.strided:
                    return "its gradients or its state are no dense tensors"
                if self.device.needs_copy(part):
                    return "its state is not all on the device"
        return None


class CapturedUpdates:
    """The updates that one graph has captured, or has been cut at.

    Attributes:
        inside: optimizers whose updates are captured: their numbers and their state must stay.
        outside: the others, each with the reason; a replay calls their `step()`.
        gradients: what each of these calls finds, in its own list.
    """

    def __init__(self) -> None:
        self.inside: list[Optimizer] = []
        self.outside: list[tuple[Optimizer, str]] = []
        self.gradients: list[list[torch.Tensor | None]] = []
        self._as_captured: list[_AsCaptured] = []
        self._rates: list[tuple[Optimizer, int, _Rate]] = []

    def before_replay(self) -> None:
        """Bring to the device, and to schedulers, what they have to know of a replay.

        Sync: Does not block the host.
        """
        for optimizer, number, rate in self._rates:
            rate.fill(optimizer.param_groups[number]["lr"])
        for optimizer in self.inside:
            # A scheduler warns if it is called before its optimizer.
            if "step" in vars(optimizer) and hasattr(optimizer.step, "_wrapped_by_lr_sched"):
                vars(optimizer)["_opt_called"] = True

    def changed(self) -> UpdateChange | None:
        """Return the first thing that is not as it was captured; None if all is.

        These are, of optimizers inside, numbers (but rates that are filled before a replay),
        weights, hooks, and which tensors their state consists of.

        Sync: Does not block the host.
        """
        for one in self._as_captured:
            change = one.change()
            if change is not None:
                return change
        return None

    @contextmanager
    def rates_in_place(self) -> Iterator[None]:
        """Let runs as written in the body read rates where the graph does, if it does.

        Sync: Does not block the host.
        """
        pairs = [(optimizer.param_groups[number], rate) for optimizer, number, rate in self._rates]
        for group, rate in pairs:
            rate.fill(group["lr"])
        with _rates_in_place(pairs):
            yield

    def add_inside(self, optimizer: Optimizer, rates: list[_Rate]) -> None:
        """Note that the update of an optimizer has been captured."""
        if any(optimizer is one for one in self.inside):
            return
        self.inside.append(optimizer)
        self._rates += [(optimizer, number, rate) for number, rate in enumerate(rates)]
        self._as_captured.append(_AsCaptured(optimizer, is_rate_filled=bool(rates)))

    def add_outside(self, optimizer: Optimizer, reason: str) -> None:
        """Note that the graph has been cut at the update of an optimizer."""
        if not any(optimizer is one for one, _ in self.outside):
            self.outside.append((optimizer, reason))


@dataclass(frozen=True)
class UpdateChange:
    """What is no longer as a graph has captured it.

    Attributes:
        optimizer: whose update is inside.
        name: of what has changed.
        before: its value in the capture, in short.
        after: its value now.
        is_number: whether it is a number of the optimizer. If so, the update can go on outside
            (`Updates.number_changed`); if not, it can be captured anew.
    """

    optimizer: Optimizer
    name: str
    before: str
    after: str
    is_number: bool = False


class _AsCaptured:
    """What a graph keeps of an optimizer that is inside.

    Args:
        optimizer: one of torch's own, with the state with which it is captured.
        is_rate_filled: its rates are no part of it.
    """

    def __init__(self, optimizer: Optimizer, *, is_rate_filled: bool) -> None:
        self.optimizer = optimizer
        # What `step` reads; schedulers keep numbers of their own beside these.
        self._names = [name for name in optimizer.defaults if name != "lr" or not is_rate_filled]
        self._read = itemgetter("params", *self._names)
        self._groups = [
            (list(params), *numbers)
            for params, *numbers in map(self._read, optimizer.param_groups)
        ]
        self._states = [dict(state) for state in optimizer.state.values()]

    def change(self) -> UpdateChange | None:
        """Return the first difference, None if there is none."""
        optimizer = self.optimizer
        if _has_hooks(optimizer):
            return self._changed("its hooks", "none", "some")
        # Lists and dicts ask objects first whether they are the same, which is quick.
        try:
            with _NoTensorIsCompared():
                is_same = (
                    list(map(self._read, optimizer.param_groups)) == self._groups
                    and list(optimizer.state.values()) == self._states
                )
        except (_OtherTensorError, KeyError):
            is_same = False
        return None if is_same else self._first()

    def _first(self) -> UpdateChange:
        groups = self.optimizer.param_groups
        for group, (_, *numbers) in zip(groups, self._groups, strict=False):
            for name, before in zip(self._names, numbers, strict=True):
                after = group.get(name)
                if _frozen(after) != _frozen(before):
                    return self._changed(name, str(before), str(after), is_number=True)
        before = [_frozen(params) for params, *_ in self._groups]
        if [_frozen(group["params"]) for group in groups] != before:
            return self._changed("its weights", "others", "others")
        return self._changed("its state", "other tensors", "other tensors")

    def _changed(
        self, name: str, before: str, after: str, *, is_number: bool = False
    ) -> UpdateChange:
        return UpdateChange(self.optimizer, name, before, after, is_number=is_number)


class _OtherTensorError(Exception):
    """A tensor is compared with another one, so they are not the same object."""


class _NoTensorIsCompared(TorchFunctionMode):
    """Raise, where lists are compared, instead of comparing the values of two tensors."""

    def __torch_function__(self, *_: Any) -> Never:
        raise _OtherTensorError


class _CapturedCall:
    """What takes the place of an optimizer's `step` while a graph is captured.

    Args:
        updates: of the step.
        known: of the optimizer.
        optimizer: whose `step` it is.
        cut: ends a segment.
        captured: what is captured is noted there.
        through: optimizers whose real `step` runs now by way of this.
    """

    def __init__(
        self,
        updates: Updates,
        known: _Known,
        optimizer: Optimizer,
        cut: Cut,
        captured: CapturedUpdates,
        through: list[Optimizer],
    ) -> None:
        self._updates = updates
        self._known = known
        self._optimizer = optimizer
        self._cut = cut
        self._captured = captured
        self._through = through
        self._as_written = optimizer.step

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Capture the update, or cut."""
        optimizer = self._optimizer
        objection = self._known.objection or _objection(optimizer, (optimizer, *args), kwargs)
        if objection is not None:
            raise RuntimeError(objection)
        reason = self._updates.reason_outside(optimizer)
        if reason is None:
            return self._inside(args, kwargs)
        return self._outside(args, kwargs, reason)

    def _inside(self, args: Any, kwargs: Any) -> Any:
        optimizer = self._optimizer
        rates = self._rates()
        state = _state_of(optimizer)
        self._through.append(optimizer)
        try:
            pairs = list(zip(optimizer.param_groups, rates, strict=False))
            with _capturable(optimizer), _rates_in_place(pairs):
                out = self._as_written(*args, **kwargs)
        finally:
            self._through.pop()
        if not _same(_state_of(optimizer), state):
            raise RuntimeError(
                f"{_name(optimizer)}.step() makes state that a replay would make anew"
            )
        self._captured.add_inside(optimizer, rates)
        return out

    def _rates(self) -> list[_Rate]:
        groups = self._optimizer.param_groups
        rates = self._known.rates
        if len(rates) != len(groups) or not all(
            isinstance(group.get("lr"), float | int)
            and _takes_a_rate_tensor(self._optimizer, group)
            for group in groups
        ):
            return []
        return rates

    def _outside(self, args: Any, kwargs: Any, reason: str) -> Any:
        closure = _closure_of(args, kwargs)
        loss = None
        if closure is not None:
            # As torch's own optimizers do; others with a closure have an objection.
            with torch.enable_grad():
                loss = closure()
            args, kwargs = args[1:], {name: kwargs[name] for name in kwargs if name != "closure"}
        self._captured.add_outside(self._optimizer, reason)
        device_type = self._updates.device.torch_device.type
        update = _UpdateAsWritten(self._optimizer, args, kwargs, self._as_written, device_type)
        self._captured.gradients.append(update.gradients)
        self._cut(update)
        return loss


class _UpdateAsWritten:
    """The update of an optimizer as a replay calls it between two segments.

    It is made in the capture, and keeps what the update finds there: gradients, what a scaler has
    handed over, and the modes of torch.

    Args:
        optimizer: to call.
        args: of its `step`.
        kwargs: of its `step`.
        as_written: its `step` outside of captures.
        device_type: of autocast.

    Attributes:
        gradients: of its weights.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        args: Any,
        kwargs: Any,
        as_written: Callable[..., Any],
        device_type: str,
    ) -> None:
        self._optimizer = optimizer
        self._args = args
        self._kwargs = kwargs
        self._as_written = as_written
        self._weights = _weights_of(optimizer)
        self.gradients = _gradients_of(optimizer)
        self._of_a_scaler = {
            name: vars(optimizer)[name] for name in _OF_A_SCALER if name in vars(optimizer)
        }
        self._modes = _Modes(device_type)

    def __call__(self) -> None:
        """Call it."""
        with self._modes.set_again(), self._gradients_in_place():
            vars(self._optimizer).update(self._of_a_scaler)
            try:
                self._step_now()(*self._args, **self._kwargs)
            finally:
                for name in self._of_a_scaler:
                    vars(self._optimizer).pop(name, None)

    def _step_now(self) -> Callable[..., Any]:
        """Return `step` as it is now: a scheduler may have been made since the capture."""
        step = self._optimizer.step
        # On a CPU a replay is the work itself, with what a capture has replaced.
        is_replaced = isinstance(_replaced_by(step), _CapturedCall)
        return self._as_written if is_replaced else step

    @contextmanager
    def _gradients_in_place(self) -> Iterator[None]:
        """Give the weights the gradients of the capture in the body."""
        before = list(map(attrgetter("grad"), self._weights))
        if _same(before, self.gradients):
            yield
            return
        for weight, gradient in zip(self._weights, self.gradients, strict=True):
            weight.grad = gradient
        try:
            yield
        finally:
            for weight, gradient in zip(self._weights, before, strict=True):
                weight.grad = gradient


class _Modes:
    """Modes of torch at one moment.

    Args:
        device_type: of autocast.
    """

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type
        self._found = self._read()

    def _read(self) -> tuple[Any, ...]:
        return (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled(self._device_type),
            torch.get_autocast_dtype(self._device_type),
            torch.is_autocast_cache_enabled(),
        )

    @contextmanager
    def set_again(self) -> Iterator[None]:
        """Set them again in the body."""
        if self._read() == self._found:
            yield
            return
        grad, inference, autocast, dtype, cache = self._found
        with (
            torch.inference_mode(inference),
            torch.set_grad_enabled(grad),
            torch.autocast(self._device_type, dtype=dtype, enabled=autocast, cache_enabled=cache),
        ):
            yield


# --- what an optimizer is ---


def _name(optimizer: Optimizer) -> str:
    return type(optimizer).__name__


def _objection(optimizer: Optimizer, args: Any, kwargs: Any) -> str | None:
    """Return why a call of `step` can be neither inside nor outside, None if it can."""
    name = _name(optimizer)
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return f"{name} has differentiable=True, and a graph cannot be trained through"
    if _closure_of(args[1:], kwargs) is None:
        return None
    if type(optimizer) not in _CALL_A_CLOSURE_ONCE:
        return (
            f"{name}.step() takes a closure, which runs the model again as often as the "
            "optimizer's own numbers say"
        )
    if _has_hooks(optimizer):
        return f"{name}.step() takes a closure and has hooks; run the model before step()"
    return None


def _closure_of(args: Any, kwargs: Any) -> Any:
    return kwargs.get("closure", args[0] if args else None)


def _is_foreign(optimizer: Optimizer) -> str | None:
    if type(optimizer) not in _HAVE_FUSED | _HAVE_CAPTURABLE:
        return "it may use new numbers at every step"
    if _has_hooks(optimizer):
        return "it has hooks"
    step = optimizer.step
    while _replaced_by(step) is not None:
        step = step._gapless_as_written  # type: ignore[attr-defined]
    # As schedulers wrap it; or a method.
    function = getattr(step, "__wrapped__" if _is_of_scheduler(step) else "__func__", None)
    return None if function is type(optimizer).step else "its step has been replaced"


def _is_of_scheduler(step: Any) -> bool:
    return hasattr(step, "_wrapped_by_lr_sched")


def _has_hooks(optimizer: Optimizer) -> bool:
    """Whether there are hooks, other than those with which gapless watches."""
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return True
    common = (
        *torch_optimizer._global_optimizer_pre_hooks.values(),
        *torch_optimizer._global_optimizer_post_hooks.values(),
    )
    return not all(getattr(hook, "__module__", "").startswith("gapless.") for hook in common)


def _counts_on_the_host(optimizer: Optimizer, group: dict[str, Any]) -> str | None:
    kind = type(optimizer)
    if (
        kind is _optim.SGD
        or (kind in _HAVE_FUSED and group["fused"])
        or (kind in _HAVE_CAPTURABLE and group["capturable"])
    ):
        return None
    advice = "; fused=True counts on the device" if kind in _HAVE_FUSED else ""
    return f"it counts its steps on the host{advice}"


def _takes_a_rate_tensor(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    """Whether an update inside reads a rate on the device."""
    kind = type(optimizer)
    is_fused = kind in _HAVE_FUSED and bool(group["fused"])
    return is_fused or (kind in _TAKE_A_RATE_ON_THE_DEVICE and bool(group["capturable"]))


def _weights_of(optimizer: Optimizer) -> list[torch.Tensor]:
    return list(chain.from_iterable([group["params"] for group in optimizer.param_groups]))


def _gradients_of(optimizer: Optimizer) -> list[Any]:
    return list(map(attrgetter("grad"), _weights_of(optimizer)))


def _state_of(optimizer: Optimizer) -> list[Any]:
    """Return all values of an optimizer's state, which is one of torch's own."""
    return list(chain.from_iterable(map(dict.values, optimizer.state.values())))


def _same(some: list[Any], others: list[Any]) -> bool:
    """Return whether two lists hold the same objects; tensors are not compared."""
    return len(some) == len(others) and all(map(is_, some, others))


def _frozen(value: object) -> object:
    """Return what tells a number from another one, bit by bit, and other objects by identity."""
    if isinstance(value, tuple | list):
        return tuple(map(_frozen, value))
    if isinstance(value, float):
        return value.hex()
    return value if isinstance(value, int | str | complex) else id(value)


# --- what is replaced for a while ---


@contextmanager
def _step_replaced(optimizer: Optimizer, call: Any) -> Iterator[None]:
    """Let `optimizer.step()` be another call in the body.

    In the optimizer's own attributes, so that other instances keep theirs; a method, because
    schedulers that are made meanwhile look for its function.
    """
    as_written, own = optimizer.step, vars(optimizer).get("step")
    is_over = False

    def step(_: Optimizer, *args: Any, **kwargs: Any) -> Any:
        return (as_written if is_over else call)(*args, **kwargs)

    # GradScaler looks at the arguments of `step`, and schedulers at its attributes.
    update_wrapper(step, getattr(as_written, "__func__", as_written))
    step._gapless_call = call  # type: ignore[attr-defined]
    step._gapless_as_written = as_written  # type: ignore[attr-defined]
    replacement = MethodType(step, optimizer)
    vars(optimizer)["step"] = replacement
    try:
        yield
    finally:
        is_over = True
        if vars(optimizer).get("step") is replacement:
            if own is None:
                del vars(optimizer)["step"]
            else:
                vars(optimizer)["step"] = own


def _replaced_by(step: Any) -> Any:
    """Return the call that `_step_replaced` has put in the place of a `step`, None if none."""
    return getattr(step, "_gapless_call", None)


def _noting_result(known: _Known, optimizer: Optimizer) -> Callable[..., Any]:
    """Return what calls `step` as written, and notes whether a graph could do without its result."""
    as_written = optimizer.step

    def step(*args: Any, **kwargs: Any) -> Any:
        result = as_written(*args, **kwargs)
        if result is not None and _closure_of(args, kwargs) is None:
            known.objection = (
                f"{_name(optimizer)}.step() returns a value, which a graph that is cut there "
                "cannot have"
            )
        return result

    return step


@contextmanager
def _capturable(optimizer: Optimizer) -> Iterator[None]:
    """Let torch capture an update in the body that counts on the device.

    The fused kernels count there also without `capturable`, which changes nothing for them; but
    torch refuses to capture them without.
    """
    groups = [group for group in optimizer.param_groups if group.get("capturable") is False]
    for group in groups:
        group["capturable"] = True
    try:
        yield
    finally:
        for group in groups:
            group["capturable"] = False


@contextmanager
def _rates_in_place(pairs: list[tuple[dict[str, Any], _Rate]]) -> Iterator[None]:
    """Let groups have the rates that lie on the device in the body."""
    before = [group["lr"] for group, _ in pairs]
    for group, rate in pairs:
        group["lr"] = rate.tensor
    try:
        yield
    finally:
        for (group, _), value in zip(pairs, before, strict=True):
            group["lr"] = value


@contextmanager
def _restored_on_failure(optimizer: Optimizer) -> Iterator[None]:
    """Put back what the body has changed of an optimizer on the host, if it raises."""
    own = {
        name: vars(optimizer)[name]
        for name in (*_OF_A_SCALER, "_opt_called")
        if name in vars(optimizer)
    }
    states = {
        weight: dict(state) for weight, state in optimizer.state.items() if isinstance(state, dict)
    }
    known = set(optimizer.state)
    try:
        yield
    except BaseException:
        for name in (*_OF_A_SCALER, "_opt_called"):
            vars(optimizer).pop(name, None)
        vars(optimizer).update(own)
        for weight in set(optimizer.state) - known:
            del optimizer.state[weight]
        for weight, state in states.items():
            optimizer.state[weight].clear()
            optimizer.state[weight].update(state)
        raise
