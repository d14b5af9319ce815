"""Verification on one GPU: it sees everything, and waits for nothing while it looks."""

from __future__ import annotations

import pytest
import torch

from gapless.compare.settings import RunSettings, VerifySettings
from gapless.compare.verify_plan import run_verification
from gapless.compare.workload import Workload
from gapless.device.find import find_device
from gapless.plans import PLANS
from toys import plan_of_run


pytestmark = [
    pytest.mark.gpu,
    # Torch says that it does not see every synchronisation.
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
]


@pytest.fixture(autouse=True)
def sync_mode():
    """Whatever a test does, synchronisations are allowed again after it."""
    yield
    torch.cuda.set_sync_debug_mode("default")


class Step:
    """Train a model; count steps in the part for the host.

    From the fifth step on, every synchronisation that is not declared raises.
    """

    def __init__(self, model, optimizer, after):
        self.model = model
        self.optimizer = optimizer
        self.after = after
        self.is_gapless = plan_of_run() == "gapless"
        self.num_done = 0

    def on_host(self, batch):
        self.num_done += 1
        if self.num_done == 5:
            torch.cuda.set_sync_debug_mode("error")

    def __call__(self, batch):
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if self.after is not None:
            self.after(self)
        return loss


def make(device, *, after=None, capturable=False):
    """A classifier with dropout and Adam, whose `step` counter lives on the host unless told."""
    torch.cuda.set_sync_debug_mode("default")
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(64, 4)
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, capturable=capturable)
    batches = [(torch.full((8, 32), n % 5 + 1.0), torch.arange(8) % 4) for n in range(16)]
    step = Step(model, optimizer, after)
    return Workload(model=model, optimizer=optimizer, batches=batches, step=step)


def check(make, *, plan="gapless", steps=50):
    run = RunSettings(device=find_device("cuda"))
    return run_verification(
        make, VerifySettings(run=run, plans=(plan,), against=None, steps=steps)
    ).verdicts


@pytest.mark.parametrize("plan", PLANS)
def test_every_plan_is_identical_and_the_check_does_not_wait(plan):
    """Thirty steps in two rounds, with every undeclared synchronisation made an error."""
    itself, plans = check(make, plan=plan, steps=30)

    assert itself.is_identical
    assert plans.is_identical
    # The batch is two tensors; four parameters, with a gradient and three tensors of Adam each.
    assert plans.num_tensors == 2 + 4 * 5


@pytest.mark.parametrize("plan", ["captured", "auto"])
def test_replayed_steps_are_compared_one_by_one(plan):
    """A step that can be captured, in sixty steps: every state of every replay is identical."""
    itself, plans = check(lambda device: make(device, capturable=True), plan=plan, steps=60)

    assert itself.is_identical
    assert plans.is_identical
    assert plans.ours.num_steps == 60
    num_captures = plans.ours.waits.by_reason["capture"].count if plan == "captured" else 1
    assert num_captures == 1


def test_the_check_adds_no_wait_to_a_plan():
    """Host waits are those of the plan, one for each round."""
    _, plans = check(make, steps=30)

    counts = {reason: total.count for reason, total in plans.ours.waits.by_reason.items()}
    assert counts == {"epoch_end": 2}


def test_a_single_bit_is_found_with_its_step_and_place():
    """The last bit of one weight, turned after step 7 under one plan."""

    def turn(step):
        if step.num_done == 7 and step.is_gapless:
            bits = step.model[0].weight.data.view(torch.int32)
            bits[3, 5] ^= 1

    _, plans = check(lambda device: make(device, after=turn), steps=12)

    found = plans.difference
    assert (found.step, found.tensor.name, found.tensor.num_tensors) == (
        7,
        "parameter 0.weight",
        1,
    )
    assert (found.elements.num_differing, found.elements.num_elements) == (1, 32 * 64)
    assert 0 < found.elements.max_abs < 1e-6
    assert found.is_repeated


def test_state_on_the_host_is_compared_at_the_end():
    """Adam's step counter lives on the host; one that is off after the last step is found."""

    def count(step):
        if step.num_done == 12 and step.is_gapless:
            step.optimizer.state[step.model[3].bias]["step"] += 1

    _, plans = check(lambda device: make(device, after=count), steps=12)

    found = plans.difference
    assert (found.step, found.tensor.name, found.loss) == (12, "step of 3.bias", None)
    assert found.elements.max_abs == 1.0
