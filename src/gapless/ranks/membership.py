"""Which ranks a process is one of."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gapless.ranks.launch import Launch, read_launch
from gapless.ranks.single_rank import SingleRank


if TYPE_CHECKING:
    import torch

    from gapless.ranks.protocol import Ranks


def find_ranks(
    device: torch.device, *, uuid: str | None = None, launch: Launch | None = None
) -> Ranks:
    """Return the ranks that this process is one of.

    With several, the device and the stream that will compute must be the current ones.

    Args:
        device: on which this rank computes.
        uuid: of the device, by which two ranks on one GPU are found out; None: it may be shared.
        launch: place of this process; what torchrun says if it is not given.

    Raises:
        UserError: torchrun's variables are no numbers, or two ranks have the same GPU.
        RanksError: the other ranks cannot be reached.

    Sync: With several ranks, blocks the host until all of them are here.
    """
    place = launch if launch is not None else read_launch(os.environ)
    if place.world == 1:
        return SingleRank()
    from gapless.ranks.torch_ranks import join_ranks

    return join_ranks(place, device, uuid=uuid)
