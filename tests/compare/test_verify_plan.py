"""What verification says of sound and of broken workloads."""

from __future__ import annotations

import math
import multiprocessing
import random
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from types import MappingProxyType

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import gapless
from gapless.compare.difference import first_tensor_difference
from gapless.compare.recorded_run import run_plain_loop, run_plan
from gapless.compare.settings import RunSettings, VerifySettings
from gapless.compare.verify_plan import run_verification
from gapless.compare.workload import Workload
from gapless.device.find import find_device
from gapless.errors import UserError
from gapless.pipeline.step import StepLoss
from gapless.plans import PLANS, get_plan
from gapless.records.verification import PLAIN_LOOP
from gapless.report.verification_text import verification_text
from gapless.testing.simulated.simulated_device import SimulatedDevice
from toys import plan_of_run


class Small:
    """A linear model with momentum; `after` meddles after each step, `report` with its loss."""

    def __init__(self, *, after=None, report=None, batches=None, num_batches=12):
        fixed = [torch.full((4, 8), float(n % 5 + 1)) for n in range(num_batches)]
        self.model = torch.nn.Linear(8, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.batches = fixed if batches is None else batches
        self.after = after
        self.report = report
        self.done = 0
        self.is_gapless = plan_of_run() == "gapless"

    def step(self, batch):
        self.done += 1
        loss = self.train(batch)
        if self.after is not None:
            self.after(self)
        return loss if self.report is None else self.report(self, loss)

    def train(self, batch):
        loss = self.model(batch).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    def workload(self, **changed):
        parts = {"model": self.model, "optimizer": self.optimizer}
        return Workload(**{**parts, "batches": self.batches, "step": self.step, **changed})


def small(**parts):
    """Return a function that builds the small workload anew."""
    return lambda device: Small(**parts).workload()


def ask(*, device=None, plan="gapless", against=None, steps=10, **run):
    """Return the settings of a verification, on the CPU unless a device is given."""
    return VerifySettings(
        run=RunSettings(device=device or find_device("cpu"), **run),
        plans=(plan,),
        against=against,
        steps=steps,
    )


def check(make, **settings):
    """Verify; return the verdicts."""
    return run_verification(make, ask(**settings)).verdicts


def counts(run):
    return {reason: total.count for reason, total in run.waits.by_reason.items()}


# --- sound workloads ---


@pytest.mark.parametrize("plan", PLANS)
def test_a_sound_workload_is_identical_under_every_plan(plan):
    """Both verdicts hold; ten losses and seven tensors were looked at."""
    itself, plans = check(small(), plan=plan)

    assert itself.is_identical
    assert plans.is_identical
    assert (itself.ours.plan, itself.theirs.plan) == (PLAIN_LOOP, PLAIN_LOOP)
    assert (plan, PLAIN_LOOP) == (plans.ours.plan, plans.theirs.plan)
    assert plans.ours.losses == plans.theirs.losses
    assert len(plans.ours.losses) == 10
    # The batch; gradient, momentum and value of weight and bias.
    assert plans.num_tensors == 7


def test_the_check_adds_no_wait_to_a_plan():
    """The host waits as often as the plan says, although every step is looked at."""
    *_, plans = check(small(), against="blocking")

    assert counts(plans.theirs) == {"batch": 10, "loss_read": 10}
    assert counts(plans.ours) == {"epoch_end": 1}


def test_plan_and_reference_are_compared_with_the_plain_loop_and_with_each_other():
    """Each pair once; a plan is not compared with itself."""

    def pairs(plan):
        found = check(small(), plan=plan, against="blocking")
        assert all(verdict.holds for verdict in found)
        return [(verdict.ours.plan, verdict.theirs.plan) for verdict in found]

    itself, reference = (PLAIN_LOOP, PLAIN_LOOP), ("blocking", PLAIN_LOOP)
    assert pairs("blocking") == [itself, reference]
    assert pairs("gapless") == [
        itself, reference, ("gapless", PLAIN_LOOP), ("gapless", "blocking")
    ]  # fmt: skip


def test_batches_that_end_early_are_passed_over_again():
    """Four batches make ten steps in three passes, each an epoch, and the losses go on falling."""
    _, plans = check(small(num_batches=4))

    assert (4, 4, 2) == plans.ours.passes == plans.theirs.passes
    assert counts(plans.ours) == {"epoch_end": 3}
    assert len(set(plans.ours.losses)) == 10


def test_every_generator_that_is_seeded_starts_alike():
    """Torch, numpy and random give the same numbers in every run, others with another seed."""

    def make(device):
        start = [random.random(), np.random.random(), torch.rand(()).item()]  # noqa: NPY002
        return Small(batches=[torch.full((4, 8), sum(start))] * 10).workload()

    one, other = check(make, seed=2**40 + 1), check(make, seed=2)

    assert all(found.is_identical for found in (*one, *other))
    assert one[0].ours.losses != other[0].ours.losses


def test_a_step_in_two_parts_is_watched_after_its_second():
    """A split step under four streams is identical, and a bug in its second half is found."""

    class Split:
        def __init__(self, small, *, breaks):
            self.small = small
            self.breaks = breaks

        def forward(self, batch):
            self.small.done += 1
            return StepLoss(loss=self.small.model(batch).square().mean(), weight=4.0)

        def backward(self, out):
            self.small.optimizer.zero_grad()
            out.loss.backward()
            self.small.optimizer.step()
            if self.breaks and plan_of_run() == "full" and self.small.done == 4:
                self.small.model.bias.data += 1.0

    def make(breaks):
        built = Small()
        return built.workload(step=Split(built, breaks=breaks))

    assert [found.holds for found in check(lambda _: make(False), plan="full")] == [True, True]
    _, plans = check(lambda _: make(True), plan="full")
    assert (plans.difference.step, plans.difference.tensor.name) == (4, "parameter bias")


def test_buffers_sparse_gradients_and_lazy_modules_are_compared():
    """Tensors count that no optimizer knows, that are sparse, or that come after the start."""

    def make(device):
        model = torch.nn.Sequential(
            torch.nn.Embedding(20, 4, sparse=True),
            torch.nn.Flatten(),
            torch.nn.LazyLinear(1),
            torch.nn.BatchNorm1d(1),
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(batch):
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        batches = [torch.arange(6).reshape(2, 3) + n for n in range(10)]
        return Workload(model=model, optimizer=optimizer, batches=batches, step=step)

    _, plans = check(make)
    run = run_plan(make, plan="gapless", settings=ask().run, steps=10)

    assert plans.is_identical
    first, last = ({tensor.name for tensor in run.tensors[step]} for step in (0, -1))
    later = {"gradient of 0.weight (values)", "parameter 2.weight"}
    assert {"parameter 0.weight", "buffer 3.running_mean"} <= first
    assert later <= last
    assert not later & first


# --- broken workloads ---


def test_the_first_step_tensor_and_size_of_a_difference_are_found():
    """A plan that moves two weights after step 3 is caught with their largest distance."""

    def move(built):
        if built.done == 3 and built.is_gapless:
            built.model.weight.data[0, 2:4] += torch.tensor([0.5, 0.25])

    itself, plans = check(small(after=move))

    assert itself.is_identical
    assert not plans.holds
    found = plans.difference
    assert (found.step, found.tensor.name) == (3, "parameter weight")
    assert (found.tensor.num_tensors, found.tensor.num_compared) == (1, 7)
    assert (found.elements.num_differing, found.elements.num_elements) == (2, 8)
    assert found.elements.max_abs == pytest.approx(0.5, abs=1e-6)
    assert found.loss.step == 4
    assert found.is_repeated


def test_a_loss_that_alone_differs_is_found_with_its_size():
    """If all weights agree and only the loss of step 7 is off, no tensor is named."""

    def shift(built, loss):
        return loss.detach() + 0.25 if built.done == 7 and built.is_gapless else loss

    _, plans = check(small(report=shift))

    found = plans.difference
    assert (found.step, found.loss.step, found.tensor) == (7, 7, None)
    assert found.loss.size == pytest.approx(0.25, abs=1e-6)
    assert found.is_repeated


def test_a_batch_that_differs_is_named_before_its_effects():
    """The cause comes before the gradients, weights and losses that follow from it."""
    unseeded = random.SystemRandom()

    def make(device):
        values = [1.0] * 5 + [unseeded.random()] * 5
        return Small(batches=[torch.full((4, 8), value) for value in values]).workload()

    (itself,) = check(make)

    found = itself.difference
    assert (found.step, found.tensor.name) == (6, "batch tensor 0")
    assert (found.elements.num_differing, found.elements.num_elements) == (32, 32)
    assert found.loss.step == 6


def test_a_workload_that_is_not_built_alike_differs_before_the_first_step():
    """A model that lives on from run to run is not the same at the start of the second."""
    model = torch.nn.Linear(8, 1)

    def make(device):
        model.zero_grad()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        built = Small()
        built.model, built.optimizer = model, optimizer
        return built.workload()

    (itself,) = check(make)

    assert (itself.difference.step, itself.difference.tensor.name) == (0, "parameter weight")
    assert itself.difference.elements.num_differing == 8
    assert not itself.holds


def test_a_difference_that_does_not_come_back_is_marked():
    """If only one run was off, `is_repeated` is False after both ran again."""
    runs = []

    def make(device):
        runs.append(None)
        number = len(runs)

        def move(built):
            if built.done == 5 and number == 3:
                built.model.bias.data += 1.0

        return Small(after=move).workload()

    itself, plans = check(make)

    assert itself.is_identical
    found = plans.difference
    assert (found.step, found.tensor.name) == (5, "parameter bias")
    assert (found.elements, found.is_repeated) == (None, False)
    assert len(runs) == 5


def test_a_tensor_that_only_one_plan_has_is_named():
    """A gradient that one plan leaves behind and the other drops is a difference."""

    def drop(built):
        if built.done == 2 and built.is_gapless:
            built.model.bias.grad = None

    _, plans = check(small(after=drop))

    found = plans.difference
    assert (found.step, found.tensor.name) == (2, "gradient of bias")
    assert found.tensor.detail == "is absent in one and float32 [1] in the other"
    assert found.is_repeated


@pytest.mark.parametrize("values", [(1.0, 1.0), (math.nan, 1.0), (0.0, -0.0)])
def test_losses_are_compared_by_their_bits(values):
    """Two NaNs are the same, zero and minus zero are not."""

    def replace(built, loss):
        return torch.full_like(loss.detach(), values[0] if built.is_gapless else values[1])

    _, plans = check(small(report=replace))

    assert plans.is_identical is (repr(values[0]) == repr(values[1]))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("tolerance", [None, 1e-2])
def test_losses_that_are_not_finite_show_nothing(value, tolerance):
    """Runs that agree in NaN do not hold, and no plan is run against them."""

    def spoil(built, loss):
        return torch.full_like(loss.detach(), value) if built.done == 6 else loss

    (itself,) = check(small(report=spoil), tolerance=tolerance)

    assert itself.agrees
    assert not itself.holds
    assert itself.first_nonfinite_step == 6


def test_a_nan_of_the_plan_alone_is_a_difference():
    """A NaN where the reference has a number is a difference, not an open question."""

    def spoil(built, loss):
        return loss.detach() * math.nan if built.done == 6 and built.is_gapless else loss

    itself, plans = check(small(report=spoil))

    assert itself.holds
    assert not plans.agrees
    assert (plans.first_nonfinite_step, plans.difference.step) == (None, 6)


def test_only_a_plan_that_reads_ahead_disturbs_a_generator_that_batches_share_with_dropout():
    """The named plans draw random numbers in the order of the plain loop."""

    class Noise:
        def __iter__(self):
            for _ in range(12):
                yield torch.randn(4, 8)

    def make(device):
        built = Small()
        built.model = torch.nn.Sequential(torch.nn.Dropout(0.5), built.model)
        return built.workload(model=built.model, batches=Noise())

    assert [found.holds for found in check(make, plan="gapless")] == [True, True]

    ahead = replace(get_plan("gapless"), prefetch=2)
    ours = run_plan(make, plan=ahead, settings=ask().run, steps=4)
    theirs = run_plain_loop(make, settings=ask().run, steps=4)
    # The first batch is the same, but what dropout drew is not.
    difference = first_tensor_difference(ours, theirs)
    assert (difference.step, difference.name) == (1, "gradient of 1.weight")


# --- with a tolerance ---


@pytest.mark.parametrize(("tolerance", "holds"), [(1e-2, True), (1e-4, False)])
def test_a_tolerance_is_relative_to_the_size_of_the_numbers(tolerance, holds):
    """Losses that are 0.1 % off from step 6 on pass within 1 % and not within 0.01 %."""

    def scale(built, loss):
        return loss.detach() * 1.001 if built.done >= 6 and built.is_gapless else loss

    itself, plans = check(small(report=scale), tolerance=tolerance)

    assert itself.is_identical
    assert holds is plans.holds
    assert not plans.is_identical
    assert plans.closeness.largest_loss == pytest.approx(0.001 / 1.001, rel=1e-3)
    assert (6 if not holds else None) == (
        plans.closeness.first_loss and plans.closeness.first_loss.step
    )
    assert plans.closeness.num_tensors_beyond == 0


def test_tensors_at_the_end_are_held_to_the_tolerance():
    """A weight moved after the last step is beyond it, although every loss agrees."""

    def move(built):
        if built.done == 10 and built.is_gapless:
            built.model.weight.data[0, 0] += 3.0

    _, plans = check(small(after=move), tolerance=0.5)

    close = plans.closeness
    assert (
        close.first_loss,
        close.largest_loss,
        close.num_tensors_beyond,
        close.num_tensors,
    ) == (None, 0.0, 1, 7)
    assert close.largest_tensor[1] == "parameter weight"
    assert 0.9 < close.largest_tensor[0] < 1.2
    assert not plans.holds


def test_a_tolerance_also_decides_whether_a_workload_is_reproducible():
    """A workload that is a little off from run to run can still be compared."""
    unseeded = random.SystemRandom()

    def jitter(built, loss):
        return loss.detach() * (1.0 + 1e-6 * unseeded.random())

    assert [found.holds for found in check(small(report=jitter))] == [False]
    assert [found.holds for found in check(small(report=jitter), tolerance=1e-4)] == [True, True]


def test_only_a_tolerance_allows_algorithms_that_are_not_deterministic():
    """Torch refuses them while bits are compared, and allows them with a tolerance."""

    def scatter(built):
        torch.zeros(4).put_(torch.tensor([1]), torch.tensor([2.0]))

    with pytest.raises(RuntimeError, match="deterministic"):
        check(small(after=scatter))
    assert [found.holds for found in check(small(after=scatter), tolerance=0.0)] == [True, True]


# --- what cannot be verified ---


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (None, "a loss must be a tensor with one number, but is None"),
        (0.5, "but is a float; let the step return its loss"),
        (torch.ones(3), r"but is a tensor of shape \(3,\)"),
        (StepLoss(loss=torch.ones(2)), r"but is a tensor of shape \(2,\)"),
    ],
)
def test_a_step_that_returns_no_loss_is_refused(out, message):
    """The message names what came back and what should have."""
    with pytest.raises(UserError, match=message):
        check(small(report=lambda built, loss: out))


@pytest.mark.parametrize("fails", [False, True])
def test_workers_that_a_loader_keeps_are_ended(fails):
    """Persistent workers end with each run; a garbage collection would wait for them."""
    loaders = []

    def make(device):
        workload = small()(device)
        batches = list(islice(workload.batches, 4))
        loaders.append(DataLoader(batches, None, num_workers=1, persistent_workers=True))

        def step(batch):
            assert multiprocessing.active_children()
            return None if fails else workload.step(batch)

        return replace(workload, batches=loaders[-1], step=step)

    with pytest.raises(UserError) if fails else nullcontext():
        assert all(comparison.is_identical for comparison in check(make))

    assert loaders
    assert multiprocessing.active_children() == []


def test_batches_that_run_dry_are_refused():
    """A second pass without batches would repeat for ever, so it is an error."""

    class Once:
        def __init__(self):
            self.left = iter([torch.ones(4, 8)] * 3)

        def __iter__(self):
            yield from self.left

    with pytest.raises(UserError, match="gave no batch in another pass after 3 steps"):
        check(lambda _: Small(batches=[]).workload(batches=Once()))
    with pytest.raises(UserError, match="gave no batch at all"):
        check(lambda _: Small().workload(batches=[]))


def test_a_batch_that_cannot_be_moved_is_a_mistake_in_the_workload():
    """The message names the batch, the container in it and what to do."""

    def make(device):
        built = Small()
        batches = [MappingProxyType({"x": batch}) for batch in built.batches]
        return built.workload(batches=batches, step=lambda batch: built.step(batch["x"]))

    with pytest.raises(UserError, match=r"a batch of the workload: cannot rebuild .* use a dict"):
        check(make)


def test_what_the_step_raises_comes_out_as_it_is():
    """The exception of the step arrives unchanged."""
    failure = KeyError("mine")

    def fail(built):
        if built.done == 3:
            raise failure

    with pytest.raises(KeyError) as caught:
        check(small(after=fail))

    assert caught.value is failure


# --- captured steps ---


class Counted(Small):
    """A small workload whose host part counts batches, and turns one weight at the eighth."""

    def __init__(self, *, turns):
        super().__init__()
        self.turns = turns
        self.is_captured = plan_of_run() == "captured"
        self.num_batches = 0

    def on_host(self, batch):
        self.num_batches += 1
        if self.turns and self.is_captured and self.num_batches == 8:
            with torch.no_grad():
                self.model.weight[0, 2] += 0.5

    def __call__(self, batch):
        return self.train(batch)


@pytest.mark.parametrize("turns", [False, True])
def test_steps_that_are_replayed_are_compared_one_by_one(turns):
    """Where a device captures, batch and state of replayed steps are compared too."""
    built = []

    def make(device):
        built.append(Counted(turns=turns))
        return built[-1].workload(step=built[-1])

    with SimulatedDevice(scheduler="asap") as device:
        itself, plans = check(make, device=device, plan="captured")

    assert itself.is_identical
    assert len(plans.ours.losses) == 10
    assert counts(plans.ours) == {"capture": 1, "epoch_end": 1}
    captured = [counted for counted in built if counted.is_captured]
    assert plans.ours.num_replays == 7
    assert {counted.num_batches for counted in captured} == {10}
    assert turns is not plans.is_identical
    if turns:
        assert (plans.difference.step, plans.difference.tensor.name) == (8, "gradient of weight")


# --- from Python ---


def test_one_call_verifies_a_plan():
    """verify_plan needs a function of the device alone, and returns all verdicts."""
    found = gapless.verify_plan(small(), "interval", steps=4, device="cpu")

    assert found.holds
    assert (found.is_reproducible, found.is_same("interval")) == (True, True)
    assert [verdict.ours.num_steps for verdict in found.verdicts] == [4, 4, 4, 4]
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_plan_that_computes_something_else_does_not_hold():
    """The verdict has the difference, and the text tells where it is."""

    def move(built):
        if built.done == 3 and built.is_gapless:
            built.model.bias.data += 1.0

    found = gapless.verify_plan(small(after=move), steps=4, device="cpu")

    assert not found.holds
    assert (found.is_reproducible, found.is_same("gapless")) == (True, False)
    assert [plans.holds for plans in found.plans] == [True, False, False]
    assert found.plans[1].difference.step == 3
    text = verification_text(found)
    assert "blocking against a plain loop: bit-identical" in text
    assert "gapless against a plain loop: different, from step 3 on\n" in text
    assert "gapless against blocking: different, from step 3 on\n" in text


def test_of_a_workload_that_is_not_reproducible_nothing_is_known():
    """Plans are not run then, and `is_same` says that it does not know."""
    unseeded = random.SystemRandom()

    def jitter(built, loss):
        return loss.detach() + unseeded.random()

    found = gapless.verify_plan(small(report=jitter), steps=4, device="cpu")

    assert not found.holds
    assert (found.is_reproducible, found.is_same("gapless"), found.plans) == (False, None, ())


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (Small().workload(), "must be a function of a torch.device, but is of type Workload"),
        (lambda device: 3, "returned an object of type int, expected a workload"),
    ],
)
def test_what_builds_no_workload_is_refused(workload, message):
    """A workload itself is refused as well, because every run needs a new one."""
    with pytest.raises(UserError, match=message):
        gapless.verify_plan(workload, steps=2, device="cpu")
