"""Whether gradients that are differentiated themselves are summed in the same order from call to call.

Autograd runs first what was recorded last, and numbers nodes for each thread. On a GPU a backward pass with
`create_graph=True` records on a thread of autograd. If one thread records more in a call than the other does, it
overtakes it after some calls, and from then on sums have another order, and other bits. A replay records nothing:
what was captured before would keep the old order for ever. So calls are plain until one thread leads, and does
not lose its lead. What replays have left out before the first such call is made up, and counts as recorded.
"""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gapless.device.torch_gpu import call_on_backward_thread, make_nodes, numbers_of_next_nodes
from gapless.device.torch_private import next_sequence_number


if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from gapless.device.base import Device


# Calls in a row in which one thread has to lead: some steps come a few times between two of another one.
_NUM_LED = 8

# Calls that are looked at before it is given up.
_MOST_LOOKS = 300

# A capture runs a step a few times.
_RUNS_AHEAD = 8


@dataclass
class Recorded:
    """How many nodes a run has recorded.

    Attributes:
        by_loop: on the thread of the loop.
        by_autograd: on autograd's own thread.
    """

    by_loop: int = 0
    by_autograd: int = 0


@dataclass
class LeftOut:
    """How many nodes the replays of an object leave out of those of the loop's thread.

    Attributes:
        report: where they are counted.
        by_replay: by each of them.
    """

    report: Any
    by_replay: int = 0

    def num(self) -> int:
        """Return how many all of them have left out."""
        return int(self.report.num_replays) * self.by_replay


class GradientOrder:
    """The order of a device, on which all captured objects depend: they share its threads.

    Attributes:
        is_open: whether gradients are differentiated in an order that may still change. Nothing may then be
            recorded but by the loop as written.
        is_given_up: whether it has not settled.
        fast_paths: of all captured objects, and what their replays leave out.
    """

    def __init__(self, device: torch.device) -> None:
        self.is_open = self.is_given_up = False
        self.fast_paths: weakref.WeakKeyDictionary[Any, LeftOut] = weakref.WeakKeyDictionary()
        self._device = device
        self._num_looks = self._surplus = 0
        # Of this thread over autograd's, at the last calls; above zero if it leads in all, below if autograd's does.
        self._leads: list[int] = []
        self._settled: int | None = None

    def add(self, fast_path: Any) -> None:
        """Let a captured object depend on the order."""
        self.fast_paths[fast_path] = left_out = LeftOut(fast_path.report)
        weakref.finalize(fast_path, self._let_go, left_out).atexit = False

    def _let_go(self, left_out: LeftOut) -> None:
        self._surplus -= left_out.num()

    @contextmanager
    def look(self) -> Iterator[Recorded]:
        """Look at the numbers of a run as written; what is yielded is complete after the body."""
        recorded = Recorded()
        begun = numbers_of_next_nodes(self._device)
        yield recorded
        ended = None if begun is None else numbers_of_next_nodes(self._device)
        if begun is None or ended is None:
            return
        by_loop, by_autograd = ended[0] - begun[0], ended[1] - begun[1]
        recorded.by_loop, recorded.by_autograd = by_loop, by_autograd
        if self._settled is None and not self.is_given_up:
            if by_autograd:
                left_out = 0 if self.is_open else self._make_up(by_loop + by_autograd)
                self._note(begun[0] - begun[1] + left_out, by_loop, by_autograd)
                self.is_open = self._settled is None
                for one in self.fast_paths:
                    one.forget()
            # Also those of others: it may have been the last call that differentiates gradients.
            self._num_looks += self.is_open
            self.is_given_up = self._num_looks == _MOST_LOOKS
            self.is_open &= not self.is_given_up

    @contextmanager
    def counted(self, one: Any) -> Iterator[None]:
        """Count what the body, a capture, records beyond one call of an object as written."""
        begun = next_sequence_number()
        yield
        self._surplus += next_sequence_number() - begun - self.fast_paths[one].by_replay

    def _make_up(self, num: int) -> int:
        """Let this thread take the numbers that replays have left out; return how many.

        Args:
            num: of nodes in a call, of which no more are of use than those of all calls that are looked at.
        """
        left_out = sum(one.num() for one in self.fast_paths.values())
        missing = min(left_out - self._surplus, 2 * _MOST_LOOKS * num)
        self._lead_by(missing)
        return missing

    def _note(self, lead: int, by_loop: int, by_autograd: int) -> None:
        has_changed = any((one > 0) != (lead > 0) for one in self._leads)
        leads = self._leads = [lead] if has_changed else [*self._leads, lead][-_NUM_LED:]
        if -by_loop < lead < by_autograd:
            leads = self._leads = []
        if len(leads) == _NUM_LED and abs(lead) >= abs(leads[0]):
            margin = _RUNS_AHEAD * (by_loop + by_autograd)
            self._settled = lead + margin if lead > 0 else lead - margin

    def hold(self) -> None:
        """Let the thread that leads lead by enough: what gapless runs, and what replays leave out, moves both.

        Sync: Does not block the host.
        """
        settled = self._settled
        now = None if settled is None else numbers_of_next_nodes(self._device)
        if settled is None or now is None:
            return
        missing = settled - (now[0] - now[1])
        if settled > 0 < missing or settled < 0 > missing:
            self._lead_by(missing)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Let what is recorded in the body change no lead."""
        begun = numbers_of_next_nodes(self._device)
        try:
            yield
        finally:
            ended = numbers_of_next_nodes(self._device)
            if begun is not None and ended is not None:
                self._lead_by(begun[0] - begun[1] - ended[0] + ended[1])
                self._leads = []

    def _lead_by(self, more: int) -> None:
        if more > 0:
            make_nodes(more)
        elif more < 0:
            call_on_backward_thread(lambda: make_nodes(-more), self._device)


_ORDERS: weakref.WeakKeyDictionary[Device, GradientOrder] = weakref.WeakKeyDictionary()


def order_of(device: Device) -> GradientOrder:
    """Return the order of a device."""
    order = _ORDERS.get(device)
    if order is None:
        order = _ORDERS[device] = GradientOrder(device.torch_device)
    return order
