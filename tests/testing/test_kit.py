"""The public test kit, used as its users use it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gapless
from gapless import testing
from gapless.testing.timelines import plan_timeline
from simulation import controls


ROOT = Path(__file__).parents[2]


def test_a_clean_check_passes_under_every_scheduler():
    """The result counts schedules and accesses, and has no failure."""
    seen = []

    def check(device):
        device.device_buffer(4).fill_(1)
        seen.append(device.describe())

    result = testing.simulate(check, seeds=[4, 9])

    assert not result.failures
    assert seen == [
        "simulated device, asap scheduler, seed 0",
        "simulated device, lazy scheduler, seed 0",
        "simulated device, random scheduler, seed 4",
        "simulated device, random scheduler, seed 9",
    ]
    assert str(result).startswith("0 of 4 schedules failed")


def test_a_failure_names_its_schedule_and_repeats():
    """A failure prints the device with which it can be repeated."""

    def check(device):
        target = device.device_buffer(4).view(torch.float32)
        host = device.host_buffer(4, pinned=True).view(torch.float32)
        target.fill_(3.0)
        device.copy(host, target)
        assert host.tolist() == [3.0]

    result = testing.simulate(check, seeds=6)
    failure = next(found for found in result.failures if found.error is not None)

    assert f"SimulatedDevice(scheduler={failure.scheduler!r}, seed={failure.seed})" in str(failure)
    device = testing.SimulatedDevice(scheduler=failure.scheduler, seed=failure.seed)
    with pytest.raises(AssertionError), device:
        check(device)
    assert "let the host see it done" in str(device.report)


def test_undeclared_waits_can_be_forbidden():
    """Under `forbid_waits` a hidden `item` fails the check; a declared wait does not."""

    def hidden(device):
        value = device.device_buffer(4).view(torch.float32).fill_(2.0)
        assert value[0].item() == 2.0

    def declared(device):
        losses = gapless.DeferredLoss(device)
        losses.add(device.device_buffer(4).view(torch.float32).fill_(2.0)[0])
        assert losses.mean() == 2.0

    assert not testing.simulate(hidden, seeds=2).failures
    assert len(testing.simulate(hidden, seeds=2, forbid_waits=True).failures) == 4
    assert not testing.simulate(declared, seeds=2, forbid_waits=True).failures


def test_the_kit_offers_what_the_package_offers():
    """Names that are both public and part of the kit are the same objects."""
    for name in ("count_waits", "forbid_waits", "allow_waits", "find_device"):
        assert getattr(testing, name) is getattr(gapless, name)


def test_poisoned_memory_shows():
    """Fresh memory of a poisoned device holds NaN; otherwise it is the device that it wraps."""
    device = testing.poisoned("cpu")
    buffer = device.device_buffer(8).view(torch.float32)
    host = device.host_buffer(8, pinned=False).view(torch.int64)

    assert buffer.isnan().all()
    assert host.tolist() == [-1]
    like = torch.ones(2, 3).t()
    for found in (device.device_like(like), device.pinned_like(like)):
        assert found.isnan().all()
        assert (found.shape, found.stride()) == (like.shape, like.stride())
    assert device.describe() == gapless.find_device("cpu").describe()
    assert next(iter(gapless.prefetch([torch.ones(2)], device))).tolist() == [1.0, 1.0]


def test_a_check_that_touches_nothing_is_no_success():
    """A check that uses no device memory fails, because it shows nothing."""
    result = testing.simulate(lambda device: torch.ones(3).sum().item(), seeds=0)

    assert len(result.failures) == 2
    assert all("no device memory" in failure.error for failure in result.failures)


def test_pytests_own_failures_are_failures_of_their_schedule():
    """`pytest.fail` in a check fails its schedule and does not end the others."""

    def check(device):
        device.device_buffer(4).fill_(1)
        pytest.fail("as planned")

    result = testing.simulate(check, seeds=3)

    assert len(result.failures) == 5
    assert "as planned" in result.failures[0].error


def test_a_device_that_is_not_entered_is_refused():
    """A device that was not entered sees nothing, so its use raises."""
    device = testing.SimulatedDevice()

    with pytest.raises(RuntimeError, match="use it in `with device:`"):
        testing.check_prefetcher(gapless.prefetch, device=device, num_elements=4)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda batches: [*batches, batches[0]], "6 of 5 batches arrived"),
        (lambda batches: [batch[:1] for batch in batches], "batch 0 has shape [1]"),
        (lambda batches: [batch.double() for batch in batches], "torch.float64, expected"),
    ],
)
def test_other_batches_than_were_put_in_are_found(make, text):
    """An extra batch, a part of one and another dtype are findings."""
    findings = testing.check_prefetcher(
        lambda loader, device: make(list(gapless.prefetch(loader, device))),
        device="cpu",
        num_batches=5,
    )

    assert any(text in finding for finding in findings)


def test_batches_that_never_move_are_found():
    """A prefetcher that yields the loader's own tensors is a finding."""
    with testing.SimulatedDevice() as device:
        findings = testing.check_prefetcher(
            lambda loader, device: loader, device=device, num_elements=4
        )

    assert "with consumer slow, batch 0 is not on the device" in findings


def test_nothing_to_check_is_refused():
    """Zero batches or losses raise, because they would always pass."""
    with pytest.raises(ValueError, match="must be at least 1, but are 0 and 65536"):
        testing.check_prefetcher(gapless.prefetch, device="cpu", num_batches=0)
    with pytest.raises(ValueError, match="num_losses must be at least 1, but is 0"):
        testing.check_readback(lambda device: None, device="cpu", num_losses=0)


@pytest.mark.parametrize("wrong", [{}, {"fwd": 1.0}, {"forward": -1.0}])
def test_a_timeline_needs_known_durations(wrong):
    """Missing, unknown and negative durations are named."""
    durations = {"h2d": 1.0, "backward": 1.0, "host": 1.0, **wrong}

    with pytest.raises(ValueError, match=r"unknown: .*, missing: .*, negative: "):
        plan_timeline("gapless", durations=durations)


def test_missing_batches_are_found():
    """A prefetcher that loses the last batch is a finding with the number that arrived."""

    def loses_one(loader, device):
        return list(gapless.prefetch(loader, device))[:-1]

    findings = testing.check_prefetcher(loses_one, device="cpu", num_batches=5)

    assert "with consumer slow, 4 of 5 batches arrived" in findings


@pytest.mark.parametrize("of_losses", [False, True])
def test_delays_are_longer_than_a_busy_host_takes(monkeypatch, of_losses):
    """A delay that is over before the host comes back would hide every bug."""
    delays = []
    with testing.SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        monkeypatch.setattr(device, "elapsed_ms", lambda *_: 20.0)
        monkeypatch.setattr(device, "delay", lambda _, ms: delays.append(ms))
        if of_losses:
            findings = testing.check_readback(controls.DeferredLossReader, device=device)
        else:
            findings = testing.check_prefetcher(gapless.prefetch, device=device, num_elements=64)

    assert findings == []
    assert set(delays) == {60.0}


def test_swapped_losses_are_found():
    """A reader that returns losses in another order is a finding."""

    class Backwards:
        def __init__(self, device):
            self.losses = []

        def add(self, loss):
            self.losses.append(loss.item())

        def read(self):
            return self.losses[::-1]

    findings = testing.check_readback(Backwards, device="cpu", num_losses=3)

    assert len(findings) == 2
    assert findings[0].startswith("loss 0 was read as ")


def test_a_reader_that_is_wrong_on_a_quick_device_alone_is_found():
    """The first of the two passes counts as well."""

    class WrongAtFirst:
        num_made = 0

        def __init__(self, device):
            WrongAtFirst.num_made += 1
            self.error = 1.0 if WrongAtFirst.num_made == 1 else 0.0
            self.losses = []

        def add(self, loss):
            self.losses.append(loss.item() + self.error)

        def read(self):
            return self.losses

    assert len(testing.check_readback(WrongAtFirst, device="cpu", num_losses=3)) == 3


WITHOUT_NUMPY = """
import sys, warnings
sys.modules["numpy"] = None
warnings.simplefilter("ignore")  # torch warns of its absence
import gapless, torch
from gapless import testing

def check(device):
    assert not testing.check_prefetcher(gapless.prefetch, device=device, num_elements=64)
    assert testing.poisoned(device).device_buffer(8).tolist() == [255] * 8
    with gapless.count_waits(device) as waits:
        torch.nn.Linear(4, 2)(device.device_buffer(16).view(torch.float32).fill_(1)).sum().item()
    assert waits.count == 1

result = testing.simulate(check, seeds=2)
assert not result.failures, result
"""


def test_the_kit_needs_no_numpy():
    """Checks and simulations run where torch is installed and numpy is not."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_NUMPY], check=False, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr


def test_the_example_of_the_documentation_runs():
    """`examples/test_my_prefetcher.py` passes: its bug is found, its correction is clean."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_prefetcher.py"],
        check=False,
        cwd=ROOT / "examples",
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout


def test_the_documentation_shows_the_example():
    """The code on the page is the code of the example."""
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    example = (ROOT / "examples" / "test_my_prefetcher.py").read_text(encoding="utf-8")

    assert example.partition('"""\n\n')[2].strip() in page


PRINT_FIRST_FAILURE = """
from test_my_prefetcher import MyPrefetcher, check, testing
print(testing.simulate(check(MyPrefetcher), seeds=0).failures[0])
"""


def test_the_documentation_shows_what_the_example_reports():
    """The report on the page has the lines, counts and names of the real one."""
    done = subprocess.run(
        [sys.executable, "-c", PRINT_FIRST_FAILURE],
        check=True,
        cwd=ROOT / "examples",
        capture_output=True,
        text=True,
    )
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    report = done.stdout.partition("Traceback")[0]

    assert " ".join(report.split()) in " ".join(page.split())


def test_a_timeline_needs_a_steady_state():
    """Too few batches are refused with the number that is needed."""
    with pytest.raises(ValueError, match="must be above 20, but is 20"):
        plan_timeline("gapless", durations={}, num_batches=20)
