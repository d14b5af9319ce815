"""The stream beside the caller's on which steps of anybody's loop warm up and are captured.

Nothing can be captured on the default stream, and autograd binds gradients to the stream that they
first saw. So eager runs and captures have a stream of their own, in order with the caller's before
and after. A replay does neither: it is launched on the caller's stream, which costs the host less.
"""

from __future__ import annotations

from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gapless.device.base import Device, Stream


# One run as written or capture at a time, whatever thread it is of: watched runs replace functions of torch, the
# memory of captures is torch's own, and all use one stream, on which nothing else may be queued during a capture.
ONE_AT_A_TIME = RLock()


_OutT = TypeVar("_OutT")


class SideStream:
    """The side stream of a device, and the order of all runs of captured functions there.

    They run one after the other, whatever streams and threads they come from: graphs share torch's
    random generator and the workspace of the matrix library, and give their memory back to the
    side stream.

    Args:
        device: of the steps.

    Attributes:
        order: of all runs.
        current_stream: returns the caller's stream.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self.current_stream = device.current_stream
        self._stream = device.shared_stream("gapless.capture")
        self.order = _ORDERS.setdefault(device, Order())

    def come_after_runs(self) -> None:
        """Let the caller's stream come after all runs so far.

        Sync: Does not block the host.
        """
        with ONE_AT_A_TIME, self.order.lock:
            self._come_after_runs()

    def launch(self, replay: Callable[..., _OutT], *args: Any) -> _OutT:
        """Call a function that launches a graph on the caller's stream; return what it returns.

        It is called with the arguments given here. If another thread uses the side stream just
        now, the graph is launched there.

        Sync: Does not block the host.
        """
        with self.order.lock:
            if not self.order.num_inside:
                self._come_after_runs()
                return replay(*args)
        with self.use():
            return replay(*args)

    def launch_again(self, replay: Callable[[], _OutT]) -> _OutT:
        """Call a function that goes on with what was launched before, on the same stream.

        A backward pass may run on a thread of torch's while the thread that waits for it uses the
        side stream, so this waits for nobody.

        Sync: Does not block the host.
        """
        with self.order.lock:
            return replay()

    @contextmanager
    def use(self) -> Iterator[Stream]:
        """Send the work of the body to the side stream, in order with the caller's work.

        Yields:
            The caller's stream, for `leave`.

        Sync: Does not block the host.
        """
        caller = self._device.current_stream()
        # What another thread queues there must not become part of a capture.
        with ONE_AT_A_TIME:
            with self.order.lock:
                self.order.num_inside += 1
                self._wait_for_replays(caller)
            self._device.wait_stream(self._stream, caller)
            try:
                with self._device.use_stream(self._stream):
                    yield caller
            finally:
                with self.order.lock:
                    self.order.num_inside -= 1
                    self._device.wait_stream(caller, self._stream)
                    self.order.newest = caller

    @contextmanager
    def leave(self, caller: Stream) -> Iterator[None]:
        """Within `use`, send the work of the body to the caller's stream, in order with the rest.

        Autograd keeps the stream on which a weight is first used, and warns of another one.

        Sync: Does not block the host.
        """
        self._device.wait_stream(caller, self._stream)
        with self._device.use_stream(caller):
            yield
        self._device.wait_stream(self._stream, caller)

    def _come_after_runs(self) -> None:
        caller = self._device.current_stream()
        if caller is not self.order.newest:
            self._wait_for_replays(caller)
            self._device.wait_stream(caller, self._stream)
            self.order.newest = caller

    def _wait_for_replays(self, caller: Stream) -> None:
        """Let the side stream come after the replays on another stream than the caller's."""
        newest = self.order.newest
        # Not after each replay: as long as all come from one stream, that would cost for nothing.
        if newest is not None and newest is not caller:
            self._device.wait_stream(self._stream, newest)


class Order:
    """What all side streams of a device know.

    Attributes:
        newest: the stream that came after the side stream last; replays since are on it.
        num_inside: how many bodies of `use` run now, of this thread and others.
        lock: of both, and of every launch.
    """

    def __init__(self) -> None:
        self.newest: Stream | None = None
        self.num_inside = 0
        self.lock = RLock()


_ORDERS: WeakKeyDictionary[Device, Order] = WeakKeyDictionary()
