"""What a run asks of its ranks: sums of gradients, losses of all ranks, collective decisions.

`Ranks` is the protocol that the loop and the trainer write against. `gapless.ranks.find_ranks`
returns the one to use. `Peers` is the part of it that the ranks of a user's own loop have as well.

Every rank calls the same methods in the same order. What leads to a call depends on counts alone,
never on a clock, a file or the state of an event: these differ between ranks, and one that makes a
call alone hangs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    import torch

    # Accounts for a body that blocks the host, as `HostWaits.blocking` does.
    Blocking = Callable[[str], AbstractContextManager[None]]


T = TypeVar("T")

# Updates between two agreements. One over gloo takes about 0.1 ms, too much for every update.
MOST_UPDATES_BETWEEN_AGREEMENTS = 10


class GradientSum(Protocol):
    """Sums the gradients of all ranks within a step, eager or captured."""

    def finish(self) -> None:
        """Put the sum over all ranks into the `grad` of each parameter, before the optimizer.

        Sync: Does not block the host on a GPU.
        """

    def close(self) -> None:
        """Let memory go; the step is not called any more."""


class Agreement(Protocol):
    """Flags that any rank raises and on which all ranks act at the same update."""

    def ask(self, flag: str, value: int = 1) -> None:
        """Raise a flag of this rank; the largest value of all ranks is what they agree on.

        May be called at any time, also by a signal handler.

        Args:
            flag: one of those that the agreement was made with.
            value: 1 or more.
        """

    def after_update(self, updates: int) -> Mapping[str, int]:
        """Return the flags that all ranks know of now; to be called after each update.

        A flag comes back once, after the same update on every rank: with several ranks that is
        the second exchange after it was raised, or the first where updates are slow.

        Args:
            updates: number of updates done, the same on all ranks.

        Raises:
            RanksError: another rank is gone.

        Sync: Waits for the other ranks where they lag behind; counted as "agreement".
        """

    def finish(self) -> Mapping[str, int]:
        """Return what is still to be agreed on, after the last update.

        Raises:
            RanksError: another rank is gone.

        Sync: Blocks the host until all ranks are here; counted as "agreement".
        """


class HoldsGraphs(Protocol):
    """What has captured work, that of ranks among it."""

    def drop_graphs(self) -> None:
        """Let go of all graphs and their memory; they are captured anew when they are needed.

        Sync: Does not block the host.
        """


class Peers(Protocol):
    """Processes that run the same loop, and exchange what it needs."""

    @property
    def world(self) -> int:
        """How many processes there are."""

    def gather_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the tensors of all ranks, stacked along a new first dimension.

        Args:
            rows: dense, on this rank's device; of the same shape and dtype on all ranks.

        Returns:
            Shape `(world, *rows.shape)`, on the same device, made on the current stream.

        Sync: Does not block the host on a GPU.
        """

    def agree(self, value: T) -> list[T]:
        """Return the values of all ranks, in the order of ranks; for moments that may take time.

        Args:
            value: can be pickled, and holds no tensor of a device.

        Raises:
            RanksError: another rank is gone.

        Sync: Blocks the host until all ranks are here, but not on the device.
        """


class Ranks(Peers, Protocol):
    """The processes that train one model."""

    @property
    def rank(self) -> int:
        """Number of this process, from 0 on."""

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which prints and writes for all."""

    def sum_gradients(self, params: Iterable[torch.nn.Parameter]) -> GradientSum:
        """Return what sums the gradients of these parameters over all ranks.

        Args:
            params: in the same order on all ranks. Those that need no gradient are left out.

        Sync: Blocks the host on a GPU, which allocates memory; with several ranks the first one
            until all are here.
        """

    def share(self, value: T) -> T:
        """Return the value of rank 0 on all ranks.

        Args:
            value: can be pickled, and holds no tensor of a device; only that of rank 0 is read.

        Raises:
            RanksError: another rank is gone.

        Sync: Blocks the host until the value is here, but not on the device.
        """

    def agreement(
        self,
        flags: Sequence[str],
        *,
        blocking: Blocking,
        every: int | None = None,
    ) -> Agreement:
        """Return a new agreement, the same on all ranks.

        Args:
            flags: names of what can be agreed on.
            blocking: counts the waits for other ranks, such as `HostWaits.blocking`.
            every: updates from one exchange of flags to the next, 1 or more; None: as many as take
                half a second, at most 10.
        """

    def note_updates(self, updates: int) -> None:
        """Tell the others how many updates this rank has done.

        Sync: Does not block the host.
        """

    def pause(self, reason: str, *, may_be_silent: bool = True) -> AbstractContextManager[None]:
        """Tell the others that this rank does no updates in the body, and is alive.

        Args:
            reason: what it does instead, such as "checkpoint".
            may_be_silent: whether that may hold the interpreter for long, so that the others hear
                nothing of this rank. Otherwise it is lost when it is silent for a minute.
        """

    def note_stop(self) -> None:
        """Tell the heartbeat that this process is asked to stop.

        Ranks agree on a stop, which they cannot with one that is silent: from now on silence ends
        this process even in a pause. May be called at any time, from any thread.
        """

    def note_done(self) -> None:
        """Tell the heartbeat that the run is done and saved: a rank that is lost now is no error.

        All ranks call it, after the last exchange between them; it is so as soon as rank 0 has.

        Sync: With several ranks, blocks the host of rank 0 until the others know, a second at most.
        """

    def fail(self, tell: Callable[[], None] | None, *, code: int) -> None:
        """End all ranks because of an error on this one. With several ranks it does not return.

        If several ranks fail, only the first error is written. If a rank is lost, none is, since they
        follow from that.

        Args:
            tell: writes the error; None: that of another rank says more.
            code: that this process exits with.
        """

    def end(self) -> None:
        """Leave together with all ranks, once no work is queued and no graph is left.

        Sync: Blocks the host until all ranks are here.
        """
