"""Updates of optimizers in place are compared with `step()` as written, by graphs and without."""

from __future__ import annotations

import gc
from functools import partial

import pytest
import torch
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import ExponentialLR

import gapless
from gapless.graphs import audit
from gapless.graphs.in_place.capture_in_place import capture_report
from gapless.graphs.in_place.quick_audits import QuickAudits
from gapless.graphs.proof import same_results
from gapless.graphs.updates.quick_updates import QuickUpdates
from gapless.testing.simulated.simulated_device import SimulatedDevice
from optimizer_loops import OptimizerLoop, both
from toy_steps import on


pytestmark = pytest.mark.quick_tests(16)


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="lazy") as device, device.allow_waits():
        yield device
    assert device.report.races == []


class Signs(torch.optim.Optimizer):
    """A user's own."""

    def __init__(self, weights, lr):
        super().__init__(weights, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                if not state:
                    state["mean"] = torch.zeros_like(weight)
                state["mean"].lerp_(weight.grad, 0.5)
                weight.add_(state["mean"].sign(), alpha=-group["lr"])


adamw = partial(AdamW, lr=0.1, fused=True)
foreach_adam = partial(Adam, lr=0.1, foreach=True, amsgrad=True)
momentum = partial(SGD, lr=0.1, momentum=0.9, foreach=True)
signs = partial(Signs, lr=0.1)


def assert_equal(report, *, every):
    """Audits came, and none found a difference."""
    audits = report.audits
    assert audits.differences == []
    assert report.refusals == []
    assert 1 < audits.num <= audits.num_equal + 1
    if every == 1:
        assert report.num_quick == report.num_replays == 0


# --- bits ---


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("make", [adamw, foreach_adam, momentum])
def test_an_audit_is_one_quick_update(device, make, every):
    """Weights, gradients, state and counts on the host are as if nobody had looked."""
    loop = both(device, make, partial(OptimizerLoop.run, num=10, rate=0.9), audit_every=every)

    assert_equal(loop.report, every=every)
    assert loop.report.num_quick > 0 or every == 1


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("make", [adamw, momentum, signs])
def test_an_audit_is_one_replay_of_an_update(device, make, every):
    """At one rate an update is a graph."""
    loop = both(device, make, partial(OptimizerLoop.run, num=10), audit_every=every)

    assert_equal(loop.report, every=every)
    assert loop.report.num_graphs == 1


@pytest.mark.parametrize("rate", [0.9, 1.0])
@pytest.mark.parametrize("every", [1, 3])
def test_a_gradient_scaler(device, every, rate):
    """Its tables and the gradients that the update unscales are as written; also after an overflow."""

    def train(is_captured):
        loop = OptimizerLoop(device, adamw, is_captured=is_captured, audit_every=every)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=4)
        seen = []
        for number in range(10):
            loop.optimizer.zero_grad()
            x = on(device, torch.tensor(float("inf") if number == 7 else 0.5 + number))
            loss = sum((weight * x).sum() for weight in loop.weights)
            scaler.scale(loss).backward()
            scaler.step(loop.optimizer)
            scaler.update()
            loop.optimizer.param_groups[0]["lr"] *= rate
            tensors = [*loop.weights, *[weight.grad for weight in loop.weights]]
            seen.append([tensor.tolist() for tensor in tensors])
            seen.append(scaler.get_scale())
        return loop, repr(seen)

    _, expected = train(is_captured=False)
    loop, found = train(is_captured=True)

    assert found == expected
    assert_equal(loop.report, every=every)


def test_a_scheduler_is_called_once(device, recwarn):
    """It counts the steps that it sees."""
    loop = OptimizerLoop(device, adamw, audit_every=2)
    scheduler = ExponentialLR(loop.optimizer, 0.9)
    for _ in range(12):
        loop.run(1)
        scheduler.step()

    assert_equal(loop.report, every=2)
    assert [str(one.message) for one in recwarn] == []


# --- differences ---


def skips_one(updates, run):
    """Put a weight back to where it was before the update."""
    weight = updates._optimizer.param_groups[0]["params"][1]
    before = weight.detach().clone()
    is_done = run(updates)
    if is_done:
        weight.detach().copy_(before)
    return is_done


def uses_an_old_number(updates, run):
    (group,) = updates._optimizer.param_groups
    now, group["lr"] = group["lr"], group["lr"] / 0.9
    try:
        return run(updates)
    finally:
        group["lr"] = now


def counts_twice(updates, run):
    """On the host."""
    is_done = run(updates)
    if is_done:
        for state in updates._optimizer.state.values():
            state["step"] += 1
    return is_done


@pytest.mark.parametrize(
    ("make", "wrong", "name"),
    [
        (adamw, skips_one, "weight 1 of AdamW"),
        (momentum, uses_an_old_number, "weight 0 of SGD"),
        (foreach_adam, counts_twice, "a tensor on the host"),
    ],
)
def test_a_quick_update_that_is_wrong_is_told(device, make, wrong, name, monkeypatch):
    """Bits are as written all the same; lists are collected anew once, and no more."""
    run = QuickUpdates.run
    monkeypatch.setattr(QuickUpdates, "run", lambda updates: wrong(updates, run))
    with pytest.warns(gapless.CaptureWarning, match="audit found a difference in call") as told:
        loop = both(device, make, partial(OptimizerLoop.run, num=10, rate=0.9), audit_every=1)

    audits = loop.report.audits
    assert len(audits.differences) == 2 == audits.num
    assert all(name in text for text in audits.differences)
    assert loop.report.refusals[0].kind == "proved_wrong"
    assert loop.report.num_quick == 0
    assert sum("audit found a difference in call" in str(one.message) for one in told) >= 2


def test_what_is_kept_for_audits_goes_with_the_capture(device):
    """At once."""
    gc.collect()
    gc.disable()
    try:
        loop = OptimizerLoop(device, adamw, audit_every=3)
        loop.run(20, rate=0.9)
        before = device.reserved_memory_bytes()
        gapless.release(loop.optimizer)
        after = device.reserved_memory_bytes()
    finally:
        gc.enable()

    # What takes fingerprints.
    assert before - after > 1_000_000


def test_a_difference_that_stays_is_found_within_two_blocks(device, monkeypatch):
    """As of graphs."""
    monkeypatch.setattr(audit, "DEFAULT_EVERY", None)
    loop = OptimizerLoop(device, adamw)
    loop.run(40, rate=0.99)
    run = QuickUpdates.run
    monkeypatch.setattr(QuickUpdates, "run", lambda updates: skips_one(updates, run))
    with pytest.warns(gapless.CaptureWarning, match="audit found a difference"):
        loop.run(2 * loop.report.audits.block + 4, rate=0.99)


def test_a_step_that_fails_fails_as_written(device):
    """And leaves the weights as they are."""
    loop = OptimizerLoop(device, momentum, audit_every=1)
    loop.run(4, rate=0.9)
    before = [weight.tolist() for weight in loop.weights]
    audits = vars(loop.optimizer)["_gapless_captor"]._audits
    audits._may_be_quick()

    def step():
        loop.weights[0].detach().mul_(2.0)
        raise ZeroDivisionError

    for weight in loop.weights:
        weight.grad = torch.ones_like(weight)
    with pytest.raises(ZeroDivisionError):
        audits._run(step)
    assert loop.weights[0].tolist() != before[0]
    assert [weight.tolist() for weight in loop.weights[1:]] == before[1:]


def test_no_memory_ends_audits(device, monkeypatch):
    def finds_no_memory(*args, **how):
        raise same_results.NotProved("no memory for a copy")

    monkeypatch.setattr("gapless.graphs.in_place.quick_audits.prove", finds_no_memory)
    loop = both(device, adamw, partial(OptimizerLoop.run, num=10, rate=0.9), audit_every=2)

    assert loop.report.audits.num == 0
    assert loop.report.note == "no further audits: no memory for a copy"
    assert loop.report.num_quick > 4
    assert capture_report(loop.optimizer) is loop.report


def test_quick_updates_save_what_an_update_as_written_takes_longer(device, monkeypatch):
    """The report says as much as a stopwatch would."""

    def taking(ms, call):
        def timed(*args, **kwargs):
            device.timeline.pass_until(device.now_ms() + ms, "host")
            return call(*args, **kwargs)

        return timed

    monkeypatch.setattr(QuickUpdates, "run", taking(100.0, QuickUpdates.run))
    loop = OptimizerLoop(device, adamw, audit_every=8)
    run = QuickAudits._run_plain
    monkeypatch.setattr(
        QuickAudits, "_run_plain", lambda audits, step: run(audits, taking(900.0, step))
    )
    loop.run(20, rate=0.99)
    before, num = loop.report.spent.saved_s, loop.report.num_quick
    loop.run(20, rate=0.99)

    saved_s = loop.report.spent.saved_s - before
    assert saved_s == pytest.approx(0.8 * (loop.report.num_quick - num), rel=0.1)
