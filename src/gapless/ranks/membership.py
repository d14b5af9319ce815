"""Which ranks a process is one of: those that torchrun started, or those of a user's own process group."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gapless.errors import UserError
from gapless.ranks.launch import Launch, read_launch
from gapless.ranks.single_rank import SingleRank


if TYPE_CHECKING:
    import torch

    from gapless.ranks.protocol import HoldsGraphs, Peers, Ranks


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


def is_distributed() -> bool:
    """Return whether this process is one of several that have made a process group.

    Sync: Does not block the host.
    """
    import torch

    group = torch.distributed
    return bool(group.is_available() and group.is_initialized() and group.get_world_size() > 1)


def user_ranks(device: torch.device) -> Peers:
    """Return the ranks of the process group that the user's program has made.

    To be called by all ranks. Without a group, or with a group of one, the process is alone.

    Args:
        device: on which this rank computes.

    Raises:
        UserError: torchrun started several ranks, but there is no group yet; or its backend would
            make the host wait for the device.
        RanksError: not all ranks come.

    Sync: The first time, blocks the host until all ranks are here.
    """
    if not is_distributed():
        _check_alone()
        return SingleRank()
    from gapless.ranks.user_process_group import join_user_ranks

    return join_user_ranks(device)


def collectives_so_far() -> dict[int, tuple[int, int]]:
    """Return the collectives of each process group so far, with the number of its ranks, by its id.

    Those that a graph replays are not counted.

    Sync: Does not block the host.
    """
    if not is_distributed():
        return {}
    from gapless.ranks.user_process_group import count_collectives

    return count_collectives()


def drop_before_groups_end(holder: HoldsGraphs) -> None:
    """Let an object drop its graphs before a process group of this process ends, if it lives then.

    NCCL waits for ever for a graph that holds work of a group which is to end. Without a process group
    nothing happens.

    Sync: Does not block the host.
    """
    import torch

    group = torch.distributed
    if group.is_available() and group.is_initialized():
        from gapless.ranks.user_process_group import note_holder

        note_holder(holder)


def _check_alone() -> None:
    import torch

    group = torch.distributed
    if group.is_available() and group.is_initialized():
        return
    world = read_launch(os.environ).world
    if world > 1:
        raise UserError(
            f"this is one of {world} processes of torchrun, but there is no process group, expected "
            "one of all of them; call torch.distributed.init_process_group before"
        )
