"""Whatever raises, and wherever: nothing is lost, nothing is left, and the loop starts again."""

from __future__ import annotations

import gc
import random
import sys
import weakref
from pathlib import Path

import pytest
import torch

import gapless
from gapless.device.cpu import CpuDevice
from gapless.loop.train_loop import TrainLoop
from gapless.pipeline.step import StepLoss


pytestmark = pytest.mark.quick_tests(12)


SRC = Path(gapless.__file__).parent
ENGINE = tuple(f"{SRC / room}/" for room in ("pipeline", "graphs", "loop"))


class PlannedError(Exception):
    """An error that nobody has a reason to catch."""


class BareStream:
    """Makes a stream current as torch.cuda.stream does: only its exit brings the former back."""

    def __init__(self, device, stream):
        self._device = device
        self._stream = stream

    def __enter__(self):
        self._former = self._device.current_stream()
        self._device.set_current_stream(self._stream)

    def __exit__(self, *_):
        self._device.set_current_stream(self._former)


class CountingDevice(CpuDevice):
    """Events are done once somebody waited for a later one; events and buffers are counted."""

    def __init__(self):
        super().__init__()
        self._now = 0
        self._waited_until = 0
        self.events = weakref.WeakSet()
        self.buffers = weakref.WeakValueDictionary()
        self.num_buffers = 0
        self.order = []

    def create_event(self, *, timed=False):
        event = super().create_event()
        self.events.add(event)
        return event

    def record_event(self, event, stream):
        super().record_event(event, stream)
        self._now += 1
        event.number = self._now

    def query_event(self, event):
        return getattr(event, "number", 0) <= self._waited_until

    def synchronize_event(self, event):
        self._waited_until = max(self._waited_until, event.number)

    def synchronize_stream(self, stream):
        self._waited_until = self._now

    def wait_stream(self, stream, other):
        self.order.append((stream, other))

    def use_stream(self, stream):
        return BareStream(self, stream)

    def device_buffer(self, num_bytes):
        return self._counted(super().device_buffer(num_bytes))

    def host_buffer(self, num_bytes, *, pinned):
        return self._counted(super().host_buffer(num_bytes, pinned=pinned))

    def _counted(self, buffer):
        self.buffers[id(buffer)] = buffer
        self.num_buffers += 1
        return buffer

    def count(self):
        """Return how many events and buffers are alive."""
        gc.collect()
        return len(self.events), len(self.buffers)


def fail(*_):
    raise PlannedError


class RaiseAt:
    """Raise before the n-th line that runs in the pipeline, and list the lines that ran."""

    def __init__(self, *, number=None, failure=None):
        self._number = number
        self._failure = failure
        self.lines = []

    def __enter__(self):
        self._former = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_):
        sys.settrace(self._former)

    def _trace(self, frame, event, arg):
        if not frame.f_code.co_filename.startswith(ENGINE):
            return None
        if event == "line":
            self.lines.append((frame.f_code.co_filename, frame.f_lineno))
            if len(self.lines) == self._number:
                raise self._failure
        return self._trace


class Doubling:
    """A step in two parts whose loss is twice the batch."""

    def forward(self, batch):
        return StepLoss(loss=batch * 2.0, weight=batch + 1.0)

    def backward(self, out):
        pass


DATA = [torch.tensor(float(number)) for number in range(7)]
LOSSES = [2.0 * number for number in range(7)]
WEIGHTS = [1.0 + number for number in range(7)]

# Small numbers, so that seven batches reach every branch.
SHORT = {
    "blocking": {"loss_interval": 1},
    "events-interval": {"sync_interval": 3, "loss_interval": 2, "pin_memory": False},
    "four-stream": {"sync_interval": 3, "loss_interval": 3, "run_ahead": 3},
    "gapless": {"loss_interval": 2, "run_ahead": 3},
}


def short(plan):
    return gapless.PLANS[plan].with_knobs(**SHORT[plan])


def lines_of_an_epoch(plan):
    """Return the lines that run in the first epoch of a loop, in order."""
    with TrainLoop(plan=short(plan), device=CountingDevice()) as loop, RaiseAt() as recorded:
        loop.run_epoch(DATA, Doubling(), on_batch=lambda _: None)
    return recorded.lines


def moments(lines, kind):
    """Return numbers that hit every line: at its first time with interrupts, else at its last."""
    numbered = [*enumerate(lines, 1)]
    if kind is KeyboardInterrupt:
        numbered.reverse()
    return sorted({line: number for number, line in numbered}.values())


def interrupt(loop, number, failure):
    """Run an epoch in which the n-th line raises, and check what it leaves; then a whole one."""
    outer, start = loop.device.current_stream(), len(loop.losses.history)
    loop.device.order.clear()
    seen, caught = [], None
    try:
        with RaiseAt(number=number, failure=failure):
            loop.run_epoch(DATA, Doubling(), on_batch=lambda progress: seen.append(progress.batch))
    except BaseException as error:
        caught = error
    found = loop.losses.history[start:]

    assert caught is failure
    assert len(seen) <= len(found)
    assert LOSSES[: len(found)] == found
    assert WEIGHTS[: len(found)] == loop.losses.weights[start:]
    assert loop.losses.num_added == len(loop.losses.history)
    assert loop.device.current_stream() is outer
    # What is queued next comes after the epoch's work.
    assert not found or (outer, loop._engine.streams.compute) == loop.device.order[-1]
    again = loop.run_epoch(DATA, Doubling())
    assert (LOSSES, sum(WEIGHTS)) == (again.losses, again.weight)


@pytest.mark.parametrize(
    ("plan", "kind"),
    [
        ("gapless", PlannedError),
        ("blocking", KeyboardInterrupt),
        pytest.param("events-interval", PlannedError, marks=pytest.mark.slow),
        pytest.param("four-stream", KeyboardInterrupt, marks=pytest.mark.slow),
    ],
)
def test_an_epoch_may_be_interrupted_before_any_line(plan, kind):
    """The history is complete and in order, streams are as before, and the next epoch is right."""
    lines = lines_of_an_epoch(plan)
    for number in moments(lines, kind):
        with TrainLoop(plan=short(plan), device=CountingDevice()) as loop:
            try:
                interrupt(loop, number, kind())
            except AssertionError as failure:
                failure.add_note(f"interrupted before line {number}: {lines[number - 1]}")
                raise


@pytest.mark.parametrize("plan", SHORT)
def test_interruptions_leave_nothing_behind(plan):
    """After 120 interrupted epochs there are as many events and buffers as after a few."""
    device, draw = CountingDevice(), random.Random(0)
    num_lines = len(lines_of_an_epoch(plan))
    counts = []
    with TrainLoop(plan=short(plan), device=device) as loop:
        for number in range(120):
            # The last lines do not run in every epoch: memory has grown already.
            kind = draw.choice([KeyboardInterrupt, PlannedError])
            interrupt(loop, draw.randrange(1, int(0.9 * num_lines)), kind())
            if number in (39, 119):
                counts.append(device.count())

    # An interrupt costs each of the three pools one event, which the next epoch has again.
    assert counts[1][0] <= counts[0][0] + 3
    assert counts[0][1] == counts[1][1]


def test_an_error_in_the_clean_up_is_a_note_on_the_first():
    """The user sees what went wrong first, and is told what went wrong after it."""
    device = CountingDevice()
    failure = PlannedError()

    def step(batch):
        device.copy = device.synchronize_stream = fail
        raise failure

    class Loader:
        def __iter__(self):
            try:
                yield from DATA
            finally:
                raise OSError("disk gone")

    with (
        TrainLoop(plan="gapless", device=device) as loop,
        pytest.raises(PlannedError) as caught,
    ):
        loop.losses.add(torch.tensor(1.0))
        loop.run_epoch(Loader(), step)

    assert failure is caught.value
    assert caught.value.__notes__ == [
        "the clean-up after this failed: PlannedError: ",
        "the clean-up after this failed: PlannedError: ",
        "the clean-up after this failed: OSError: disk gone",
    ]


@pytest.mark.parametrize("num_interrupts", [1, 2])
def test_an_interrupt_of_the_last_wait_is_raised_after_the_losses_are_read(num_interrupts):
    """The first Ctrl-C waits for the losses; the second does not, and a drain brings them."""
    device = CountingDevice()
    left = [KeyboardInterrupt() for _ in range(num_interrupts)]
    expected = left[0]
    wait = device.synchronize_event

    def synchronize_event(event):
        if left:
            raise left.pop()
        wait(event)

    device.synchronize_event = synchronize_event
    with TrainLoop(plan="gapless", device=device) as loop:
        with pytest.raises(KeyboardInterrupt) as caught:
            loop.run_epoch(DATA, Doubling())

        assert expected is caught.value
        assert (loop.losses.history == LOSSES) == (num_interrupts == 1)
        loop.losses.drain()
        assert loop.losses.history == LOSSES


def test_an_error_of_a_readback_is_raised_and_the_losses_come_later():
    """A copy of losses that fails once is made again by the clean-up."""
    device = CountingDevice()
    failure, copy = PlannedError(), device.copy

    def copy_fails(target, source):
        device.copy = copy
        raise failure

    def on_batch(progress):
        if progress.batch == 4:
            device.copy = copy_fails

    plan = gapless.PLANS["gapless"].with_knobs(prefetch=0, loss_interval=5)
    with TrainLoop(plan=plan, device=device) as loop:
        with pytest.raises(PlannedError) as caught:
            loop.run_epoch([1.0] * 9, lambda batch: torch.tensor(batch), on_batch=on_batch)

        assert failure is caught.value
        assert loop.losses.history == [1.0] * 5


@pytest.mark.parametrize("call", ["record_event", "wait_event", "query_event", "copy"])
def test_a_device_call_that_fails_costs_no_event(call):
    """After sixty epochs in which a call of the device failed there are no more events."""
    device = CountingDevice()
    counts = []

    def fails_once(*_):
        delattr(device, call)
        raise PlannedError

    def on_batch(progress):
        if progress.batch == 4:
            setattr(device, call, fails_once)

    plan = gapless.PLANS["gapless"].with_knobs(prefetch=0, loss_interval=5)
    with TrainLoop(plan=plan, device=device) as loop:
        for epoch in range(60):
            with pytest.raises(PlannedError):
                # Numbers are not staged: the next call is the meter's or the readback's.
                loop.run_epoch([1.0] * 9, lambda batch: torch.tensor(batch), on_batch=on_batch)
            assert loop.losses.num_added == len(loop.losses.history)
            if epoch in (9, 59):
                counts.append(device.count())

    assert counts[0] == counts[1]


def test_batches_that_were_not_handed_out_give_their_memory_back():
    """Failing epochs use the same memory again, also while all their exceptions are held."""
    device = CountingDevice()
    held, counts = [], []

    class Loader:
        def __iter__(self):
            yield from DATA[:2]
            raise KeyboardInterrupt

    with TrainLoop(plan="gapless", device=device) as loop:
        for epoch in range(40):
            try:
                loop.run_epoch(Loader(), Doubling())
            except KeyboardInterrupt as error:
                held.append(error)
            if epoch in (9, 39):
                counts.append(device.num_buffers)

    assert len(held) == 40
    assert counts[0] == counts[1]


def test_an_error_of_the_loaders_own_end_is_raised_when_nothing_else_was():
    """Closing a pass early closes the loader's generator, whose error is the caller's to see."""

    class Loader:
        def __iter__(self):
            try:
                yield from DATA
            finally:
                raise PlannedError

    batches = iter(gapless.prefetch(Loader(), "cpu"))
    next(batches)

    with pytest.raises(PlannedError):
        batches.close()
