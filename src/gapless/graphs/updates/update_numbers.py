"""Which of torch's ways an update goes, and the numbers that Adam computes for each weight anew.

They are those of `torch.optim.adam._multi_tensor_adam` (torch 2.11 to 2.14), in the same order of operations.
Nobody has to believe it: `gapless.graphs.updates.rate_outside` compares them with those of the captured update.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.optim import optimizer as torch_optimizer


if TYPE_CHECKING:
    from torch.optim import Optimizer


_optim: Any = torch.optim


def is_foreach_adam(optimizer: Optimizer) -> bool:
    """Return whether the update is that of Adam over lists of weights, which counts on the host."""
    if type(optimizer) not in (_optim.Adam, _optim.AdamW) or optimizer.defaults["differentiable"]:
        return False
    return all(
        is_foreach(group, group["params"])
        and not (group["differentiable"] or group["fused"] or group["capturable"])
        for group in optimizer.param_groups
    )


def is_foreach(group: dict[str, Any], weights: list[torch.Tensor]) -> bool:
    """Return whether an update works on lists of weights, as a group says or as torch chooses for them."""
    if group["foreach"] is None and group.get("fused") is None:
        _, chosen = torch_optimizer._default_to_fused_or_foreach(
            weights, differentiable=False, use_fused=False
        )
        return bool(chosen)
    return bool(group["foreach"])


def values_of(counts: list[torch.Tensor]) -> list[float]:
    """Return the counts of steps, which lie on the host."""
    values: list[float] = torch.stack(counts).tolist()
    return values


# Torch computes each for each weight; most weights have the same count.


def sizes_of_adam(group: dict[str, Any], counts: list[float]) -> list[float]:
    """Return the size of the step of each weight, of which so many came before."""
    rate, (beta1, _) = group["lr"], group["betas"]
    sizes = {count: (rate / (1 - beta1**count)) * -1 for count in set(counts)}
    return [sizes[count] for count in counts]


def corrections_of_adam(group: dict[str, Any], counts: list[float]) -> list[float]:
    """Return the correction of the average of squares of each weight."""
    _, beta2 = group["betas"]
    corrections = {count: (1 - beta2**count) ** 0.5 for count in set(counts)}
    return [corrections[count] for count in counts]


def decay_of_adam(group: dict[str, Any], _: object = None) -> float:
    """Return what decoupled decay multiplies weights by."""
    decayed: float = 1 - group["lr"] * group["weight_decay"]
    return decayed
