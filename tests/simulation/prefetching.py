"""Batches on their way to the device."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import threading
import time
import weakref
from types import SimpleNamespace

import torch

import gapless
from gapless.pipeline import host_memory
from gapless.pipeline.batch_mover import BatchMover
from gapless.pipeline.host_waits import HostWaits
from gapless.pipeline.prefetch import Prefetcher
from gapless.pipeline.transfer import TransferLane
from gapless.pipeline.watched_loader import _end_workers
from late_device import LateDevice
from simulation.registry import scenario as any_scenario
from simulation.workloads import Lent, Sums, make_prefetcher, numbered, read_back


# Bytes up to which a tensor moves by itself, and up to which its copy is queued on the stream that
# reads it: 16 and 32 numbers.
LIMIT, QUEUED_LIMIT = 64, 128
SMALL, MEDIUM, LARGE = 6, 24, 40


def scenario(**settings):
    """Register a scenario in which small tensors move by themselves and large ones do not."""

    def keep(check):
        def with_limit(device):
            device.max_direct_copy_bytes = LIMIT
            device.max_queued_copy_bytes = QUEUED_LIMIT
            check(device)

        any_scenario(check.__name__, **settings)(with_limit)
        return check

    return keep


@scenario()
def a_loop_of_ones_own(device):
    stats = gapless.WaitStats()
    sums = Sums(device, 12)
    with Lent(device) as lent:
        batches = gapless.prefetch(numbered([LARGE] * 12), device, wait_stats=stats)
        for number, batch in enumerate(batches):
            sums.add(number, batch)
    assert sums.all() == list(range(12))
    assert stats.count == 0
    # For the batch in use, the one that the loop still names, and the one that is staged.
    assert len(lent) == 3


@scenario()
def batches_kept_or_let_go_late(device):
    data = numbered([SMALL, LARGE] * 7)
    sums = Sums(device, 14)
    kept, waiting = {}, []
    prefetcher, _ = make_prefetcher(data, device, num_lanes=2)
    for number, batch in enumerate(prefetcher):
        waiting.append((number, batch))
        if number in (2, 3, 7):
            kept[number] = batch
        if len(waiting) > 1 + number % 3:
            sums.add(*waiting.pop(0))
        del batch
    for pair in waiting:
        sums.add(*pair)
    assert sums.all() == list(range(14))
    assert all(torch.equal(data[n], read_back(device, batch)) for n, batch in kept.items())


@scenario()
def left_early_and_started_again(device):
    """Copies under way, and memory that is still read, are not in the way of the next pass."""
    sums = Sums(device, 10)
    prefetcher, _ = make_prefetcher(numbered([LARGE] * 9), device, depth=3, num_lanes=3)
    for number in range(2):
        for batch in prefetcher:
            sums.add(number, batch)
            small = torch.empty_like(batch)
            break
        del batch
    prefetcher._loader = [batch + 2 for batch in numbered([LARGE] * 8)]
    kept = []
    for number, batch in enumerate(prefetcher, 2):
        # Fresh memory of the compute stream, which must not be that of a copy still under way.
        kept += [torch.full_like(small, 0.0) for _ in range(3)]
        sums.add(number, batch + kept[-1][0])
    assert sums.all() == [0.0, 0.0, *range(2, 10)]


@scenario()
def few_copies_under_way(device):
    sums = Sums(device, 10)
    prefetcher, stats = make_prefetcher(numbered([LARGE] * 10), device, max_in_flight=2)
    under_way, copy = [], device.copy

    def counted_copy(target, source):
        copy(target, source)
        under_way.append(device.create_event())
        device.record_event(under_way[-1], device.current_stream())
        assert sum(not event.mark.is_done for event in under_way) <= 2

    device.copy = counted_copy
    for number, batch in enumerate(prefetcher):
        sums.add(number, batch)
    del device.copy
    assert len(under_way) == 10
    assert sums.all() == list(range(10))
    assert set(stats.by_reason) <= {"staging"}


@scenario(only="lazy")
def few_queued_copies_under_way(device):
    """Copies that are queued where they are read hold page-locked memory as well."""
    prefetcher, stats = make_prefetcher(numbered([MEDIUM] * 10), device, max_in_flight=2)
    assert len(list(prefetcher)) == 10
    assert stats.by_reason["staging"].count == 8
    assert set(stats.by_reason) == {"staging"}


class _Own:
    """A loader of which nobody knows what it does with its memory."""

    def __init__(self, batches):
        self._batches = batches

    def __iter__(self):
        return iter(self._batches)


@scenario()
def events_of_passes_are_used_again(device):
    """A loop whose device keeps up needs a few events for each pass, and few for the lane."""
    created, create = [], device.create_event
    device.create_event = lambda **kind: created.append(True) or create(**kind)
    host_waits = HostWaits(device)
    lanes = [TransferLane(device, device.create_stream())]
    pinned = device.host_buffer(4 * LARGE, pinned=True).view(torch.float32).fill_(1.0)
    every = [numbered([SMALL, LARGE] * 20), [pinned] * 40, _Own([pinned] * 40)]
    for loader, depth in itertools.product(every, (0, 2)):
        created.clear()
        prefetcher = Prefetcher(
            loader, device=device, host_waits=host_waits, lanes=lanes, depth=depth
        )
        for _ in prefetcher:
            host_waits.wait_stream(device.current_stream(), reason="test")
        assert len(created) <= 10 + 3 * depth


@scenario()
def a_loop_on_a_stream_of_its_own(device):
    """A batch is read on the stream on which it is asked for, whatever the one before was."""
    sums = Sums(device, 12)
    outer = device.current_stream()
    streams = [device.create_stream() for _ in range(2)]
    prefetcher, _ = make_prefetcher(numbered([SMALL, LARGE] * 6), device, depth=1)
    batches = iter(prefetcher)
    for number in range(12):
        stream = streams[number % 2]
        device.wait_stream(stream, outer)
        with device.use_stream(stream):
            batch = next(batches)
            sums.add(number, batch)
            del batch
        device.wait_stream(outer, stream)
    assert sums.all() == list(range(12))


# --- memory of the loader ---


class Refilled:
    """A loader that fills the same memory again as soon as it is asked for the next batch."""

    def __init__(self, device, *, pinned, wrap=tuple, sizes=(SMALL, LARGE), count=8):
        self._memory = [
            device.host_buffer(4 * size, pinned=pinned).view(torch.float32) for size in sizes
        ]
        self._wrap = wrap
        self._count = count

    def __iter__(self):
        for number in range(self._count):
            for tensor in self._memory:
                tensor.fill_(float(number))
            yield self._wrap(self._memory)
            for tensor in self._memory:
                tensor.fill_(-1.0)


def check_refilled(device, *, depth=0, count=8, **loader):
    """Read batches of a loader that fills its memory again; return the reasons of its waits."""
    sums = Sums(device, 2 * count)
    prefetcher, stats = make_prefetcher(
        Refilled(device, count=count, **loader), device, depth=depth
    )
    for number, batch in enumerate(prefetcher):
        for at, tensor in enumerate(batch):
            sums.add(2 * number + at, tensor)
        del batch, tensor
    found = sums.all()
    for at in range(len(loader.get("sizes", (SMALL, LARGE)))):
        assert found[at::2] == list(range(count))
    return set(stats.by_reason)


@scenario()
def a_loader_that_fills_its_memory_again(device):
    assert check_refilled(device, pinned=False) == set()
    assert check_refilled(device, pinned=False, depth=2) == set()


class Pair:
    """An object that moves itself."""

    def __init__(self, tensors):
        self.tensors = list(tensors)

    def to(self, device, non_blocking=False):
        return Pair([tensor.to(device, non_blocking=non_blocking) for tensor in self.tensors])

    def __iter__(self):
        return iter(self.tensors)


@scenario()
def objects_that_move_themselves(device):
    assert check_refilled(device, pinned=True, wrap=Pair) <= {"loader_memory"}
    assert check_refilled(device, pinned=True, wrap=Pair, depth=2) <= {"loader_memory"}


@scenario(only="lazy")
def page_locked_memory_is_waited_for_once_a_batch(device):
    """However many tensors there are, one wait is enough; and none if the loader makes new ones.

    Small ones are waited for once in all: from then on they are cloned.
    """
    for size, num_waits in ((SMALL, 1), (LARGE, 8)):
        loader = Refilled(device, pinned=True, sizes=[size] * 3)
        prefetcher, stats = make_prefetcher(loader, device)
        assert len(list(prefetcher)) == 8
        assert stats.by_reason["loader_memory"].count == num_waits
        tensor = device.host_buffer(4 * size, pinned=True).view(torch.float32).fill_(1.0)
        prefetcher, stats = make_prefetcher([(tensor, tensor)] * 8, device)
        assert len(list(prefetcher)) == 8
        assert stats.count == 0


class Interrupted:
    """An object whose move is interrupted."""

    def to(self, device):
        raise KeyboardInterrupt


@scenario()
def memory_of_a_loader_when_a_move_is_interrupted(device):
    """What was moved before may be used again at once; nothing is left on its way from it."""
    for size in (SMALL, LARGE):
        memory = device.host_buffer(4 * size, pinned=True).view(torch.float32)
        memory.fill_(3.0)
        prefetcher, _ = make_prefetcher(iter([(memory, Interrupted())]), device)
        with contextlib.suppress(KeyboardInterrupt):
            next(iter(prefetcher))
        memory.fill_(-1.0)


@scenario()
def memory_of_a_loader_when_a_loop_is_left(device):
    """Who leaves a loop may use the loader's memory again at once."""
    for size in (SMALL, LARGE):
        sums = Sums(device, 1)
        memory = device.host_buffer(4 * size, pinned=True).view(torch.float32)
        memory.fill_(3.0)
        prefetcher, _ = make_prefetcher(iter([memory]), device)
        for batch in prefetcher:
            sums.add(0, batch)
            break
        prefetcher = batch = None
        memory.fill_(-1.0)
        assert sums.all() == [3.0]


# --- looking ahead ---


@scenario()
def batches_on_the_device_that_change_while_others_are_ahead(device):
    """What is staged ahead is a copy: the loader's own tensor may change on the device."""
    there = device.device_buffer(4 * SMALL).view(torch.float32)

    def loader():
        for number in range(8):
            yield there.fill_(float(number))

    sums = Sums(device, 8)
    for number, batch in enumerate(gapless.prefetch(loader(), device, depth=2)):
        sums.add(number, batch)
    assert sums.all() == list(range(8))


def check_streams(device, wrap):
    """Read small batches on three streams in turn, wrapped."""
    sums = Sums(device, 12)
    outer = device.current_stream()
    streams = [device.create_stream() for _ in range(3)]
    data = [wrap([tensor]) for tensor in numbered([SMALL] * 12)]
    prefetcher, _ = make_prefetcher(data, device, depth=2)
    batches = iter(prefetcher)
    for number in range(12):
        stream = streams[number % 3]
        device.wait_stream(stream, outer)
        with device.use_stream(stream):
            (batch,) = next(batches)
            sums.add(number, batch)
            # Its memory goes back to the stream that it was moved on, and must not be written yet.
            del batch
    for stream in streams:
        device.wait_stream(outer, stream)
    assert sums.all() == list(range(12))


@scenario()
def small_batches_that_are_read_on_another_stream(device):
    """Moved on the stream that was current when they were asked for, read on the current one."""
    check_streams(device, tuple)


@scenario()
def strided_batches_that_are_read_on_another_stream(device):
    """They are moved by themselves, to memory of the stream that was current then."""
    check_streams(device, lambda tensors: [tensor.repeat(2)[::2] for tensor in tensors])


@scenario()
def objects_that_are_read_on_another_stream(device):
    """Their tensors live as long as the stream that reads them needs."""
    check_streams(device, Pair)


@scenario(only="lazy")
def a_loop_alone_holds_what_it_was_handed(device):
    """Once it lets go of a batch nobody holds it, even while its copies are under way."""
    data = [(Pair(numbered([SMALL])), *numbered([SMALL, LARGE])) for _ in range(9)]
    for depth in (0, 2):
        prefetcher, _ = make_prefetcher(data, device, depth=depth)
        gone = []
        for batch in prefetcher:
            assert all(tensor() is None for tensor in gone)
            gone = [weakref.ref(tensor) for tensor in (*batch[0], *batch[1:])]
            del batch


class LateThread(LateDevice):
    """A device whose background thread goes on only when the host waits for it.

    Its default stream is the last to run.
    """

    def __init__(self):
        super().__init__(eagerness=0.0)
        self.gate = threading.Event()
        self._random = SimpleNamespace(random=lambda: 1.0, choice=lambda ready: ready[-1])

    def pinned_like(self, tensor):
        self.gate.wait(timeout=5)
        return super().pinned_like(tensor)

    def allow_waits(self):
        self.gate.set()
        return contextlib.nullcontext()


@any_scenario(only="lazy")
def copies_by_a_background_thread(device):
    """A batch is handed out, and its loader asked again, when the thread has queued its copy."""
    memory = torch.empty(LARGE)

    class Loader:
        def __iter__(self):
            for number in range(5):
                late.gate.clear()
                yield memory.fill_(float(number))
                memory.fill_(-1.0)

    found, allocated_on = [], set()
    with LateThread() as late:
        prefetcher, stats = make_prefetcher(Loader(), late, depth=2)
        allocate, side = late.device_like, late.create_stream()
        late.device_like = lambda one: allocated_on.add(late.current_stream()) or allocate(one)
        try:
            with late.use_stream(side):
                for batch in prefetcher:
                    late.read_later(batch, found)
                    late.synchronize_stream(side)
                    late.gate.clear()
        finally:
            late.gate.set()
    assert [tensor.tolist() for tensor in found] == [[float(n)] * LARGE for n in range(5)]
    assert set(stats.by_reason) == {"staging"}
    assert allocated_on == {lane.stream for lane in prefetcher._lanes}
    assert not [thread for thread in threading.enumerate() if "gapless-staging" in thread.name]


@any_scenario(only="lazy")
def a_batch_that_is_handed_out_as_soon_as_it_is_staged(device):
    """Its copy may not have been queued yet; once it is, nobody here holds the loader's tensor."""
    found = []
    with LateThread() as late, _look_ahead(late) as mover:
        try:
            source = torch.full((LARGE,), 3.0)
            staged, gone = mover.stage(source), weakref.ref(source)
            batch = mover.hand_out(staged)
            del source
            assert gone() is None
            late.read_later(batch, found)
            late.synchronize_stream(late.current_stream())
        finally:
            late.gate.set()
    assert found[0].tolist() == [3.0] * LARGE


@any_scenario(only="lazy")
def a_background_thread_that_fails(device):
    """Its error is raised with the batch, whether it came before the batch was asked for or after."""
    for is_done in (True, False):
        with LateThread() as late, _look_ahead(late) as mover:
            late.pinned_like = lambda tensor, late=late: late.gate.wait(5) and _fail(tensor)
            staged, failure = mover.stage(torch.ones(LARGE)), None
            if is_done:
                late.gate.set()
                staged.enqueued.exception(timeout=5)
            try:
                mover.hand_out(staged)
            except ZeroDivisionError as error:
                failure = error
            finally:
                late.gate.set()
            assert failure is not None
            mover._last = None  # or its error would be raised once more


@scenario(only="asap")
def a_large_copy_waits_for_the_threads_that_help(device):
    """A batch is in page-locked memory as a whole when it is staged, however late a helper is."""
    size = 6 * host_memory.PART_BYTES
    source, target = torch.ones(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
    this, has_begun = threading.current_thread(), threading.Event()

    def copy(*part):
        if threading.current_thread() is this:
            has_begun.wait(5)
        else:
            has_begun.set()
            time.sleep(0.3)
        ctypes.memmove(*part)

    host_memory.ctypes = SimpleNamespace(memmove=copy)
    try:
        host_memory.copy_bytes(
            target.data_ptr(), source.data_ptr(), size, helpers=host_memory.Helpers(1)
        )
        assert bool(target.all())
    finally:
        host_memory.ctypes = ctypes


def _look_ahead(device):
    """Return a mover of batches that are staged ahead."""
    lanes = [TransferLane(device, device.create_stream())]
    return BatchMover(device, host_waits=HostWaits(device), lanes=lanes, looks_ahead=True)


def _fail(tensor):
    raise ZeroDivisionError


@scenario(only="asap")
def queues_of_workers_that_were_ended_are_closed(device):
    """Each holds files open, and a thread."""
    closed = []

    class Queue:
        def cancel_join_thread(self):
            pass

        def close(self):
            closed.append(self)

    queues = [Queue(), Queue(), Queue()]
    iterator = SimpleNamespace(
        _workers=[],
        _index_queues=queues[:2],
        _worker_result_queue=queues[2],
        _worker_pids_set=False,
    )
    _end_workers(iterator, are_well=False)
    assert closed == queues
