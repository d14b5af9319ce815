"""A try to capture a step, however it ends, is one call of the step."""

from __future__ import annotations

import pytest
import torch

import gapless
from gapless.graphs.proof import trial
from gapless.graphs.proof.same_results import NotProved
from gapless.graphs.proof.trial import Trial
from gapless.testing.simulated.simulated_device import SimulatedDevice
from toy_steps import Training, read_back


NUM_CALLS = 6


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        yield device


@pytest.fixture
def tried(monkeypatch):
    """Return a list of what came of each try."""
    found, run = [], Trial.run

    def noted(self, *args):
        found.append(run(self, *args))
        return found[-1]

    monkeypatch.setattr(Trial, "run", noted)
    return found


class Keeps(Training):
    """Draws random numbers, keeps a tensor from call to call, and counts on the device."""

    returned = None

    def __init__(self, device):
        super().__init__(device)
        self.model[2].p = 0.5
        self.last = device.device_buffer(4).view(torch.float32).fill_(1.0)[0]
        self.num = torch.zeros_like(self.last)

    def step(self, batch):
        loss = super().step(batch) * self.last
        self.last = loss * 0.5 + 1
        self.num += 1
        return {"loss": loss, "more": self.returned}


def fails(*args, **how):
    raise RuntimeError("no graph of this")


def finds_no_memory(*args, **how):
    raise NotProved("no memory for a copy")


# How a try ends: what to replace for it, and what has come of it.
ENDS = {
    "with a graph": ({}, None, None),
    "without a capture": ({"capture": fails}, "capture_failed", None),
    "without a proof": ({"prove": finds_no_memory}, None, "no memory for a copy"),
    "in a proof": ({"prove": fails}, "capture_failed", None),
    "with a result that no replay returns": ({"returned": {1}}, "result", None),
}


def train(device, *, captured):
    """Return what is seen of some calls: losses, gradients, weights, state, random numbers."""
    torch.manual_seed(0)
    training, seen = Keeps(device), []
    step = gapless.capture(training.step, device=device) if captured else training.step
    for number, batch in enumerate(gapless.prefetch(training.data[:NUM_CALLS], device)):
        out = step(batch)
        weights = list(training.model.parameters())
        state = [part["momentum_buffer"] for part in training.optimizer.state.values()]
        others = [weight.grad for weight in weights] + [training.last, training.num]
        tensors = [out["loss"], *weights, *state, *others]
        seen.append([read_back(device, tensor).tolist() for tensor in tensors])
        if number == 3:
            seen.append(torch.rand(2).tolist())
    return seen


@pytest.mark.parametrize("end", ENDS)
def test_a_try_is_one_call_of_the_step(device, tried, monkeypatch, end):
    """Weights, gradients, state, kept tensors and random numbers go on as in the loop as written."""
    replaced, kind, not_proved = ENDS[end]
    expected = train(device, captured=False)
    for name, value in replaced.items():
        owner = {"capture": device, "prove": trial, "returned": Keeps}[name]
        monkeypatch.setattr(owner, name, value)
    found = train(device, captured=True)

    assert found == expected
    (result,) = tried
    assert [refusal.kind for refusal in result.refusals] == ([] if kind is None else [kind])
    assert (result.graph is None) == bool(kind)
    assert result.not_proved == not_proved


class UserError(Exception):
    """What a step raises by itself."""


class Fails(Keeps):
    fails = False

    def step(self, batch):
        if self.fails:
            raise UserError
        return super().step(batch)


def test_what_the_step_raises_in_a_try_is_the_users(device, monkeypatch):
    """It comes from the run as written, without what a capture raised; nothing has changed."""
    training = Fails(device)
    step = gapless.capture(training.step, device=device)

    def capture(*args, **how):
        training.fails = True
        training.step(None)

    monkeypatch.setattr(device, "capture", capture)
    (batch,) = gapless.prefetch(training.data[:1], device)
    for _ in range(2):
        step(batch)
    places = [*training.model.parameters(), training.last, training.num]
    before = [read_back(device, tensor).tolist() for tensor in places]
    with pytest.raises(UserError) as raised:
        step(batch)

    assert raised.value.__context__ is None
    assert [read_back(device, tensor).tolist() for tensor in places] == before


@pytest.mark.parametrize(
    "view_of",
    [lambda batch: batch[:, :2], lambda batch: batch[:, :1].expand(-1, 2)],
    ids=["a slice", "an expanded tensor"],
)
def test_a_batch_that_leaves_out_memory_is_proved_without_a_word(device, view_of):
    """The runs that are compared find batches of the same strides."""
    model = torch.nn.Linear(2, 1).to(device.torch_device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(batch):
        optimizer.zero_grad()
        loss = model(batch).mean()
        loss.backward()
        optimizer.step()
        return loss

    step = gapless.capture(train, device=device)
    for _ in range(NUM_CALLS):
        step(view_of(torch.ones(8, 8, device=device.torch_device)))

    assert step.report.num_replays > 0
    assert "does not give the same bits twice" not in str(step.report)
