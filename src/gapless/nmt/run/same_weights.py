"""Whether all ranks hold the same weights, which they must after every update."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.device.bits import Checksums
from gapless.errors import RanksDifferError
from gapless.pipeline.host_copy import HostCopy


if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from gapless.pipeline.host_waits import HostWaits
    from gapless.ranks import Ranks


def check_same_weights(
    weights: Mapping[str, torch.Tensor], ranks: Ranks, *, host_waits: HostWaits, updates: int
) -> None:
    """Check that the weights of all ranks have the same bits, before they are saved as those of all.

    Call it on the compute stream.

    Args:
        weights: by name, on the device.
        ranks: that train them.
        host_waits: counts the wait.
        updates: done so far, for the message.

    Raises:
        RanksDifferError: on all ranks, with the first weight that differs.

    Sync: With several ranks, blocks the host until the device has done all updates so far; counted
        as "checkpoint".
    """
    if ranks.world == 1:
        return
    largest = max(weight.numel() for weight in weights.values())
    checksums = Checksums(host_waits.device.torch_device, num_elements=largest)
    own = checksums.take_all(weights.values())
    copy = HostCopy(ranks.gather_rows(own), device=host_waits.device)
    copy.wait(host_waits, reason="checkpoint")
    first, *others = copy.value.tolist()
    for rank, theirs in enumerate(others, start=1):
        for name, here, there in zip(weights, first, theirs, strict=True):
            if here != there:
                raise RanksDifferError(
                    f"after update {updates} the weight {name} of rank {rank} is not that of rank 0, "
                    "expected the same bits on all ranks; no state is saved: go on from the one "
                    "before, on processors of one kind, and look for faulty memory if it happens again"
                )
