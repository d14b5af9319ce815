"""The ranks of a user's own process group.

The user's group carries what lies on the device. What the ranks agree on goes over a gloo group
beside it, so that it never meets a collective of the loop. There is one such group for each of the
user's; all ranks make it when they first need it.

A user's own loop has no heartbeat. A rank that waits for another one writes a line after some seconds, and
raises an error after the time limit of the user's group.
"""

from __future__ import annotations

import gc
import weakref
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import torch.distributed as dist

from gapless.device.torch_private import (
    all_groups,
    backend_on,
    devices_of,
    num_collectives,
    timeout_of,
)
from gapless.errors import DeviceError, PeerLostError, UserError
from gapless.ranks.collectives import gather_rows, gather_values
from gapless.ranks.peer_errors import first_line, is_of_a_connection, reported_if_long
from gapless.unnoticed import PatchesWhileAlive


if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    import torch

    from gapless.ranks.protocol import HoldsGraphs
    from gapless.unnoticed import Patches


T = TypeVar("T")

# The user's group, and the one beside it, until the user's is gone.
_known: list[tuple[weakref.ref[dist.ProcessGroup], dist.ProcessGroup]] = []


def _let_groups_end(patches: Patches) -> None:
    # Whoever ends a group, under whatever name they have imported that, calls this.
    shut_down = dist.ProcessGroup.shutdown

    def drop_and_shut_down(group: dist.ProcessGroup) -> None:
        if group is dist.group.WORLD or not _is_on_the_host(group):
            for holder in _holders.living:
                holder.drop_graphs()
            # A graph in a reference cycle is freed by the collector alone, and NCCL waits for it.
            gc.collect()
        shut_down(group)

    patches.put(dist.ProcessGroup, "shutdown", drop_and_shut_down)


# As long as one of them lives, the end of a group lets them drop their graphs first.
_holders = PatchesWhileAlive(_let_groups_end)


def note_holder(holder: HoldsGraphs) -> None:
    """Let an object drop its graphs before a process group of this process ends, if it lives then.

    Sync: Does not block the host.
    """
    _holders.need(holder)


def _is_on_the_host(group: dist.ProcessGroup) -> bool:
    """Return whether a group works with gloo alone, which no graph can hold."""
    backends = _backends_of(group)
    return bool(backends) and all(backend.name() == "gloo" for backend in backends)


def join_user_ranks(device: torch.device) -> UserRanks:
    """Return the ranks of the user's group; all of them call this.

    Args:
        device: on which this rank computes.

    Raises:
        UserError: the group does not compute on that device, or makes the host wait for it.
        RanksError: not all ranks come.

    Sync: The first time, blocks the host until all ranks are here.
    """
    main = dist.group.WORLD
    assert main is not None
    limit = timeout_of(_backend_on(main, device))
    return UserRanks(main, _group_beside(main, limit=limit), limit=limit)


def count_collectives() -> dict[int, tuple[int, int]]:
    """Return the collectives of each group of this process so far, with the size of the group.

    Those that a graph replays are not counted. Groups that cannot count are left out, and so are those
    beside the user's.

    Returns:
        By the id of the group: its number of ranks, and of collectives.

    Sync: Does not block the host.
    """
    beside = [side for _, side in _known]
    return {
        id(group): (group.size(), sum(_counts_of(group)))
        for group in all_groups()
        if group not in beside
    }


def _counts_of(group: dist.ProcessGroup) -> list[int]:
    # By backend: one that serves two types of device would be counted twice.
    counts: dict[int, int] = {}
    for backend in _backends_of(group):
        with suppress(RuntimeError):
            counts[id(backend)] = num_collectives(backend)
    return list(counts.values())


def _backends_of(group: dist.ProcessGroup) -> list[Any]:
    found: list[Any] = []
    for device in devices_of(group):
        with suppress(RuntimeError, DeviceError):
            found.append(backend_on(group, device))
    return found


class UserRanks:
    """Implements `Peers` over the user's group.

    Args:
        main: the user's group.
        side: the group beside it, on the host.
        limit: of a wait for others.
    """

    def __init__(
        self, main: dist.ProcessGroup, side: dist.ProcessGroup, *, limit: timedelta
    ) -> None:
        self.world = main.size()
        self._limit = limit
        self._main = main
        self._side = side

    def gather_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the tensors of all ranks, stacked along a new first dimension.

        Raises:
            PeerLostError: another rank is gone, seen on a CPU.

        Sync: Does not block the host on a GPU.
        """
        with _named_as_lost("gather losses"):
            return gather_rows(rows, group=self._main)

    def agree(self, value: T) -> list[T]:
        """Return the values of all ranks, in the order of ranks.

        Raises:
            PeerLostError: another rank is gone, or did not come within the time limit.

        Sync: Blocks the host until all ranks are here, but not on the device.
        """
        with _named_as_lost("agree"), reported_if_long(rank=self._main.rank(), limit=self._limit):
            return gather_values(value, group=self._side)


def _backend_on(group: dist.ProcessGroup, device: torch.device) -> Any:
    try:
        backend: Any = backend_on(group, device)
    except RuntimeError as error:
        raise UserError(
            f"the process group has no backend for {device.type} ({first_line(error)}), expected one "
            "for the device of the losses; name one in init_process_group"
        ) from error
    if device.type != "cpu" and backend.name() == "gloo":
        raise UserError(
            f"the process group uses gloo on {device.type}, which makes the host wait for the device; "
            'give init_process_group the backend "nccl", or "cpu:gloo,cuda:nccl"'
        )
    return backend


def _group_beside(main: dist.ProcessGroup, *, limit: timedelta) -> dist.ProcessGroup:
    _known[:] = [pair for pair in _known if pair[0]() is not None]
    for known, side in _known:
        if known() is main:
            return side
    with _named_as_lost("meet"), reported_if_long(rank=main.rank(), limit=limit):
        made: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=limit)
    _known.append((weakref.ref(main), made))
    return made


@contextmanager
def _named_as_lost(what: str) -> Iterator[None]:
    """Raise an error of ours for what torch raises where ranks cannot be reached, or do not come.

    Args:
        what: all ranks do.
    """
    try:
        yield
    except RuntimeError as error:
        if not (is_of_a_connection(error) or isinstance(error, dist.DistBackendError)):
            raise
        raise PeerLostError(
            f"not all ranks came to {what} ({first_line(error)}); all of them have to call the same of "
            "gapless, equally often; look at what the others say"
        ) from error
