"""What the plan `auto` finds out on the virtual clock, and that it changes no value."""

from __future__ import annotations

import torch

import gapless
from gapless.loop import auto as autostep
from gapless.loop.train_loop import TrainLoop
from simulation.capturing import TwoRanks, on_device
from simulation.registry import VERY_FEW, scenario
from simulation.workloads import Regression, counts, read_back, regression_data
from toy_steps import on


NUM_STEPS = 60


def data(count=NUM_STEPS):
    return (regression_data() * (count // 11 + 1))[:count]


def train_plainly(model, batches):
    losses = []
    for batch in batches:
        out = model.forward(batch)
        model.backward(out)
        losses.append(out.loss.item())
    return losses, model.weight.detach().clone()


class Loader:
    """Batches of a loader with worker processes, or of one that takes virtual time."""

    def __init__(self, device, batches, *, takes=None, num_workers=0):
        self.device, self.batches = device, batches
        self.takes, self.num_workers = takes, num_workers

    def __iter__(self):
        for batch in self.batches:
            if self.takes is not None:
                self.device.spend(self.takes)
            yield batch


def choose(
    device, *, kind=Regression, num=NUM_STEPS, batches=None, step=None, ranks=None, **knobs
):
    """Train under `auto`; check every value, and return the loop and its result."""
    expected, weight = train_plainly(kind(), data(num))
    model = kind()
    on_device(device, model)
    seen = []
    plan = gapless.PLANS["auto"].with_knobs(**knobs)
    with TrainLoop(plan=plan, device=device, ranks=ranks) as loop:
        result = loop.run_epoch(
            batches or data(num),
            model if step is None else step(model),
            on_batch=lambda now: seen.append(now.diagnosis),
        )
        copied = read_back(device, model.weight)
    assert expected == result.losses
    assert torch.equal(weight, copied)
    # Nothing is known at first, and what is known is told with the next batch.
    assert seen[0] is None
    assert seen[-1] is loop.diagnosis
    return loop, result


@scenario(num_seeds=VERY_FEW)
def auto_changes_no_value_on_its_way(device):
    """Measured, tried and settled: losses and weights are the sequential loop's."""
    loop, result = choose(device, num=36, run_ahead=4)
    assert set(counts(result)) <= {"capture", "run_ahead", "staging", "epoch_end"}
    assert loop.capture_report.num_eager + loop.capture_report.num_replays == 36
    # The virtual clock stands still here, so nothing is gained.
    assert loop.diagnosis.captures is False
    assert loop.capture_report.num_replays >= autostep._WINDOW
    assert not loop._captured.has_graphs


@scenario(durations={"launch": 1.0}, only="asap")
def auto_captures_a_launch_bound_step(device):
    """Every operation costs the host a millisecond: a graph of all of them is faster."""
    loop, result = choose(device)
    found = loop.diagnosis
    assert (found.bottleneck, found.captures) == ("launch", True)
    assert found.line.startswith("auto: launch-bound: the host needs ")
    assert "captured, " in found.line
    assert counts(result) == {"capture": 1, "epoch_end": 1}
    # One more proves the graph, and takes none of the window.
    assert loop.capture_report.num_eager == autostep._START + autostep._WINDOW + 1
    assert loop.capture_report.num_replays == NUM_STEPS - loop.capture_report.num_eager


@scenario(durations={"launch": 1.0}, only="asap")
def auto_of_several_ranks(device):
    """They wait for the device before they ask each other, where counts alone say so."""
    loop, result = choose(device, num=100, ranks=TwoRanks())
    assert loop.diagnosis.captures
    # Each phase ends with a wait and two questions, and a capture has four.
    assert counts(result) == {"capture": 2, "agreement": 3 + 4 + 3, "epoch_end": 1}


def in_region(device):
    """Return what makes a step one kernel of a set duration; as a graph it is a `kernel`."""

    def of(model):
        def step(batch):
            with device.region("step"):
                out = model.forward(batch)
                model.backward(out)
            return out

        return step

    return of


@scenario(durations={"step": 10.0, "kernel": 12.0, "launch": 0.01}, only="asap")
def auto_leaves_a_device_bound_step_as_it_is(device):
    """A graph that is slower is dropped again; the device is said to be busy."""
    loop, _ = choose(device, step=in_region(device), run_ahead=8)
    found = loop.diagnosis
    assert (found.bottleneck, found.captures) == ("device", False)
    assert "the device is busy" in found.line
    assert "steps run eagerly, which takes" in found.line
    assert loop.capture_report.num_replays >= autostep._WINDOW
    assert not loop._captured.has_graphs


@scenario(durations={"step": 6.0, "kernel": 7.0, "launch": 1.0}, only="asap")
def auto_sees_that_a_slow_host_is_ahead_of_a_slower_device(device):
    """The host needs 12 ms to launch a step, and waits for the device for the rest of its 20."""
    loop, _ = choose(device, step=in_region(device), run_ahead=8)
    assert (loop.diagnosis.bottleneck, loop.diagnosis.captures) == ("device", False)


@scenario(durations={"step": 10.0, "kernel": 0.5, "load": 35.0}, only="asap")
def auto_says_how_many_workers_would_do(device):
    """Batches take 35 ms to make in the process, and the device needs under one for each."""
    batches = Loader(device, data(), takes="load")
    loop, _ = choose(device, batches=batches, step=in_region(device))
    found = loop.diagnosis
    assert found.bottleneck == "data"
    assert "the host waits 35.0 of " in found.line
    assert f"{found.workers_needed} workers" in found.line
    assert "instead of 0" in found.line


@scenario(durations={"step": 2.0, "kernel": 0.5, "load": 120.0}, only="asap")
def auto_sees_that_workers_which_deliver_at_once_are_too_few(device):
    """Four workers bring four batches every 120 ms; only before the first the device is idle."""

    class Bursts(Loader):
        def __iter__(self):
            for number, batch in enumerate(self.batches):
                if number % 4 == 0:
                    device.spend("load")
                yield batch

    batches = Bursts(device, data(), num_workers=4)
    loop, _ = choose(device, batches=batches, step=in_region(device), run_ahead=8)
    assert loop.diagnosis.bottleneck == "data"
    assert loop.diagnosis.workers_needed > 4


@scenario(num_seeds=VERY_FEW)
def auto_names_the_line_that_waits(device):
    """A step that reads its loss is not captured, and is not even tried."""

    class Curious(Regression):
        def backward(self, out):
            out.loss.item()
            super().backward(out)

    with device.allow_waits():
        loop, result = choose(device, kind=Curious, num=24, run_ahead=4)
    found = loop.diagnosis
    assert found.captures is False
    if found.bottleneck == "host wait":
        assert "choosing.py:" in found.line
        assert "once a step" in found.line
    assert loop.capture_report.refusal.text.startswith("choosing.py:")
    assert set(counts(result)) <= {"run_ahead", "staging", "epoch_end"}


@scenario(num_seeds=VERY_FEW)
def auto_finds_waits_that_begin_after_the_warm_up(device):
    """They are found where steps are measured, and may be gone when it measures again."""

    class CuriousLater(Regression):
        count = 0
        is_late = False

        def on_host(self, batch):
            self.count += 1
            self.is_late = self.count > autostep._START + 1

        def backward(self, out):
            if self.is_late:
                out.loss.item()
            super().backward(out)

    with device.allow_waits():
        loop, _ = choose(device, kind=CuriousLater, num=24, run_ahead=4)
    refusal = loop.capture_report.refusal
    assert loop.diagnosis.captures is False
    assert (refusal.kind, refusal.is_final) == ("host_read", False)


@scenario(only="asap")
def auto_knows_with_the_first_batch_that_no_graph_takes_it(device):
    """Batches on the device that require gradients are not captured; nobody measures in vain."""
    expected, weight = train_plainly(Regression(), data(24))
    model = Regression()
    on_device(device, model)
    with device.allow_waits():
        batches = [(on(device, x).requires_grad_(), on(device, y)) for x, y in data(24)]
    kinds = []
    with TrainLoop(plan="auto", device=device) as loop:
        result = loop.run_epoch(
            batches, model, on_batch=lambda _: kinds.append(loop.capture_report.refusal.kind)
        )
        copied = read_back(device, model.weight)
    assert expected == result.losses
    assert torch.equal(weight, copied)
    assert kinds == ["batch_requires_grad"] * 24
    assert loop.capture_report.num_graphs == 0


@scenario(durations={"load": 30.0, "slow": 90.0, "launch": 1.0}, only="asap")
def auto_measures_again_when_the_pace_changes(device):
    """A loader that becomes slower makes data the bottleneck; rechecks are few."""

    class Slower(Loader):
        def __iter__(self):
            for number, batch in enumerate(self.batches):
                if number > 50:
                    device.spend("slow")
                yield batch

    window, autostep._SETTLED_WINDOW = autostep._SETTLED_WINDOW, 10
    lines = []
    try:
        model = Regression()
        on_device(device, model)
        batches = Slower(device, data(150))
        with TrainLoop(plan="auto", device=device) as loop:
            loop.run_epoch(batches, model, on_batch=lambda now: lines.append(now.diagnosis))
    finally:
        autostep._SETTLED_WINDOW = window
    found = [diagnosis.bottleneck for diagnosis in dict.fromkeys(lines) if diagnosis is not None]
    assert found == ["launch", "data"]
