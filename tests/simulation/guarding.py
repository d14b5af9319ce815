"""What a loop changes between two captured steps: every guard, and every reason for a refusal.

Each training of `toy_steps.CASES` is a scenario: losses, weights and what is read between the steps
are those of the plain loop, and a change leads to other graphs, to new ones or to a refusal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

import torch

import gapless
import toy_steps
from simulation.registry import scenario


# These are about values that Python holds, and not about order.
ONE = "asap"


def check_case(device, *, kind, expected):
    """Train plainly on the host, and captured on the device; compare."""
    plain = toy_steps.train(kind, None, captured=False)
    with device.allow_waits():
        found = toy_steps.train(kind, device, captured=True)
    report = found.report
    assert plain.seen == found.seen
    assert plain.weights == found.weights
    refusal = report.refusal and report.refusal.kind
    assert expected == (report.num_graphs, report.num_replays, refusal), str(report)
    num_steps = len(kind.data)
    assert num_steps == report.num_replays + report.num_eager


def in_words(kind):
    """Return the name of a class as the name of a scenario."""
    return "a_loop_that_" + re.sub("(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


for kind, expected in toy_steps.CASES.items():
    scenario(in_words(kind), only=ONE)(partial(check_case, kind=kind, expected=expected))


@scenario(only=ONE)
def derivatives_in_forward_mode_end_capturing(device):
    """Graphs of them have passed their proof and computed something else."""

    def train(batch):
        with torch.autograd.forward_ad.dual_level():
            return batch * 2.0

    step = gapless.capture(train, device=device)
    for batch in gapless.prefetch([torch.ones(2)] * 6, device):
        step(batch)
    assert step.report.num_eager == 6
    assert step.report.refusal.kind == "forward_mode"


class TrainsByAdam(toy_steps.Training):
    """Its counts are on the host."""

    def __init__(self, device):
        super().__init__(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)


@scenario(only=ONE)
def counts_of_an_optimizer_on_the_host(device):
    """Runs that only compare are not counted."""
    check_case(device, kind=TrainsByAdam, expected=(1, 9, None))


class ReadOnly(dict):
    """Nobody can put anything into it."""

    def __setitem__(self, name, value):
        raise TypeError("read-only")


@scenario(only=ONE)
def what_a_replay_cannot_return_is_returned_by_the_step(device):
    """Sets, containers that cannot be made anew, tensors on the host: the step goes on running."""
    for value in ({1}, ReadOnly(value=1), torch.ones(1)):
        captured = gapless.capture(lambda batch, value=value: (value, batch * 1.0), device=device)
        found = [captured(batch) for batch in gapless.prefetch([torch.ones(1)] * 5, device)]
        assert all(one is value for one, _ in found)
        assert captured.report.num_replays == 0
        assert captured.report.refusal.kind == "result"


def twice(batch):
    parts = [batch * 1.0]
    return parts, parts


def tagged(batch):
    result = batch * 1.0
    result.label = "tagged"
    return result


class Tagged(list):
    total = None


def with_an_attribute(batch):
    result = Tagged([batch * 1.0])
    result.total = batch * 2.0
    return result


@scenario(only=ONE)
def what_results_have_beside_their_parts_is_returned_by_the_step(device):
    """One list that stands there twice, and tensors in attributes."""
    for step in (twice, tagged, with_an_attribute):
        captured = gapless.capture(step, device=device)
        found = [captured(batch) for batch in gapless.prefetch([torch.ones(1)] * 5, device)]
        assert captured.report.num_replays == 0
        assert captured.report.refusal.kind == "result"
        if step is twice:
            assert all(one is other for one, other in found)
        if step is tagged:
            assert {one.label for one in found} == {"tagged"}


class HasAnotherWeightInEachPeriod(toy_steps.Training):
    """A number that its step reads changes again and again."""

    weight = 0.0

    def loss_of(self, batch):
        return super().loss_of(batch) * (1.0 + self.weight)


@scenario(only=ONE)
def a_number_that_changes_too_often_ends_capturing(device):
    """After four changes the step runs as written, and the report says so."""
    losses = []
    for captured in (False, True):
        with device.allow_waits():
            training = HasAnotherWeightInEachPeriod(device)
            run = gapless.capture(training.step, device=device) if captured else training.step
            losses.append([])
            data = gapless.prefetch(toy_steps.batches(*[4] * 24), device)
            for number, batch in enumerate(data):
                training.weight = number // 4
                losses[-1].append(toy_steps.read_back(device, run(batch).detach()).item())
    assert losses[0] == losses[1]
    assert run.report.num_graphs == 4
    assert run.report.refusal.kind == "too_many_changes"


def normalized(batch):
    """Compute from a batch that is changed on the way."""
    batch["x"] = batch.pop("raw") * 2.0
    batch["y"].add_(1.0)
    return batch["x"].sum() + batch["y"].sum()


@scenario(only=ONE)
def a_step_that_changes_its_batch(device):
    """A replay leaves its own batch as the step as written would."""
    step = gapless.capture(normalized, device=device)
    data = [{"raw": torch.full((3,), float(number)), "y": torch.ones(2)} for number in range(8)]
    left = []
    for batch in gapless.prefetch(data, device):
        step(batch)
        left.append({name: toy_steps.read_back(device, part) for name, part in batch.items()})
    assert step.report.num_replays == 5
    for number, batch in enumerate(left):
        assert list(batch) == ["y", "x"]
        assert batch["x"].tolist() == [2.0 * number] * 3
        assert batch["y"].tolist() == [2.0] * 2


def refusal_of(device, step, make=lambda number: torch.full((1,), float(number))):
    """Return why a step that doubles its batch is refused; it runs as written."""
    captured = gapless.capture(step, device=device)
    batches = gapless.prefetch(map(make, range(6)), device)
    with device.allow_waits():
        found = [toy_steps.read_back(device, captured(batch)).item() for batch in batches]
    assert found == [2.0 * number for number in range(6)]
    assert captured.report.num_replays == 0
    return captured.report.refusal


class Keeps:
    """Keeps a tensor from call to call."""

    def __init__(self, kept):
        self.kept = kept

    def __call__(self, batch):
        out = self.kept * batch
        self.kept = self.kept + 1.0
        return out


def call_with_another_kept_tensor(device, number, other):
    """Call a step that keeps a tensor; put another in its place before that call."""
    with device.allow_waits():
        keeps, found = Keeps(toy_steps.on(device, torch.ones(1))), []
        step = gapless.capture(keeps, device=device)
        for now, batch in enumerate(gapless.prefetch([torch.ones(1)] * 8, device)):
            if now == number:
                keeps.kept = other()
            found.append(toy_steps.read_back(device, step(batch)).tolist())
    return found, step.report


@scenario(only=ONE)
def a_kept_tensor_that_is_on_the_host_when_it_is_captured(device):
    """A graph could not leave it there; the step runs as written."""
    found, report = call_with_another_kept_tensor(device, 2, lambda: torch.full((1,), 3.0))
    assert found == [[float(number)] for number in range(1, 9)]
    assert report.refusal.kind == "keeps_unknown"


@scenario(only=ONE)
def a_kept_tensor_of_another_shape(device):
    """Its graph is not replayed."""
    found, report = call_with_another_kept_tensor(
        device, 5, lambda: toy_steps.on(device, torch.full((2,), 6.0))
    )
    assert found == [[float(number)] * (1 + (number > 5)) for number in range(1, 9)]
    assert report.num_replays > 0


class CountsAndReads:
    """Counts on the host, and reads a value of the device."""

    count = 0

    def __call__(self, batch):
        self.count += 1
        batch.item()
        return batch * 2.0


@scenario(only=ONE)
def a_step_that_is_refused_for_two_reasons(device):
    """Both are told, so that both can be mended at once."""
    counts = CountsAndReads()
    with device.allow_waits():
        step = gapless.capture(counts, device=device)
        for batch in gapless.prefetch([torch.ones(1)] * 4, device):
            step(batch)
    assert {refusal.kind for refusal in step.report.refusals} == {"host_write", "host_read"}
    assert counts.count == 4


@dataclass(slots=True)
class Slotted:
    """A batch without a dict of its own."""

    x: torch.Tensor


def doubled_in_place_of(batch):
    """Put another tensor into a batch."""
    batch.x = batch.x * 2.0
    return batch.x.clone()


@scenario(only=ONE)
def a_batch_that_cannot_be_changed_again(device):
    """Its parts are in slots."""
    refusal = refusal_of(
        device, doubled_in_place_of, lambda number: Slotted(torch.full((1,), float(number)))
    )
    assert refusal.kind == "changes_batch"


def fails(*_, **settings):
    """Fail as a device does."""
    raise RuntimeError("mine")


@scenario(only=ONE)
def a_device_that_cannot_capture(device):
    """The error is what the report says."""
    device.capture = fails
    refusal = refusal_of(device, lambda batch: batch * 2.0)
    assert refusal.kind == "capture_failed"
    assert "mine" in refusal.text


@scenario(only=ONE)
def a_graph_that_cannot_be_replayed(device):
    """It fails where it is proved, and the batch is trained on as written."""
    capture = device.capture

    def capture_what_fails(work, **settings):
        graph = capture(work, **settings)
        graph.parts.append(fails)
        return graph

    device.capture = capture_what_fails
    refusal = refusal_of(device, lambda batch: batch * 2.0)
    assert refusal.kind == "capture_failed"
    assert "mine" in refusal.text


class TrainsByAClosure(toy_steps.Training):
    """Its optimizer calls the model."""

    def step(self, batch):
        def closure():
            self.optimizer.zero_grad()
            return self.add_gradients(batch)

        return self.optimizer.step(closure)


class TrainsByAClosureWithHooks(TrainsByAClosure):
    """Hooks of an optimizer run before the model that it calls."""

    def __init__(self, device):
        super().__init__(device)
        self.optimizer.register_step_post_hook(lambda *_: None)


@scenario(only=ONE)
def an_update_with_a_closure_and_hooks(device):
    """No graph can hold it."""
    check_case(device, kind=TrainsByAClosureWithHooks, expected=(0, 0, "update"))


class TrainsByAClosureAndAddsHooks(TrainsByAClosure):
    """The hooks come after all warm-up runs."""

    def before(self, number):
        if number == 2:
            self.optimizer.register_step_post_hook(lambda *_: None)


@scenario(only=ONE)
def an_update_that_gets_hooks_before_it_is_captured(device):
    """It is refused where it is captured."""
    check_case(device, kind=TrainsByAClosureAndAddsHooks, expected=(0, 0, "capture_failed"))


def doubled_after_a_draw(batch):
    """Draw a random number on the host."""
    torch.rand(1)
    return batch * 2.0


@scenario(only=ONE)
def a_step_that_draws_random_numbers_on_the_host(device):
    """A replay would not draw them again."""
    refusal = refusal_of(device, doubled_after_a_draw)
    assert refusal.kind == "host_write"
    assert refusal.name == "random numbers of torch"


NUMBERS = iter([2.0] * 99)


def scaled_by_an_iterator(batch):
    """Take the next number of one that lasts from call to call."""
    return batch * next(NUMBERS)


@scenario(only=ONE)
def a_step_that_reads_an_iterator(device):
    """Where it stands is not compared."""
    refusal = refusal_of(device, scaled_by_an_iterator)
    assert refusal.kind == "capture_failed"
    assert refusal.name == "NUMBERS (list_iterator)"


def raising(base, name):
    """Return an object that raises where it is looked at, and has a rate."""

    def raises(*_):
        raise RuntimeError("not known")

    attribute = property(raises) if name == "__class__" else raises
    return type("Raising", (base,), {name: attribute, "rate": 2.0})()


@scenario(only=ONE)
def a_step_whose_object_raises_when_it_is_looked_at(device):
    """The error is none of the loop's."""
    held = raising(list, "__len__")
    assert refusal_of(device, lambda batch: batch * held.rate).kind == "unreadable"


@scenario(only=ONE)
def a_step_whose_object_raises_when_guards_are_made(device):
    """It has run by then, and its result is the loop's."""
    held = raising(dict, "__iter__")
    assert refusal_of(device, lambda batch: batch * [held][0].rate).kind == "unreadable"


def doubled_by_new_code(batch):
    """Make a function, and call it."""
    return eval("lambda rows: rows * 2.0")(batch)


@scenario(only=ONE)
def a_step_that_makes_code_in_each_call(device):
    """To watch each call would make all of them slower."""
    step = gapless.capture(doubled_by_new_code, device=device)
    for batch in gapless.prefetch([torch.ones(1)] * 14, device):
        step(batch)
    assert step.report.num_eager == 14
    assert "makes new code in each call" in step.report.refusal.text


class HasARateOnTheDevice(toy_steps.Training):
    """Its optimizer reads the rate on the device."""

    def __init__(self, device):
        super().__init__(device)
        rate = toy_steps.on(device, torch.tensor(0.05))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=rate, fused=True)


@scenario(only=ONE)
def an_update_by_a_rate_on_the_device_is_part_of_the_graph(device):
    """Nothing of it is left to the host."""
    graphs, capture = [], device.capture

    def capture_and_note(work, **settings):
        graphs.append(capture(work, **settings))
        return graphs[-1]

    device.capture = capture_and_note
    check_case(device, kind=HasARateOnTheDevice, expected=(1, 9, None))
    assert [len(graph.parts) for graph in graphs] == [1]


@scenario(only=ONE)
def numbers_that_stay_for_two_calls_end_watching(device):
    """None of them comes again, so none would be replayed; the number is named."""
    step = gapless.capture(lambda x, weight: x * weight, device=device)
    numbers = [number // 2 / 100 for number in range(80)]
    for x, weight in gapless.prefetch([(torch.ones(1), number) for number in numbers], device):
        step(x, weight)
    assert step.report.num_replays == 0
    assert "argument 'weight' (float) differs" in str(step.report.refusal)
