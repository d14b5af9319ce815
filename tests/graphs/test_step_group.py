"""`steps_per_launch`: several batches at once."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import gapless
from gapless.testing.simulated.simulated_device import SimulatedDevice
from toy_steps import Training, batches, on, read_back


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        yield device


def groups(items, size):
    """Return lists of so many items; the last may be shorter."""
    items = iter(items)
    return list(iter(lambda: list(itertools.islice(items, size)), []))


class DropsOut(Training):
    """Draws random numbers in every step."""

    def __init__(self, device):
        super().__init__(device)
        self.model[2].p = 0.5


def trained(device, data, *, size, make=list, **options):
    """Train in groups; return losses, weights and the captured step."""
    torch.manual_seed(0)
    training = DropsOut(device)
    step = gapless.capture(training.step, device=device, steps_per_launch=size, **options)
    losses = []
    for group in groups(gapless.prefetch(data, device), size):
        found = step(make(group))
        assert type(found) is list
        losses += found
    losses = [read_back(device, loss).item() for loss in losses]
    weights = [read_back(device, weight).tolist() for weight in training.model.parameters()]
    return losses, weights, step


def plainly(device, data):
    torch.manual_seed(0)
    training = DropsOut(device)
    losses = [training.step(batch) for batch in gapless.prefetch(data, device)]
    losses = [read_back(device, loss).item() for loss in losses]
    return losses, [read_back(device, weight).tolist() for weight in training.model.parameters()]


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("make", [list, tuple])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_groups_train_as_single_batches_do(device, size, make):
    """The same bits in losses and weights; groups and a remainder, counted by steps."""
    data = batches(*[4] * 26)

    losses, weights, step = trained(device, data, size=size, make=make)

    assert (losses, weights) == plainly(device, data)
    assert step.report.num_replays + step.report.num_eager == 26
    assert step.report.num_replays == {1: 23, 2: 20, 3: 15, 4: 12}[size]
    assert step.report.num_graphs == 1


@pytest.mark.parametrize("every", [1, 2])
def test_groups_are_audited(device, every):
    """As one call of a longer step, which trains on each batch once; so is the remainder."""
    data = batches(*[4] * 26)

    losses, weights, step = trained(device, data, size=3, audit_every=every)

    audits = step.report.audits
    assert (losses, weights) == plainly(device, data)
    assert audits.differences == []
    assert 1 < audits.num <= audits.num_equal + 1
    assert step.report.num_replays == 0 if every == 1 else step.report.num_replays > 0


def test_a_group_that_does_something_else_is_told(device, monkeypatch):
    """In whichever of its batches."""
    cos = math.cos

    class Patched(Training):
        def step(self, batch):
            return super().step(batch) * math.cos(1.0)

    step = gapless.capture(Patched(device).step, device=device, steps_per_launch=2, audit_every=1)
    loader = gapless.prefetch(batches(*[4] * 20), device)
    for number, group in enumerate(groups(loader, 2)):
        if number == 6:
            monkeypatch.setattr(math, "cos", lambda x: cos(x) * 2)
        if number < 7:
            step(group)
    with pytest.warns(gapless.CaptureWarning, match="audit found a difference"):
        step(group)


def test_batches_of_other_shapes_are_launched_one_by_one(device):
    """Groups of one shape have one graph, each shape another, and mixed groups none."""
    data = batches(*[4, 4] * 4, *[4, 3] * 4, *[3, 3] * 3)

    losses, weights, step = trained(device, data, size=2)

    assert (losses, weights) == plainly(device, data)
    # Two groups of each shape before their graph, and two single batches of each; each proof.
    assert step.report.num_graphs == 4
    assert step.report.num_eager == 3 * 2 * 2 + 3 * 2


def test_results_are_those_of_their_own_step(device):
    """Each of a group has its own, and what the step fills in place is one tensor."""
    total = on(device, torch.zeros(3))
    step = gapless.capture(
        lambda batch: {
            "now": total.add_(batch.sum(0)).clone(),
            "total": total,
            "rows": len(batch),
        },
        device=device,
        steps_per_launch=3,
    )
    expected, kept = torch.zeros(3), []
    for group in groups(batches(*[4] * 18), 3):
        kept += step(list(gapless.prefetch(group, device)))

    for found, batch in zip(kept, batches(*[4] * 18), strict=True):
        expected = expected + batch.sum(0)
        assert torch.equal(found["now"].cpu(), expected)
        assert found["total"] is total
        assert found["rows"] == 4
    assert step.report.num_replays == 9


def test_a_part_on_the_host_comes_before_each_step(device):
    """So its steps are launched one by one, and the report says so."""

    class Step:
        rate = 0.0

        def on_host(self, batch):
            self.rate += 1.0
            rate.fill_(self.rate)

        def __call__(self, batch):
            return batch * rate

    rate = on(device, torch.zeros(1))
    step = gapless.capture(Step(), device=device, steps_per_launch=2)
    (one,) = gapless.prefetch(batches(4), device)
    for number in range(5):
        first, second = step([one, one])
        assert torch.equal(first, one * (2.0 * number + 1.0))
        assert torch.equal(second, one * (2.0 * number + 2.0))

    assert (step.report.num_replays, step.report.num_eager) == (7, 3)
    assert "launched one by one" in str(step.report)


@pytest.mark.parametrize(
    ("args", "kwargs", "found"),
    [
        ((torch.ones(1),), {}, r"\(Tensor\)"),
        ((), {}, r"\(\)"),
        (([], []), {}, r"\(list, list\)"),
        ((), {"batches": []}, r"\(batches=\)"),
    ],
)
def test_what_is_no_group_is_told(device, args, kwargs, found):
    """The error says what came instead of a list."""
    step = gapless.capture(lambda batch: batch, device=device, steps_per_launch=2)

    with pytest.raises(TypeError, match=rf"`steps_per_launch` takes one list or .* {found}"):
        step(*args, **kwargs)


def test_a_group_has_a_limit(device):
    """More batches are an error, also on a CPU; none are none."""
    for place in (device, "cpu"):
        step = gapless.capture(lambda batch: batch, device=place, steps_per_launch=2)
        with pytest.raises(gapless.UserError, match=r"got 3 batches .* steps_per_launch=2"):
            step([1, 2, 3])
        assert step([]) == []


def test_a_group_has_a_least_size():
    """Zero batches at once make no sense."""
    with pytest.raises(gapless.UserError, match="`steps_per_launch` is 0, expected at least 1"):
        gapless.capture(len, device="cpu", steps_per_launch=0)


def test_groups_run_as_written_on_a_cpu_and_where_captures_are_off(device, monkeypatch):
    """One batch after the other."""
    monkeypatch.setenv("GAPLESS_CAPTURE", "off")
    for place in (device, "cpu"):
        step = gapless.capture(lambda batch: batch + 1, device=place, steps_per_launch=4)
        assert step([1, 2, 3]) == [2, 3, 4]
        assert step.report.num_eager == 3
        monkeypatch.delenv("GAPLESS_CAPTURE", raising=False)


def test_an_exception_in_a_group_is_the_users(device):
    """It comes as it is, and the next group trains."""
    failure = ValueError("no")

    def fail(batch):
        if batch == 2:
            raise failure
        return torch.tensor(float(batch))

    step = gapless.capture(fail, device=device, steps_per_launch=2)
    with pytest.raises(ValueError, match="no") as caught:
        step([1, 2])

    assert caught.value is failure
    assert [loss.item() for loss in step([3, 4])] == [3.0, 4.0]
