"""The test kit on a GPU: it catches loops with a known bug, and finds none in gapless."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gapless
from gapless import testing
from gapless.device.find import find_device
from gapless.loop.train_loop import TrainLoop
from gapless.plans import PLANS
from simulation import controls


pytestmark = pytest.mark.gpu

NUM_RUNS = 100
AT_LEAST = 99

ROOT = Path(__file__).parents[2]


@pytest.fixture
def held_blocks():
    """Leave no cached blocks of other tests, whose reuse would hide a lifetime bug."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def num_caught(check):
    return sum(bool(check()) for _ in range(NUM_RUNS))


@pytest.mark.parametrize("bug", controls.BROKEN_PREFETCHERS)
def test_a_broken_prefetcher_is_caught(held_blocks, record_property, bug):
    """Each known bug shows in the values of at least 99 of 100 runs."""
    make = controls.BROKEN_PREFETCHERS[bug]

    caught = num_caught(lambda: testing.check_prefetcher(make, device="cuda", delay_ms=5.0))

    record_property("caught", caught)
    assert caught >= AT_LEAST


@pytest.mark.parametrize("cure", controls.CURED_PREFETCHERS)
def test_a_cured_prefetcher_passes(held_blocks, cure):
    """With its missing wait added, each loop is right in 100 of 100 runs."""
    make = controls.CURED_PREFETCHERS[cure]

    assert num_caught(lambda: testing.check_prefetcher(make, device="cuda")) == 0


def test_a_loss_read_before_its_event_is_caught(record_property):
    """A reader that does not wait for its copy is caught; one that waits passes."""
    caught = num_caught(lambda: testing.check_readback(controls.EarlyRead, device="cuda"))

    record_property("caught", caught)
    assert caught >= AT_LEAST
    assert num_caught(lambda: testing.check_readback(controls.Read, device="cuda")) == 0


@pytest.mark.parametrize("depth", [0, 1, 2, 4])
def test_nothing_is_found_in_the_prefetcher(held_blocks, depth):
    """`gapless.prefetch` on poisoned memory yields the right batches in 100 of 100 runs."""

    def make(loader, device):
        return gapless.prefetch(loader, testing.poisoned(device), depth=depth)

    assert num_caught(lambda: testing.check_prefetcher(make, device="cuda")) == 0


def test_nothing_is_found_in_the_deferred_loss():
    """`DeferredLoss` on poisoned memory reads the right losses in 100 of 100 runs."""
    device = testing.poisoned("cuda")

    assert (
        num_caught(lambda: testing.check_readback(controls.DeferredLossReader, device=device)) == 0
    )


class TinyStep:
    """A linear model on the GPU that trains itself."""

    def __init__(self):
        self.weight = torch.nn.Parameter(torch.ones(64, 1, device="cuda"))

    def __call__(self, batch):
        loss = (batch @ self.weight).pow(2).mean()
        loss.backward()
        with torch.no_grad():
            self.weight -= 1e-4 * self.weight.grad
        self.weight.grad = None
        return loss


def batches(count=20):
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(16, 64, generator=draw) for _ in range(count)]


@pytest.mark.parametrize("plan", PLANS)
def test_counted_waits_are_the_declared_ones(plan):
    """The count of torch's synchronisations agrees with the account of the plan."""
    with TrainLoop(plan=plan, device="cuda") as loop:
        step = TinyStep()
        # Long enough for what is captured, and for `auto` to decide.
        loop.run_epoch(batches(80), step)
        with gapless.count_waits("cuda") as waits:
            result = loop.run_epoch(batches(), step)

    # A wait on an event that is done already is asked for, but does not reach the driver.
    assert waits.count <= result.waits.count
    assert {site.partition(":")[0] for _, site in waits.by_site} <= {"host_waits.py"}


def test_a_step_of_gapless_waits_for_nothing():
    """The steady state of the plan `gapless` has no host wait at all."""
    with TrainLoop(plan="gapless", device="cuda") as loop:
        step = TinyStep()
        loop.run_epoch(batches(), step)
        seen = []

        def watched(batch):
            with gapless.forbid_waits("cuda"):
                seen.append(step(batch))
            return seen[-1]

        loop.run_epoch(batches(), watched)

    assert len(seen) == 20


def resources():
    gc.collect()  # of what other tests left behind
    torch.cuda.synchronize()
    host = torch.cuda.host_memory_stats()
    return {
        "allocated": torch.cuda.memory_allocated(),
        "peak allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.memory_reserved(),
        "peak reserved": torch.cuda.max_memory_reserved(),
        "pinned": host["allocated_bytes.current"],
        "peak pinned": host["allocated_bytes.peak"],
        "files": len(list(Path("/proc/self/fd").iterdir())),
        "threads": len(list(Path("/proc/self/task").iterdir())),
    }


@pytest.mark.parametrize("plan", ["gapless", "full"])
def test_a_thousand_epochs_leak_nothing(record_property, plan):
    """Epoch 1,000 has the memory, streams, events, threads and files of epoch 10."""
    device = find_device("cuda")

    def living():
        # Not by weak references: torch 2.11 leaves those to its streams and events behind, and the
        # process dies when they are dropped (pytorch/pytorch#183403).
        known = resources()
        kinds = [type(one) for one in gc.get_objects()]
        return known | {
            "streams": sum(issubclass(kind, torch.cuda.Stream) for kind in kinds),
            "events": sum(issubclass(kind, torch.cuda.Event) for kind in kinds),
        }

    step, data = TinyStep(), batches(12)
    with TrainLoop(plan=plan, device=device) as loop:
        for epoch in range(1, 1001):
            if epoch == 5:
                # Once, all batches of an epoch are in flight: rings and pools reach their size.
                device.delay(loop._engine.streams.compute, 50.0)
            losses = loop.run_epoch(data, step).losses
            assert len(losses) == 12
            # The history of a run is meant to grow; nothing else is.
            if epoch == 10:
                early = living()
        late = living()

    record_property("epoch 10", str(early))
    record_property("epoch 1,000", str(late))
    # Torch's pool of page-locked memory keeps a block for each batch that was ever in flight with others. How many
    # that are is a matter of times: no more than an epoch has, whose end waits for all.
    at_most = sum(batch.nbytes for batch in data)
    for name in ("pinned", "peak pinned"):
        assert late.pop(name) - early.pop(name) <= at_most
    assert early == late


def test_captured_work_is_done_again_at_every_replay():
    """A replay reads its static memory again and writes where the capture wrote."""
    device = find_device("cuda")
    source, target = torch.zeros(8, device="cuda"), torch.zeros(8, device="cuda")

    def work(_=None):
        target.copy_(source * 2 + 1)

    work()
    graph = device.capture(work)
    for value in (1.0, 5.0):
        source.fill_(value)
        graph.replay()
        assert target.tolist() == [value * 2 + 1] * 8


def test_an_epoch_that_failed_leaves_the_gpu_ready():
    """After a step raised, the history is complete and the next epoch is right."""
    with TrainLoop(plan="gapless", device="cuda") as loop:
        expected = loop.run_epoch(batches(), TinyStep()).losses
        step, failure = TinyStep(), ValueError("no")

        def fail_at_nine(batch):
            if len(taken) == 9:
                raise failure
            taken.append(step(batch))
            return taken[-1]

        taken = []
        with pytest.raises(ValueError, match="no") as caught:
            loop.run_epoch(batches(), fail_at_nine)
        history = loop.losses.history[20:]
        again = loop.run_epoch(batches(), TinyStep()).losses

    assert caught.value is failure
    assert history == expected[:9]
    assert again == expected


FAULT = """
import torch, gapless

table = torch.ones(4, device="cuda")

def step(batch):
    return table[batch].sum()

batches = [torch.tensor([0, 1]) for _ in range(12)]
batches[5] = torch.tensor([0, 99])
try:
    gapless.run_epoch(batches, step, device="cuda")
except RuntimeError as error:
    print(type(error).__name__, "device-side assert" in str(error), error.__context__ is None)
"""


def test_a_fault_of_the_gpu_itself_reaches_the_user():
    """An index out of range fails late on the device; its error is raised and nothing hangs."""
    done = subprocess.run(
        [sys.executable, "-c", FAULT],
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "src"},
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.stdout.split()[1:] == ["True", "True"], done.stdout + done.stderr[-2000:]


SANITIZED = """
import sys, torch
sys.path.insert(0, "tests")
import gapless
from gapless import testing
from simulation import controls
from gapless.loop.train_loop import TrainLoop

def step(batch):
    return (batch @ weight).pow(2).mean()

if sys.argv[1] == "broken":
    testing.check_prefetcher(controls.NoReverseGuard, device="cuda", delay_ms=0.1)
else:
    with TrainLoop(plan=sys.argv[1], device="cuda") as loop:
        with loop.on_compute_stream():
            weight = torch.ones(64, 1, device="cuda")
        losses = loop.run_epoch([torch.ones(16, 64)] * 25, step).losses
    assert losses == [4096.0] * 25
"""


def sanitized(what):
    env = {**os.environ, "TORCH_CUDA_SANITIZER": "1", "PYTHONPATH": "src"}
    return subprocess.run(
        [sys.executable, "-c", SANITIZED, what],
        check=False,
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("plan", PLANS)
def test_torchs_own_sanitizer_finds_nothing(plan):
    """An epoch of every plan passes torch's CUDA sanitizer, which raises at a data race."""
    done = sanitized(plan)

    assert done.returncode == 0, done.stderr[-2000:]


def test_torchs_own_sanitizer_finds_a_missing_guard():
    """The sanitizer finds the prefetcher without a reverse guard."""
    done = sanitized("broken")

    assert done.returncode != 0
    assert "data race" in done.stderr
