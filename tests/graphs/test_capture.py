"""`gapless.capture`: on a CPU, as a decorator, its settings, and its mistakes."""

from __future__ import annotations

import copy
import functools
import gc
import pickle
import sys
import warnings
import weakref
from pathlib import Path

import pytest
import torch

import gapless
from gapless.testing.simulated.simulated_device import SimulatedDevice
from inner_doors import memory_fraction
from toy_steps import Training, batches, on, train


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


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        yield device


# --- on a CPU ---


def test_on_a_cpu_it_is_the_step_itself():
    """On a CPU losses and weights are the step's own, and the report says why."""
    data, step, model, _ = make_training()
    expected = in_three_lines(data, step)
    weights = [weight.detach().clone() for weight in model.parameters()]
    data, step, model, _ = make_training()

    step = gapless.capture(step, device="cpu")
    found = in_three_lines(data, step)

    assert expected == found
    assert all(map(torch.equal, weights, model.parameters()))
    assert step.report.refusal.kind == "cpu"
    assert str(step.report) == (
        "captured 0 graphs in 0.0 s, 0 steps replayed, 20 ran as written; no further graph: a CPU "
        "runs its work itself, there is nothing to launch"
    )


def test_on_a_cpu_nothing_is_raised_for_a_refusal():
    """A script that insists on graphs runs on a machine without a GPU as well."""
    step = gapless.capture(lambda batch: batch * 2.0, device="cpu", on_refusal="raise")

    assert step(torch.ones(1)).item() == 2.0


# --- what a step takes and returns ---


def test_every_tensor_of_a_batch_reaches_the_graph(device):
    """Whatever dtypes there are, and however many tensors of each."""
    one, two, three = torch.float32, torch.int64, torch.complex64
    dtypes = [one, two, one, three, one, torch.bool, two]
    data = [
        [torch.full((size,), size * number).to(dtype) for size, dtype in enumerate(dtypes, 1)]
        for number in range(5)
    ]
    step = gapless.capture(lambda batch: [part.clone() for part in batch], device=device)

    found = [step(batch) for batch in gapless.prefetch(data, device)]

    assert step.report.num_replays == 2
    for batch, out in zip(data, found, strict=True):
        assert all(torch.equal(part, other.cpu()) for part, other in zip(batch, out, strict=True))


def test_what_a_replay_cannot_return_is_refused(device):
    """The step runs as written and returns the very same thing; the refusal names its type."""
    cell = {torch.Tensor}
    step = gapless.capture(lambda batch: (cell, batch * 2.0), device=device)
    for batch in gapless.prefetch(batches(*[4] * 6), device):
        found, doubled = step(batch)
        assert found is cell
        assert torch.equal(doubled, batch * 2.0)

    assert (step.report.num_graphs, step.report.num_eager) == (0, 6)
    assert "returns a builtins.set" in step.report.refusal.text


@pytest.mark.parametrize("trains", [False, True])
def test_what_cannot_be_taken_apart_is_returned_as_it_is(device, trains):
    """A mapping that nobody can rebuild, as a step of its own returns it."""
    training = Training(device)
    compute = training.loss_of if trains else torch.sum

    class ReadOnly(dict):
        def __setitem__(self, name, value):
            raise TypeError("read-only")

    def work(batch):
        loss = compute(batch)
        if trains:
            loss.backward()
        return ReadOnly(loss=loss)

    step = gapless.capture(work, device=device)
    found = [step(batch) for batch in gapless.prefetch(batches(*[4] * 6), device)]

    assert all(type(one) is ReadOnly for one in found)
    assert step.report.refusal.kind == "result"
    assert "ReadOnly" in step.report.refusal.text


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


# --- what a step is called with ---


def weighted(x, y, *others, scale=1.0, mask=None, **named):
    """Compute from all kinds of arguments."""
    out = (x * y).sum() * scale
    for other in (*others, *named.values()):
        out = out + other.sum()
    return {"out": out if mask is None else out + mask.sum(), "names": [*named]}


CALLS = {
    "two": lambda one: ((one, one + 1.0), {}),
    "by name": lambda one: ((one,), {"y": one}),
    "a default given": lambda one: ((one, one), {"mask": None, "scale": 2.0}),
    "a mask": lambda one: ((one, one), {"mask": one > 0.0}),
    "more": lambda one: ((one, one, one * 2.0, one[:2]), {"last": one[0]}),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_step_takes_any_arguments(device, call):
    """Each call is given as the step takes it, and results are those of the step as written."""
    step = gapless.capture(weighted, device=device)
    for batch in gapless.prefetch(batches(*[4] * 5), device):
        args, kwargs = CALLS[call](batch)
        found, expected = step(*args, **kwargs), weighted(*args, **kwargs)
        assert found["out"].item() == expected["out"].item()
        assert found["names"] == expected["names"]

    assert (step.report.num_graphs, step.report.num_replays) == (1, 2)


def test_each_way_to_call_has_a_graph_of_its_own(device):
    """Arguments by name and by position, and plain values, make kinds."""
    step = gapless.capture(weighted, device=device)
    for batch in gapless.prefetch(batches(*[4] * 4), device):
        for call in CALLS.values():
            args, kwargs = call(batch)
            found, expected = step(*args, **kwargs), weighted(*args, **kwargs)
            assert found["out"].item() == expected["out"].item()

    assert (step.report.num_graphs, step.report.num_replays) == (5, 5)


def test_a_step_without_arguments_is_captured(device):
    """All its batches are of one kind."""
    total = on(device, torch.zeros(3))
    step = gapless.capture(lambda: total.add_(1.0).sum(), device=device)

    assert [step().item() for _ in range(6)] == [3.0, 6.0, 9.0, 12.0, 15.0, 18.0]
    assert step.report.num_replays == 3


@pytest.mark.parametrize("form", ["partial", "lambda", "object", "wrapped"])
def test_all_kinds_of_callables_are_captured(device, form):
    """And the text of a captured step names it in a few words."""

    class Doubling:
        def __call__(self, batch, plus=0.0):
            return batch * 2.0 + plus

    forms = {
        "partial": functools.partial(functools.partial(Doubling().__call__), plus=1.0),
        "lambda": lambda batch, plus=0.0: batch * 2.0 + plus,
        "object": Doubling(),
        "wrapped": functools.wraps(weighted)(lambda *args, **named: args[0] * 2.0 + named["plus"]),
    }
    step = gapless.capture(forms[form], device=device)
    for batch in gapless.prefetch(batches(*[4] * 4), device):
        assert torch.equal(step(batch, plus=1.0), batch * 2.0 + 1.0)

    assert step.report.num_replays == 1
    assert len(repr(step)) < 50


def test_a_step_in_two_parts_takes_any_arguments(device):
    """Its first part gets them."""

    class TwoParts:
        def forward(self, x, y, plus):
            return gapless.StepLoss(loss=(x * y).sum() * plus)

        def backward(self, out):
            out.loss.mul_(2.0)

    step = gapless.capture(TwoParts(), device=device)
    for batch in gapless.prefetch(batches(*[4] * 4), device):
        out = step(batch, y=batch, plus=4.0)
        assert out.loss.item() == (batch * batch).sum().item() * 8.0

    assert step.report.num_replays == 1


class CountsItsRows:
    """Its captured methods return sums; what it counts stands in its part on the host."""

    def __init__(self):
        self.num_rows = 0

    def on_host(self, batch, scale=1.0):
        self.num_rows += len(batch) * int(scale)

    def step(self, batch, scale=1.0):
        return batch.sum() * scale

    @gapless.capture(device="cpu")
    def decorated(self, batch):
        return batch.sum()


METHODS_OF_A_COUNTER = {
    "a method": lambda counter, device: gapless.capture(counter.step, device=device),
    "its decorator": lambda counter, device: counter.decorated,
    "a part of its arguments": lambda counter, device: gapless.capture(
        functools.partial(counter.step, scale=2.0), device=device
    ),
}


@pytest.mark.parametrize("form", METHODS_OF_A_COUNTER)
@pytest.mark.parametrize("where", ["on the cpu", "on the device"])
def test_the_part_on_the_host_of_a_method_is_that_of_its_object(device, where, form):
    """It is called before each call of the method, with the same arguments."""
    counter = CountsItsRows()
    step = METHODS_OF_A_COUNTER[form](counter, "cpu" if where == "on the cpu" else device)
    data = batches(*[4] * 5)
    if where == "on the device" and form != "its decorator":
        data = gapless.prefetch(data, device)
    for batch in data:
        step(batch)

    assert counter.num_rows == 20 * (2 if form == "a part of its arguments" else 1)


def test_a_class_with_a_part_on_the_host_for_its_objects_has_none_for_its_class_methods():
    """A class method has no object whose part it could be."""

    class Counter(CountsItsRows):
        @classmethod
        def total(cls, batch):
            return batch.sum()

    assert gapless.capture(Counter.total, device="cpu")(torch.ones(3)).item() == 3.0


def test_an_update_that_replays_call_is_told(device):
    """One that counts on the host is no part of a graph; nobody would see that from the counts."""
    for fused in (False, True):
        weight = torch.nn.Parameter(on(device, torch.ones(3)))
        optimizer = torch.optim.AdamW([weight], lr=0.1, fused=fused)

        def step(x, optimizer=optimizer, weight=weight):
            optimizer.zero_grad()
            loss = (x * weight).sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        captured = gapless.capture(step, device=device)
        for x in gapless.prefetch([torch.ones(3)] * 6, device):
            captured(x)

        assert captured.report.num_replays > 0
        said = "every replay calls AdamW.step() as written: it counts its steps on the host"
        assert (said in str(captured.report)) != fused


def test_a_captured_step_within_another_is_a_part_of_it(device):
    """It runs as written there, is counted there, and by its own graphs elsewhere."""
    inner = gapless.capture(lambda batch: batch * 2.0, device=device)
    outer = gapless.capture(lambda batch: inner(batch) + 1.0, device=device)
    for batch in gapless.prefetch(batches(*[4] * 5), device):
        assert torch.equal(inner(batch), batch * 2.0)
        assert torch.equal(outer(batch), batch * 2.0 + 1.0)

    assert (outer.report.num_replays, inner.report.num_replays) == (2, 2)


# --- settings ---


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_warmup", 1),
        ("max_graphs", 0),
        ("on_refusal", "ignore"),
    ],
)
def test_settings_out_of_range_are_named(name, value):
    """The error names the setting and its value."""
    with pytest.raises(gapless.UserError, match=f"^`{name}` is {value!r}, expected"):
        gapless.capture(lambda batch: batch, device="cpu", **{name: value})


def test_a_part_of_the_devices_memory_is_left(device):
    """A process that holds more than the share captures nothing more."""
    device.total_memory_bytes = lambda: 1_000_000
    device.reserved_memory_bytes = lambda: 400_000
    reports = []
    for fraction in (0.3, 0.5):
        with memory_fraction(fraction):
            step = gapless.capture(lambda batch: batch * 2.0, device=device)
        for batch in gapless.prefetch(batches(*[4] * 8), device):
            step(batch)
        reports.append(step.report)

    assert [report.num_graphs for report in reports] == [0, 1]
    assert reports[0].refusal.kind == "memory_budget"
    assert "over its budget of 300,000" in reports[0].refusal.text


# --- refusals ---


class Reading(Training):
    """Reads its loss."""

    def step(self, batch):
        loss = super().step(batch)
        loss.item()
        return loss


def test_a_refusal_can_be_an_exception(device):
    """The batch that shows it has been trained on; the next one is refused again."""
    training = Reading(device)
    step = gapless.capture(training.step, device=device, on_refusal="raise")
    taken = iter(gapless.prefetch(training.data, device))
    step(next(taken))
    step(next(taken))
    for batch in (next(taken), next(taken)):
        before = training.model[0].weight.detach().clone()
        with pytest.raises(gapless.CaptureRefused, match=r"test_capture.py:.* wait") as caught:
            step(batch)
        assert not torch.equal(before, training.model[0].weight)

    assert caught.value.kind == "host_read"
    assert isinstance(caught.value, gapless.GaplessError)
    assert step.report.num_eager == 4


# --- what is said ---


def told(call):
    """Return the warnings of a call, as pairs of text and line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    assert all(one.category is gapless.CaptureWarning for one in caught)
    return [(str(one.message), f"{Path(one.filename).name}:{one.lineno}") for one in caught]


def line_after(frame):
    return f"{Path(__file__).name}:{frame.f_lineno + 1}"


class ReadsTwice(Training):
    """Reads its loss in two lines."""

    def step(self, batch):
        loss = super().step(batch)
        if loss.item() > 1e9:
            return None
        return loss.item()


def test_each_reason_is_warned_of_once_at_the_line_of_the_call(device):
    """Another shape of batch does not warn again, and another captured step does."""
    for _ in range(2):
        training = ReadsTwice(device)
        step = gapless.capture(training.step, device=device)
        lines = []

        def loop(step=step, lines=lines):
            for batch in gapless.prefetch(batches(4, 4, 4, 3, 3, 3), device):
                lines.append(line_after(sys._getframe()))
                step(batch)

        found = told(loop)

        assert len(found) == len(step.report.refusals) == 2
        assert {line for _, line in found} == {lines[0]}
        assert all(text.startswith("ReadsTwice.step is not captured: ") for text, _ in found)
        assert len({text for text, _ in found}) == 2


def test_a_captured_step_warns_of_nothing(device):
    """Neither does a CPU, where there is nothing to launch."""
    for place in (device, "cpu"):
        training = Training(device) if place is device else Reading(None)
        step = gapless.capture(training.step, device=place)
        assert told(lambda step=step, place=place: [*map(step, prefetched(place))]) == []


def prefetched(device):
    return gapless.prefetch(batches(*[4] * 6), device)


def test_a_warning_that_is_an_error_stops_the_loop_once(device):
    """The batch has been trained on, and the next one goes on."""
    step = gapless.capture(Reading(device).step, device=device)
    num_raised = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch in prefetched(device):
            try:
                step(batch)
            except gapless.CaptureWarning:
                num_raised += 1

    assert (num_raised, step.report.num_eager) == (1, 6)


# --- switched off ---


def test_capturing_can_be_switched_off(device, monkeypatch):
    """Everything runs as written, and nothing is warned of or raised."""
    monkeypatch.setenv("GAPLESS_CAPTURE", "off")
    training = Reading(device)
    step = gapless.capture(
        training.step,
        device=device,
        on_refusal="raise",
    )
    monkeypatch.delenv("GAPLESS_CAPTURE")

    assert told(lambda: [*map(step, prefetched(device))]) == []
    assert (step.report.num_graphs, step.report.num_eager) == (0, 6)
    assert "GAPLESS_CAPTURE=off" in str(step.report)


@pytest.mark.parametrize(("value", "is_known"), [("on", True), ("", True), ("0", False)])
def test_the_switch_has_two_positions(value, is_known, monkeypatch):
    """Another value is an error that says so."""
    monkeypatch.setenv("GAPLESS_CAPTURE", value)
    if is_known:
        assert "GAPLESS_CAPTURE" not in str(gapless.capture(len, device="cpu").report)
        return
    with pytest.raises(
        gapless.UserError, match=r"GAPLESS_CAPTURE is '0' .* expected 'on' or 'off'"
    ):
        gapless.capture(len, device="cpu")


# --- clear ---


def test_clear_drops_graphs_and_what_their_number_forbade(device):
    """A kind of batch that had its warm-up is captured again with its next batch."""
    step = gapless.capture(lambda batch: batch * 2.0, device=device, max_graphs=1)
    small, large = gapless.prefetch(batches(2, 4), device)
    for batch in [small] * 3 + [large] * 3 + [small]:
        step(batch)
    assert step.report.refusal.kind == "graph_limit"

    step.clear()
    step(large)
    step(large)

    assert step.report.refusal is None
    assert (step.report.num_graphs, step.report.num_replays) == (2, 2)


def test_what_changes_while_there_are_no_graphs_is_no_change(device):
    """A step that is cleared before each new rate goes on being captured."""
    training = Training(device)
    step = gapless.capture(training.step, device=device)
    taken = gapless.prefetch(batches(*[4] * 12), device)
    for number, batch in enumerate(taken):
        if number % 2 == 0:
            step.clear()
            training.optimizer.param_groups[0]["lr"] *= 0.5
        step(batch)

    assert step.report.refusal is None
    assert (step.report.num_graphs, step.report.num_replays) == (5, 5)


def test_clear_lifts_no_refusal_that_is_final(device):
    """What the step does on the host stays what it is."""
    found = train(Reading, device, captured=True)
    assert found.report.refusal.is_final

    training = Reading(device)
    step = gapless.capture(training.step, device=device)
    for batch in gapless.prefetch(training.data, device):
        step(batch)
    step.clear()

    assert step.report.refusal.kind == "host_read"


# --- as a decorator ---


def test_a_decorated_function_is_captured_and_stays_what_it_was_called(device):
    """With arguments and without, names and documentation are the function's own."""

    @gapless.capture(device=device)
    def doubled(batch):
        """Return twice the batch."""
        return batch * 2.0

    @gapless.capture
    def tripled(batch):
        return batch * 3.0

    for batch in gapless.prefetch(batches(*[4] * 4), device):
        assert torch.equal(doubled(batch), batch * 2.0)

    assert doubled.report.num_replays == 1
    assert (doubled.__name__, doubled.__doc__) == ("doubled", "Return twice the batch.")
    assert "doubled" in repr(doubled)
    assert tripled.__wrapped__(torch.ones(1)).item() == 3.0
    assert tripled(torch.ones(1)).item() == 3.0


class Trainer:
    """A class with two captured methods."""

    def __init__(self, device, factor):
        self.weight = torch.nn.Parameter(on(device, torch.full((3, 1), factor)))

    def step(self, batch):
        loss = (batch @ self.weight).square().mean()
        loss.backward()
        with torch.no_grad():
            self.weight -= 0.1 * self.weight.grad
        self.weight.grad = None
        return loss.detach()

    @torch.no_grad()
    def loss_of(self, batch):
        return (batch @ self.weight).square().mean()


def captured_class(device):
    """Return a class whose methods are captured on a device."""

    class Captured(Trainer):
        step = gapless.capture(Trainer.step, device=device)
        loss_of = gapless.capture(device=device)(Trainer.loss_of)

    return Captured


def test_each_object_has_graphs_of_its_own(device):
    """Two objects and two methods are captured apart, and train as plain ones do."""
    kind = captured_class(device)
    data = batches(*[4] * 6)
    trainers = kind(device, 1.0), kind(device, 2.0)
    plain = Trainer(None, 1.0), Trainer(None, 2.0)
    for batch, moved in zip(data, gapless.prefetch(data, device), strict=True):
        for one, other in zip(trainers, plain, strict=True):
            assert one.step(moved).item() == other.step(batch).item()
            assert one.loss_of(moved).item() == other.loss_of(batch).item()

    assert [one.step.report.num_replays for one in trainers] == [3, 3]
    assert [one.loss_of.report.num_replays for one in trainers] == [3, 3]
    assert kind.step.report.num_replays == 0
    assert trainers[0].step is trainers[0].step


def test_a_captured_method_called_through_its_class_is_the_objects_own(device):
    """As in Python; another object than one of the class is an argument."""
    kind = captured_class(device)
    trainer = kind(device, 1.0)
    for batch in gapless.prefetch(batches(*[4] * 4), device):
        kind.step(trainer, batch)

    assert trainer.step.report.num_replays == 1
    assert kind.step.report.num_replays == 0


def test_static_and_class_methods_are_captured(device):
    """Decorated on either side of Python's own decorator; each class has graphs of its own."""

    class Scaling:
        factor = 2.0

        @staticmethod
        @gapless.capture(device=device)
        def inner_static(batch):
            return batch * 3.0

        @gapless.capture(device=device)
        @staticmethod
        def outer_static(batch):
            return batch * 4.0

        @gapless.capture(device=device)
        @classmethod
        def of_class(cls, batch):
            return batch * cls.factor

    class Halving(Scaling):
        factor = 0.5

    for batch in gapless.prefetch(batches(*[4] * 4), device):
        for owner, factor in ((Scaling, 2.0), (Halving, 0.5), (Halving(), 0.5)):
            assert torch.equal(owner.inner_static(batch), batch * 3.0)
            assert torch.equal(owner.outer_static(batch), batch * 4.0)
            assert torch.equal(owner.of_class(batch), batch * factor)

    assert Scaling.outer_static.report.num_replays == 9
    assert Scaling.of_class.report.num_replays == 1
    assert Halving.of_class.report.num_replays == 5
    assert Halving().of_class is Halving.of_class


def test_graphs_of_a_method_end_with_their_object(device):
    """Nothing but the object keeps its captured methods."""
    trainer = captured_class(device)(device, 1.0)
    for batch in gapless.prefetch(batches(*[4] * 4), device):
        trainer.step(batch)
    assert trainer.step.report.num_graphs == 1
    ended = weakref.ref(trainer), weakref.ref(trainer.step)

    del trainer
    gc.collect()

    assert [reference() for reference in ended] == [None, None]


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))]
)
def test_a_copy_of_an_object_has_no_graphs(copied):
    """Its methods are captured anew, for the copy."""
    trainer = OnCpu(3.0)
    trainer.step(torch.ones(1))

    other = copied(trainer)
    other.factor = 5.0

    assert other.step(torch.ones(1)).item() == 5.0
    assert trainer.step(torch.ones(1)).item() == 3.0
    assert [one.step.report.num_eager for one in (trainer, other)] == [2, 1]


class OnCpu:
    def __init__(self, factor):
        self.factor = factor

    @gapless.capture(device="cpu")
    def step(self, batch):
        return batch * self.factor


def test_a_captured_function_that_an_object_holds_is_copied_with_it(device):
    """The copy trains itself, by graphs of its own."""
    trainer = Trainer(device, 1.0)
    trainer.run = gapless.capture(trainer.step, device=device)
    data = list(gapless.prefetch(batches(*[4] * 4), device))
    for batch in data:
        trainer.run(batch)
    before = trainer.weight.detach().clone()

    other = copy.deepcopy(trainer)
    for batch in data:
        other.run(batch)

    assert other.run.report.num_replays == trainer.run.report.num_replays == 1
    assert torch.equal(trainer.weight, before)
    assert not torch.equal(other.weight, before)
    assert copy.copy(trainer.run).report.num_replays == 0


def test_objects_without_a_dict_cannot_keep_graphs():
    """The error names the class and says what to do."""

    class Slotted:
        __slots__ = ()

        @gapless.capture(device="cpu")
        def step(self, batch):
            return batch

    with pytest.raises(TypeError, match=r"Slotted.*__slots__.*capture a function"):
        Slotted().step(torch.ones(1))


@pytest.mark.parametrize("num_warmup", [2, 5])
def test_warm_up_runs_are_as_many_as_asked_for(device, num_warmup):
    """The step is captured with the batch after its last warm-up run."""
    step = gapless.capture(lambda batch: batch * 2.0, device=device, num_warmup=num_warmup)
    for batch in gapless.prefetch(batches(*[4] * 8), device):
        step(batch)

    # One more run proves the graph.
    assert (step.report.num_graphs, step.report.num_eager) == (1, num_warmup + 1)
