"""The operations by which torch's own optimizers update: those of `step()`, without what is around them.

For each way of an update this file has one function, which calls what torch's function of that way
calls (torch 2.11 to 2.13), with the same arguments in the same order:

    optimizer, and the settings of a group          here            in torch.optim
    Adam, AdamW: fused                              _fused_adam     adam._fused_adam
    Adam, AdamW: foreach, without capturable        _foreach_adam   adam._multi_tensor_adam
    SGD: foreach                                    _foreach_sgd    sgd._multi_tensor_sgd
    SGD: fused                                      _fused_sgd      sgd._fused_sgd

Nobody has to believe it: whoever calls these compares the calls with those of a `step()`
(`gapless.graphs.updates.quick_updates`). The state is there: a first step, which makes it, is none of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.optim import optimizer as torch_optimizer


if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.optim import Optimizer

    # Weights or gradients, lists of state, a group, and what a GradScaler hands over.
    _Tensors: TypeAlias = list[torch.Tensor]
    _State: TypeAlias = tuple[_Tensors, ...]
    _Group: TypeAlias = dict[str, Any]
    _Of: TypeAlias = torch.Tensor | None


_optim: Any = torch.optim


@dataclass(frozen=True)
class Numbers:
    """What the update of a group reads from it, beside its weights.

    Attributes:
        flags: names of what decides which operations are called.
        numbers: names of what they are called with.
        may_be_zero: those of them without which operations are left out.
    """

    flags: tuple[str, ...]
    numbers: tuple[str, ...]
    may_be_zero: tuple[str, ...]


_OF_ADAM = Numbers(
    (
        *("amsgrad", "maximize", "foreach", "capturable", "differentiable", "fused"),
        "decoupled_weight_decay",
    ),
    ("lr", "betas", "eps", "weight_decay"),
    ("weight_decay",),
)
_OF_SGD = Numbers(
    ("nesterov", "maximize", "foreach", "differentiable", "fused"),
    ("lr", "momentum", "dampening", "weight_decay"),
    ("momentum", "weight_decay"),
)

# Of exact types: a class of the user's may do anything.
NUMBERS = {_optim.Adam: _OF_ADAM, _optim.AdamW: _OF_ADAM, _optim.SGD: _OF_SGD}


@dataclass(frozen=True)
class Way:
    """One way to update weights.

    Attributes:
        update: takes weights, their gradients, lists of their state, the group, and what a
            GradScaler has handed over: a scale, and whether there was an infinity.
        state: takes a group; returns the names of the lists of its state, None for an empty one.
        is_fused: whether a GradScaler hands it anything.
        counts_on_host: whether its state has a count of steps on the host, which no graph counts on.
    """

    update: Callable[..., None]
    state: Callable[[dict[str, Any]], tuple[str | None, ...]]
    is_fused: bool = False
    counts_on_host: bool = False


def is_foreach_adam(optimizer: Optimizer) -> bool:
    """Return whether the update is that of Adam over lists of weights, which counts on the host."""
    if type(optimizer) not in (_optim.Adam, _optim.AdamW):
        return False
    groups = optimizer.param_groups
    return all(way_of(optimizer, group, group["params"]) is _FOREACH_ADAM for group in groups)


def is_foreach(group: dict[str, Any], weights: list[torch.Tensor]) -> bool:
    """Return whether an update works on lists of weights, as a group says or as torch chooses for them."""
    if group["foreach"] is None and group.get("fused") is None:
        _, chosen = torch_optimizer._default_to_fused_or_foreach(
            weights, differentiable=False, use_fused=False
        )
        return bool(chosen)
    return bool(group["foreach"])


def way_of(optimizer: Optimizer, group: dict[str, Any], weights: list[torch.Tensor]) -> Way | None:
    """Return how `step()` updates weights of a group; None if that is none of the ways of this file."""
    if group["differentiable"] or optimizer.defaults["differentiable"]:
        return None
    fused, foreach = group["fused"], is_foreach(group, weights)
    if type(optimizer) is _optim.SGD:
        return _FOREACH_SGD if foreach else _FUSED_SGD if fused else None
    if fused:
        return _FUSED_ADAM
    return _FOREACH_ADAM if foreach and not group["capturable"] else None


# --- Adam, AdamW ---


def _fused_adam(
    weights: _Tensors, gradients: Any, state: _State, group: _Group, *of_a_scaler: _Of
) -> None:
    averages, squares, largest, steps = state
    scale, found_inf = of_a_scaler
    beta1, beta2 = group["betas"]
    update = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_
    torch._foreach_add_(steps, 1)
    update(
        weights,
        gradients,
        averages,
        squares,
        largest,
        steps,
        amsgrad=group["amsgrad"],
        lr=group["lr"],
        beta1=beta1,
        beta2=beta2,
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=group["maximize"],
        grad_scale=scale,
        found_inf=found_inf,
    )
    if found_inf is not None:
        torch._foreach_sub_(steps, [found_inf] * len(steps))


def _foreach_adam(
    weights: _Tensors, gradients: Any, state: _State, group: _Group, *_: None
) -> None:
    averages, squares, largest, steps = state
    decay, (beta1, beta2) = group["weight_decay"], group["betas"]
    if group["maximize"]:
        gradients = torch._foreach_neg(gradients)
    torch._foreach_add_(steps, torch.tensor(1.0, device="cpu"), alpha=1.0)
    if decay != 0:
        if group["decoupled_weight_decay"]:
            torch._foreach_mul_(weights, decay_of_adam(group))
        elif group["maximize"]:
            torch._foreach_add_(gradients, weights, alpha=decay)
        else:
            gradients = torch._foreach_add(gradients, weights, alpha=decay)
    torch._foreach_lerp_(averages, gradients, 1 - beta1)
    torch._foreach_mul_(squares, beta2)
    torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
    counts = values_of(steps)
    if group["amsgrad"]:
        torch._foreach_maximum_(largest, squares)
    roots = torch._foreach_sqrt(largest if group["amsgrad"] else squares)
    torch._foreach_div_(roots, corrections_of_adam(group, counts))
    torch._foreach_add_(roots, group["eps"])
    torch._foreach_addcdiv_(weights, averages, roots, sizes_of_adam(group, counts))


def values_of(counts: list[torch.Tensor]) -> list[float]:
    """Return the counts of steps, which lie on the host."""
    values: list[float] = torch.stack(counts).tolist()
    return values


# Torch reads each count by itself, and computes both numbers for each weight.


def sizes_of_adam(group: _Group, counts: list[float]) -> list[float]:
    """Return the size of the step of each weight, of which so many came before."""
    rate, (beta1, _) = group["lr"], group["betas"]
    sizes = {count: (rate / (1 - beta1**count)) * -1 for count in set(counts)}
    return [sizes[count] for count in counts]


def corrections_of_adam(group: _Group, counts: list[float]) -> list[float]:
    """Return the correction of the average of squares of each weight."""
    _, beta2 = group["betas"]
    corrections = {count: (1 - beta2**count) ** 0.5 for count in set(counts)}
    return [corrections[count] for count in counts]


def decay_of_adam(group: _Group, _: object = None) -> float:
    """Return what decoupled decay multiplies weights by."""
    decayed: float = 1 - group["lr"] * group["weight_decay"]
    return decayed


def _state_of_adam(group: dict[str, Any]) -> tuple[str | None, ...]:
    largest = "max_exp_avg_sq" if group["amsgrad"] else None
    return ("exp_avg", "exp_avg_sq", largest, "step")


_FUSED_ADAM = Way(_fused_adam, _state_of_adam, is_fused=True)
_FOREACH_ADAM = Way(_foreach_adam, _state_of_adam, counts_on_host=True)


# --- SGD ---


def _foreach_sgd(
    weights: _Tensors, gradients: Any, state: _State, group: _Group, *_: None
) -> None:
    (momenta,) = state
    momentum, decay = group["momentum"], group["weight_decay"]
    if group["maximize"]:
        gradients = torch._foreach_neg(gradients)
    if decay != 0:
        if group["maximize"]:
            torch._foreach_add_(gradients, weights, alpha=decay)
        else:
            gradients = torch._foreach_add(gradients, weights, alpha=decay)
    if momentum != 0:
        torch._foreach_mul_(momenta, momentum)
        torch._foreach_add_(momenta, gradients, alpha=1 - group["dampening"])
        if group["nesterov"]:
            torch._foreach_add_(gradients, momenta, alpha=momentum)
        else:
            gradients = momenta
    torch._foreach_add_(weights, gradients, alpha=-group["lr"])


def _fused_sgd(
    weights: _Tensors, gradients: Any, state: _State, group: _Group, *of_a_scaler: _Of
) -> None:
    (momenta,) = state
    scale, found_inf = of_a_scaler
    torch._fused_sgd_(
        weights,
        gradients,
        momenta,
        weight_decay=group["weight_decay"],
        momentum=group["momentum"],
        lr=group["lr"],
        dampening=group["dampening"],
        nesterov=group["nesterov"],
        maximize=group["maximize"],
        is_first_step=False,
        grad_scale=scale,
        found_inf=found_inf,
    )


def _state_of_sgd(group: dict[str, Any]) -> tuple[str | None, ...]:
    return ("momentum_buffer" if group["momentum"] != 0 else None,)


_FOREACH_SGD = Way(_foreach_sgd, _state_of_sgd)
_FUSED_SGD = Way(_fused_sgd, _state_of_sgd, is_fused=True)
