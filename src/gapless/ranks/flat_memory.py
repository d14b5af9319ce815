"""Flat memory in which gradients lie one after the other, so that they are sent and summed at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gapless.errors import RanksError


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


# Parts begin where vectorised kernels can read them.
ALIGNMENT_BYTES = 512


class FlatMemory:
    """Memory for the gradients of parameters of one dtype.

    Args:
        weights: all that are summed.
        numbers: of those whose gradients lie here, in their order.
        sends_bf16: gradients of fp32 are sent as bf16.
        zeros_like: returns the memory that is sent, in the shape and dtype of a given tensor.

    Attributes:
        sent: what all ranks are to sum between `take_gradients` and `take_sum`.

    Sync: Blocks the host on a GPU, which allocates memory.
    """

    def __init__(
        self,
        weights: list[torch.nn.Parameter],
        numbers: Sequence[int],
        *,
        sends_bf16: bool = False,
        zeros_like: Callable[[torch.Tensor], torch.Tensor] = torch.zeros_like,
    ) -> None:
        first = weights[numbers[0]]
        step = ALIGNMENT_BYTES // first.element_size()
        starts = [0]
        for number in numbers:
            starts.append(starts[-1] + -(-weights[number].numel() // step) * step)
        is_rounded = sends_bf16 and first.dtype == torch.float32
        dtype = torch.bfloat16 if is_rounded else first.dtype
        self.sent = zeros_like(first.new_empty(starts[-1], dtype=dtype))
        self._memory = torch.zeros_like(self.sent, dtype=first.dtype) if is_rounded else self.sent
        self._parts = []
        for number, start in zip(numbers, starts, strict=False):
            view = _view(self._memory, weights[number], start)
            sent = _view(self.sent, weights[number], start) if is_rounded else view
            self._parts.append(_Part(number, weights[number], view, sent))

    def __len__(self) -> int:
        """Return the number of parameters."""
        return len(self._parts)

    @torch.no_grad()
    def take_gradients(self, trained: frozenset[int]) -> None:
        """Copy gradients to what is sent, but those that lie there, and let parameters have views.

        Args:
            trained: numbers of the parameters that have gradients.

        Raises:
            RanksError: a gradient is sparse.
        """
        moved = [
            part
            for part in self._parts
            if part.number in trained and part.weight.grad is not part.sent
        ]
        if not moved:
            return
        torch._foreach_copy_([part.sent for part in moved], [_dense(part) for part in moved])
        for part in moved:
            part.weight.grad = part.view

    @torch.no_grad()
    def take_sum(self) -> None:
        """Put what all ranks have summed into the gradients."""
        if self.sent is not self._memory:
            self._memory.copy_(self.sent)


@dataclass(slots=True)
class _Part:
    """The part of flat memory that belongs to a parameter: of its gradient, and of what is sent."""

    number: int
    weight: torch.nn.Parameter
    view: torch.Tensor
    sent: torch.Tensor


def _dense(part: _Part) -> torch.Tensor:
    gradient = part.weight.grad
    assert gradient is not None
    if gradient.layout is not torch.strided:
        raise RanksError(
            f"the gradient of parameter {part.number} (shape {tuple(part.weight.shape)}) is sparse, "
            "expected a dense one; several ranks cannot sum it"
        )
    return gradient


def _view(memory: torch.Tensor, weight: torch.Tensor, start: int) -> torch.Tensor:
    """Return a part of flat memory in the shape of a parameter, and in its order of dimensions."""
    strides = torch.empty_like(weight, device="meta").stride()
    return memory.as_strided(weight.shape, strides, start)


def alike(weights: list[torch.nn.Parameter]) -> list[list[int]]:
    """Return the numbers of parameters, those of each dtype together."""
    numbers: dict[torch.dtype, list[int]] = {}
    for number, weight in enumerate(weights):
        numbers.setdefault(weight.dtype, []).append(number)
    return list(numbers.values())


def cut(
    weights: list[torch.nn.Parameter], order: Sequence[int], most_bytes: int
) -> list[list[int]]:
    """Return runs of parameters of one dtype, each of at most so many bytes or one parameter.

    Args:
        weights: that numbers are of.
        order: numbers of those that are wanted.
        most_bytes: of the gradients in a run.
    """
    runs: list[list[int]] = []
    size = 0
    for number in order:
        weight = weights[number]
        size += weight.numel() * weight.element_size()
        is_alike = bool(runs) and weights[runs[-1][0]].dtype == weight.dtype
        if not is_alike or size > most_bytes:
            runs.append([])
            size = weight.numel() * weight.element_size()
        runs[-1].append(number)
    return runs
