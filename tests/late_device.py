"""A device for property tests: its streams run at random moments, and memory is used by address."""

from __future__ import annotations

import math
import random
import threading
import weakref
from collections import deque
from unittest import mock

import torch

from gapless.device.cpu import CpuDevice


# To torch all memory is the CPU's, and a CPU tensor has no index: what has one here is the device.
DEVICE = torch.device("cpu", 1)


class LateEvent:
    """Done when its last record has run; who waits for it waits for the record that it saw."""

    def __init__(self):
        self.mark = LateMark()
        self.mark.is_done = True


class LateMark:
    """One record of an event."""

    is_done = False


class LateStream:
    """Work that waits for its turn, as (is it ready, what to do)."""

    def __init__(self):
        self.queue = deque()


class Slab:
    """A range of memory, full of what is NaN in every floating dtype and -1 in every integer."""

    def __init__(self, num_bytes):
        self.memory = memoryview(bytearray(b"\xff") * num_bytes)
        self.whole = torch.frombuffer(self.memory, dtype=torch.uint8)
        self.start = self.whole.data_ptr()
        self.num_bytes = num_bytes

    def holds(self, address):
        return 0 <= address - self.start < self.num_bytes

    def lend(self, num_bytes, give_back, *args):
        """Return the memory as a tensor; `give_back` is called when its storage is freed."""
        held = self.memory[:]  # torch holds it as long as the storage lives
        weakref.finalize(held, give_back, *args).atexit = False
        return torch.frombuffer(held, dtype=torch.uint8)[:num_bytes]


class LateDevice(CpuDevice):
    """A device whose streams run at random times, each in its own order.

    Memory that nobody holds is handed out again at once to the stream that it was allocated under,
    as torch's caching allocator does. Queued work reads by address whatever is there when it runs.
    Inside `with device:`, `tensor.to(device.torch_device)` moves a tensor.

    Args:
        seed: of the moments at which work runs.
        eagerness: chance that a piece of work runs after each call, 0 to below 1.
        max_direct_copy_bytes: as of any device; larger copies have a stream of their own.
    """

    is_accelerator = True

    def __init__(self, seed=0, eagerness=0.5, *, max_direct_copy_bytes=-1):
        super().__init__()
        self.torch_device = DEVICE
        self.max_direct_copy_bytes = self.max_queued_copy_bytes = max_direct_copy_bytes
        self._random = random.Random(seed)
        self._eagerness = eagerness
        self._lock = threading.RLock()
        self._streams = []
        self._of_thread = threading.local()
        self._default = self.create_stream()
        self._free = {}
        self._slabs = []
        self._pinned = []
        self._used_by = {}
        self._patches = ()
        self.num_recorded = 0

    @property
    def num_buffers(self):
        """Number of blocks of device memory made so far; it grows if memory is not reused."""
        return len(self._slabs)

    def __enter__(self):
        to, is_pinned = torch.Tensor.to, torch.Tensor.is_pinned

        def moved(tensor, *args, **kwargs):
            if args and args[0] == DEVICE:
                return self.move(tensor, **kwargs)
            return to(tensor, *args, **kwargs)

        # In every thread, as a mode of torch would not be.
        self._patches = (
            mock.patch.object(torch.Tensor, "to", moved),
            mock.patch.object(
                torch.Tensor,
                "is_pinned",
                lambda tensor: self._is_pinned(tensor) or is_pinned(tensor),
            ),
        )
        for patch in self._patches:
            patch.start()
        return self

    def __exit__(self, *error):
        for patch in self._patches:
            patch.stop()

    # --- streams and events ---

    def create_stream(self):
        self._streams.append(LateStream())
        return self._streams[-1]

    def shared_stream(self, name):
        if name not in self._shared:
            self._shared[name] = self.create_stream()
        return self._shared[name]

    def current_stream(self):
        return getattr(self._of_thread, "current", self._default)

    def set_current_stream(self, stream):
        self._of_thread.current = stream

    def use_stream(self, stream):
        return _OnStream(self, stream)

    def create_event(self, *, timed=False):
        return LateEvent()

    def record_event(self, event, stream):
        mark = event.mark = LateMark()
        self._queue(stream, lambda: setattr(mark, "is_done", True))

    def wait_event(self, stream, event):
        mark = event.mark
        self._queue(stream, lambda: None, ready=lambda: mark.is_done)

    def wait_stream(self, stream, other):
        event = LateEvent()
        self.record_event(event, other)
        self.wait_event(stream, event)

    def query_event(self, event):
        self._run_some()
        return event.mark.is_done

    def synchronize_event(self, event):
        # Other threads run work too: each look and what follows from it are one.
        with self._lock:
            while not event.mark.is_done:
                assert self._run_one(), "a wait that can never end"

    def synchronize_stream(self, stream):
        with self._lock:
            while stream.queue:
                # Nothing but what it waits for runs before it.
                assert self._run_one([stream]) or self._run_one(), "a wait that can never end"

    # --- memory ---

    def needs_copy(self, tensor):
        return self._slab_of(tensor, self._slabs) is None

    def device_buffer(self, num_bytes):
        size = max(64, -(-num_bytes // 64) * 64)
        with self._lock:
            # As torch's allocator: a block goes back to the stream that it was allocated on.
            free = self._free.setdefault((self.current_stream(), size), [])
            if not free:
                free.append(Slab(size))
                self._slabs.append(free[-1])
            slab = free.pop()
            used_by = self._used_by[slab.start] = set()
        return slab.lend(num_bytes, self._give_back, slab, free, used_by)

    def device_like(self, tensor):
        buffer = self.device_buffer(tensor.nbytes)
        return buffer.view(tensor.dtype).as_strided(tensor.size(), tensor.stride())

    def pinned_like(self, tensor):
        slab = Slab(max(tensor.nbytes, 1))
        self._pinned.append(slab)
        buffer = slab.lend(tensor.nbytes, self._pinned.remove, slab)
        return buffer.view(tensor.dtype).as_strided(tensor.size(), tensor.stride())

    def pinned(self, tensor):
        """Return a page-locked copy of a tensor."""
        return self.pinned_like(tensor).copy_(tensor)

    def _is_pinned(self, tensor):
        return self._slab_of(tensor, self._pinned) is not None

    def record_stream(self, tensor, stream):
        with self._lock:
            self.num_recorded += 1
            self._used_by[tensor.untyped_storage().data_ptr()].add(stream)

    def _give_back(self, slab, free, used_by):
        """Take a block back: at once, or when the streams that use it have done what is queued."""
        left = set(used_by)
        if not left:
            free.append(slab)

        def finish(stream):
            left.discard(stream)
            if not left:
                free.append(slab)

        with self._lock:
            for stream in used_by:
                stream.queue.append((lambda: True, lambda stream=stream: finish(stream)))

    # --- work ---

    def copy(self, target, source):
        is_late = not self.needs_copy(source) or self._is_pinned(source)
        # Pageable memory has been read when the call returns.
        read = self._by_address(source) if is_late else source.clone
        write = self._by_address(target)
        found = None if is_late else read()
        self._queue(
            self.current_stream(), lambda: write().copy_(read() if found is None else found)
        )

    def read_later(self, tensor, into):
        """Queue a read of a tensor on the current stream, as a kernel reads: by address."""
        read = self._by_address(tensor)
        self._queue(self.current_stream(), lambda: into.append(read().clone()))

    def run_all(self):
        """Run everything that is queued."""
        with self._lock:
            while any(stream.queue for stream in self._streams):
                assert self._run_one(), "streams that wait for each other"

    def move(self, tensor, *, non_blocking=False, copy=False):
        """Move a tensor as `to` does on a GPU: a queued copy of its own on the current stream."""
        if not self.needs_copy(tensor) and not copy:
            return tensor
        moved = self.device_like(tensor)
        self.copy(moved, tensor)
        if not non_blocking:
            self.synchronize_stream(self.current_stream())
        return moved

    def _slab_of(self, tensor, slabs):
        address = tensor.untyped_storage().data_ptr()
        return next((slab for slab in list(slabs) if slab.holds(address)), None)

    def _by_address(self, tensor):
        slab = self._slab_of(tensor, self._slabs)
        if slab is None or not math.prod(tensor.shape):
            return lambda: tensor
        whole, size, stride = slab.whole.view(tensor.dtype), tensor.shape, tensor.stride()
        start = (tensor.data_ptr() - slab.start) // tensor.element_size()
        return lambda: whole.as_strided(size, stride, start)

    def _queue(self, stream, work, ready=lambda: True):
        with self._lock:
            stream.queue.append((ready, work))
            self._run_some()

    def _run_some(self):
        with self._lock:
            while self._random.random() < self._eagerness and self._run_one():
                pass

    def _run_one(self, streams=None):
        with self._lock:
            streams = self._streams if streams is None else streams
            ready = [stream for stream in streams if stream.queue and stream.queue[0][0]()]
            if not ready:
                return False
            work = self._random.choice(ready).queue.popleft()[1]
            with torch.inference_mode():  # as a kernel, which knows of no mode
                work()
            return True


class _OnStream:
    """Send the work of a `with` body to a stream."""

    def __init__(self, device, stream):
        self._device = device
        self._stream = stream

    def __enter__(self):
        self._before = self._device.current_stream()
        self._device.set_current_stream(self._stream)

    def __exit__(self, *error):
        self._device.set_current_stream(self._before)


class LateCopies(LateDevice):
    """Takes all tensors of this process for the device's: their copies are late."""

    def needs_copy(self, tensor):
        return False

    def copy(self, target, source):
        found = source.clone()
        self._queue(self.current_stream(), lambda: target.copy_(found))
