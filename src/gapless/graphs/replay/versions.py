"""Versions of tensors: what torch counts up when a tensor is written to in place."""

from __future__ import annotations

from itertools import chain, repeat
from typing import TYPE_CHECKING

import torch


if TYPE_CHECKING:
    from collections.abc import Iterable


def version_of(tensor: torch.Tensor) -> int:
    """Return a tensor's version; -1 for one of inference mode, which has none."""
    return -1 if tensor.is_inference() else tensor._version


class VersionsBefore:
    """The versions of tensors before a run of their step.

    A replay writes to tensors and counts nothing. But autograd compares versions before it uses
    what it has saved, and so do caches of users.

    Args:
        tensors: that the run finds: the very objects, as far as they are known.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        there = {id(tensor): tensor for tensor in tensors if not tensor.is_inference()}
        self._before = [(tensor, tensor._version) for tensor in there.values()]

    def counted(self) -> list[torch.Tensor]:
        """Return those that were counted up since, each as many times as it was.

        Fused optimizers count nothing.
        """
        times = (repeat(tensor, tensor._version - before) for tensor, before in self._before)
        return list(chain.from_iterable(times))


def count_up(tensors: list[torch.Tensor]) -> None:
    """Count up the versions of tensors, once for each time that they stand in the list.

    Sync: Does not block the host.
    """
    if tensors:
        torch.autograd.graph.increment_version(tensors)
