"""Sum the gradients of all ranks: in one piece after the backward pass, or in buckets during it.

The sum lies in flat memory that stays where it is, and the gradients of parameters are views of its
parts, so that nothing is copied back. A gradient that was elsewhere is copied there first. One that
is such a view already was made in its place: a loop that keeps gradients from batch to batch, as one
that accumulates does, copies nothing.

Ranks sum, they never average: the loss of a batch is divided by the tokens of the whole update. The
sum of two ranks has the bits of one rank that accumulates two batches, since a + b is b + a.

All of it may stand in a step that is captured. The first update must run as written: in it the ranks
compare which parameters get gradients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist

from gapless.errors import RanksDifferError, RanksError
from gapless.ranks.carriers import AllReduces, Carrier, PeerCopies
from gapless.ranks.flat_memory import FlatMemory, alike, cut
from gapless.ranks.lost_peers import named_as_lost


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import torch

    from gapless.ranks.protocol import GradientSum
    from gapless.ranks.way_to_sum import WayToSum


def summing(
    params: Iterable[torch.nn.Parameter],
    way: WayToSum,
    *,
    group: dist.ProcessGroup,
    last_group: dist.ProcessGroup,
    agree: Callable[[list[int]], list[list[int]]],
) -> GradientSum:
    """Return what sums the gradients of parameters in this way.

    Args:
        params: in the same order on all ranks; those that need no gradient are left out.
        way: the same on all ranks.
        group: of the ranks, on the device of the parameters.
        last_group: for the last bucket; may be the same.
        agree: returns what all ranks give it, in the order of ranks; blocks the host.

    Sync: Blocks the host on a GPU, which allocates memory.
    """
    if way.bucket_bytes is None:
        return FlatSum(params, group=group, agree=agree, sends_bf16=way.sends_bf16)
    weights = [weight for weight in params if weight.requires_grad]
    carrier: Carrier = AllReduces(group, last_group)
    if way.copies and weights:
        carrier = PeerCopies(group, like=weights[0])
    return BucketSum(
        weights,
        carrier=carrier,
        agree=agree,
        bucket_bytes=way.bucket_bytes,
        sends_bf16=way.sends_bf16,
    )


class FlatSum:
    """Sums all gradients after the backward pass, in one all-reduce for each dtype.

    Args:
        params: in the same order on all ranks; those that need no gradient are left out.
        group: of the ranks, on the device of the parameters.
        agree: returns what all ranks give it, in the order of ranks; blocks the host.
        sends_bf16: gradients of fp32 are sent and summed as bf16.

    Sync: Blocks the host on a GPU, which allocates memory.
    """

    def __init__(
        self,
        params: Iterable[torch.nn.Parameter],
        *,
        group: dist.ProcessGroup,
        agree: Callable[[list[int]], list[list[int]]],
        sends_bf16: bool = False,
    ) -> None:
        self._weights = [weight for weight in params if weight.requires_grad]
        self._flats = [
            FlatMemory(self._weights, numbers, sends_bf16=sends_bf16)
            for numbers in alike(self._weights)
        ]
        self._group = group
        self._trained = _TrainedWeights(self._weights, agree)

    def start(self) -> None:
        """Nothing is done before gradients are there."""

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
                dist.all_reduce(flat.sent, group=self._group)
            flat.take_sum()

    def close(self) -> None:
        """Let the memory go; gradients that are views of it keep it."""
        self._flats = []


class BucketSum:
    """Sums gradients in buckets, each as soon as the backward pass has made all that is in it.

    Buckets hold parameters in the order in which rank 0 made their first gradients, and they are
    sent strictly in that order, so that all ranks send the same ones at the same time. The first
    update is summed after its backward pass.

    Args:
        params: in the same order on all ranks; those that need no gradient are left out.
        carrier: sums them.
        agree: returns what all ranks give it, in the order of ranks; blocks the host.
        bucket_bytes: size above which a bucket takes no further parameter.
        sends_bf16: gradients of fp32 are sent and summed as bf16.
    """

    def __init__(
        self,
        params: Iterable[torch.nn.Parameter],
        *,
        carrier: Carrier,
        agree: Callable[[list[int]], list[list[int]]],
        bucket_bytes: int,
        sends_bf16: bool = False,
    ) -> None:
        self._weights = [weight for weight in params if weight.requires_grad]
        self._carrier = carrier
        self._agree = agree
        self._bucket_bytes = bucket_bytes
        self._sends_bf16 = sends_bf16
        self._trained = _TrainedWeights(self._weights, agree)
        self._order: list[int] = []
        self._buckets: list[FlatMemory] = []
        self._bucket_of: dict[int, int] = {}
        self._num_missing: list[int] = []
        self._num_sent = 0
        self._is_last_backward = False
        self._hooks = [
            weight.register_post_accumulate_grad_hook(self._hook_of(number))
            for number, weight in enumerate(self._weights)
        ]

    def start(self) -> None:
        """Send buckets in the backward pass that follows, the last of its update."""
        # A step that raised may have left something.
        self._forget()
        self._is_last_backward = True

    def finish(self) -> None:
        """Wait on the current stream for the sums, and make gradients views of them.

        Raises:
            RanksDifferError: ranks have gradients for different parameters.
            RanksError: a parameter has a gradient that it had not in the first update, or none
                that it had; or a gradient is sparse.

        Sync: Does not block the host on a GPU, but in the first update.
        """
        self._is_last_backward = False
        self._trained.check()
        if not self._buckets:
            self._make_buckets()
        # What got no gradient in this pass has one of an earlier batch.
        while self._num_sent < len(self._buckets):
            if self._is_next_apart():
                self._carrier.wait()
            self._send_next()
        self._carrier.wait()
        for bucket in self._buckets:
            bucket.take_sum()
        # As before the update: a captured step must leave nothing on the host.
        self._forget()

    def close(self) -> None:
        """Take the hooks away and let the memory go; gradients that are views of it keep it."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._buckets = [], []

    def _forget(self) -> None:
        """Forget what the backward pass of an update has made."""
        self._is_last_backward = False
        self._order, self._num_sent = [], 0
        self._num_missing = [len(bucket) for bucket in self._buckets]

    def _hook_of(self, number: int) -> Callable[[torch.Tensor], None]:
        def made(weight: torch.Tensor) -> None:
            del weight
            if self._is_last_backward:
                self._note_made(number)

        return made

    def _note_made(self, number: int) -> None:
        self._order.append(number)
        if not self._buckets:
            return
        place = self._bucket_of.get(number)
        if place is None:
            return  # `finish` says so
        self._num_missing[place] -= 1
        while self._num_sent < len(self._buckets) and not self._num_missing[self._num_sent]:
            if self._is_next_apart():
                return  # `finish` sends it
            self._send_next()

    def _is_next_last(self) -> bool:
        return self._num_sent == len(self._buckets) - 1

    def _is_next_apart(self) -> bool:
        return self._is_next_last() and self._carrier.keeps_last_apart

    def _send_next(self) -> None:
        bucket = self._buckets[self._num_sent]
        bucket.take_gradients(self._trained.numbers)
        self._carrier.send(bucket, is_last=self._is_next_last())
        self._num_sent += 1

    def _make_buckets(self) -> None:
        """Lay the parameters out in the order in which rank 0 made their gradients."""
        order = self._agree(self._order)[0]
        # Those of earlier batches alone come last.
        order += [number for number in sorted(self._trained.numbers) if number not in set(order)]
        for numbers in cut(self._weights, order, self._bucket_bytes):
            for number in numbers:
                self._bucket_of[number] = len(self._buckets)
            self._buckets.append(
                FlatMemory(
                    self._weights,
                    numbers,
                    sends_bf16=self._sends_bf16,
                    zeros_like=self._carrier.zeros_like,
                )
            )


class _TrainedWeights:
    """Which parameters get gradients: the same in every update and on all ranks."""

    def __init__(
        self, weights: list[torch.nn.Parameter], agree: Callable[[list[int]], list[list[int]]]
    ) -> None:
        self._weights = weights
        self._agree = agree
        self._numbers: frozenset[int] | None = None

    @property
    def numbers(self) -> frozenset[int]:
        """Their numbers, once the first update was looked at."""
        return frozenset() if self._numbers is None else self._numbers

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
