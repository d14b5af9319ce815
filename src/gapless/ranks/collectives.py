"""Values of all ranks of a process group: tensors on the device, and objects on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import torch.distributed as dist


if TYPE_CHECKING:
    import torch


T = TypeVar("T")

# Torch 2.13 gave it another name, and warns of this one.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def gather_rows(rows: torch.Tensor, *, group: dist.ProcessGroup) -> torch.Tensor:
    """Return the tensors of all ranks, stacked along a new first dimension.

    Args:
        rows: on the device of the group; of the same shape and dtype on all ranks.
        group: of the ranks.

    Raises:
        RuntimeError: of torch, where another rank is gone; seen on a CPU.

    Sync: Does not block the host on a GPU.
    """
    gathered = rows.new_empty((group.size(), *rows.shape))
    _all_gather(gathered.view(-1), rows.reshape(-1), group=group)
    return gathered


def gather_values(value: T, *, group: dist.ProcessGroup) -> list[T]:
    """Return the values of all ranks, in the order of ranks.

    Args:
        value: can be pickled, and holds no tensor of a device.
        group: of the ranks, on the host.

    Raises:
        RuntimeError: of torch, where another rank is gone.

    Sync: Blocks the host until all ranks are here, but not on the device.
    """
    values: list[Any] = [None] * group.size()
    dist.all_gather_object(values, value, group=group)
    return values
