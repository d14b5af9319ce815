"""What a captured step says of itself: warnings, errors, reports, and the command line."""

from __future__ import annotations

import contextlib
import os
import random
import re
import subprocess
import sys
import tempfile
import textwrap
import warnings
from pathlib import Path

import pytest
from torch.nn import functional as F

import gapless
from hazards.captured_harness import (
    CPU,
    EITHER,
    GPU,
    HOLDS,
    captured_case,
    line_of,
    refusals_of,
    refused,
)
from hazards.captured_models import batches, kept, mlp, run, sgd, state, training_step
from inner_doors import memory_fraction


@contextlib.contextmanager
def capture_warnings():
    """Yield a list that holds, at the end, the texts of all CaptureWarnings."""
    texts = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        yield texts
    texts += [str(one.message) for one in told if issubclass(one.category, gapless.CaptureWarning)]


def updated(model, optimizer, one):
    """Train on one batch; return the loss."""
    return training_step(model, optimizer)(one)


# -------------------------------------------------------------------------------- warnings


@captured_case(
    "One warning for each reason, once, with file and line.", expect=HOLDS, holds_plainly=False
)
def one_warning_for_each_reason(place):
    model, seen, draws = mlp(place), [], []
    optimizer = sgd(model)

    def train(one):
        seen.append(len(seen))
        draws.append(random.random())
        return updated(model, optimizer, one)

    with capture_warnings() as texts:
        step = place.capture(train)
        run(step, batches(place, 20))

    for line in (line_of(train, "seen.append"), line_of(train, "draws.append")):
        assert sum(line in text for text in texts) == 1, texts
    assert len(set(texts)) == len(texts)
    assert len(seen) == 20


@captured_case("A step that is captured warns of nothing.", expect=HOLDS, holds_plainly=False)
def captured_step_warns_of_nothing(place):
    model = mlp(place, dropout=0.2)
    optimizer = sgd(model, momentum=0.9)
    with capture_warnings() as texts:
        step = place.capture(training_step(model, optimizer))
        run(step, batches(place, 20))

    assert step.report.num_replays > 0
    assert texts == []
    assert refusals_of(step.report) == []


@captured_case(
    "Warnings are errors: the first one stops the loop, once.", expect=HOLDS, holds_plainly=False
)
def warnings_are_errors(place):
    model, seen = mlp(place), []
    optimizer = sgd(model)

    def train(one):
        seen.append(len(seen))
        return updated(model, optimizer, one)

    step = place.capture(train)
    num_calls, caught = 0, []
    with warnings.catch_warnings():
        warnings.simplefilter("error", gapless.CaptureWarning)
        for one in batches(place, 20):
            num_calls += 1
            try:
                step(one)
            except gapless.CaptureWarning as warning:
                caught.append(str(warning))

    assert len(caught) == 1
    assert line_of(train, "seen.append") in caught[0]
    assert len(seen) in (num_calls - 1, num_calls)


# ---------------------------------------------------------------------------- on_refusal, off


@captured_case(
    "`on_refusal='raise'` raises, naming the line; no step runs twice.",
    expect=HOLDS,
    holds_plainly=False,
)
def refusal_raises(place):
    model, seen = mlp(place), []
    optimizer = sgd(model)

    def train(one):
        seen.append(len(seen))
        return updated(model, optimizer, one)

    step = place.capture(train, on_refusal="raise")
    num_calls = 0
    with pytest.raises(gapless.CaptureRefused, match=re.escape(line_of(train, "seen.append"))):
        for one in batches(place, 14):
            num_calls += 1
            step(one)

    assert len(seen) == num_calls


@captured_case(
    "GAPLESS_CAPTURE=off runs everything as written, and says so.",
    expect=HOLDS,
    holds_plainly=False,
)
def switched_off(place):
    os.environ["GAPLESS_CAPTURE"] = "off"
    model, seen = mlp(place), []
    optimizer = sgd(model)

    def train(one):
        seen.append(len(seen))
        return updated(model, optimizer, one)

    with capture_warnings() as texts:
        step = place.capture(train)
        results = run(step, batches(place, 16))

    assert (step.report.num_replays, step.report.num_eager) == (0, 16)
    assert len(results) == len(seen) == 16
    assert texts == []
    assert "GAPLESS_CAPTURE" in str(step.report)


# ------------------------------------------------------------------------------- the report


@captured_case(
    "Every line that forbids a capture is reported, not the first alone.",
    expect=HOLDS,
    holds_plainly=False,
)
def every_line_is_reported(place):
    class Trainer:
        def __init__(self):
            self.model = mlp(place)
            self.optimizer = sgd(self.model)
            self.num_seen, self.history, self.last = 0, [], None

        def train(self, one):
            self.num_seen += 1
            loss = updated(self.model, self.optimizer, one)
            self.history.append("a step")
            self.last = random.random()
            print("trained")
            return loss

    trainer = Trainer()
    step = place.capture(trainer.train)
    with capture_warnings():
        run(step, batches(place, 16))

    everything = "\n".join(refusals_of(step.report))
    for piece, word in {
        "self.num_seen += 1": "num_seen",
        "self.history.append": "history",
        "random.random()": "random",
        'print("trained")': "print",
    }.items():
        assert line_of(trainer.train, piece) in everything, everything
        assert word in everything
    assert (step.report.num_replays, step.report.num_graphs) == (0, 0)


@captured_case(
    "A report can be read before the first call, and while training.",
    expect=HOLDS,
    holds_plainly=False,
)
def report_at_any_time(place):
    model = mlp(place)
    optimizer = sgd(model)
    step = place.capture(training_step(model, optimizer))

    assert (step.report.num_replays, step.report.num_eager, step.report.num_graphs) == (0, 0, 0)
    assert str(step.report)
    for number, one in enumerate(batches(place, 20), start=1):
        step(one)
        assert step.report.num_replays + step.report.num_eager == number
        assert str(step.report)
    assert step.report.num_graphs == 1


@captured_case(
    "The counts add up to the calls, whatever the shapes and refusals.",
    expect=HOLDS,
    holds_plainly=False,
)
def counts_add_up(place):
    model = mlp(place)
    optimizer = sgd(model)
    step = place.capture(training_step(model, optimizer))
    for rows in (4, 5, 4, 6, 4):
        run(step, batches(place, 7, rows=rows))

    assert step.report.num_replays + step.report.num_eager == 35
    assert 1 <= step.report.num_graphs <= 3


@captured_case(
    "A changed value is named with its line and both values.", expect=HOLDS, holds_plainly=False
)
def changed_value_is_named(place):
    class Trainer:
        def __init__(self):
            self.alpha, self.model = 0.25, mlp(place)
            self.optimizer = sgd(self.model)

        def train(self, one):
            x, y = one
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(x), y) * self.alpha
            loss.backward()
            self.optimizer.step()
            return loss

    trainer = Trainer()
    step = place.capture(trainer.train)
    with capture_warnings():
        run(step, batches(place, 16))
        trainer.alpha = 0.75
        run(step, batches(place, 16))

    told = str(step.report)
    for word in ("alpha", "0.25", "0.75", line_of(trainer.train, "self.alpha")):
        assert word in told, told


@captured_case(
    "No memory for a copy: not proved, or not captured, and said so.",
    expect=HOLDS,
    holds_plainly=False,
)
def no_memory_for_the_proof(place):
    model = mlp(place)
    optimizer = sgd(model)
    with memory_fraction(1e-9):
        step = place.capture(training_step(model, optimizer))
    with capture_warnings():
        losses = run(step, batches(place, 20))

    told = str(step.report)
    assert len(losses) == 20
    assert ("not proved" if step.report.num_replays else "memory") in told, told


@captured_case(
    "What stands in `on_host` runs for every batch, and is not reported.",
    expect=HOLDS,
    holds_plainly=False,
)
def on_host_is_not_reported(place):
    model = mlp(place)
    optimizer = sgd(model)

    class Step:
        num_seen = 0

        def __call__(self, one):
            return updated(model, optimizer, one)

        def on_host(self, one):
            self.num_seen += len(one[0])

    mine = Step()
    with capture_warnings() as texts:
        step = place.capture(mine)
        run(step, batches(place, 20))

    assert mine.num_seen == 20 * 6
    assert step.report.num_replays > 0
    assert texts == refusals_of(step.report) == []


@captured_case(
    "Logging is switched on after many replays, and off again.",
    expect=refused("log", at="self.log.append"),
)
def writes_that_begin_late(place):
    class Trainer:
        def __init__(self):
            self.model = mlp(place)
            self.optimizer = sgd(self.model)
            self.is_logging, self.log = False, []

        def train(self, one):
            loss = updated(self.model, self.optimizer, one)
            if self.is_logging:
                self.log.append("a step")
            return loss

    trainer = Trainer()
    step = place.capture(trainer.train)
    losses = run(step, batches(place, 16))
    trainer.is_logging = True
    losses += run(step, batches(place, 8))
    trainer.is_logging = False
    losses += run(step, batches(place, 8))
    return losses, trainer.log, state(trainer.model, trainer.optimizer)


@captured_case(
    "Exceptions of the user are no refusals, and are counted as calls.",
    expect=HOLDS,
    holds_plainly=False,
)
def exceptions_are_no_refusals(place):
    model = mlp(place)
    optimizer = sgd(model)

    def train(one, is_bad=False):
        if is_bad:
            raise KeyError("bad")
        return updated(model, optimizer, one)

    step = place.capture(train)
    num_raised = 0
    with capture_warnings() as texts:
        for number, one in enumerate(batches(place, 24)):
            try:
                step(one, is_bad=number % 6 == 5)
            except KeyError:
                num_raised += 1

    assert num_raised == 4
    assert texts == refusals_of(step.report) == []
    assert step.report.num_replays > 0


# --------------------------------------------------------------------------- the command line


_WORKLOAD = """
    import random

    import torch
    from torch.nn import functional as F

    import gapless


    def make_workload(device):
        model = torch.nn.Linear(8, 4).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        draw = torch.Generator().manual_seed(1)
        batches = [torch.randn(6, 8, generator=draw) for _ in range(12)]
        seen = []

        def step(x):
            seen.append(random.random())
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return gapless.StepLoss(loss=loss, weight=len(x))

        return gapless.Workload(model=model, optimizer=optimizer, batches=batches, step=step)
"""


def _verify(device):
    """Run `gapless verify captured` on a workload that is never replayed; return code and text."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "workload_that_counts.py")
        file.write_text(textwrap.dedent(_WORKLOAD), encoding="utf-8")
        options = ["--steps", "12", "--device", device, "--workload", f"{file}:make_workload"]
        command = [sys.executable, "-m", "gapless", "verify", "captured", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@captured_case(
    "`gapless verify captured` on a CPU has replayed nothing: exit code 3.",
    expect=HOLDS,
    devices=(CPU,),
    holds_plainly=False,
)
def verify_on_a_cpu(place):
    code, told = _verify(place.device)

    assert "nothing was verified" in told, told
    assert code == 3


@captured_case(
    "`gapless verify captured` of a step that is refused: exit code 3.",
    expect=HOLDS,
    devices=(GPU,),
    holds_plainly=False,
)
def verify_of_a_refused_step(place):
    code, told = _verify(place.device)

    assert "nothing was verified" in told, told
    assert "workload_that_counts.py" in told
    assert code == 3


# ---------------------------------------------------------------------------------- the CPU


@captured_case(
    "On a CPU a step runs as written, and the report says so.",
    expect=HOLDS,
    devices=(CPU,),
    holds_plainly=False,
)
def cpu_says_so(place):
    model = mlp(place)
    optimizer = sgd(model)
    step = place.capture(training_step(model, optimizer))
    run(step, batches(place, 14))

    assert (step.report.num_replays, step.report.num_eager) == (0, 14)
    assert "CPU" in str(step.report)


@captured_case("On a CPU groups of batches run one by one.", expect=EITHER, devices=(CPU,))
def cpu_runs_groups(place):
    model = mlp(place)
    optimizer = sgd(model)
    step = place.capture(training_step(model, optimizer), steps_per_launch=4)
    losses = [[kept(loss) for loss in step(list(batches(place, num)))] for num in (4, 4, 3, 4, 0)]
    return losses, state(model, optimizer)
