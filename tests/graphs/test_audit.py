"""Graphs in use are compared with the step as written, and dropped where they differ."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
from itertools import pairwise

import pytest
import torch

import gapless
from gapless.graphs import audit
from gapless.graphs.account import Account
from gapless.graphs.audit import FIRST_BLOCK, FREE_INTERLUDES, LONGEST_BLOCK, Audits
from gapless.graphs.capture_report import CaptureReport
from gapless.graphs.interludes import note_interlude
from gapless.graphs.proof import same_results
from gapless.loop.train_loop import TrainLoop
from gapless.testing.simulated.simulated_device import SimulatedDevice
from toy_steps import Training, batches, on, read_back


pytestmark = pytest.mark.quick_tests(16)


@pytest.fixture(params=["asap", "lazy"])
def device(request):
    with SimulatedDevice(scheduler=request.param) as device, device.allow_waits():
        yield device


@pytest.fixture
def schedule(monkeypatch):
    """Audit as users do who say nothing, at the same places in each run."""
    monkeypatch.setattr(audit, "DEFAULT_EVERY", None)
    monkeypatch.setattr(audit._Process, "num_objects", 0)


class Patched(Training):
    """Reads a function that no guard compares."""

    def step(self, batch):
        return super().step(batch) * math.cos(1.0)


class Keeps(Training):
    """Draws random numbers, keeps a tensor from call to call, and adds up gradients."""

    def __init__(self, device):
        super().__init__(device)
        self.model[2].p = 0.5
        self.last = device.device_buffer(4).view(torch.float32).fill_(1.0)[0]
        self.num = torch.zeros_like(self.last)

    def step(self, batch):
        loss = super().step(batch) * self.last
        self.last = loss.detach() * 0.5 + 1
        self.num += 1
        return loss


def train(kind, device, num, *, captured, at=None, change=None, **options):
    """Return what is seen of some calls, and the captured step."""
    torch.manual_seed(0)
    training, seen = kind(device), []
    step = gapless.capture(training.step, device=device, **options) if captured else training.step
    batches = (training.data * (1 + num // len(training.data)))[:num]
    for number, batch in enumerate(gapless.prefetch(batches, device)):
        if number == at:
            change(training)
        loss = step(batch)
        tensors = [loss, *training.model.parameters()]
        tensors += [weight.grad for weight in training.model.parameters()]
        tensors += [part["momentum_buffer"] for part in training.optimizer.state.values()]
        tensors += [getattr(training, name) for name in ("last", "num") if hasattr(training, name)]
        seen.append([read_back(device, tensor).tolist() for tensor in tensors])
        seen.append(torch.rand(2).tolist() if number % 7 == 3 else [])
    return seen, step


@pytest.mark.parametrize("kind", [Training, Keeps])
@pytest.mark.parametrize("every", [1, 3])
def test_an_audit_is_one_call_of_the_step(device, kind, every):
    """All that the loop can see goes on as in the loop as written, and no audit finds anything."""
    expected, _ = train(kind, device, 30, captured=False)
    found, step = train(kind, device, 30, captured=True, audit_every=every)

    assert found == expected
    audits = step.report.audits
    assert audits.num_equal >= audits.num - 1 > 1
    assert audits.differences == []
    assert step.report.num_replays == 0 if every == 1 else step.report.num_replays > 0


def test_with_an_audit_at_every_call_nothing_is_other_than_as_written(device, monkeypatch):
    cos = math.cos

    def change(_):
        monkeypatch.setattr(math, "cos", lambda x: cos(x) * 2)

    expected, _ = train(Patched, device, 30, captured=False, at=15, change=change)
    monkeypatch.setattr(math, "cos", cos)
    with pytest.warns(gapless.CaptureWarning, match=r"audit found a difference in call 16"):
        found, step = train(
            Patched, device, 30, captured=True, at=15, change=change, audit_every=1
        )

    assert found == expected
    (text,) = step.report.audits.differences
    assert "was in call 15" in text or "was in call 14" in text
    assert text in str(step.report)
    # It was captured anew, and holds from then on.
    assert step.report.num_graphs == 2
    assert step.report.refusals == []


@pytest.mark.parametrize("at", [10, 13])
def test_memory_that_a_step_begins_to_write_is_told_in_one_of_two_audits(device, monkeypatch, at):
    """No result of a call tells of it."""
    cos, counter = math.cos, device.device_buffer(8).view(torch.int64).zero_()

    def change(_):
        monkeypatch.setattr(math, "cos", lambda x: counter.add_(1) is counter and cos(x))

    with pytest.warns(gapless.CaptureWarning, match="another one in each call"):
        _, step = train(
            Patched, device, at + 8, captured=True, at=at, change=change, audit_every=3
        )
    assert read_back(device, counter) >= 2
    assert [one.kind for one in step.report.refusals] == ["replaced_tensor"]


def test_a_change_that_stays_is_found_within_two_blocks(device, schedule, monkeypatch):
    cos = math.cos

    def change(_):
        monkeypatch.setattr(math, "cos", lambda x: cos(x) * 2)

    with pytest.warns(gapless.CaptureWarning, match="audit found a difference"):
        _, step = train(Patched, device, 400, captured=True, at=200, change=change)
    (text,) = step.report.audits.differences
    found = int(text.split("in call ")[1].split(":")[0].replace(",", ""))
    assert 200 < found <= 200 + 2 * step.report.audits.block


def test_a_second_difference_refuses_the_call(device, monkeypatch):
    """Each change stays, so that the graph that is captured after the first one passes its proof."""
    cos, seen = math.cos, []

    def run(*, captured):
        monkeypatch.setattr(math, "cos", cos)
        torch.manual_seed(0)
        training = Patched(device)
        step = training.step
        if captured:
            step = gapless.capture(step, device=device, audit_every=1)
        found = []
        batches = (training.data * 4)[:40]
        for number, batch in enumerate(gapless.prefetch(batches, device)):
            if number in (10, 25):
                monkeypatch.setattr(math, "cos", lambda _, value=float(number): value)
            found.append(read_back(device, step(batch)).tolist())
        seen.append(found)
        return step

    run(captured=False)
    with pytest.warns(gapless.CaptureWarning, match="audit found a difference"):
        step = run(captured=True)

    assert seen[0] == seen[1]
    assert len(step.report.audits.differences) == 2
    assert step.report.refusal is not None
    assert step.report.refusal.kind == "proved_wrong"
    assert step.report.num_graphs == 2


def flip(training):
    training.model.eval()
    training.model.train()


def save_and_load(training):
    training.model.load_state_dict(training.model.state_dict())


@pytest.mark.parametrize(
    ("happens", "is_one"),
    [
        (lambda _: note_interlude(), True),
        (flip, True),
        (lambda training: training.model.state_dict(), True),
        (lambda training: training.optimizer.state_dict(), True),
        (save_and_load, True),
        (lambda training: training.model.train(), False),  # the mode that it is in
        (lambda _: None, False),
    ],
)
def test_an_interlude_brings_an_audit(device, schedule, happens, is_one):
    """What is changed and changed back between two calls is compared, though no guard sees it."""
    training = Training(device)
    step = gapless.capture(training.step, device=device)
    loader = iter(gapless.prefetch(training.data, device))
    for _, batch in zip(range(11), loader, strict=False):
        read_back(device, step(batch))
    before = step.report.audits.num
    happens(training)
    step(next(loader))

    assert step.report.num_graphs == 1
    assert step.report.audits.num == before + is_one


def test_what_comes_before_each_call_is_no_interlude(device, schedule):
    """Such as an average of weights that a loop makes from a state dict."""
    training = Training(device)
    step = gapless.capture(training.step, device=device)
    for batch in gapless.prefetch(training.data * 10, device):
        training.model.state_dict()
        read_back(device, step(batch))

    # In 32 replays, and 64 or their part.
    assert 1 <= step.report.audits.num <= 3


class ModesInside(Training):
    """Sets the mode of its model, and reads a state dict, itself."""

    def step(self, batch):
        self.model.eval()
        self.model.train()
        loss = super().step(batch)
        return loss + self.model.state_dict()["0.weight"].sum()


def test_modes_and_states_within_a_step_are_a_part_of_it(device, schedule):
    """They are captured as ever, and no interlude."""
    expected, _ = train(ModesInside, device, 80, captured=False)
    found, step = train(ModesInside, device, 80, captured=True)

    assert found == expected
    assert (step.report.num_graphs, step.report.refusals) == (1, [])
    assert 1 <= step.report.audits.num == step.report.audits.num_equal <= 2


def test_an_epoch_of_the_loop_is_an_interlude(device, schedule):
    """Each brings an audit, but no more than one in so many calls."""
    training = Training(device)
    with TrainLoop(plan="captured", device=device) as loop:
        for _ in range(3):
            loop.run_epoch(training.data[:8], training.step)

    assert loop.capture_report.audits.num == 1


def test_patched_methods_are_what_they_were(device, schedule):
    """Torch compiles calls of them, subclasses have them, and errors show none of ours."""

    class Own(torch.nn.Linear):
        num_calls = 0

        def train(self, mode=True):
            self.num_calls += 1
            return super().train(mode)

    step = gapless.capture(Training(device).step, device=device)
    assert hasattr(torch.nn.Module.train, "__wrapped__")
    for kind, name in [
        *((torch.nn.Module, name) for name in ("train", "state_dict", "load_state_dict")),
        *((torch.optim.Optimizer, name) for name in ("state_dict", "load_state_dict")),
    ]:
        now = getattr(kind, name)
        before = now.__wrapped__
        assert inspect.signature(now) == inspect.signature(before)
        assert (now.__qualname__, now.__doc__) == (before.__qualname__, before.__doc__)
        assert pickle.loads(pickle.dumps(now)) is now
    model = torch.nn.Sequential(Own(2, 2), torch.nn.Dropout(0.5))

    def modes(x):
        model.train()
        y = model(x)
        model.eval()
        return y + model(x) + model.state_dict()["0.weight"]

    compiled = torch.compile(modes, fullgraph=True, backend="eager")
    assert compiled(torch.ones(2, 2)).shape == (2, 2)
    num_calls = model[0].num_calls
    assert model.train() is model
    assert model[0].num_calls == num_calls + 1
    assert copy.deepcopy(model).eval().training is False
    with pytest.raises(RuntimeError, match="Missing key") as failed:
        model.load_state_dict({})
    assert not [one for one in failed.traceback if one.path.name == "interludes.py"]
    del step


@pytest.mark.parametrize("every", [1, 2])
def test_evaluation_has_graphs_of_its_own_that_are_audited(device, every):
    """Without gradients, in the mode of evaluation, with random numbers of its own."""

    def losses(*, captured):
        torch.manual_seed(0)
        training, seen = Keeps(device), []

        @torch.no_grad()
        def evaluate(batch):
            return training.loss_of(batch), torch.rand_like(batch)

        step, options = training.step, {"device": device, "audit_every": every}
        if captured:
            step = gapless.capture(step, **options)
            evaluate = gapless.capture(evaluate, **options)
        for _ in range(2):
            for function in (step, evaluate):
                training.model.train(function is step)
                for batch in gapless.prefetch(training.data, device):
                    out = function(batch)
                    out = [out] if function is step else out
                    seen.append([read_back(device, one).tolist() for one in out])
        return seen, evaluate, step

    expected, *_ = losses(captured=False)
    found, evaluate, step = losses(captured=True)

    assert found == expected
    for one in (evaluate, step):
        audits = one.report.audits
        assert (one.report.refusals, audits.differences) == ([], [])
        assert 1 < audits.num <= audits.num_equal + 1


@pytest.mark.parametrize("every", [1, 2])
def test_a_module_in_place_is_audited_in_training_and_in_evaluation(device, every):
    """Its graphs of both kinds, and the updates between, have the bits of the loop as written."""

    def losses(*, captured):
        torch.manual_seed(0)
        training, seen = Training(device), []
        training.model[2].p = 0.5
        if captured:
            gapless.capture(training.model, training.optimizer, device=device, audit_every=every)
        for epoch in range(4):
            is_training = epoch % 2 == 0
            training.model.train(is_training)
            with torch.set_grad_enabled(is_training):
                for batch in gapless.prefetch(training.data, device):
                    loss = training.step(batch) if is_training else training.loss_of(batch)
                    seen.append(read_back(device, loss.detach()).tolist())
        weights = [read_back(device, one).tolist() for one in training.model.parameters()]
        return (seen, weights), training

    expected, _ = losses(captured=False)
    found, training = losses(captured=True)

    assert found == expected
    for one in (training.model, training.optimizer):
        report = gapless.capture_report(one)
        assert (report.refusals, report.audits.differences) == ([], [])
        # The last of each graph may not have arrived.
        assert 1 < report.audits.num <= report.audits.num_equal + 2
    assert gapless.capture_report(training.model).num_graphs == 2


class Validates(Training):
    """One function for both, whose graphs take turns."""

    def step(self, batch):
        return super().step(batch) if torch.is_grad_enabled() else self.loss_of(batch)


def test_graphs_of_one_function_that_take_turns_are_audited(device, schedule):
    """Each at its first replay after the other's, but no more than one in so many calls."""
    expected, found = [], []
    for seen, captured in ((expected, False), (found, True)):
        training = Validates(device)
        step = gapless.capture(training.step, device=device) if captured else training.step
        for epoch in range(24):
            with torch.set_grad_enabled(epoch % 2 == 0):
                for batch in gapless.prefetch(training.data[:4], device):
                    seen.append(read_back(device, step(batch)).tolist())

    assert found == expected
    audits = step.report.audits
    assert (step.report.refusals, audits.differences) == ([], [])
    # At two interludes two each, and in blocks of 32, and 64 or their part.
    assert 1 <= audits.num <= 8


# --- when ---


def turns(num, *, every=None):
    """Return the numbers of replays that are audits, all of which are good."""

    class Graph:
        pass

    report = CaptureReport()
    audits, graph = Audits(report, every=every, account=Account(lambda: 0.0)), Graph()
    found = []
    for number in range(num):
        audits.begin_call()
        audits.forget_call()
        if audits.turn_of(graph).is_due():
            found.append(number)
            audits.begin(None, graph, None)
            audits.end_good(audits.open)
    return found


def test_audits_come_once_in_each_block(schedule):
    for _ in range(20):
        found = turns(10_000)
        start, block = 0, FIRST_BLOCK
        for number in found:
            assert start <= number < start + block
            start, block = start + block, min(2 * block, LONGEST_BLOCK)


def test_their_places_differ_from_object_to_object(schedule):
    assert len({tuple(turns(2_000)) for _ in range(10)}) > 1


def test_they_come_as_often_as_was_asked_for():
    assert turns(10, every=1) == list(range(10))
    assert turns(10, every=3) == [2, 5, 8]


def test_gaps_calls_of_others_and_what_is_noted_are_interludes(schedule):
    now = [0.0]

    class Graph:
        pass

    def made():
        report = CaptureReport()
        return Audits(report, every=None, account=Account(lambda: now[0])), Graph()

    (one, graph), (other, _) = made(), made()
    one.turn_of(graph)

    def call(audits):
        audits.begin_call()
        audits.forget_call()

    def interludes(num, *, ms=10.0, others=0):
        """Return how many counted in so many calls."""
        found = set()
        for _ in range(num):
            now[0] += ms
            for _ in range(others):
                call(other)
            call(one)
            found.add(one.num_interludes)
        return max(found) - counted[0]

    counted = [0]

    def count(num, **how):
        found = interludes(num, **how)
        counted[0] += found
        return found

    assert count(3 * FIRST_BLOCK) == 0
    assert count(1, ms=400.0) == 0  # less than a second
    assert count(1, ms=2_000.0) == 1
    assert count(1, ms=2_000.0) == 0  # at most one in so many calls
    count(FIRST_BLOCK)
    assert count(1, others=1) == 1
    count(FIRST_BLOCK, others=1)
    assert count(FIRST_BLOCK, others=1) == 0
    note_interlude()
    assert count(1, others=1) == 1

    # What happens again and again counts sixteen times, and once more for each thousand calls.
    for _ in range(FREE_INTERLUDES):
        count(2 * FIRST_BLOCK)
        count(1, others=1)
    assert counted[0] == FREE_INTERLUDES + 1
    for _ in range(3):
        count(LONGEST_BLOCK)
        count(1, others=1)
    assert counted[0] == FREE_INTERLUDES + 4


def audits_after_an_interlude(device, kind, calls):
    """Return which of these calls, behind many like them and an interlude, are audits of a captured step.

    A call is a batch and whether gradients are on.
    """
    training = kind(device)
    step = gapless.capture(training.step, device=device)

    def run(batch, grad):
        before = step.report.audits.num
        with torch.set_grad_enabled(grad):
            read_back(device, step(on(device, batch)))
        return step.report.audits.num - before

    for batch, grad in calls:
        for _ in range(2 * FIRST_BLOCK):
            run(batch, grad)
    note_interlude()
    found = [run(batch, grad) for batch, grad in calls for _ in range(3)]
    assert step.report.num_graphs >= len(calls)
    assert step.report.audits.differences == []
    return found


def test_of_graphs_for_several_shapes_one_is_audited_after_an_interlude(device, schedule):
    """What its code reads is what the others read; behind an audit one call runs as written."""
    calls = [(batch, True) for batch in batches(4, 2, 6)]
    assert audits_after_an_interlude(device, Training, calls) == [1] + [0] * 8


def test_a_graph_of_what_another_does_not_read_is_audited_itself(device, schedule):
    """Training and validation by one function: guards of one do not hold for the other."""
    (batch,) = batches(4)
    calls = [(batch, True), (batch, False)]
    assert audits_after_an_interlude(device, Validates, calls) == [1, 0, 0, 1, 0, 0]


def test_a_graph_that_never_has_its_turn_is_audited_in_two_blocks(schedule):
    """Of two graphs of the same code the places may all come at calls of the other."""
    report = CaptureReport()
    audits = Audits(report, every=None, account=Account(lambda: 0.0))
    often, rarely = lambda: None, lambda: None
    found, num_rare = [], 0
    for number in range(80_000):
        graph = rarely if number % 16 == 15 else often
        num_rare += graph is rarely
        if audits.turn_of(graph).is_due():
            if graph is rarely:
                found.append(num_rare)
            audits.begin(None, graph, None)
            audits.end_good(audits.open)
    assert report.audits.block == LONGEST_BLOCK
    assert len(found) > 1
    assert all(after - before <= 2 * LONGEST_BLOCK + 1 for before, after in pairwise([0, *found]))


def test_what_needs_more_memory_than_there_is_ends_audits(device, monkeypatch):
    _, step = train(Training, device, 8, captured=True, audit_every=4)

    asked = []

    def finds_no_memory(*args, **how):
        asked.append(how)
        raise same_results.NotProved("no memory for a copy")

    monkeypatch.setattr("gapless.graphs.proof.trial.prove", finds_no_memory)
    expected, _ = train(Training, device, 30, captured=False)
    found, step = train(Training, device, 30, captured=True, audit_every=4)
    assert found == expected
    assert step.report.audits.num == 0
    assert step.report.note == "no further audits: no memory for a copy"
    assert len(asked) == 2  # by the proof, and by one audit
    assert step.report.num_replays > 20
