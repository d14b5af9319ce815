"""What the plan `auto` finds out on one GPU, and that it changes no bit. No test is timed."""

from __future__ import annotations

import time
import warnings

import pytest
import torch

from gapless.device.find import find_device
from gapless.device.numerics import set_numerics
from gapless.graphs.capture_report import AuditCounts, CaptureReport
from gapless.loop.train_loop import TrainLoop


pytestmark = pytest.mark.gpu


class Training:
    """A stack of linear layers, of a width and depth that make it bound by one thing."""

    def __init__(self, loop, *, width, depth, rows, reads=False, num_batches=400):
        set_numerics(find_device("cuda"), "fp32", deterministic=True)
        with loop.on_compute_stream():
            torch.manual_seed(0)
            layers = [
                layer
                for _ in range(depth)
                for layer in (
                    torch.nn.Linear(width, width),
                    torch.nn.GELU(),
                    torch.nn.Dropout(0.1),
                )
            ]
            self.model = torch.nn.Sequential(*layers).cuda()
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        draw = torch.Generator().manual_seed(1)
        few = [torch.randn(rows, width, generator=draw) for _ in range(4)]
        self.batches = few * (num_batches // 4)
        self.reads = reads

    def __call__(self, batch):
        self.optimizer.zero_grad()
        loss = self.model(batch).square().mean()
        loss.backward()
        if self.reads:
            loss.item()
        self.optimizer.step()
        return loss


class Counting(Training):
    """Steps are counted on the host."""

    num_steps = 0

    def __call__(self, batch):
        self.num_steps += 1
        return super().__call__(batch)


class Slow:
    """Batches that take ten milliseconds each to make, in the training process."""

    num_workers = 0

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        for batch in self.batches:
            time.sleep(0.01)
            yield batch


def train(plan, *, slow=False, **sizes):
    with TrainLoop(plan=plan, device="cuda") as loop:
        training = Training(loop, **sizes)
        torch.manual_seed(2)
        batches = Slow(training.batches) if slow else training.batches
        losses = loop.run_epoch(batches, training).losses
        weights = [weight.detach().cpu() for weight in training.model.parameters()]
    return losses, weights, loop


CASES = {
    "launch": {"width": 64, "depth": 60, "rows": 16},
    "device": {"width": 4096, "depth": 6, "rows": 1024, "num_batches": 320},
    "data": {"width": 64, "depth": 4, "rows": 16, "slow": True},
    "host wait": {"width": 64, "depth": 20, "rows": 16, "reads": True},
}


@pytest.mark.parametrize("bottleneck", CASES)
def test_auto_names_what_holds_a_loop_back_and_changes_no_bit(bottleneck, record_property):
    """Losses and weights are those of `gapless`, and the bottleneck is the one it was built for."""
    losses, weights, _ = train("gapless", **CASES[bottleneck])

    found, found_weights, loop = train("auto", **CASES[bottleneck])

    record_property("line", loop.diagnosis.line)
    print(loop.diagnosis.line)
    assert losses == found
    assert all(map(torch.equal, weights, found_weights))
    assert bottleneck == loop.diagnosis.bottleneck, loop.diagnosis.line
    if bottleneck == "launch":
        assert loop.diagnosis.captures, loop.diagnosis.line
        assert loop.capture_report.num_replays > 100
    if bottleneck == "data":
        assert loop.diagnosis.workers_needed >= 1
    if bottleneck == "host wait":
        assert "test_auto_on_gpu.py:" in loop.diagnosis.line
        assert loop.capture_report.num_graphs == 0


def test_a_step_that_cannot_be_captured_stays_as_it_is():
    """A step that counts: launch-bound, refused by its line, and the run goes on."""
    with TrainLoop(plan="auto", device="cuda") as loop:
        training = Counting(loop, width=64, depth=60, rows=16)
        loop.run_epoch(training.batches, training)

    assert not loop.diagnosis.captures
    assert "test_auto_on_gpu.py:" in loop.diagnosis.line
    assert "self.num_steps" in loop.diagnosis.line
    assert training.num_steps == len(training.batches)


def test_measuring_adds_no_wait():
    """The host waits at the epoch's end and for the one capture, and torch sees no other."""
    with TrainLoop(plan="auto", device="cuda") as loop:
        training = Training(loop, width=64, depth=60, rows=16)
        with loop.device.forbid_waits():
            result = loop.run_epoch(training.batches, training)

    counts = {reason: total.count for reason, total in result.waits.by_reason.items()}
    assert set(counts) <= {"capture", "epoch_end", "run_ahead", "staging"}
    assert counts["epoch_end"] == 1
    assert counts.get("capture", 0) <= 1


def test_torchs_warnings_of_a_step_are_not_swallowed():
    """Only those about synchronisations are taken; others are shown as always."""
    device = find_device("cuda")
    sites = []
    x = torch.ones(3, device="cuda")

    def read():
        with device.watch_reads(sites.append):
            warnings.warn("mine", stacklevel=1)
            x.sum().item()
            torch.nonzero(x)

    with pytest.warns(UserWarning, match="mine"):
        read()

    assert {site.split(":")[0] for site in sites} == {"test_auto_on_gpu.py"}
    assert len(set(sites)) == 2
    assert torch.cuda.get_sync_debug_mode() == 0


def test_gapless_is_what_auto_starts_as():
    """Before anything is known there is no diagnosis, and no step is captured."""
    with TrainLoop(plan="auto", device="cuda") as loop:
        training = Training(loop, width=64, depth=4, rows=16)
        loop.run_epoch(training.batches[:3], training)

    assert loop.diagnosis is None
    report = loop.capture_report
    assert report == CaptureReport(num_eager=3, audits=AuditCounts(seed=report.audits.seed))
