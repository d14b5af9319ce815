"""What a captured step does with its batches, its warm-up runs and its graphs."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from types import MappingProxyType

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

import gapless
from gapless.device.cpu import CpuDevice
from gapless.graphs.proof.device_state import DeviceState
from gapless.graphs.warm_ups import WarmUps
from gapless.loop.train_loop import TrainLoop
from gapless.testing.simulated.simulated_device import SimulatedDevice
from toy_steps import CutsItsBatch, Scales, Training, WrapsItsBatch, batches, on, train


pytestmark = pytest.mark.quick_tests(20)


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        yield device


# --- batches ---


@dataclass
class Weighted:
    """A batch with an attribute that is no field."""

    rows: torch.Tensor


class Named(dict):
    """A batch with an attribute that is no item."""


@pytest.mark.parametrize("kind", [Weighted, lambda rows: Named(rows=rows)])
def test_plain_attributes_beside_the_parts_of_a_batch_count(device, kind):
    """Two batches that differ in one have a graph each."""

    def scaled(batch):
        rows = batch["rows"] if isinstance(batch, dict) else batch.rows
        return rows.sum() * batch.factor

    step, found, expected = gapless.capture(scaled, device=device), [], []
    for number, rows in enumerate(gapless.prefetch(batches(*[4] * 12), device)):
        batch = kind(rows)
        batch.factor = number % 2 + 1.0
        found.append(step(batch).item())
        expected.append(scaled(batch).item())

    assert found == expected
    assert (step.report.num_graphs, step.report.num_replays) == (2, 6)


def test_batches_that_require_gradients_are_let_go(device):
    """No graph, and no record of gradients, keeps them."""
    training, kept = Training(device), []
    step = gapless.capture(training.step, device=device)
    for batch in gapless.prefetch(training.data, device):
        own = batch.clone().requires_grad_()
        step(own)
        kept.append(weakref.ref(own))
    del own, batch

    assert [reference() for reference in kept] == [None] * 12
    assert "detach it, or call requires_grad_() in the step" in step.report.refusal.text


def test_a_batch_that_requires_gradients_is_not_taken_by_a_graph_of_others(device):
    """Gradients of it are asked for after the call."""
    training = Training(device)
    step = gapless.capture(training.step, device=device)
    for number, batch in enumerate(gapless.prefetch(training.data, device)):
        own = batch.clone().requires_grad_(number >= 10)
        step(own)

    assert step.report.num_replays > 0
    assert "requires gradients" in step.report.refusal.text
    assert own.grad is not None


class Doubles(TorchFunctionMode):
    """Changes what is called inside it."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        found = function(*args, **kwargs or {})
        return found * 2.0 if function is torch.Tensor.mul else found


def test_a_mode_in_place_of_one_of_torch_is_seen(device):
    """As many modes are active as in the capture, and another one."""
    step = gapless.capture(lambda x: x.mul(3.0), device=device)
    found = []
    for number in range(8):
        with Doubles() if number == 7 else DeviceContext(torch.device("cpu")):
            found.append(step(on(device, torch.ones(1))))

    assert [one.item() for one in found] == [3.0] * 7 + [6.0]
    assert step.report.num_replays > 0
    assert step.report.refusal.name == "Doubles"


class _Accelerator(CpuDevice):
    """A CPU that passes for an accelerator: tensors of no shape or strides are not simulated."""

    is_accelerator = True

    def needs_copy(self, tensor):
        return False


def nested():
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


def sparse():
    return torch.eye(2).to_sparse_csr()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("batch", "named"), [(nested, "a nested tensor"), (sparse, "a sparse_csr tensor")]
)
def test_a_tensor_of_several_pieces_in_a_batch_is_refused(batch, named):
    """Calls that have one run as written."""
    batch = batch()
    step = gapless.capture(lambda x, rows: rows * x.size(0), device=_Accelerator())
    found = [step(batch, torch.ones(1)).item() for _ in range(5)]

    assert found == [2.0] * 5
    assert (step.report.num_eager, step.report.refusal.kind) == (5, "unknown_batch")
    assert named in step.report.refusal.text


@pytest.mark.parametrize(
    ("kind", "named"), [(CutsItsBatch, "cpu (torch.int64, shape ()"), (WrapsItsBatch, "Wrapped")]
)
def test_what_no_graph_can_take_is_named(device, kind, named):
    """The refusal names the tensor or the type that stands in the way."""
    assert named in train(kind, device, captured=True).report.refusal.text


UNLIKE = {
    "a number": (lambda n: (torch.ones(2), {"step": n}), "batch[1]['step'] (int) differs"),
    "a name": (lambda n: [torch.ones(2), f"{n}.png"], "batch[1] (str) differs"),
    "a shape": (lambda n: (torch.ones(1 + n), 0), "the shape of its tensors differs"),
}


@pytest.mark.parametrize("case", UNLIKE)
def test_batches_of_which_no_two_are_alike_are_told_from_what(device, case, monkeypatch):
    """If nothing is ever captured, the report says what differs between batches."""
    monkeypatch.setattr("gapless.graphs.passing_kinds._NUM_WATCHED", 8)
    make, what = UNLIKE[case]
    step = gapless.capture(lambda batch: batch[0] * 1.0, device=device)
    for number, batch in enumerate(gapless.prefetch([make(n) for n in range(10)], device)):
        assert (step.report.refusal is None) == (number <= 8)
        step(batch)

    assert step.report.refusal.text.startswith("none of the last kinds of calls came again")
    assert what in str(step.report)


def run_with_weights(device, weights):
    """Call a captured step with one number after the other; return the report."""
    step = gapless.capture(lambda x, weight: x * weight, device=device)
    (x,) = gapless.prefetch([torch.ones(2)], device)
    for weight in weights:
        step(x, weight)
    return step.report


@pytest.mark.parametrize("num_calls", [1, 2, 3, 4])
def test_a_number_that_stays_for_a_few_calls_ends_watching_and_is_named(device, num_calls):
    """As a weight on a schedule: each number would be a graph that is not used again."""
    report = run_with_weights(device, [n // num_calls / 100 for n in range(100 * num_calls)])

    assert "argument 'weight' (float) differs" in str(report.refusal)
    assert report.num_graphs <= 12
    assert report.num_replays <= 12


ODD_CALLS = {
    "a mapping that cannot be made anew": lambda number, x: (
        MappingProxyType({"x": x, "number": number}),
    ),
    "a list of numbers": lambda number, x: (x, [number, number]),
    "an object": lambda number, x: (x, object(), number),
}


@pytest.mark.parametrize("form", ODD_CALLS)
def test_odd_calls_with_numbers_that_never_come_again_run_on(device, form):
    """To say what differs between them is not worth an error."""
    step = gapless.capture(lambda *args: len(args), device=device)
    with device.allow_waits():
        x = on(device, torch.ones(2))
        returned = [step(*ODD_CALLS[form](number // 2, x)) for number in range(90)]

    assert returned == [len(ODD_CALLS[form](0, x))] * 90


@pytest.mark.parametrize(
    "weights",
    [
        [n % 20 / 20 for n in range(200)],
        [n * 7 % 11 / 11 for n in range(200)],
        [n // 40 / 10 for n in range(400)],
        [n // 3 % 5 / 5 for n in range(90)],
    ],
    ids=["in turns", "in another order", "for many calls", "for a few calls, and again"],
)
def test_numbers_that_come_again_or_stay_have_graphs(device, weights):
    """They are worth their captures."""
    report = run_with_weights(device, weights)

    assert report.num_graphs == len(set(weights))
    assert report.num_replays >= len(weights) - 4 * len(set(weights))


# --- warm-up ---


@pytest.fixture
def is_view(monkeypatch):
    """Return a list that is told of each warm-up run whether its batch is a view."""
    noted, run = [], WarmUps.run

    def run_noted(self, key, tree, work, **more):
        noted.append(tree.leaves[0]._is_view())
        return run(self, key, tree, work, **more)

    monkeypatch.setattr(WarmUps, "run", run_noted)
    return noted


def plain_sum(batch):
    return batch.sum()


def compiled_sum():
    torch.compiler.reset()
    return torch.compile(plain_sum, backend="eager")


def views_on(device):
    return [batch.to(device.torch_device)[:] for batch in Training.data]


def test_the_last_run_before_a_capture_takes_a_batch_of_its_own(device, is_view):
    """Compiled code tells views from own tensors, and cannot be made in a capture."""
    step = gapless.capture(compiled_sum(), device=device)
    for batch in gapless.prefetch(views_on(device), device):
        step(batch)

    # The first run compiles, which hides the rest of it.
    assert is_view == [True, True, False]
    assert step.report.num_graphs == 1


def test_code_that_was_compiled_before_is_seen_to_run(device, is_view):
    """Nothing is compiled in the first run that is watched, and the next takes its own batch."""
    compiled, data = compiled_sum(), views_on(device)
    compiled(data[0])
    step = gapless.capture(compiled, device=device)
    for batch in gapless.prefetch(data, device):
        step(batch)

    assert is_view == [True, False]
    assert step.report.num_graphs == 1


def test_a_step_that_reads_is_refused_with_the_line(device):
    """Every step of it was trained as written."""
    found, plain = (train(Scales, device, captured=captured) for captured in (True, False))

    assert [refusal.kind for refusal in found.report.refusals] == ["host_read"]
    assert found.report.refusal.site.startswith("toy_steps.py:")
    assert found.report.num_replays == 0
    assert (found.seen, found.weights) == (plain.seen, plain.weights)


# --- graphs ---


def test_a_method_keeps_its_graphs_from_epoch_to_epoch(device):
    """A bound method is another object each time it is named, and the same step."""
    training = Training(device)
    with TrainLoop(plan="captured", device=device) as loop:
        for _ in range(3):
            loop.run_epoch(training.data, training.step)

    assert (loop.capture_report.num_eager, loop.capture_report.num_replays) == (3, 33)


def test_a_proof_knows_names_of_what_a_step_changes(device, monkeypatch):
    """Of weights, their gradients and the optimizer's state: they are what a refusal names."""
    found = []

    class Named(DeviceState):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            found.extend(piece.region.name for chunk in self.chunks for piece in chunk.pieces)

    monkeypatch.setattr("gapless.graphs.proof.trial.DeviceState", Named)
    model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Linear(2, 1))
    for weight in model.parameters():
        weight.data = on(device, weight.data)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(rows):
        optimizer.zero_grad(set_to_none=False)
        loss = model(rows).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    captured = gapless.capture(step, device=device)
    for _ in range(4):
        captured(on(device, torch.ones(3, 4)))

    name = "model.1.weight"
    assert {name, f"the gradient of {name}", f"momentum_buffer of {name}"} <= set(found)


def test_gradients_that_are_let_go_in_some_steps_are_told_how_to_stay(device):
    """The step calls `zero_grad()` already: what is missing is its argument."""
    model = torch.nn.Linear(4, 1).to(device.torch_device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(rows, is_last):
        model(rows).square().mean().backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()

    captured = gapless.capture(step, device=device)
    for number in range(40):
        captured(on(device, torch.ones(3, 4)), number % 4 == 3)

    assert "; call zero_grad(set_to_none=False)" in captured.report.refusal.text
