"""One plan of a comparison: its rounds and its memory."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import replace

import pytest
import torch

from gapless.compare.settings import RunSettings
from gapless.compare.timed_plan import TimedPlan
from gapless.plans import get_plan
from toys import CPU, small_workload


def timed_plan_of(make, *, steps, device=CPU):
    """Return plan gapless after one warm-up round."""
    settings = RunSettings(device=device)
    one = TimedPlan(get_plan("gapless"), make=make, settings=settings, steps=steps)
    one.prepare(rounds=1)
    return one


def round_of(make, *, steps):
    """Return one timed round of plan gapless."""
    one = timed_plan_of(make, steps=steps)
    one.take_round()
    one.close()
    return one.rounds[0]


def test_batches_that_end_early_are_passed_over_again():
    """Ten steps of four batches take three passes, each with a wait at its end."""
    found = round_of(small_workload(), steps=10)

    assert (found.num_steps, found.passes, found.total.weight) == (10, (4, 4, 2), 30.0)
    assert {reason: wait.count for reason, wait in found.total.waits.by_reason.items()} == {
        "epoch_end": 3
    }
    assert len(found.total.losses) == 10


class CountingDevice:
    """A CPU whose memory is a number that the test sets."""

    def __init__(self):
        self.held = self.peak = 1000

    def __getattr__(self, name):
        return getattr(CPU, name)

    def reset_peak_memory(self):
        self.peak = self.held

    def peak_memory_bytes(self):
        return self.peak

    def hold(self, num_bytes, *, peak):
        self.held += num_bytes
        self.peak = max(self.peak, self.held + peak)


def test_memory_is_a_plans_own_although_others_are_there():
    """A plan's peak leaves out what others took after it was built."""
    device = CountingDevice()

    def make(torch_device, plan):
        device.hold(100, peak=30)
        workload = small_workload()(torch_device, plan)

        def step(batch):
            device.hold(0, peak=70)
            return workload.step(batch)

        return replace(workload, step=step)

    one = timed_plan_of(make, steps=4, device=device)
    alone = one.peak_memory_bytes
    device.hold(5000, peak=0)
    one.take_round()
    one.close()

    assert alone == one.peak_memory_bytes == 170
    assert one.grown_memory_bytes == 0


def test_memory_that_a_plan_keeps_in_its_rounds_is_growth():
    """Ten bytes a step stay, whatever others take between the rounds."""
    device = CountingDevice()

    def make(torch_device, plan):
        workload = small_workload()(torch_device, plan)

        def step(batch):
            device.hold(10, peak=70)
            return workload.step(batch)

        return replace(workload, step=step)

    one = timed_plan_of(make, steps=4, device=device)
    one.take_round()
    device.hold(5000, peak=0)
    one.take_round()
    one.close()

    assert one.grown_memory_bytes == 80


STARTS_SECONDS = 0.4


class SlowStart(torch.utils.data.Dataset):
    """Rows of which a process gives the first one late, as if starting it took that long."""

    def __init__(self):
        self.is_late = True

    def __len__(self):
        return 6

    def __getitem__(self, index):
        if self.is_late:
            time.sleep(STARTS_SECONDS)
            self.is_late = False
        return torch.full((4,), float(index))


def slow_start(seen=None, **options):
    """Return a function that builds the small workload with batches of a loader that starts late."""

    def make(device, plan):
        workload = small_workload()(device, plan)

        def step(batch):
            if seen is not None:
                seen.append(len(multiprocessing.active_children()))
            return workload.step(batch)

        loader = torch.utils.data.DataLoader(SlowStart(), **{"num_workers": 1, **options})
        return replace(workload, batches=loader, step=step)

    return make


def test_starting_workers_is_no_part_of_a_step():
    """Each pass starts a worker, and the time of that is left out of the steps' times."""
    seen = []

    found = round_of(slow_start(seen), steps=12)

    least_ms = 2 * 1000.0 * STARTS_SECONDS
    assert found.passes == (6, 6)
    assert found.start_ms >= least_ms
    assert found.elapsed_ms >= found.start_ms + found.total.wall_ms
    # What is left has no share of the start: each wait for a worker's start is longer than this.
    assert found.total.data_wait_ms <= found.total.wall_ms < found.elapsed_ms - least_ms
    # Workers live until the last step of their pass, and are gone after the round.
    assert min(seen) == 1
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("options", [{"persistent_workers": True}, {"num_workers": 0}])
def test_other_loaders_have_no_start(options):
    """Persistent workers start once, in the warm-up; without any, the first batch is like others."""
    found = round_of(slow_start(**options), steps=12)

    assert found.start_ms == 0.0
    assert multiprocessing.active_children() == []
