"""The stream beside the caller's on which steps of anybody's loop warm up and are captured.

Nothing can be captured on the default stream, and autograd binds gradients to the stream that they
first saw. So eager runs and captures have a stream of their own, in order with the caller's before
and after. A replay does neither: it is launched on the caller's stream, which costs the host less.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary


if TYPE_CHECKING:
    from collections.abc import Iterator

    from gapless.device.base import Device, Stream


class SideStream:
    """The side stream of a device, and the order of all calls of captured functions there.

    Calls run one after the other, whatever streams they come from: graphs share torch's random
    generator and give their memory back to the side stream.

    Args:
        device: of the steps.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._stream = device.shared_stream("gapless.capture")
        self._done = device.create_event()
        self._newest = _NEWEST_CALLS.setdefault(device, _NewestCall())

    def begin_call(self) -> Stream:
        """Let the caller's stream come after all calls before, and return it.

        Sync: Does not block the host.
        """
        caller = self._device.current_stream()
        if caller is not self._newest.stream:
            self._device.wait_stream(caller, self._stream)
            self._newest.stream = caller
        return caller

    def end_call(self, caller: Stream) -> None:
        """Let all later calls come after this one.

        Sync: Does not block the host.
        """
        self._device.record_event(self._done, caller)
        self._device.wait_event(self._stream, self._done)

    @contextmanager
    def use(self) -> Iterator[None]:
        """Send the work of the body to the side stream, in order with the caller's work.

        Sync: Does not block the host.
        """
        caller = self._device.current_stream()
        self._device.wait_stream(self._stream, caller)
        try:
            with self._device.use_stream(self._stream):
                yield
        finally:
            self._device.wait_stream(caller, self._stream)
            self._newest.stream = caller


class _NewestCall:
    """From which stream the newest call on a device came."""

    def __init__(self) -> None:
        self.stream: Stream | None = None


_NEWEST_CALLS: WeakKeyDictionary[Device, _NewestCall] = WeakKeyDictionary()
