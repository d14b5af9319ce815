"""Several ranks over torch's process groups.

There are three groups, since the collectives of a group are matched by their order:

    main        gradients and losses, on the device: NCCL on GPUs, gloo on a CPU
    side        what ranks agree on and share, on the host: gloo
    heartbeat   beats, in separate threads: gloo

`side` is made first, as the process's default group: over it the ranks find out that two of them have one
GPU, with which NCCL would not start. `main` is made last, with the first sum of gradients, and connects
at once: connecting takes memory and starts threads, which must not happen in a capture.

Groups on the host connect within a time limit: until the heartbeat beats, nobody reports a rank that has
died. Collectives have no limit: rank 0 may prepare data for hours while the others wait.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import torch
import torch.distributed as dist

from gapless.device.torch_private import set_timeout, set_timeout_of_options
from gapless.errors import RanksError, UserError
from gapless.ranks.agreement import GroupAgreement
from gapless.ranks.collectives import gather_rows, gather_values
from gapless.ranks.gradient_sum import FlatSum
from gapless.ranks.heartbeat import Heartbeat
from gapless.ranks.leaving import errors_end_all, leave
from gapless.ranks.peer_errors import first_line, heartbeat_tells, named_as_lost
from gapless.ranks.rendezvous import SECONDS_TO_ARRIVE, store_of, wait_for_all


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from gapless.ranks.launch import Launch
    from gapless.ranks.protocol import Agreement, Blocking, GradientSum


T = TypeVar("T")

_TO_CONNECT = timedelta(seconds=SECONDS_TO_ARRIVE)
_NO_LIMIT = timedelta(days=365)


def join_ranks(launch: Launch, device: torch.device, *, uuid: str | None) -> TorchRanks:
    """Join the other ranks that torchrun started.

    Args:
        launch: place of this process.
        device: on which this rank computes, with its index; current, as is the stream.
        uuid: of the device; None: ranks may share it.

    Raises:
        UserError: two ranks have the same device.
        RankLeftError: a rank ended before all were here.
        RanksError: not all ranks can be reached.

    Sync: Blocks the host until all ranks are here.
    """
    try:
        store = store_of(launch)
        wait_for_all(store, launch)
        dist.init_process_group(
            "gloo", store=store, rank=launch.rank, world_size=launch.world, timeout=_TO_CONNECT
        )
    except (RuntimeError, ValueError) as error:
        if isinstance(error, RanksError):
            raise
        raise RanksError(
            f"rank {launch.rank} of {launch.world} cannot reach the others ({first_line(error)}); "
            "start all of them by torchrun, and look at what the others say"
        ) from error
    try:
        _refuse_shared_devices(_gathered(uuid, _default_group()))
        return TorchRanks(launch, device)
    except BaseException:
        dist.destroy_process_group()
        raise


class TorchRanks:
    """Implements `Ranks` over process groups, of which the default one is there.

    Args:
        launch: place of this process.
        device: on which this rank computes.

    Attributes:
        side: group on the host.
    """

    def __init__(self, launch: Launch, device: torch.device) -> None:
        self.rank = launch.rank
        self.world = launch.world
        self.is_first = launch.rank == 0
        self.side = _default_group()
        set_timeout(self.side, _NO_LIMIT)
        self._device = device
        with named_as_lost("start"):
            parent = os.getppid() if launch.has_agent else None
            self._heartbeat = Heartbeat(
                _gloo(), rank=self.rank, world=self.world, parent=parent
            ).start()
            self._until_end = ExitStack()
            self._until_end.enter_context(errors_end_all(self._heartbeat))
            self._until_end.enter_context(heartbeat_tells(self._heartbeat.let_tell))

    @cached_property
    def main(self) -> dist.ProcessGroup:
        """Group on the device.

        Sync: The first time, blocks the host until all ranks are here.
        """
        with named_as_lost("start"), self._heartbeat.pause():
            return _group_on(self._device)

    def sum_gradients(self, params: Iterable[torch.nn.Parameter]) -> GradientSum:
        """Return what sums the gradients of these parameters.

        Sync: Blocks the host on a GPU, which allocates memory; the first one until all ranks are
            here.
        """
        return FlatSum(params, group=self.main, agree=self.agree)

    def gather_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the tensors of all ranks, stacked along a new first dimension.

        Raises:
            PeerLostError: another rank is gone, seen on a CPU.

        Sync: Does not block the host on a GPU.
        """
        with named_as_lost("losses"):
            return gather_rows(rows, group=self.main)

    def agree(self, value: T) -> list[T]:
        """Return the values of all ranks, in the order of ranks.

        Raises:
            PeerLostError: another rank is gone.

        Sync: Blocks the host until all ranks are here, but not on the device.
        """
        return _gathered(value, self.side)

    def share(self, value: T) -> T:
        """Return the value of rank 0 on all ranks.

        Raises:
            PeerLostError: another rank is gone.

        Sync: Blocks the host until the value is here, but not on the device.
        """
        values: list[Any] = [value if self.is_first else None]
        with named_as_lost("value of rank 0"):
            dist.broadcast_object_list(values, src=0, group=self.side)
        return value if self.is_first else values[0]

    def agreement(
        self,
        flags: Sequence[str],
        *,
        blocking: Blocking,
        every: int | None = None,
    ) -> Agreement:
        """Return a new agreement, the same on all ranks."""
        return GroupAgreement(flags, group=self.side, blocking=blocking, every=every)

    def note_updates(self, updates: int) -> None:
        """Tell the others how many updates this rank has done.

        Sync: Does not block the host.
        """
        self._heartbeat.note_updates(updates)

    def pause(self, reason: str, *, may_be_silent: bool = True) -> AbstractContextManager[None]:
        """Tell the others that this rank does no updates in the body, and is alive."""
        del reason
        return self._heartbeat.pause(may_be_silent=may_be_silent)

    def note_stop(self) -> None:
        """Treat a silent rank as lost even in a pause, since this one is asked to stop."""
        self._heartbeat.note_stop()

    def note_done(self) -> None:
        """Tell the others that the run is done and saved; only rank 0 decides it."""
        if self.is_first:
            self._heartbeat.note_done()

    def fail(self, tell: Callable[[], None] | None, *, code: int) -> NoReturn:
        """End all ranks because of an error on this one."""
        self._heartbeat.fail(tell, code=code)

    def end(self) -> None:
        """Leave together with all ranks, once no work is queued and no graph is left.

        Sync: Blocks the host until all ranks are here.
        """
        leave(self._heartbeat, dist.destroy_process_group)
        self._until_end.close()


def _gathered(value: T, group: dist.ProcessGroup) -> list[T]:
    with named_as_lost("values"):
        return gather_values(value, group=group)


def _default_group() -> dist.ProcessGroup:
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def _refuse_shared_devices(uuids: Sequence[str | None]) -> None:
    """Raise the same error on all ranks if two of them have one device."""
    ranks_of: dict[str, list[int]] = {}
    for rank, uuid in enumerate(uuids):
        if uuid is not None:
            ranks_of.setdefault(uuid, []).append(rank)
    for uuid, ranks in ranks_of.items():
        if len(ranks) > 1:
            raise UserError(
                f"ranks {', '.join(map(str, ranks))} have the same GPU ({uuid}), expected one for "
                "each; start no more ranks on a host than it has GPUs, and use "
                '`device="cuda"`, of which rank N takes GPU N'
            )


def _gloo() -> dist.ProcessGroup:
    group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=_TO_CONNECT)
    set_timeout(group, _NO_LIMIT)
    return group


def _group_on(device: torch.device) -> dist.ProcessGroup:
    """Return a group on a device, connected.

    Sync: Blocks the host on a GPU until NCCL is connected.
    """
    if device.type == "cpu":
        return _gloo()
    group: dist.ProcessGroup = dist.new_group(
        backend="nccl", timeout=_NO_LIMIT, pg_options=_nccl_options(), device_id=device
    )
    # The first collective takes memory and starts threads, which a capture must not see.
    dist.all_reduce(torch.ones(1, device=device), group=group)
    return group


def _nccl_options() -> Any:
    options = dist.ProcessGroupNCCL.Options()
    # Torch warns if it is not that of the group.
    set_timeout_of_options(options, _NO_LIMIT)
    return options
