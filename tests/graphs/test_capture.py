"""`gapless.capture` where there is nothing to launch, and its mistakes."""

from __future__ import annotations

import pytest
import torch

import gapless
from gapless.testing.simulated.simulated_device import SimulatedDevice


def make_training():
    """Return batches, and a step of a small model with dropout, its model and optimizer."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Dropout(0.5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = [torch.randn(4, 8) for _ in range(20)]

    def step(batch):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return data, step, model, optimizer


def in_three_lines(data, step):
    losses = gapless.DeferredLoss("cpu")
    for batch in gapless.prefetch(data, "cpu"):
        losses.add(step(batch))
    losses.drain()
    return losses.history


@pytest.mark.parametrize("with_examples", [False, True])
def test_on_a_cpu_it_is_the_step_itself(with_examples):
    """The same losses and weights, with and without example inputs, and the report says why."""
    data, step, model, _ = make_training()
    expected = in_three_lines(data, step)
    weights = [weight.detach().clone() for weight in model.parameters()]
    data, step, model, optimizer = make_training()
    examples = {"example_inputs": data[:1], "model": model, "optimizer": optimizer}

    step = gapless.capture(step, device="cpu", **(examples if with_examples else {}))
    found = in_three_lines(data, step)

    assert expected == found
    assert all(map(torch.equal, weights, model.parameters()))
    assert str(step.report) == (
        "captured 0 graphs in 0.0 s, 0 steps replayed, 20 ran eagerly; no further graph: a CPU "
        "runs its work itself, there is nothing to launch"
    )


def test_on_a_cpu_examples_touch_nothing():
    """Gradients that are there already stay as they are."""
    data, step, model, optimizer = make_training()
    model[0].weight.grad = torch.ones_like(model[0].weight)

    gapless.capture(step, example_inputs=data[:1], model=model, optimizer=optimizer, device="cpu")

    assert model[0].weight.grad.eq(1.0).all()


def test_a_step_may_return_any_structure():
    """Tensors come without their graph, and plain values as they are."""
    weight = torch.nn.Parameter(torch.ones(2))
    step = gapless.capture(
        lambda batch: {"loss": (weight * batch).sum(), "parts": (batch, 3, None)}, device="cpu"
    )

    out = step(torch.ones(2))

    assert out["loss"].item() == 2.0
    assert not out["loss"].requires_grad
    assert out["parts"][1:] == (3, None)


def test_a_step_that_returns_something_else_is_refused():
    """What came back and what may come back are both named."""
    step = gapless.capture(lambda batch: {1, 2}, device="cpu")

    with pytest.raises(
        gapless.UserError, match="returned an object of type set, expected tensors"
    ):
        step(torch.ones(2))


@pytest.mark.parametrize("missing", ["model", "optimizer"])
def test_examples_need_what_has_to_be_put_back(missing):
    """The missing part is named, also on a CPU."""
    data, step, model, optimizer = make_training()
    parts = {"model": model, "optimizer": optimizer}
    del parts[missing]

    with pytest.raises(gapless.UserError, match=f"capture with example_inputs got no {missing}"):
        gapless.capture(step, example_inputs=data[:1], device="cpu", **parts)


def test_a_step_with_a_part_on_the_host_has_it_called_for_every_batch():
    """Before the batch's work, whether or not that is a replay."""

    class Step:
        seen = ()

        def on_host(self, batch):
            self.seen = (*self.seen, batch)

        def __call__(self, batch):
            return torch.tensor(float(batch))

    inner = Step()
    step = gapless.capture(inner, device="cpu")
    for batch in (1, 2, 3):
        step(batch)

    assert inner.seen == (1, 2, 3)


def test_what_the_step_raises_comes_out_and_the_stream_is_the_callers_again():
    """After an exception the caller's stream is current, and the next batch trains."""
    failure = ValueError("no")

    def fail(batch):
        if batch == 2:
            raise failure
        return torch.tensor(float(batch))

    with SimulatedDevice(scheduler="lazy") as device:
        outer = device.current_stream()
        step = gapless.capture(fail, device=device)
        with pytest.raises(ValueError, match="no") as caught:
            step(2)

        assert caught.value is failure
        assert outer is device.current_stream()
        assert step(1).item() == 1.0


def test_values_that_are_new_in_every_batch_end_capturing(monkeypatch):
    """Each would be a shape of its own; the report names it, and memory stays bounded."""
    monkeypatch.setattr("gapless.graphs.warm_ups._MAX_KEYS", 5)
    with SimulatedDevice(scheduler="asap") as device:
        step = gapless.capture(lambda batch: batch[0] * 1.0, device=device)
        for batch in gapless.prefetch([(torch.ones(1), number) for number in range(20)], device):
            step(batch)

        assert step.report.num_eager == 20
        assert step.report.refusal.kind == "too_many_keys"
        assert "more than 5 kinds" in step.report.refusal.text


UNLIKE = {
    "a number": (lambda n: (torch.ones(2), {"step": n}), "batch[1]['step'] (int) differs"),
    "a name": (lambda n: [torch.ones(2), f"{n}.png"], "batch[1] (str) differs"),
    "a shape": (lambda n: (torch.ones(1 + n), 0), "the shape of its tensors differs"),
}


@pytest.mark.parametrize("case", UNLIKE)
def test_batches_of_which_no_two_are_alike_are_told_from_what(case, monkeypatch):
    """Nothing is ever captured then, and what keeps it from that is named."""
    monkeypatch.setattr("gapless.graphs.warm_ups._NUM_UNLIKE", 8)
    make, what = UNLIKE[case]
    with SimulatedDevice(scheduler="asap") as device:
        step = gapless.capture(lambda batch: batch[0] * 1.0, device=device)
        for number, batch in enumerate(gapless.prefetch([make(n) for n in range(10)], device)):
            assert (step.report.note is None) == (number < 8)
            step(batch)

        assert step.report.note.startswith("no two of 8 batches are alike")
        assert what in str(step.report)


@pytest.mark.parametrize(
    ("kind", "settings", "is_known"),
    [
        ("Adam", {}, True),
        ("NAdam", {}, False),
        ("SGD", {"momentum": 0.9, "dampening": 0.5}, False),
    ],
)
def test_examples_are_left_out_where_the_optimizer_cannot_be_put_back(kind, settings, is_known):
    """State of such an optimizer does not begin at zero: shapes are captured as they come."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.ones(2))
    model = torch.nn.Module()
    model.weight = weight
    optimizer = getattr(torch.optim, kind)([weight], lr=0.1, **settings)
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        step = gapless.capture(
            lambda batch: (weight * batch).sum(),
            example_inputs=[torch.ones(2)],
            model=model,
            optimizer=optimizer,
            device=device,
        )
        assert step.report.num_graphs == is_known
        for batch in gapless.prefetch([torch.ones(2)] * 4, device):
            step(batch)

        assert step.report.num_graphs == 1
        assert ("graphs are captured as batches come" in str(step.report)) is not is_known
