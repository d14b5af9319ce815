"""What the pipeline does, as small programs whose every value is known beforehand.

Each scenario takes a device and raises AssertionError when something is wrong. They run on the
simulated device under every scheduler, and they are what must notice each removed ordering
operation (`tests/simulation/mutants.py`).
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch

import gapless
from gapless.device.simulated.device import SimulatedDevice
from gapless.pipeline.loop import TrainLoop
from gapless.pipeline.prefetch import Prefetcher
from gapless.pipeline.readback import DeferredLoss
from gapless.pipeline.staging import StagingRing
from gapless.pipeline.streams import StreamManager
from gapless.pipeline.sync import HostSync
from gapless.plans import PLANS


if TYPE_CHECKING:
    from collections.abc import Callable


class RaceError(AssertionError):
    """The checker found accesses that nothing orders."""


@dataclass(frozen=True)
class Scenario:
    """A small program, and where it is run.

    Attributes:
        check: takes the device; raises AssertionError.
        durations: of the virtual clock.
        only: the one scheduler that it is about; None for all.
        num_seeds: most random seeds that are worth the time.
    """

    check: Callable[[SimulatedDevice], None]
    durations: dict[str, float] | None = None
    only: str | None = None
    num_seeds: int = 10_000


SCENARIOS = {}


def scenario(name=None, **settings):
    def keep(check):
        SCENARIOS[name or check.__name__] = Scenario(check, **settings)
        return check

    return keep


def schedules(name, seeds):
    """Return the (scheduler, seed) pairs under which a scenario is run."""
    found = [("asap", 0), ("lazy", 0), *(("random", seed) for seed in seeds)]
    return [
        (scheduler, seed)
        for scheduler, seed in found
        if SCENARIOS[name].only in (None, scheduler) and seed < SCENARIOS[name].num_seeds
    ]


def run(name, *, scheduler, seed=0):
    """Run one scenario on a fresh simulated device with the checker on.

    Raises:
        RaceError: nothing orders two accesses, whether or not values suffered.
        AssertionError: a value, a count or a bound is wrong.
    """
    chosen = SCENARIOS[name]
    device = SimulatedDevice(scheduler=scheduler, seed=seed, durations=chosen.durations)
    try:
        with device, device.forbid_syncs():
            chosen.check(device)
    finally:
        if device.report.races:
            raise RaceError(str(device.report))
    assert not device.report.serialised, device.report.serialised
    return device.report.num_accesses


# -- a training epoch under every plan ---------------------------------------------------------

NUM_BATCHES = 11


class Regression:
    """A linear model with dropout that trains itself with plain gradient descent."""

    def __init__(self):
        torch.manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(3, 1))

    def forward(self, batch):
        x, y = batch
        loss = (torch.nn.functional.dropout(x @ self.weight, 0.3) - y).pow(2).mean()
        return gapless.StepLoss(loss=loss, weight=2.0)

    def backward(self, out):
        out.loss.backward()
        with torch.no_grad():
            self.weight -= 0.1 * self.weight.grad
        self.weight.grad = None


@cache
def regression_data():
    draw = torch.Generator().manual_seed(1)
    return [
        (torch.randn(4, 3, generator=draw), torch.randn(4, 1, generator=draw))
        for _ in range(NUM_BATCHES)
    ]


@cache
def expected_training(num_epochs):
    """Return losses and weights of a plain sequential loop."""
    model = Regression()
    losses = []
    for batch in regression_data() * num_epochs:
        out = model.forward(batch)
        model.backward(out)
        losses.append(out.loss.item())
    return losses, model.weight.detach().clone()


def check_training(device, plan, *, num_epochs=1):
    model = Regression()
    means = []
    with TrainLoop(plan=plan, device=device) as loop:
        results = [
            loop.run_epoch(
                regression_data(), model, on_batch=lambda now: means.append(now.mean_loss)
            )
            for _ in range(num_epochs)
        ]
        # Read on the outer stream, without being told that the epoch used another.
        copied = read_back(device, model.weight)
    losses, weight = expected_training(num_epochs)
    assert losses == [loss for result in results for loss in result.losses]
    assert losses == loop.losses.history
    assert [2.0] * len(losses) == loop.losses.weights
    assert torch.equal(weight, copied)
    return loop, results, means


def read_back(device, tensor):
    """Return a tensor's values as queued on the current stream now, through pinned memory."""
    pinned = device.host_buffer(tensor.numel() * tensor.element_size(), pinned=True)
    target = pinned.view(tensor.dtype).view(tensor.shape)
    device.copy(target, tensor.detach())
    HostSync(device).wait_stream(device.current_stream(), reason="test")
    return target.clone()


def is_idle(device, stream):
    """Whether everything queued on a stream has run."""
    event = device.create_event()
    device.record_event(event, stream)
    return event.mark.is_done


def counts(result):
    return {reason: total.count for reason, total in result.waits.by_reason.items()}


_WAITS = {
    "blocking": {"batch": 11, "loss_read": 11},
    "deferred-loss": {"batch": 11, "loss_read": 1, "epoch_end": 1},
    "events": {"batch": 11, "epoch_end": 1},
    "interval": {"interval": 1, "loss_read": 1, "epoch_end": 1},
    "events-interval": {"interval": 1, "epoch_end": 1},
    "four-stream": {"interval": 1, "epoch_end": 1},
    "full": {"interval": 1, "epoch_end": 1},
    "gapless": {"epoch_end": 1},
}


def _plan_scenario(plan):
    @scenario(f"plan {plan}")
    def check(device):
        loop, (result,), means = check_training(device, plan)
        assert _WAITS[plan] == counts(result)
        if plan != "gapless":
            assert means[-1] is not None
        # A plan that waits knows at once that its events are done.
        assert loop._events.num_created <= (NUM_BATCHES + 3 if plan == "gapless" else 3)


for _name in PLANS:
    _plan_scenario(_name)


@scenario()
def two_epochs_in_one_loop(device):
    loop, results, _ = check_training(device, "gapless", num_epochs=2)
    assert [counts(result) for result in results] == [{"epoch_end": 1}] * 2
    assert loop._events.num_created <= NUM_BATCHES + 3


@scenario()
def one_stream_or_many(device):
    for streams, wait_with in ((1, "nothing"), (5, "event"), (8, "stream")):
        plan = PLANS["gapless"].with_knobs(
            streams=streams, wait_with=wait_with, sync_interval=5, loss_interval=3, prefetch=1
        )
        check_training(device, plan)


@scenario()
def bounded_run_ahead(device):
    plan = PLANS["gapless"].with_knobs(run_ahead=2)
    loop, (result,), _ = check_training(device, plan)
    assert set(counts(result)) <= {"run_ahead", "staging", "epoch_end"}
    assert len(loop._ring._host_slots) <= 2
    assert loop._events.num_created <= 2 + 3


@scenario()
def pageable_staging(device):
    _, (result,), _ = check_training(device, PLANS["gapless"].with_knobs(pin_memory=False))
    assert counts(result) == {"pageable_copy": NUM_BATCHES, "epoch_end": 1}


@scenario()
def an_epoch_that_was_cut_short_and_then_a_whole_one(device):
    def stop(now):
        if now.batch == 6:
            raise ZeroDivisionError

    with TrainLoop(plan="gapless", device=device) as loop:
        cut = Regression()
        with suppress(ZeroDivisionError):
            loop.run_epoch(regression_data(), cut, on_batch=stop)
        expected = expected_training(1)[0]
        assert expected[:6] == loop.losses.history
        assert all(is_idle(device, stream) for stream in loop.streams._streams.values())
        copied = read_back(device, cut.weight)
        model = Regression()
        result = loop.run_epoch(regression_data(), model)
        assert counts(result) == {"epoch_end": 1}
    assert expected == result.losses
    assert not torch.equal(copied, expected_training(1)[1])
    assert loop._events.num_created <= NUM_BATCHES + 3


@scenario()
def epochs_that_fail_in_their_step(device):
    """Events that a failing step had in its hands are not lost for good."""

    def fail(batch):
        raise ZeroDivisionError

    with TrainLoop(plan="gapless", device=device) as loop:
        for _ in range(6):
            with suppress(ZeroDivisionError):
                loop.run_epoch(regression_data(), fail)
        assert loop._meter._events.num_created <= 2
        assert expected_training(1)[0] == loop.run_epoch(regression_data(), Regression()).losses


@scenario()
def an_interrupt_just_when_the_compute_stream_is_left(device):
    """The outer stream is current again, whatever the interrupted `with` left behind."""
    outer, use = device.current_stream(), device.use_stream

    @contextmanager
    def use_and_be_interrupted(stream):
        with use(stream):
            yield
        if stream is loop._forward_stream:
            device.use_stream = use
            device.set_current_stream(stream)
            raise KeyboardInterrupt

    with TrainLoop(plan="gapless", device=device) as loop:
        device.use_stream = use_and_be_interrupted
        with suppress(KeyboardInterrupt):
            loop.run_epoch(regression_data(), Regression())
        assert device.current_stream() is outer
        assert expected_training(1)[0] == loop.losses.history


@scenario()
def interrupted_reads_lose_no_event(device):
    losses = DeferredLoss(device)
    loss = device.device_buffer(4).view(torch.float32)[0]
    loss.fill_(4.0)
    wait = device.wait_event

    def interrupted(stream, event):
        device.wait_event = wait
        raise KeyboardInterrupt

    for _ in range(6):
        losses.add(loss)
        device.wait_event = interrupted
        try:
            losses.flush()
        except KeyboardInterrupt:
            losses.drain()
    assert losses.history == [4.0] * 6
    assert losses._events.num_created <= 2


@scenario()
def what_was_queued_before_and_after_an_epoch(device):
    """The outer stream's work comes before the epoch's, and what `on_batch` queued after it."""
    model = Regression()
    start = device.device_buffer(12).view(torch.float32).view(3, 1)
    start.copy_(model.weight.detach(), non_blocking=True)
    model.weight = torch.nn.Parameter(start)
    counted = device.device_buffer(4).view(torch.float32)
    counted.zero_()

    def count(now):
        counted.add_(1.0)

    outer = device.current_stream()
    with TrainLoop(plan="blocking", device=device) as loop:
        result = loop.run_epoch(regression_data(), model, on_batch=count)
        assert device.current_stream() is outer
        assert read_back(device, counted).tolist() == [float(NUM_BATCHES)]
        assert torch.equal(expected_training(1)[1], read_back(device, model.weight))
    assert expected_training(1)[0] == result.losses


@scenario()
def backward_runs_where_the_plan_says(device):
    class Watched(Regression):
        def forward(self, batch):
            found.add(("forward", device.current_stream()))
            return super().forward(batch)

        def backward(self, out):
            found.add(("backward", device.current_stream()))
            super().backward(out)

    found = set()
    with TrainLoop(plan="four-stream", device=device) as loop:
        loop.run_epoch(regression_data(), Watched())
        lanes = loop.streams.lanes
        forward, backward = map(loop.streams.get_stream, (lanes.forward, lanes.backward))
    assert {("forward", forward), ("backward", backward)} == found


@scenario(durations={"kernel": 1.0})
def losses_and_gaps_show_while_an_epoch_runs(device):
    """Once the device has done ten batches, the next one's progress has their losses."""
    seen = []

    def look(now):
        seen.append((now.mean_loss, now.gap_share))
        if now.batch == 10:
            HostSync(device).wait_stream(readback, reason="test")
            HostSync(device).wait_stream(device.current_stream(), reason="test")

    with TrainLoop(plan="gapless", device=device) as loop:
        readback = loop.streams.get_stream(loop.streams.lanes.readback)
        loop.run_epoch(regression_data(), Regression(), on_batch=look)
    losses = expected_training(1)[0][:10]
    assert abs(seen[10][0] - sum(losses) / 10) < 1e-12
    assert seen[10][1] is not None


@scenario()
def a_device_that_is_behind_holds_the_host_back(device):
    """With a run-ahead of 3 the host has queued at most 3 steps that are not done."""
    unfinished = []

    def look(now):
        event = device.create_event()
        device.record_event(event, device.current_stream())
        unfinished.append(event)
        while unfinished and unfinished[0].mark.is_done:
            unfinished.pop(0)
        assert len(unfinished) <= 3

    with TrainLoop(plan=PLANS["gapless"].with_knobs(run_ahead=3), device=device) as loop:
        loop.run_epoch(regression_data(), Regression(), on_batch=look)
    assert loop._events.num_created <= 3 + 3


# -- prefetching ------------------------------------------------------------------------------


def make_prefetcher(loader, device, *, depth=2, num_transfers=1, **knobs):
    sync = HostSync(device)
    streams = [device.create_stream() for _ in range(num_transfers)]
    ring = StagingRing(device, sync=sync, depth=depth, transfer_streams=streams, **knobs)
    return Prefetcher(loader, ring=ring, device=device, depth=depth), sync.stats, ring


def numbered(sizes):
    return [torch.full((size,), float(number)) for number, size in enumerate(sizes)]


class Sums:
    """Kernels that read batches, one sum each, to be looked at when all is done."""

    def __init__(self, device, count):
        self._device = device
        self.values = device.device_buffer(8 * count).view(torch.float64)

    def add(self, number, tensor):
        self.values[number].copy_(tensor.mean(dtype=torch.float64))

    def all(self):
        return read_back(self._device, self.values).tolist()


@scenario()
def a_loop_of_ones_own(device):
    stats = gapless.SyncStats()
    sums = Sums(device, 12)
    asked, allocate = [], device.device_buffer
    device.device_buffer = lambda num_bytes: asked.append(num_bytes) or allocate(num_bytes)
    for number, batch in enumerate(gapless.prefetch(numbered([6] * 12), device, stats=stats)):
        sums.add(number, batch)
    assert sums.all() == list(range(12))
    assert stats.sync_count == 0
    # A slot for each batch ahead, the one in use and the one before: no memory is replaced.
    assert len(asked) == 4


@scenario()
def batches_that_are_on_the_device_already(device):
    """What is there stays where it is; its neighbours are moved."""
    there = device.device_buffer(4).view(torch.float32)
    there.fill_(5.0)
    data = [(torch.full((2,), float(number)), there) for number in range(5)]
    sums = Sums(device, 5)
    for number, (moved, same) in enumerate(gapless.prefetch(data, device)):
        assert same is there
        sums.add(number, moved + same)
    assert sums.all() == [5.0, 6.0, 7.0, 8.0, 9.0]
    assert [batch[1] for batch in gapless.prefetch([(3, there)], device)] == [there]


@scenario()
def batches_kept_or_let_go_late(device):
    data = numbered([5] * 14)
    sums = Sums(device, 14)
    kept, waiting = {}, []
    prefetcher, _, _ = make_prefetcher(data, device, depth=1, num_transfers=2)
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
def batches_of_changing_size(device):
    sizes = [1, 300, 20, 700, 5, 1500, 60, 60, 3, 900]
    sums = Sums(device, len(sizes))
    prefetcher, _, _ = make_prefetcher(numbered(sizes), device, num_transfers=2)
    for number, batch in enumerate(prefetcher):
        sums.add(number, batch)
    assert sums.all() == list(range(len(sizes)))


@scenario()
def left_early_and_started_again_with_larger_batches(device):
    sums = Sums(device, 8)
    prefetcher, _, _ = make_prefetcher(numbered([40] * 9), device, depth=3, num_transfers=3)
    for batch in prefetcher:
        sums.add(0, batch)
        small = torch.empty_like(batch)
        break
    del batch
    prefetcher._loader = numbered([400] * 8)
    kept = []
    for number, batch in enumerate(prefetcher):
        # Fresh memory of the compute stream, which must not be that of a copy still under way.
        kept += [torch.full_like(small, 0.0) for _ in range(3)]
        sums.add(number, batch + kept[-1][0])
    assert sums.all() == list(range(8))


@scenario()
def a_full_host_ring(device):
    sums = Sums(device, 10)
    prefetcher, stats, ring = make_prefetcher(numbered([3] * 10), device, max_host_slots=2)
    for number, batch in enumerate(prefetcher):
        sums.add(number, batch)
    assert sums.all() == list(range(10))
    assert set(stats.by_reason) <= {"staging"}
    assert len(ring._host_slots) <= 2


@scenario()
def free_host_slots_are_used_again(device):
    prefetcher, _, ring = make_prefetcher(numbered([3] * 30), device, depth=1)
    for batch in prefetcher:
        # A loop that waits every batch keeps few transfers in flight.
        HostSync(device).wait_stream(device.current_stream(), reason="test")
        del batch
    assert len(ring._host_slots) <= 4


@scenario()
def two_prefetchers_at_once(device):
    sums = Sums(device, 14)
    pairs = zip(
        gapless.prefetch(numbered([4] * 7), device),
        gapless.prefetch([7.0 + part for part in numbered([9] * 7)], device, depth=1),
        strict=True,
    )
    for number, (first, second) in enumerate(pairs):
        sums.add(number, first)
        sums.add(7 + number, second)
    assert sums.all() == list(range(14))


# -- losses -----------------------------------------------------------------------------------


@scenario(num_seeds=8)
def losses_of_a_full_ring(device):
    losses = DeferredLoss(device)
    loss = device.device_buffer(4).view(torch.float32)[0]
    loss.zero_()
    for _ in range(1100):
        losses.add(loss)
        loss += 1
    assert losses.mean() == sum(range(1100)) / 1100
    assert [float(number) for number in range(1100)] == losses.history
    assert set(losses.stats.by_reason) <= {"loss_ring", "loss_mean"}
    assert losses._events.num_created <= 4


@scenario(only="lazy")
def a_full_ring_waits_for_its_older_half(device):
    """When the ring is full the host waits for half of it, so that the device keeps its work."""
    losses = DeferredLoss(device)
    loss = device.device_buffer(4).view(torch.float32)[0]
    loss.zero_()
    for _ in range(1025):
        losses.add(loss)
    assert len(losses.history) == 512
    assert {name: wait.count for name, wait in losses.stats.by_reason.items()} == {"loss_ring": 1}


@scenario(only="asap")
def a_full_ring_whose_copies_are_done_is_not_waited_for(device):
    losses = DeferredLoss(device)
    loss = device.device_buffer(4).view(torch.float32)[0]
    loss.zero_()
    for _ in range(1025):
        losses.add(loss)
    assert len(losses.history) == 1024
    assert losses.stats.sync_count == 0


@scenario()
def losses_read_every_time(device):
    losses = DeferredLoss(device)
    loss = device.device_buffer(4).view(torch.float32)[0]
    loss.fill_(4.0)
    for number in range(9):
        losses.add(loss)
        losses.flush()
        HostSync(device).wait_stream(losses._stream, reason="test")
        assert losses.harvest() == 1
        assert losses.history == [4.0] * (number + 1)
    assert losses._events.num_created == 1


@scenario()
def losses_of_a_body_that_raised(device):
    losses = DeferredLoss(device)
    loss = device.device_buffer(4).view(torch.float32)[0]
    loss.fill_(4.0)
    try:
        with losses:
            losses.add(loss)
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert losses.history == [4.0]


@scenario()
def losses_read_in_portions(device):
    losses = DeferredLoss(device)
    scale = device.device_buffer(4).view(torch.float32)[0]
    scale.fill_(1.0)
    for number in range(24):
        losses.add(scale * number, weight=scale * 3 if number % 2 else 3.0)
        if number % 5 == 4:
            losses.flush()
        if number % 7 == 6:
            losses.harvest()
        if number == 15:
            losses.drain()
            assert len(losses.history) == 16
    with losses:
        pass
    assert [float(number) for number in range(24)] == losses.history
    assert losses.weights == [3.0] * 24
    assert losses.first_nonfinite is None


@scenario()
def a_done_copy_is_picked_up_without_waiting(device):
    losses = DeferredLoss(device)
    loss = device.device_buffer(4).view(torch.float32)[0]
    loss.fill_(float("inf"))
    losses.add(loss)
    losses.flush()
    HostSync(device).wait_stream(losses._stream, reason="test")
    assert losses.harvest() == 1
    assert losses.first_nonfinite == (0, float("inf"))
    assert losses.stats.sync_count == 0


# -- streams ----------------------------------------------------------------------------------


@scenario()
def streams_chained_by_hand(device):
    outer = device.current_stream()
    with StreamManager(device, num_streams=2) as streams:
        streams.create_stream("side")
        done = streams.create_event()
        value = device.device_buffer(4).view(torch.float32)
        streams.set_current_stream(0)
        value.fill_(1.0)
        streams.record_event(done, 0)
        streams.wait_event(done, 1)
        with streams.use(1):
            value *= 2
        assert streams.get_current_stream() is streams.get_stream(0)
        again = streams.create_event()
        streams.record_event(again, 1)
        streams.wait_event(again, "side")
        with streams.use("side"):
            value += 5
            pinned = device.host_buffer(4, pinned=True).view(torch.float32)
            device.copy(pinned, value)
        streams.synchronize("side")
        assert pinned.tolist() == [7.0]
        with streams.use("side"):
            value += 1
            device.copy(pinned, value)
        last = streams.create_event()
        streams.record_event(last, "side")
        streams.synchronize_event(last)
        assert streams.query_event(last)
        assert pinned.tolist() == [8.0]
        with streams.use("side"):
            value += 1
            device.copy(pinned, value)
        streams.synchronize_all()
        assert pinned.tolist() == [9.0]
    assert device.current_stream() is outer
    assert {name: wait.count for name, wait in streams.stats.by_reason.items()} == {
        "stream": 4,
        "event": 1,
    }


@scenario(only="lazy")
def an_event_is_not_done_before_its_work(device):
    with StreamManager(device, num_streams=1) as streams:
        event = streams.create_event()
        with streams.use(0):
            device.device_buffer(4).fill_(1)
        streams.record_event(event, 0)
        assert not streams.query_event(event)


# -- time -------------------------------------------------------------------------------------


@scenario(durations={"load": 30.0, "step": 10.0})
def gaps_of_a_slow_loader(device):
    """The loader takes 30 a batch and the device 10, so the device has gaps of 20."""

    class SlowBatches:
        def __iter__(self):
            for batch in regression_data():
                device.spend("load")
                yield batch

    model = Regression()

    def step(batch):
        with device.region("step"):
            out = model.forward(batch)
            model.backward(out)
        return out

    with TrainLoop(plan=PLANS["gapless"].with_knobs(prefetch=0), device=device) as loop:
        for _ in range(2):
            result = loop.run_epoch(SlowBatches(), step)
            assert (
                result.busy_ms,
                result.gap_ms,
            ) == (10.0 * NUM_BATCHES, 20.0 * (NUM_BATCHES - 1))
            device.spend("load")
    assert loop._meter._events.num_created <= 2 * NUM_BATCHES


@scenario(only="asap")
def a_meter_of_an_idle_device_needs_few_events(device):
    with TrainLoop(plan="gapless", device=device) as loop:
        loop.run_epoch(regression_data(), Regression())
    assert loop._meter._events.num_created <= 3
