"""Sum the gradients of all ranks in one piece after the backward pass.

The sum lies in flat memory whose address never changes, and the gradients of parameters are views of its
parts, so that nothing is copied back. A gradient that lies elsewhere is copied there first. A loop that
keeps its gradients from batch to batch, as gradient accumulation does, adds into these views and copies
nothing.

Ranks sum, they never average: the loss of a batch is divided by the tokens of the whole update. The
sum of two ranks has the bits of one rank that accumulates two batches, since a + b is b + a.

All of it may be captured. The first update must be eager: in it the ranks compare which parameters get
gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from gapless.device.torch_private import foreach_copy_
from gapless.errors import RanksDifferError, RanksError
from gapless.ranks.peer_errors import named_as_lost


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


# Parts begin where vectorised kernels can read them.
_ALIGNMENT_BYTES = 512


class FlatSum:
    """Sums all gradients after the backward pass, in one all-reduce for each dtype.

    Args:
        params: in the same order on all ranks; those that need no gradient are left out.
        group: of the ranks, on the device of the parameters.
        agree: returns what all ranks give it, in the order of ranks; blocks the host.

    Sync: Blocks the host on a GPU, which allocates memory.
    """

    def __init__(
        self,
        params: Iterable[torch.nn.Parameter],
        *,
        group: dist.ProcessGroup,
        agree: Callable[[list[int]], list[list[int]]],
    ) -> None:
        self._weights = [weight for weight in params if weight.requires_grad]
        self._flats = [_FlatMemory(self._weights, numbers) for numbers in _by_dtype(self._weights)]
        self._group = group
        self._trained = _TrainedWeights(self._weights, agree)

    def finish(self) -> None:
        """Sum the gradients of all ranks, and make them views of the sum.

        Raises:
            RanksDifferError: ranks have gradients for different parameters.
            RanksError: a parameter has a gradient that it had not in the first update, or none
                that it had; or a gradient is sparse.

        Sync: Does not block the host on a GPU, but in the first update.
        """
        trained = self._trained.check()
        for flat in self._flats:
            flat.take_gradients(trained)
            with named_as_lost("gradients"):
                dist.all_reduce(flat.memory, group=self._group)

    def close(self) -> None:
        """Let the memory go; gradients that are views of it keep it."""
        self._flats = []


class _FlatMemory:
    """Memory in which gradients of one dtype lie one after the other.

    Args:
        weights: all that are summed.
        numbers: of those whose gradients lie here, in their order.

    Attributes:
        memory: what all ranks sum.

    Sync: Blocks the host on a GPU, which allocates memory.
    """

    def __init__(self, weights: list[torch.nn.Parameter], numbers: Sequence[int]) -> None:
        first = weights[numbers[0]]
        step = _ALIGNMENT_BYTES // first.element_size()
        starts = [0]
        for number in numbers:
            starts.append(starts[-1] + -(-weights[number].numel() // step) * step)
        self.memory = torch.zeros_like(first.new_empty(starts[-1]))
        self._parts = [
            _Part(number, weights[number], _view(self.memory, weights[number], start))
            for number, start in zip(numbers, starts, strict=False)
        ]

    @torch.no_grad()
    def take_gradients(self, trained: frozenset[int]) -> None:
        """Copy gradients here, but those that lie here, and let parameters have views.

        Args:
            trained: numbers of the parameters that have gradients.

        Raises:
            RanksError: a gradient is sparse.
        """
        moved = [
            part
            for part in self._parts
            if part.number in trained and part.weight.grad is not part.view
        ]
        if not moved:
            return
        foreach_copy_([part.view for part in moved], [_dense(part) for part in moved])
        for part in moved:
            part.weight.grad = part.view


@dataclass(slots=True)
class _Part:
    """The part of flat memory that belongs to the gradient of a parameter."""

    number: int
    weight: torch.nn.Parameter
    view: torch.Tensor


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


def _by_dtype(weights: list[torch.nn.Parameter]) -> list[list[int]]:
    """Return the numbers of the parameters of each dtype."""
    numbers: dict[torch.dtype, list[int]] = {}
    for number, weight in enumerate(weights):
        numbers.setdefault(weight.dtype, []).append(number)
    return list(numbers.values())


class _TrainedWeights:
    """Which parameters get gradients: the same in every update and on all ranks."""

    def __init__(
        self, weights: list[torch.nn.Parameter], agree: Callable[[list[int]], list[list[int]]]
    ) -> None:
        self._weights = weights
        self._agree = agree
        self._numbers: frozenset[int] | None = None

    def check(self) -> frozenset[int]:
        """Return the numbers of the parameters that have gradients now.

        Sync: Blocks the host the first time.
        """
        found = [number for number, one in enumerate(self._weights) if one.grad is not None]
        if self._numbers is None:
            self._compare(self._agree(found))
            self._numbers = frozenset(found)
        elif self._numbers != frozenset(found):
            number = min(self._numbers ^ frozenset(found))
            has = "a gradient" if number in found else "no gradient"
            had = "none" if number in found else "one"
            raise RanksError(
                f"{self._shown(number)} has {has}, but had {had} in the first update; on several "
                "ranks the same parameters must get gradients in every update"
            )
        return self._numbers

    def _compare(self, of_ranks: Sequence[list[int]]) -> None:
        for rank, found in enumerate(of_ranks):
            differing = set(found) ^ set(of_ranks[0])
            if differing:
                number = min(differing)
                some, other = (0, rank) if number in of_ranks[0] else (rank, 0)
                raise RanksDifferError(
                    f"{self._shown(number)} has a gradient on rank {some}, but none on rank "
                    f"{other}; all ranks must compute with the same parameters"
                )

    def _shown(self, number: int) -> str:
        if number >= len(self._weights):  # another rank has more
            return f"parameter {number}"
        return f"parameter {number} (shape {tuple(self._weights[number].shape)})"
