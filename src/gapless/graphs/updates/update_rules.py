"""Which updates have the same bits inside a graph: what is known of torch's own optimizers."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import chain
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import optimizer as torch_optimizer

from gapless.graphs.updates.rate_outside import takes_rate_last
from gapless.graphs.updates.step_replaced import is_step_of_the_class
from gapless.graphs.updates.update_numbers import is_foreach, is_foreach_adam


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch.optim import Optimizer


_optim: Any = torch.optim

_HAVE_FUSED = frozenset({_optim.SGD, _optim.Adam, _optim.AdamW, _optim.Adagrad})
_CAPTURABLE = "Adadelta Adam AdamW Adamax ASGD NAdam RAdam RMSprop Rprop"
_HAVE_CAPTURABLE = frozenset(getattr(_optim, name) for name in _CAPTURABLE.split())

# Classes of users that do not call torch's `__init__` have none.
HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")

# By these a GradScaler hands an optimizer its tensors for the time of a step.
OF_A_SCALER = ("grad_scale", "found_inf")

# Torch's own but LBFGS call a closure once, before their update.
CALL_A_CLOSURE_ONCE = (
    _HAVE_FUSED | _HAVE_CAPTURABLE | {_optim.Adafactor, _optim.Muon, _optim.SparseAdam}
)


def objection(optimizer: Optimizer, args: Any, kwargs: Any) -> str | None:
    """Return why a call of `step` can be neither inside a graph nor outside, None if it can."""
    kind = name_of(optimizer)
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return f"{kind} has differentiable=True, and a graph cannot be trained through"
    if closure_of(args, kwargs) is None:
        return None
    if type(optimizer) not in CALL_A_CLOSURE_ONCE:
        return (
            f"{kind}.step() takes a closure, which runs the model again as often as the "
            "optimizer's own numbers say"
        )
    if has_hooks(optimizer):
        return f"{kind}.step() takes a closure and has hooks; run the model before step()"
    return None


def closure_of(args: Any, kwargs: Any) -> Any:
    """Return the closure in the arguments of `step`, None if there is none."""
    return kwargs.get("closure", args[0] if args else None)


def reason_outside(
    optimizer: Optimizer, *, needs_copy: Callable[[torch.Tensor], bool]
) -> str | None:
    """Return why the update of an optimizer must be outside of a graph, None if it can be inside."""
    reason = _is_not_torchs_own(optimizer)
    for group in optimizer.param_groups:
        reason = (
            reason
            or _counts_on_the_host(optimizer, group)
            or _has_tensor_numbers(optimizer, group, needs_copy)
            or _is_not_on_the_device(optimizer, group, needs_copy)
        )
    return reason


def _is_not_torchs_own(optimizer: Optimizer) -> str | None:
    if type(optimizer) not in _HAVE_FUSED | _HAVE_CAPTURABLE:
        return "it may use new numbers at every step"
    if has_hooks(optimizer):
        return "it has hooks"
    return None if is_step_of_the_class(optimizer) else "its step has been replaced"


def _counts_on_the_host(optimizer: Optimizer, group: dict[str, Any]) -> str | None:
    kind = type(optimizer)
    if (
        kind is _optim.SGD
        or (kind in _HAVE_FUSED and group["fused"])
        or (kind in _HAVE_CAPTURABLE and group["capturable"])
        or takes_rate_last(optimizer)
    ):
        return None
    advice = "; with fused=True it is in the graph" if kind in _HAVE_FUSED else ""
    return f"it counts its steps on the host{advice}"


def _has_tensor_numbers(
    optimizer: Optimizer, group: dict[str, Any], needs_copy: Callable[[torch.Tensor], bool]
) -> str | None:
    # Beside these, schedulers keep numbers of their own there.
    for name in optimizer.defaults:
        value = group[name]
        parts = value if isinstance(value, tuple | list) else (value,)
        if not any(isinstance(part, torch.Tensor) for part in parts):
            continue
        if name != "lr" or not takes_a_rate_tensor(optimizer, group):
            return f"its {name} is a tensor that it reads on the host"
        if needs_copy(value):
            return f"its {name} is a tensor that is not on the device"
    return None


def takes_a_rate_tensor(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    """Return whether the update of a group, inside, reads its rate on the device."""
    kind = type(optimizer)
    if kind in _HAVE_FUSED and group["fused"]:
        return True
    if kind in (_optim.Adadelta, _optim.RMSprop):
        # Weight by weight they read it on the host.
        return bool(group["capturable"]) and is_foreach(group, group["params"])
    return kind in (_optim.Adam, _optim.AdamW) and bool(group["capturable"])


# Torch 2.11 makes them on the default device; some loops move them there with the rest of a checkpoint.
_COUNTS_ON_THE_DEVICE = (
    "it reads on the host its counts of steps, which are on the device; put them on the host after the first "
    'step, as by `for state in optimizer.state.values(): state["step"] = state["step"].cpu()`'
)


def _is_not_on_the_device(
    optimizer: Optimizer, group: dict[str, Any], needs_copy: Callable[[torch.Tensor], bool]
) -> str | None:
    needs_state = type(optimizer) is not _optim.SGD or group["momentum"] != 0
    counts_apart = takes_rate_last(optimizer)
    for weight in group["params"]:
        if weight.grad is None:
            continue
        state = optimizer.state.get(weight) or {}
        if needs_state and not state:
            return "it has no state for a weight yet"
        for key, part in (("", weight), ("", weight.grad), *state.items()):
            if not isinstance(part, torch.Tensor) or part.layout is not torch.strided:
                return "its gradients or its state are no dense tensors"
            is_count = counts_apart and key == "step"
            if needs_copy(part) is is_count:
                continue
            if not is_count:
                return "its state is not all on the device"
            # The formulas of others do not take it.
            if is_foreach_adam(optimizer):
                return _COUNTS_ON_THE_DEVICE
    return None


def has_hooks(optimizer: Optimizer) -> bool:
    """Return whether `step` has hooks, other than those with which gapless watches."""
    *own, before, after = tables_of_hooks(optimizer)
    if any(own):
        return True
    common = (*before.values(), *after.values())
    return not all(getattr(hook, "__module__", "").startswith("gapless.") for hook in common)


def tables_of_hooks(optimizer: Optimizer) -> list[Any]:
    """Return the tables in which hooks of `step` stand: of its own, where it has any, and of all optimizers."""
    return [
        *[getattr(optimizer, table, None) for table in HOOKS],
        torch_optimizer._global_optimizer_pre_hooks,
        torch_optimizer._global_optimizer_post_hooks,
    ]


def name_of(optimizer: Optimizer) -> str:
    """Return the name of an optimizer's type."""
    return type(optimizer).__name__


def weights_of(optimizer: Optimizer) -> list[torch.Tensor]:
    """Return the weights of all groups."""
    return list(chain.from_iterable([group["params"] for group in optimizer.param_groups]))


def gradients_of(optimizer: Optimizer) -> list[torch.Tensor | None]:
    """Return the gradients of all weights."""
    return list(map(attrgetter("grad"), weights_of(optimizer)))


@contextmanager
def gradients_replaced(
    weights: list[torch.Tensor], inside: Sequence[Any], behind: Sequence[Any]
) -> Iterator[None]:
    """Let weights have some gradients in the body, and others behind it."""
    for weight, gradient in zip(weights, inside, strict=True):
        weight.grad = gradient
    try:
        yield
    finally:
        for weight, gradient in zip(weights, behind, strict=True):
            weight.grad = gradient


def same_objects(some: list[Any], others: list[Any]) -> bool:
    """Return whether two lists hold the same objects; tensors are not compared."""
    return len(some) == len(others) and all(map(is_, some, others))
