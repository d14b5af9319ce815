"""`gapless.capture` in loops of one's own, on one GPU."""

from __future__ import annotations

import pytest
import torch

import gapless
from gapless.device.find import find_device
from gapless.device.numerics import set_numerics
from gapless.loop.train_loop import TrainLoop


pytestmark = [
    pytest.mark.gpu,
    # Torch says where a backward pass finds a graph of gradients that another stream has made.
    pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream"),
]


# Steps that may run as written until the verdicts on new graphs have arrived.
UNTIL_VERDICTS = 9


def make_training(*, kind="sgd", rows=(16,), count=40):
    """Return batches in turns of these many rows, and a step, its model and its optimizer."""
    set_numerics(find_device("cuda"), "fp32", deterministic=True)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Dropout(0.3), torch.nn.Linear(64, 1)
    ).cuda()
    if kind == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, capturable=kind == "capturable")
    draw = torch.Generator().manual_seed(1)
    data = [torch.randn(rows[n % len(rows)], 32, generator=draw) for n in range(count)]

    def step(batch):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(batch), batch.sum(dim=1, keepdim=True))
        loss.backward()
        optimizer.step()
        return loss.detach()

    torch.manual_seed(2)
    return data, step, model, optimizer


def in_three_lines(data, step):
    losses = gapless.DeferredLoss("cuda")
    for batch in gapless.prefetch(data, "cuda"):
        losses.add(step(batch))
    losses.drain()
    return losses.history


def weights_of(model):
    return [weight.detach().cpu() for weight in model.parameters()]


def plainly(**how):
    """Return losses and weights of a loop without us, in its own stream."""
    data, step, model, _ = make_training(**how)
    losses = [step(batch.cuda()).item() for batch in data]
    return losses, weights_of(model)


@pytest.mark.parametrize("kind", ["sgd", "capturable"])
def test_a_captured_step_gives_the_same_bits(kind):
    """In a loop of three lines on the default stream, with three shapes in turns and dropout."""
    losses, weights = plainly(kind=kind, rows=(16, 8, 12))
    data, step, model, _ = make_training(kind=kind, rows=(16, 8, 12))

    step = gapless.capture(step)
    found = in_three_lines(data, step)

    assert losses == found
    assert all(map(torch.equal, weights, weights_of(model)))
    assert step.report.num_graphs == 3, step.report
    assert 9 <= step.report.num_eager <= 9 + UNTIL_VERDICTS, step.report
    assert step.report.refusal is None


def test_a_loss_that_is_still_held_costs_no_bit():
    """Its graph of gradients belongs to the default stream: captured or not, values are right."""
    losses, weights = plainly()
    data, step, model, _ = make_training()
    held = torch.nn.functional.mse_loss(model(data[0].cuda()), torch.zeros(16, 1).cuda())
    held.backward()
    torch.manual_seed(2)

    step = gapless.capture(step)
    found = in_three_lines(data, step)

    assert losses == found
    assert all(map(torch.equal, weights, weights_of(model)))
    if step.report.num_graphs == 0:
        assert step.report.refusal
    assert held is not None


class Reading:
    """A step that makes the host wait, in one of several ways."""

    def __init__(self, step, wait):
        self.step = step
        self.wait = wait

    def __call__(self, batch):
        loss = self.step(batch)
        self.wait(loss)
        return loss


WAITS = {
    "item": lambda loss: loss.item(),
    "cpu": lambda loss: loss.cpu(),
    "nonzero": lambda loss: torch.nonzero(loss),
    "stream": lambda loss: torch.cuda.current_stream().synchronize(),
    "device": lambda loss: torch.cuda.synchronize(),
}


@pytest.mark.parametrize("wait", WAITS)
def test_a_step_that_waits_is_not_captured_and_goes_on(wait):
    """Its line is named; dropout and other captures work on after the attempt."""
    losses, weights = plainly()
    data, step, model, _ = make_training()

    step = gapless.capture(Reading(step, WAITS[wait]))
    found = in_three_lines(data, step)

    assert losses == found
    assert all(map(torch.equal, weights, weights_of(model)))
    assert step.report.num_graphs == 0
    assert step.report.refusal.text.startswith("test_capture_anywhere_on_gpu.py:"), step.report
    # Nothing of the attempt is left: not in the current stream, nor in random numbers.
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    torch.manual_seed(5)
    one = torch.rand(4, device="cuda").tolist()
    torch.manual_seed(5)
    assert one == torch.rand(4, device="cuda").tolist()
    data, step, _, _ = make_training()
    step = gapless.capture(step)
    assert losses == in_three_lines(data, step)
    assert step.report.num_graphs == 1, step.report


def test_a_memory_budget_stops_captures_and_nothing_else():
    """With room for no graph the loop runs as written, to the same bits."""
    losses, _ = plainly(rows=(16, 8, 12))
    data, step, _, _ = make_training(rows=(16, 8, 12))

    with TrainLoop(plan="captured", device="cuda", memory_budget_bytes=1) as loop:
        found = loop.run_epoch(data, step).losses

    assert losses == found
    assert loop.capture_report.num_graphs == 0
    assert "which is over its budget of 1" in loop.capture_report.refusal.text


@pytest.mark.parametrize("form", ["step", "in place"])
def test_the_gpu_may_be_the_default_device(form):
    """What gapless makes for itself stays where it belongs; torch 2.11 has Adam count on the GPU then."""

    def trained(form):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        if form == "step":
            step = gapless.capture(step, audit_every=10)
        elif form == "in place":
            gapless.capture(model, optimizer, audit_every=10)
        for number in range(60):
            step(torch.linspace(0, 1, 32).view(8, 4) + number)
            torch.cuda.synchronize()
        report = {"step": lambda: step.report, "in place": lambda: gapless.capture_report(model)}
        weights = [one.tolist() for one in model.parameters()]
        return weights, report[form]() if form in report else None

    torch.set_default_device("cuda")
    try:
        expected, _ = trained("written")
        weights, report = trained(form)
    finally:
        torch.set_default_device(None)

    assert weights == expected
    assert report.num_replays > 30, str(report)


def test_after_a_backward_pass_on_the_default_stream():
    """Training that began without us goes on captured, to the same bits."""
    losses, _ = plainly()
    data, step, _, _ = make_training()
    before = [step(batch.cuda()).item() for batch in data[:5]]

    step = gapless.capture(step)
    found = in_three_lines(data[5:], step)

    assert losses == before + found
    assert step.report.num_graphs == 1, step.report
